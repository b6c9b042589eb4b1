"""Each example runs as its first lines say, and prints what it is there to show."""

from __future__ import annotations

import ast
import difflib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import hgpart

EXAMPLES = Path(__file__).parent.parent / "examples"
COMMAND = re.compile(r"^    (?:.*\\\n)*.*", re.MULTILINE)
# lightning imports torchvision, which may be compiled for another torch than there is.
IN_TYPE = """
import runpy, sys, torch
from importlib.util import find_spec
from hgpart.zoo.packages import _import
find_spec("torchvision") and _import("torchvision", "torchvision")
torch.set_default_dtype(getattr(torch, sys.argv[2]))
runpy.run_path(sys.argv[1], run_name="__main__")
"""
IN_PROCESSES = ("torchrun", "--nproc-per-node", "2")


def printed(*command: str, cwd: Path) -> str:
    """By one thread, not as if torchrun had started the tests."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str, folder: Path, **replaced: str) -> str:
    """What a program prints; where its first lines have commands, what the last of these does.

    In these commands some words may be replaced.
    """
    file = shutil.copy(EXAMPLES / f"{name}.py", folder)
    about = ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8"))) or ""
    for before, after in replaced.items():
        about = about.replace(before, after)
    commands = [match[0] for match in COMMAND.finditer(about)]
    for command in commands[:-1]:
        printed("bash", "-c", command, cwd=folder)
    last = ("bash", "-c", commands[-1]) if commands else (sys.executable, file)
    return printed(*last, cwd=folder)


def losses(text: str) -> tuple[float, float]:
    """The first and the last one."""
    first, *_, last = (float(one) for one in re.findall(r"loss (\d+\.\d+)", text))
    return first, last


def installed(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[examples]'")


def test_each_example_has_a_test() -> None:
    tests = [name.removeprefix("test_") for name in globals() if name.startswith("test_")]
    assert {file.stem for file in EXAMPLES.glob("*.py")} <= {*tests}


@pytest.mark.full
@pytest.mark.long
def test_own_model(tmp_path: Path) -> None:
    text = example("own_model", tmp_path)
    first, last = losses(text)
    assert last < 0.5 * first
    volume = re.search(r"(\d\.\d+) MB between them", text)
    sent = re.search(r"sent in a forward pass: (\d\.\d+) MB", text)
    assert volume is not None
    assert sent is not None
    assert float(sent[1]) == pytest.approx(float(volume[1]), abs=6e-4)


@pytest.mark.full
@pytest.mark.long
def test_recommendation(tmp_path: Path) -> None:
    text = example("recommendation", tmp_path)
    lines = text.splitlines()
    heading = next(at for at, line in enumerate(lines) if line.split()[:2] == ["way", "schedule"])
    best = [cell.strip() for cell in lines[heading + 1].split("  ")]
    chosen = re.search(r"training by (.*?),", text)
    assert chosen is not None
    assert chosen[1] in best
    first, last = losses(text)
    assert last < first


@pytest.mark.full
@pytest.mark.long
def test_memory_limit(tmp_path: Path) -> None:
    text = example("memory_limit", tmp_path)
    assert "one device: no partition within the memory limits" in text
    needs = re.findall(r"^part \d needs (\S+) MB of (\S+) MB", text, re.MULTILINE)
    assert len(needs) == 2
    assert all(float(needed) <= float(limit) == 60 for needed, limit in needs)
    first, last = losses(text)
    assert last < first


@pytest.mark.full
@pytest.mark.long
def test_channel_rule(tmp_path: Path) -> None:
    text = example("channel_rule", tmp_path)
    without, with_it = text.splitlines()[:2]
    assert "soft_clip 1 (whole)" in without
    assert "soft_clip" not in with_it
    assert "the same results: True\nthe same gradients: True\n" in text


@pytest.mark.full
def test_accelerate_loop(tmp_path: Path) -> None:
    installed("accelerate")
    first, last = losses(example("accelerate_loop", tmp_path))
    assert last < first
    assert (tmp_path / "net.pt").exists()


@pytest.mark.full
@pytest.mark.long
def test_lightning_module(tmp_path: Path) -> None:
    installed("lightning")
    text, _ = trained("lightning_module", tmp_path, "float32", "net.ckpt")
    assert "the same: True" in text


def trained(name: str, folder: Path, dtype: str, file: str, **replaced: str) -> tuple[str, Any]:
    """What a program prints and saves, by default in tensors of this type; with words replaced."""
    program = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    for before, after in replaced.items():
        program = program.replace(before, after)
    (folder / "program.py").write_text(program, encoding="utf-8")
    (folder / "in_type.py").write_text(IN_TYPE, encoding="utf-8")
    starts = IN_PROCESSES if name.endswith("parts") else (sys.executable,)
    text = printed(*starts, "in_type.py", "program.py", dtype, cwd=folder)
    return text, torch.load(folder / file, weights_only=True)


def assert_close(states: Sequence[Mapping[str, torch.Tensor]], atol: float) -> None:
    one, other = states
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=atol)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "dtype", "atol"), [("bf16", "float32", 0.05), ("no", "float64", 1e-7)]
)
def test_accelerate_parts(precision: str, dtype: str, atol: float, tmp_path: Path) -> None:
    """Weights are those of the same loop in one process."""
    installed("accelerate")
    runs = [
        trained(f"accelerate_{name}", tmp_path, dtype, "net.pt", bf16=precision)
        for name in ("loop", "parts")
    ]
    assert_close([state for _, state in runs], atol)
    first, last = losses(runs[1][0])
    assert last < first
    learned = torch.load(tmp_path / "optimizer.pt")
    assert learned["state"]["7.weight"]["exp_avg"].shape == (10, 128)


@pytest.mark.full
@pytest.mark.long
def test_lightning_parts(tmp_path: Path) -> None:
    """Weights are those of one process, which does not go on from a checkpoint."""
    installed("lightning")
    runs = [
        trained(f"lightning_{name}", tmp_path, "float64", "net.ckpt")
        for name in ("module", "parts")
    ]
    told = [re.findall(r"loss (\S+), accuracy (\S+)", text)[-1] for text, _ in runs]
    assert told[0] == told[1]
    assert float(told[0][0]) < 2  # that of ten classes is 2.3 before
    assert float(told[0][1]) > 0.5
    assert_close([checkpoint["state_dict"] for _, checkpoint in runs], 1e-7)


@pytest.mark.full
@pytest.mark.long
def test_parts_are_programs_with_sockets_alone(tmp_path: Path) -> None:
    """By rows of a smaller model than the commands say; what they send is what the table says."""
    program = (EXAMPLES / "sockets/part.py").read_text(encoding="utf-8")
    assert "hgpart" not in {name.split(".")[0] for name in imported(program)}
    servers = [socket.create_server(("localhost", 0)) for _ in range(3)]
    free = ",".join(str(server.getsockname()[1]) for server in servers)
    for server in servers:
        server.close()
    words = {"mobilenet_v2": "lenet5", "9000,9001,9002": free}
    text = example("sockets/part", tmp_path, **words)
    plan = hgpart.files.load_plan(tmp_path / "plan.json")
    model, shape = hgpart.load_model("lenet5", seed=0)
    volume = hgpart.place(model, plan).programs.expected(1).volume
    assert sum(map(int, re.findall(r"(\d+) bytes sent", text))) == volume
    image = torch.rand([1, *shape], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.eval()(image)
    torch.testing.assert_close(torch.load(tmp_path / "result0.pt"), expected)


def imported(program: str) -> set[str]:
    """Names of the modules that a program imports."""
    nodes = [*ast.walk(ast.parse(program))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


PAIRS = ("classifier", "segmentation", "gan", "fine_tuning")


def test_there_is_a_page_of_all_scripts_from_ddp() -> None:
    assert {file.stem for file in (EXAMPLES / "from_ddp").glob("*.py")} == {
        f"{name}_{way}" for name in PAIRS for way in ("ddp", "hgpart")
    }


@pytest.mark.parametrize("name", PAIRS)
def test_six_lines_of_a_ddp_script_change(name: str) -> None:
    """Those that the guide shows."""
    scripts = (EXAMPLES / "from_ddp" / f"{name}_{way}.py" for way in ("ddp", "hgpart"))
    before, after = (script.read_text(encoding="utf-8").splitlines()[1:] for script in scripts)
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:]]
    assert sum(line[0] == "+" for line in changed) <= 6
    page = (EXAMPLES.parent / "docs/guides/from-ddp.md").read_text(encoding="utf-8")
    shown = "\n".join(f"{line[0]} {line[2:].strip()}" for line in changed)
    assert f"```diff\n{shown}\n```" in page


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("name", PAIRS)
def test_a_script_from_ddp_learns_what_it_learned(name: str, tmp_path: Path) -> None:
    (tmp_path / "in_type.py").write_text(IN_TYPE, encoding="utf-8")
    states = []
    for way in ("ddp", "hgpart"):
        script = str(EXAMPLES / "from_ddp" / f"{name}_{way}.py")
        printed(*IN_PROCESSES, "in_type.py", script, "float64", cwd=tmp_path)
        states.append(torch.load(tmp_path / "trained.pt"))
    # The order of additions shows where a script itself goes on in 16 bits.
    assert_close(states, 0.05 if name == "fine_tuning" else 1e-7)


@pytest.mark.full
@pytest.mark.long
def test_pipeline_stages(tmp_path: Path) -> None:
    first, last = losses(example("pipeline_stages", tmp_path))
    assert last < first
