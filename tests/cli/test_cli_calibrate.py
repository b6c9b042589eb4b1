"""`hgpart calibrate`: a file of what this machine does, and one line of what is not accepted."""

from __future__ import annotations

import json

import pytest
from progress_lines import without_progress

from hgpart.cli import run
from hgpart.machines.machine_files import load_machine


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """One thread a process, and not as if torchrun had started the tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--processes", 1], 3, "1 processes: accepted are 2 or more, which have a link"),
        (["--threads", 0], 3, "--threads 0: accepted is 1 or more"),
        (["--timeout", 0], 3, "timeout is 0 s, expected more than 0"),
        (["--backend", "mpi"], 3, "backend 'mpi': accepted are gloo and nccl"),
        (["--backend", "nccl"], 3, "backend nccl on device cpu: accepted are GPUs"),
        (["--processes", 2, "--devices", "cpu,cpu,cpu"], 3, "one for each of 2 parts"),
        (["-o", "no/folder/m.json"], 11, "--output no/folder/m.json: there is no folder"),
    ],
)
def test_what_is_wrong_is_said_before_any_process_is_started(
    options, status, said, capfd, monkeypatch
):
    monkeypatch.setattr("hgpart.run.processes.launch.launch", lambda *_: pytest.fail("started"))
    assert run(["calibrate", *map(str, options)]) == status
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("hgpart: error: ")
    assert said in err


def test_another_number_than_torchrun_started_is_refused(capfd, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert run(["calibrate", "--processes", "2"]) == 3
    assert "--processes 2: accepted are the 3 that torchrun started" in capfd.readouterr().err


@pytest.mark.full
@pytest.mark.long
def test_a_machine_is_measured_written_and_printed(tmp_path, capfd):
    path, figures = tmp_path / "machine.json", tmp_path / "figures.json"
    written = ["--output", str(path), "--json", str(figures)]
    assert run(["calibrate", "--processes", "2", "--threads", "1", *written]) == 0
    out, err = capfd.readouterr()
    assert without_progress(err) == ""
    machine = load_machine(path)
    assert (machine.k, machine.nodes) == (2, (2,))
    assert machine.inside.sizes[:2] == (2**10, 2**12)
    assert "Messages (both ways: while another one travels back)\n" in out
    assert machine.note in out
    assert len(json.loads(figures.read_text())["devices"]) == 2
    again = ["partition", "lenet5", "--k", "2", "--effort", "0"]
    again += ["--objective", "links", "--machine", str(path)]
    assert run(again) == 0
