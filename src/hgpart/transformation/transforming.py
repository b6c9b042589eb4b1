"""Model, kind, number of parts -> Transformation: what changes in the model, and what stays."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hgpart.errors import ArgumentError, ModelError
from hgpart.tracing.traced_model import trace
from hgpart.transformation.cells import Cell, Stage, stages_of
from hgpart.transformation.grouped import groupable, in_groups, number_of_groups
from hgpart.transformation.owners import Owners, owners
from hgpart.transformation.parallel import Parallel
from hgpart.transformation.residual import CellError
from hgpart.transformation.split import split

KINDS = {
    "parallel": "equal cells side by side, which add up what they make",
    "grouped": "convolutions inside cells in groups",
    "split": "whole stages in parts along the channels",
}


@dataclass(frozen=True)
class Change:
    """A change to modules of a stage.

    Attributes
    ----------
    stage : int
        Number of the stage, from 1.
    paths : tuple of str
        Paths of the modules in the original.
    what : str
        What they become.
    """

    stage: int
    paths: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class Left:
    """Modules of a stage that stay as they are, and why."""

    stage: int
    paths: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Transformation:
    """A transformed model, and what was done to it.

    Attributes
    ----------
    stages : tuple of Stage
        Stages of the original.
    """

    model: nn.Module
    kind: str
    parts: int
    stages: tuple[Stage, ...]
    changes: tuple[Change, ...]
    left: tuple[Left, ...]


def transform(
    model: nn.Module,
    kind: str,
    parts: int,
    example: torch.Tensor | Sequence[torch.Tensor],
    *,
    stages: Iterable[int] | None = None,
    unequal: bool = False,
    fresh: bool = False,
) -> nn.Module:
    """Make a model easier to split: a copy with its cells side by side, in groups or in parts.

    Cells are modules that add their input to what they compute from it; stages are runs of them,
    found in the traced model. "parallel" puts ``parts`` equal consecutive cells side by side;
    "grouped" gives their convolutions groups, except the last one, where the groups meet;
    "split" divides all channels of a stage. See F. Brakel's MSc thesis (2024), chapter 3.

    Parameters
    ----------
    model : nn.Module
        The original; it is not changed.
    kind : str
        "parallel", "grouped" or "split".
    parts : int
        Cells side by side, groups, or parts of a stage.
    example : tensor or sequence of inputs
        Example input, as for `trace`.
    stages : iterable of int, optional
        Numbers, from 1, of the stages to change. Default: all.
    unequal : bool
        Whether groups ("grouped") or parts ("split") may differ in size where `parts` does not
        divide the channels. If not, "grouped" takes the largest number of groups that divides
        them, and "split" leaves the stage as it is.
    fresh : bool
        Whether layers that lose weights draw all of theirs anew, by the layer's own rule. If not,
        the remaining weights are the model's: a start from a trained model.

    Returns
    -------
    nn.Module
        A model of the same class. Names of parameters tell where a changed module comes from:
        ``layer1.1.part_1.from_2.conv1.weight`` was ``layer1.2.conv1.weight``.

    Raises
    ------
    ArgumentError
        If kind, parts or stages are out of range.
    ModelError
        If nothing in the model can be changed this way.
    TraceError
        If the model can't be traced.

    Examples
    --------
    >>> class Skip(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.inner = nn.Conv2d(4, 4, 1)
    ...
    ...     def forward(self, x):
    ...         return self.inner(x) + x
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 1), Skip(), Skip())
    >>> made = transform(model, "split", 2, torch.empty(2, 3, 8, 8))
    >>> [name for name, _ in made.named_parameters() if "part_1" in name and "weight" in name]
    ['1.part_1.from_1.inner.weight', '1.part_1.from_2.inner.weight']
    """
    return transformation(
        model, kind, parts, example, stages=stages, unequal=unequal, fresh=fresh
    ).model


def transformation(
    model: nn.Module,
    kind: str,
    parts: int,
    example: torch.Tensor | Sequence[torch.Tensor],
    *,
    stages: Iterable[int] | None = None,
    unequal: bool = False,
    fresh: bool = False,
) -> Transformation:
    """Transform a model as `transform` does, and report what was changed and what was not."""
    check_kind(kind, parts)
    all_stages = stages_of(model, trace(model, example))
    if not all_stages:
        raise ModelError(
            "no module of the model adds its input to what it computes from it: accepted are "
            "models with residual cells"
        )
    wanted = _checked_stages(stages, len(all_stages))
    made = copy.deepcopy(model)
    transform_stage = {"parallel": _parallel, "grouped": _grouped, "split": _split}[kind]
    changes: list[Change] = []
    left: list[Left] = []
    for number, stage in enumerate(all_stages, start=1):
        if number not in wanted:
            continue
        for paths, what, changed in _merged(transform_stage(made, stage, parts, unequal, fresh)):
            if changed:
                changes.append(Change(number, paths, what))
            else:
                left.append(Left(number, paths, what))
    if not changes and parts > 1:
        raise ModelError(f"nothing can be changed: {left[0].paths[0]}: {left[0].why}")
    return Transformation(made, kind, parts, all_stages, tuple(changes), tuple(left))


Done = Iterator[tuple[str, str, bool]]  # module, what it became or why it stays, whether changed


def check_kind(kind: str, parts: int) -> None:
    """Raise an ArgumentError for an unknown kind of transformation or an impossible `parts`."""
    if kind not in KINDS:
        raise ArgumentError(f"kind {kind!r}: accepted are {', '.join(KINDS)}")
    if type(parts) is not int or parts < 1:
        raise ArgumentError(f"parts is {parts}; it must be a whole number, at least 1")


def _checked_stages(wanted: Iterable[int] | None, count: int) -> frozenset[int]:
    chosen = frozenset(range(1, count + 1) if wanted is None else wanted)
    for number in sorted(chosen):
        if not 1 <= number <= count:
            raise ArgumentError(f"stage {number}: the model has stages 1 to {count}")
    return chosen


def _merged(done: Done) -> Iterator[tuple[tuple[str, ...], str, bool]]:
    """Equal outcomes, each once with all its modules."""
    alike: dict[tuple[str, bool], list[str]] = {}
    for path, what, changed in done:
        alike.setdefault((what, changed), []).append(path)
    for (what, changed), paths in alike.items():
        yield tuple(paths), what, changed


# ------------------------------------------------------------------ a stage of each kind


def _parallel(model: nn.Module, stage: Stage, parts: int, unequal: bool, fresh: bool) -> Done:
    for _, run in itertools.groupby(stage.cells, key=lambda cell: cell.computes):
        cells = list(run)
        whole = len(cells) // parts * parts
        for first in range(0, whole, parts):
            together = cells[first : first + parts]
            try:
                made = Parallel(_by_name(model, together))
            except CellError as error:
                yield from ((cell.path, str(error), False) for cell in together)
                continue
            _put(model, together, made)
            what = f"{parts} cells side by side"
            yield ", ".join(cell.path for cell in together), what, True
        row = f"{len(cells)} equal cell{'s' if len(cells) > 1 else ''} in a row"
        why = (
            f"{row}, fewer than {parts}" if whole == 0 else f"left over of {row}, {parts} at a time"
        )
        for cell in cells[whole:]:
            yield cell.path, why, False


def _grouped(model: nn.Module, stage: Stage, parts: int, unequal: bool, fresh: bool) -> Done:
    for cell in stage.cells:
        inside = groupable(model, cell)
        if not inside:
            yield cell.path, "has no convolution but one whose result it adds to its input", False
        for path in inside:
            convolution = model.get_submodule(path)
            assert isinstance(convolution, nn.Conv1d | nn.Conv2d | nn.Conv3d)
            if convolution.groups > 1:
                yield path, f"has {convolution.groups} groups", False
                continue
            groups = parts if unequal else number_of_groups(convolution, parts)
            channels = f"{convolution.in_channels} -> {convolution.out_channels} channels"
            if groups == 1:
                yield path, f"no number of groups up to {parts} divides {channels}", False
                continue
            try:
                model.set_submodule(path, in_groups(convolution, groups, fresh=fresh))
            except CellError as error:
                yield path, str(error), False
            else:
                yield path, f"{channels} in {groups} groups", True


def _split(model: nn.Module, stage: Stage, parts: int, unequal: bool, fresh: bool) -> Done:
    cells = _by_name(model, stage.cells)
    known: dict[tuple[str, ...], Owners] = {}
    divided = []
    for cell, module in zip(stage.cells, cells.values(), strict=True):
        alike = (cell.computes, *module.state_dict())
        try:
            if alike not in known:
                known[alike] = owners(module, stage.shape, parts, unequal=unequal)
        except CellError as error:
            yield from _left(stage, f"{cell.path}: {error}")
            return
        divided.append(known[alike])
    try:
        made = split(cells, divided, stage.shape, parts, fresh=fresh)
    except CellError as error:
        yield from _left(stage, str(error))
        return
    _put(model, stage.cells, made)
    for cell in stage.cells:
        yield cell.path, f"{stage.shape[0]} channels in {parts} parts", True


def _left(stage: Stage, why: str) -> Done:
    return ((cell.path, why, False) for cell in stage.cells)


def _by_name(model: nn.Module, cells: Sequence[Cell]) -> Mapping[str, nn.Module]:
    """Cells by their names in their container; by their paths where names repeat."""
    names = [cell.path.rpartition(".")[2] for cell in cells]
    if len(set(names)) < len(names):
        names = [cell.path.replace(".", "_") for cell in cells]
    return {name: model.get_submodule(cell.path) for name, cell in zip(names, cells, strict=True)}


def _put(model: nn.Module, cells: Sequence[Cell], made: nn.Module) -> None:
    """Put the changed cells in place of the first one; the others pass on their input."""
    first, *rest = cells
    model.set_submodule(first.path, made.train(model.training))
    for cell in rest:
        model.set_submodule(cell.path, nn.Identity())
