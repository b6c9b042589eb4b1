"""Code -> a process of our own: it imports what this one does, and ends with it.

It is given this process's `sys.path`. With `python -c` the present folder would be searched first,
and whatever lies there would replace an installed module of its name.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
ENDING = 3.0  # seconds between SIGTERM and SIGKILL, and the most that are waited after that
BEGIN = "from hgpart.processes import end_with; end_with(int(sys.argv.pop(1)))"


class OwnProcess(subprocess.Popen[bytes]):
    """Python with some code, whose ``sys.argv[1:]`` are the arguments.

    It ends with this process; on Linux, even with the thread that starts it.

    Parameters
    ----------
    apart : bool
        Whether it has a session of its own: then the terminal's Ctrl-C does not reach it, and
        what it starts ends with it.
    options
        Options of `subprocess.Popen`.
    """

    def __init__(
        self, code: str, arguments: Sequence[str] = (), *, apart: bool = False, **options: Any
    ) -> None:
        path = f"import sys; sys.path[:] = sys.argv.pop(1).split({os.pathsep!r})"
        command = [sys.executable, "-c", f"{path}; {BEGIN}; {code}"]
        command += [os.pathsep.join(sys.path), str(os.getpid()), *arguments]
        self._apart = apart
        super().__init__(command, start_new_session=apart, **options)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process and, if it is apart, to what it started."""
        if not self._apart:
            super().send_signal(sig)
            return
        with suppress(ProcessLookupError, PermissionError):  # the group is gone
            os.killpg(self.pid, sig)


def run(code: str, arguments: Sequence[str] = (), **options: Any) -> int:
    """Run an `OwnProcess` to its end, and end it if waiting ends; returns its exit status."""
    process = OwnProcess(code, arguments, **options)
    try:
        return process.wait()
    finally:
        end([process])


def end(processes: Sequence[OwnProcess]) -> None:
    """End processes by SIGTERM and, if they don't, by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            process.send_signal(number)
        deadline = time.monotonic() + ENDING
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def ending(status: int) -> str:
    """Say how a process ended, by its return code in `subprocess`.

    >>> ending(-15)
    'was ended by SIGTERM'
    """
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def end_with(parent: int) -> None:
    """End this process when its parent ends, even if that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    if os.getpgrp() == os.getpid():  # only what it has started is in its group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def end_with_starter() -> None:
    """Let a process of `multiprocessing` end with its starter (its parent is a server)."""
    threading.Thread(target=_join_starter, daemon=True).start()


def _join_starter() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os._exit(1)
