"""CP-SAT in a process of its own: whatever becomes of it, there is an answer, in time."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from ortools.sat.python import cp_model

from hgpart.partition.exact import cp_sat
from hgpart.partition.exact.cp_sat import Answer, Solver

CHILD = cp_sat.CHILD
FINDS = (
    "import os, sys, time; from array import array; from multiprocessing.connection import "
    "Connection; connection = Connection(int(sys.argv[1])); connection.recv(); "
    "connection.send(array('q', [7])); "
)


def program(most: int, least: int) -> cp_model.CpModel:
    """The least number from 0 to `most` that is at least `least`."""
    model = cp_model.CpModel()
    number = model.new_int_var(0, most, "")
    model.add(number >= least)
    model.minimize(number)
    return model


def settings() -> cp_model.SatParameters:
    one_worker = cp_model.SatParameters()
    one_worker.num_workers = 1
    return one_worker


def answer(seconds: float = math.inf) -> Answer:
    with Solver() as solver:
        return solver.solve(program(9, 7), settings(), time.monotonic() + seconds)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What is written here runs in the place of CP-SAT."""
    monkeypatch.setattr(cp_sat, "CHILD", tmp_path / "child.py")
    return tmp_path / "child.py"


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Ctrl-C in half a second; a runner in the background ignores it else."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    yield
    timer.join()
    signal.signal(signal.SIGINT, before)


def test_one_process_solves_several_programs() -> None:
    with Solver() as solver:
        for least in (7, 10, 3):
            solved = solver.solve(program(9, least), settings(), math.inf)
            assert solved.status == ("INFEASIBLE" if least > 9 else "OPTIMAL")
            if least <= 9:
                assert solved.solutions[-1].tolist() == [least] == [solved.bound]


def test_what_is_no_program_is_said() -> None:
    empty = cp_model.CpModel()
    empty.proto.variables.add()  # without a domain
    with Solver() as solver:
        assert solver.solve(empty, settings(), math.inf).status == "MODEL_INVALID"


def test_its_process_does_not_wait_for_torch_or_pandas(child: Path) -> None:
    tries = "print([name for name in ('torch', 'pandas', 'numpy') if name in sys.modules])"
    child.write_text(f"import runpy, sys; runpy.run_path({str(CHILD)!r})['main'](); {tries}")
    with Solver() as solver:
        assert solver.solve(program(9, 7), settings(), math.inf).status == "OPTIMAL"
        solver._connection.close()
        solver._process.wait()
        solver._said.seek(0)
        assert solver._said.read() == b"[]\n"


def test_what_it_found_before_it_died_counts(
    child: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "F00 x.cc:1] Check failed: a == b\n    @ 0x55dbd3e1\n"
    child.write_text(f"{FINDS} os.write(2, {said.encode()}); os.abort()")
    assert answer() == Answer("FEASIBLE", [array("q", [7])], None, interrupted=False)
    assert capsys.readouterr().err == (
        "hgpart: warning: CP-SAT was ended by SIGABRT, so that less is known of how good the "
        "partition is; it said: F00 x.cc:1] Check failed: a == b\n"
    )


def test_what_cannot_even_begin_is_a_warning(
    child: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child.write_text("raise ImportError('no ortools')")
    assert answer() == Answer("UNKNOWN", [], None, interrupted=False)
    assert "CP-SAT ended with status 1" in (warning := capsys.readouterr().err)
    assert warning.endswith("it said: ImportError: no ortools\n")


def test_a_search_that_does_not_keep_to_its_time_is_ended(
    child: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cp_sat, "LATE", 0.2)
    child.write_text(f"{FINDS} time.sleep(600)")
    assert answer(0.5) == Answer("FEASIBLE", [array("q", [7])], None, interrupted=False)
    assert capsys.readouterr().err == ""


def test_ctrl_c_ends_what_takes_no_notice_of_it(
    child: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    interrupted: None,
) -> None:
    monkeypatch.setattr(cp_sat, "LATE", 0.2)
    child.write_text(
        f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {FINDS} time.sleep(600)"
    )
    assert answer() == Answer("FEASIBLE", [array("q", [7])], None, interrupted=True)
    assert capsys.readouterr().err == ""


def test_ctrl_c_before_the_search_begins_ends_it(child: Path, interrupted: None) -> None:
    child.write_text("import time; time.sleep(600)")
    assert answer() == Answer("UNKNOWN", [], None, interrupted=True)
