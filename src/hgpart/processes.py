"""Code -> a process of our own: it imports what this one does, and ends with it.

It is given this process's `sys.path`: of `python -c` the present folder would be the first that is
searched, and whatever lies there would take the place of an installed module of its name.
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
ENDING = 3.0  # seconds from SIGTERM to SIGKILL, and at most as many to be gone after it
BEGIN = "from hgpart.processes import end_with; end_with(int(sys.argv.pop(1)))"


class OwnProcess(subprocess.Popen[bytes]):
    """Python with some code, in which ``sys.argv[1:]`` are the arguments.

    It ends with this process; on Linux with the thread that starts it, if that ends before.

    Parameters
    ----------
    code : str
    arguments : sequence of str
    apart : bool
        Whether it has a session of its own, in which the terminal's Ctrl-C does not reach it, and
        what it starts ends with it.
    options
        Of `subprocess.Popen`.
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
        """Send a signal to it and, if it is apart, to what it started, which may outlive it."""
        if not self._apart:
            super().send_signal(sig)
            return
        with suppress(ProcessLookupError, PermissionError):  # there is none any more
            os.killpg(self.pid, sig)


def run(code: str, arguments: Sequence[str] = (), **options: Any) -> int:
    """Wait for an `OwnProcess`, which ends with the wait; returns its exit status."""
    process = OwnProcess(code, arguments, **options)
    try:
        return process.wait()
    finally:
        end([process])


def end(processes: Sequence[OwnProcess]) -> None:
    """End processes: by SIGTERM and, if they do not, by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            process.send_signal(number)
        deadline = time.monotonic() + ENDING
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


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
    if os.getpgrp() == os.getpid():  # what it has started is in its group, and nobody else
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def end_with_starter() -> None:
    """The same for one of `multiprocessing`, whose parent is a server and not who started it."""
    threading.Thread(target=_join_starter, daemon=True).start()


def _join_starter() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os._exit(1)
