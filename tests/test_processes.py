"""Processes that are started import what their parent does, wherever they are started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hgpart.processes import OwnProcess, end, run


def test_what_lies_in_the_present_folder_is_not_imported(tmp_path: Path) -> None:
    """`hgpart recommend` in a checkout took its sources for the installed package, and failed."""
    for name in ("hgpart", "colorsys"):
        tmp_path.joinpath(name).mkdir()
        tmp_path.joinpath(name, "__init__.py").write_text("raise ImportError('of the folder')")
    code = "import colorsys, hgpart; print(colorsys.__file__, hgpart.__file__, sys.argv[1:])"
    process = OwnProcess(code, ["more"], cwd=tmp_path, stdout=subprocess.PIPE)
    printed = process.communicate()[0].decode()
    assert process.returncode == 0
    assert str(tmp_path) not in printed
    assert printed.endswith("['more']\n")


def test_it_ends_with_a_parent_that_is_killed() -> None:
    sleep = "import time; time.sleep(60)"
    parent = OwnProcess(
        f"from hgpart.processes import OwnProcess; child = OwnProcess({sleep!r}); "
        "print(child.pid, flush=True); child.wait()",
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert ends(child)


def test_what_takes_no_notice_of_sigterm_is_killed_and_what_it_started_with_it() -> None:
    process = OwnProcess(
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)",
        apart=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    end([process])
    assert process.returncode == -signal.SIGKILL
    assert ends(child)
    process.stdout.close()


def test_the_exit_status_is_returned() -> None:
    assert run("sys.exit(7)") == 7


def test_one_that_is_waited_for_ends_with_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[OwnProcess] = []
    wait = OwnProcess.wait

    def interrupted_at_first(process: OwnProcess, timeout: float | None = None) -> int:
        waited.append(process)
        if timeout is None:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(OwnProcess, "wait", interrupted_at_first)
    with pytest.raises(KeyboardInterrupt):
        run("import time; time.sleep(60)")
    assert waited[0].returncode == -signal.SIGTERM


@pytest.mark.parametrize("apart", [False, True])
def test_ctrl_c_reaches_what_is_not_apart(apart: bool) -> None:
    process = OwnProcess("import os; print(os.getsid(0))", apart=apart, stdout=subprocess.PIPE)
    session = int(process.communicate()[0])
    assert session == (process.pid if apart else os.getsid(0))


def ends(process: int) -> bool:
    """Whether a process that is no child of ours ends, before long."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if ") Z " in Path(f"/proc/{process}/stat").read_text():
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False
