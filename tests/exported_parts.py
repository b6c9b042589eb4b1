"""Exported parts, run by what their files say alone, as other programs run them: without hgpart."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export.pt2_archive._package import load_pt2

Waiting = Mapping[tuple[int, int], "deque[tuple[int, list[Tensor]]]"]
Program = Callable[[list[Tensor]], list[Tensor]]


@dataclass
class Passed:
    """What came of a pass of all parts.

    Attributes
    ----------
    counted : int
        Bytes that travelled and count in tables.
    """

    results: dict[int, Tensor] = field(default_factory=dict)
    counted: int = 0


def run_parts(folder: Path, ending: str, inputs: Mapping[str, Tensor]) -> Passed:
    """Run the parts of `part0.json` and so on; each goes on as far as it can, in turns.

    Messages between two parts arrive in the order in which they were sent.
    """
    passed = Passed()
    parts = [json.loads(file.read_text()) for file in sorted(folder.glob("part*.json"))]
    numbers = range(len(parts))
    assert [part["part"] for part in parts] == [*numbers]
    waiting: Waiting = {(one, other): deque() for one in numbers for other in numbers}
    running = {
        number: _passes(folder, ending, parts[number], inputs, waiting, passed)
        for number in numbers
    }
    while running:
        moved = False
        for number, stages in [*running.items()]:
            done = next(stages, "ended")
            moved |= done is not False
            if done == "ended":
                del running[number]
        assert moved, "all parts wait for each other"
    assert not any(waiting.values())
    return passed


def _passes(
    folder: Path,
    ending: str,
    part: dict[str, Any],
    inputs: Mapping[str, Tensor],
    waiting: Waiting,
    passed: Passed,
) -> Iterator[bool]:
    """Do a part's stages; whether one could be done, after each attempt."""
    own, types = part["part"], part["tensors"]
    programs = programs_of(folder, ending, part)
    tensors: dict[str, Tensor] = {}

    def put(names: list[str], values: list[Tensor]) -> None:
        for name, value in zip(names, values, strict=True):
            assert [*value.shape] == types[name]["shape"], name
            assert str(value.dtype) == f"torch.{types[name]['dtype']}", name
            assert value.nbytes == types[name]["bytes"], name
            tensors[name] = value

    for piece in part["inputs"]:
        whole = inputs[piece["input"]]
        assert [*whole.shape] == piece["shape"]
        put([piece["tensor"]], [whole[tuple(slice(*ends) for ends in piece["extent"])]])
    for at, stage in enumerate(part["stages"]):
        for message in stage["receives"]:
            queue = waiting[message["from"], own]
            while not queue:
                yield False
            number, values = queue.popleft()
            assert number == message["message"]
            put(message["tensors"], values)
        if at in programs:
            put(stage["makes"], programs[at]([tensors[name] for name in stage["reads"]]))
        for message in stage["sends"]:
            values = [tensors[name].clone() for name in message["tensors"]]
            assert sum(value.nbytes for value in values) == message["bytes"]
            waiting[own, message["to"]].append((message["message"], values))
            passed.counted += message["bytes"] * message["counted"]
        for name in stage["frees"]:
            del tensors[name]
        yield True
    assert tensors.keys() == {piece["tensor"] for piece in part["results"]}
    for piece in part["results"]:
        value = tensors[piece["tensor"]]
        empty = torch.full(piece["shape"], torch.nan, dtype=value.dtype)
        whole = passed.results.setdefault(piece["result"], empty)
        whole[tuple(slice(*ends) for ends in piece["extent"])] = value


def programs_of(folder: Path, ending: str, part: dict[str, Any]) -> dict[int, Program]:
    """The programs of a part's stages, by the number of the stage."""
    stages = {at: stage for at, stage in enumerate(part["stages"]) if "file" in stage}
    if ending == ".onnx":
        return {
            at: _of_onnx(folder / stage["file"], stage["reads"], stage["makes"])
            for at, stage in stages.items()
        }
    (file,) = {stage["file"] for stage in stages.values()}
    archive = load_pt2(str(folder / file)).exported_programs
    return {
        at: partial(_called, archive[stage["program"]].module()) for at, stage in stages.items()
    }


def _called(module: torch.nn.Module, values: list[Tensor]) -> list[Tensor]:
    made: list[Tensor] = module(*values)
    assert not any(value.requires_grad for value in made)
    return made


def _of_onnx(file: Path, reads: list[str], makes: list[str]) -> Program:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options)

    def called(values: list[Tensor]) -> list[Tensor]:
        given = {name: value.numpy() for name, value in zip(reads, values, strict=True)}
        return [torch.from_numpy(value) for value in session.run(makes, given)]

    return called
