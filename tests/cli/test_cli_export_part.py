"""`hgpart export-part`: a part of a plan in files, for programs without hgpart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exported_parts import run_parts

from hgpart import load_model
from hgpart.cli import run
from hgpart.placement.exporting import part_files


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    made = ("--k", "2", "--way", "spatial", "--batch-size", "2", "-o", str(file))
    assert run(["partition", "lenet5", *made]) == 0
    return file


def test_all_parts_of_a_plan_make_up_the_model(plan: Path, tmp_path: Path, capsys) -> None:
    """With weights of a file; what is printed is what travels."""
    model, shape = load_model("lenet5", seed=7)
    torch.save(model.state_dict(), tmp_path / "lenet5.pt")
    for part in range(2):
        options = ["--part", str(part), "--weights", str(tmp_path / "lenet5.pt")]
        file = tmp_path / f"part{part}.pt2"
        assert run(["export-part", str(plan), *options, "-o", str(file)]) == 0
        said = json.loads(file.with_suffix(".json").read_text())
        assert (said["model"], said["batch_size"], said["parts"]) == ("lenet5", 2, 2)
        out = capsys.readouterr().out
        assert f"part{part}.pt2: part {part} of 2, {len(said['stages'])} stages; " in out
        assert "Next: " in out
    images = torch.randn(2, *shape)
    (name,) = {piece["input"] for piece in said["inputs"]}
    passed = run_parts(tmp_path, ".pt2", {name: images})
    with torch.no_grad():
        torch.testing.assert_close(passed.results[0], model.eval()(images))


def test_what_is_wrong_is_said_in_a_line(plan: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    before = plan.read_text()
    capsys.readouterr()
    file = tmp_path / "part.pt2"

    def fails(status: int, said: str, *arguments: object) -> None:
        assert run(["export-part", str(plan), *map(str, arguments)]) == status
        errors = capsys.readouterr().err
        assert errors.startswith("hgpart: error: ")
        assert errors.count("\n") == 1
        assert said in errors

    fails(3, "--part 2: accepted is 0 to 1", "--part", 2, "-o", file)
    fails(3, "file ending '.pth': accepted are .pt2 and", "--part", 0, "-o", tmp_path / "a.pth")
    fails(3, "would replace the plan", "--part", 0, "-o", plan.with_suffix(".pt2"))
    fails(11, "there is no folder", "--part", 0, "-o", tmp_path / "there/part.pt2")
    fails(12, f'the plan {plan} is for "lenet5"', "--part", 0, "--model", "alexnet", "-o", file)
    (tmp_path / "folder.json").mkdir()
    fails(11, "folder.json is a folder", "--part", 0, "-o", tmp_path / "folder.pt2")
    monkeypatch.setattr(part_files, "find_spec", lambda name: None)
    fails(10, "onnx needs onnx, not installed", "--part", 0, "-o", tmp_path / "part.onnx")
    assert plan.read_text() == before
    assert not file.exists()
