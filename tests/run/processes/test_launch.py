"""Processes on this machine: how they begin, and that none is left whatever happens.

The programs here do not import torch, so that they start at once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from hgpart.cores import usable_cores
from hgpart.errors import ArgumentError, OutputError, RunError
from hgpart.processes import OwnProcess
from hgpart.run.processes.launch import launch

LAUNCH = """
import sys
from hgpart.run.processes.launch import launch

launch(sys.argv[2], sys.argv[3:], 2)
"""

PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path

rank, mode, folder = os.environ["RANK"], sys.argv[1], Path(sys.argv[2])
if mode == "say":
    names = "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"
    print(__name__, rank, *(os.environ[name] for name in names), *sys.argv[3:])
    (folder / rank).write_text(os.environ["OMP_NUM_THREADS"])
    print("working\\rdone " + rank, file=sys.stderr)
if mode == "wait" or (mode != "say" and rank != "1"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (folder / "written").write_text(f"{os.getpid()} {child.pid}")
    (folder / "written").rename(folder / rank)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else signal.SIG_DFL)
    time.sleep(60)
while mode != "say" and len(list(folder.glob("[02]"))) < 1:
    time.sleep(0.01)
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "plan":
    print("hgpart: error: the plan is wrong", file=sys.stderr)
    sys.exit(12)
if mode in ("raise", "stubborn"):
    raise ValueError("so it is")
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return str(file)


def fails(program, folder, mode):
    """Run it with two processes; returns the error, and the seconds that it took to end all."""
    with pytest.raises(RunError) as caught:
        launch(program, [mode, str(folder)], 2)
    assert_ended(int(pid) for pid in (folder / "0").read_text().split())
    return caught.value


def assert_ended(pids):
    """None of them runs any more (one that nobody has waited for yet does not)."""
    deadline = time.monotonic() + 5
    for pid in pids:
        while running(pid):
            assert time.monotonic() < deadline, f"process {pid} is left"
            time.sleep(0.02)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_processes_have_the_environment_of_torchrun(capfd, tmp_path, program, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    launch(program, ["say", str(tmp_path), "a b", "--c"], 3)
    out, err = capfd.readouterr()
    assert out == "__main__ 0 0 3 3 127.0.0.1 a b --c\n"
    assert err == "working\rdone 0\n"
    threads = {(tmp_path / rank).read_text() for rank in "012"}
    assert threads == {str(max(1, usable_cores() // 3))}


def test_a_module_is_run_as_python_does(capfd, monkeypatch, tmp_path, program):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    launch("program", ["say", str(tmp_path)], 1)
    assert capfd.readouterr().out == "__main__ 0 0 1 1 127.0.0.1\n"
    assert (tmp_path / "0").read_text() == "7"


@pytest.mark.full
def test_a_rank_that_is_killed_is_named_and_ends_the_others(capfd, tmp_path, program):
    error = fails(program, tmp_path, "killed")
    assert str(error).startswith("rank 1 was ended by SIGKILL")
    assert error.exit_status == RunError.exit_status
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
@pytest.mark.long
def test_one_that_does_not_end_by_itself_is_killed(capfd, tmp_path, program):
    error = fails(program, tmp_path, "stubborn")
    assert str(error) == "rank 1 ended with status 1; it said last: ValueError: so it is"
    err = capfd.readouterr().err.splitlines()
    assert err[-1] == "rank 1: ValueError: so it is"
    assert all(line.startswith("rank 1: ") for line in err)


def test_the_error_line_of_a_rank_becomes_the_launchers(capfd, tmp_path, program):
    error = fails(program, tmp_path, "plan")
    assert str(error) == "rank 1: the plan is wrong"
    assert error.exit_status == 12
    assert capfd.readouterr() == ("", "")


def test_rank_0_does_not_say_its_error_twice(capfd, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import sys\n"
        "print('at work', file=sys.stderr)\n"
        "print('hgpart: error: rank 5 is gone', file=sys.stderr)\n"
        "sys.exit(14)\n"
    )
    with pytest.raises(RunError, match=r"^rank 5 is gone$"):
        launch(str(file), [], 1)
    assert capfd.readouterr() == ("", "at work\n")


def test_a_rank_that_only_noticed_is_not_the_cause(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import os, sys, time\n"
        "time.sleep(0.3 * int(os.environ['RANK']))\n"
        "print('hgpart: error: of', os.environ['RANK'], file=sys.stderr)\n"
        "sys.exit(14 if os.environ['RANK'] == '0' else 5)\n"
    )
    with pytest.raises(RunError, match=r"^rank 1: of 1$"):
        launch(str(file), [], 2)


def test_a_reader_that_has_enough_is_no_failure(tmp_path):
    """hgpart train | head: rank 0 ends without a word, and the launcher said that it had failed."""
    file = tmp_path / "program.py"
    file.write_text("import sys\nprint('hgpart: warning: so', file=sys.stderr)\nsys.exit(11)\n")
    with pytest.raises(OutputError, match="nobody reads what rank 0 prints"):
        launch(str(file), [], 1)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_no_process_outlives_its_launcher(tmp_path, program, number):
    arguments = [sys.executable, "-c", LAUNCH, "", program, "wait", str(tmp_path)]
    launcher = subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    pids = []
    for rank in "01":
        while not (tmp_path / rank).exists():
            assert launcher.poll() is None
            time.sleep(0.02)
        pids.append((tmp_path / rank).read_text().split())
    launcher.send_signal(number)
    _, err = launcher.communicate(timeout=30)
    ranks, children = zip(*pids, strict=True)
    assert_ended(map(int, ranks))
    if number == signal.SIGINT:
        assert_ended(map(int, children))
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert "rank" not in err.partition("KeyboardInterrupt")[2]
    for child in children:  # those that the ranks started may outlive a launcher that is killed
        if running(child):
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.full
def test_rank_0_has_the_launchers_terminal(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "Path(sys.argv[1], os.environ['RANK']).write_text(str(sys.stderr.isatty()))\n"
        "print('\\u2501 100%', file=sys.stderr)\n"
    )
    master, terminal = os.openpty()
    arguments = [sys.executable, "-c", LAUNCH, "", str(file), str(tmp_path)]
    subprocess.run(arguments, cwd=tmp_path, stderr=terminal, check=True, timeout=60)
    os.close(terminal)
    shown = "\x1b[?25h"  # the cursor, which a rank may have hidden as it died
    assert os.read(master, 1000).decode() == f"\u2501 100%\r\n{shown}"
    os.close(master)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["True", "False"]


def test_a_port_in_use_is_one_clear_line(monkeypatch, tmp_path, program):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(RunError, match=rf"^can't use port {port} \(Address already in use\)"):
            launch(program, ["say", str(tmp_path)], 2)
    launch(program, ["say", str(tmp_path)], 1)  # it is free again


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_what_is_no_port_is_refused(monkeypatch, port):
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(RunError, match=f"MASTER_PORT is '{port}', expected a port number"):
        launch("program.py", [], 2)


def test_no_processes_are_refused():
    with pytest.raises(ArgumentError, match="k is 0"):
        launch("program.py", [], 0)


def test_what_has_started_is_ended_when_the_rest_can_not_start(monkeypatch, tmp_path, program):
    start, started = OwnProcess, []

    def refuse_the_second(*arguments, **options):
        if started:
            raise BlockingIOError("no more processes")
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr("hgpart.run.processes.launch.OwnProcess", refuse_the_second)
    with pytest.raises(BlockingIOError):
        launch(program, ["wait", str(tmp_path)], 2)
    assert started[0].returncode == -signal.SIGTERM


@pytest.mark.full
def test_output_comes_while_the_ranks_are_at_work(tmp_path, program):
    """Nothing waits for the end: a reader of rank 0's output sees it at once."""
    file = tmp_path / "program.py"
    file.write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    arguments = [sys.executable, "-c", LAUNCH, "", str(file)]
    launcher = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    killer = threading.Timer(30, launcher.kill)
    killer.start()
    assert launcher.stdout.readline() == "begun\n"
    killer.cancel()
    launcher.kill()
    launcher.communicate()
