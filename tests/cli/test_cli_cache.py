"""Commands keep traces and layers, and read them, unless --no-cache says otherwise."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hgpart.cli import named_model, run, stages
from hgpart.operators import table
from hgpart.tracing import traced_model
from hgpart.tracing.cache import folder, origins


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(folder.SWITCH)
    monkeypatch.setattr(origins, "STARTED", math.inf)  # whoever writes files while tests run
    monkeypatch.setattr(table, "_users", {})  # rules that other tests and pages leave behind


def test_the_second_command_reads_what_the_first_has_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["trace", "squeezenet1_1"]
    assert run([*command, "--no-cache"]) == 0
    assert not folder.folder().exists()
    assert run(command) == 0
    assert len(list(folder.folder().iterdir())) == 2  # the trace, and the layers
    assert folder.SWITCH not in os.environ
    monkeypatch.setattr(traced_model, "_trace_anew", None)
    assert run(command) == 0
    texts = capsys.readouterr().out.split("squeezenet1_1 at")
    assert texts[1] == texts[2] == texts[3]
    assert run([*command, "--rows"]) == 0  # by the trace


@pytest.mark.full
def test_commands_read_what_others_have_traced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The key depended on what Python had imported: `partition` traced what `trace` had kept."""
    plan = str(tmp_path / "plan.json")
    divide = ["partition", "lenet5", "--k", "2", "-o", plan]
    assert run([*divide, "--no-cache"]) == 0
    without = capsys.readouterr().out
    assert run(["trace", "lenet5"]) == 0
    monkeypatch.setattr(traced_model, "_trace_anew", None)
    capsys.readouterr()
    assert run(divide) == 0
    figures = [text.partition("Wall seconds")[0] for text in (without, capsys.readouterr().out)]
    assert figures[0] == figures[1]
    assert run(["show", plan]) == 0
    assert run(["run", "--plan", plan, "--batch-size", "4"]) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["partition lenet5 --k 2", "trace lenet5"])
def test_what_is_kept_is_read_without_torch(command: str) -> None:
    """Importing torch takes longer than all else until the search begins."""
    assert run(["trace", "lenet5"]) == 0
    code = (
        "import sys\n"
        "from hgpart.cli import run\n"
        "from hgpart.partition.stages import solve_in_tiles\n"
        "import hgpart.partition.stages as stages\n"
        "def searched(*given, **named):\n"
        "    print('torch' in sys.modules, file=sys.stderr)\n"
        "    sys.exit()\n"
        "stages.solve_in_tiles = searched\n"
        f"run({command.split()})\n"
        "print('torch' in sys.modules, file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.findall("True|False", ended.stderr)[0] == "False", ended.stderr


def test_models_of_the_users_files_are_traced_anew(tmp_path: Path) -> None:
    """Their code changes, in more ways than any key can tell."""
    written = tmp_path / "net.py"
    written.write_text(
        "from torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n\n\n"
        "def make():\n    return Net(3, 4)\n"
    )
    os.utime(written, (1, 1))
    assert run(["trace", f"{written}:make", "--input-shape", "3"]) == 0
    assert not folder.folder().exists()


def test_cautions_are_said_each_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(named_model, "_cautions", lambda traced: ["the batch is fixed"])
    assert run(["trace", "lenet5"]) == 0
    monkeypatch.setattr(traced_model, "_trace_anew", None)
    assert run(["trace", "lenet5"]) == 0
    assert capsys.readouterr().err.count("the batch is fixed") == 2


def test_a_stage_inside_another_counts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of a kept model may need its rows, which are those of its trace."""
    clock = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(stages.time, "perf_counter", lambda: next(clock))
    stage = stages.Stages()
    with stage("partition"), stage("trace"):
        pass
    assert stage.seconds == {"trace": 3.0, "partition": 7.0}
