"""A stage -> parts of it side by side, each with its share of every layer's channels.

F. Brakel's SplitResNet (MSc thesis, 2024, section 3.3.3).
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hgpart.tracing.traced_model import example_inputs
from hgpart.transformation.narrowing import is_layer, narrow, narrow_parameter, parts_of
from hgpart.transformation.owners import ALL, Owners
from hgpart.transformation.residual import CellError


class Split(nn.Module):
    """Parts of a stage: part p computes its channels from no others.

    Part p is ``part_p``, a sequence of narrower cells named after the cells of the stage:
    ``from_1`` was at place 1 of its container.

    Parameters
    ----------
    sizes : sequence of int
        Number of channels that each part reads and makes.
    """

    def __init__(self, parts: Sequence[nn.Module], sizes: Sequence[int]) -> None:
        super().__init__()
        for part, module in enumerate(parts):
            self.add_module(f"part_{part}", module)
        self.sizes = list(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> the same shape."""
        pieces = zip(self.children(), torch.split(x, self.sizes, dim=1), strict=True)
        return torch.cat([part(piece) for part, piece in pieces], dim=1)


def split(
    cells: Mapping[str, nn.Module],
    divided: Sequence[Owners],
    shape: Sequence[int],
    parts: int,
    *,
    fresh: bool,
) -> Split:
    """Split the cells of a stage along their channels.

    Parameters
    ----------
    cells : mapping of str to nn.Module
        Cells by name, in order.
    divided : sequence of Owners
        The part of each channel, for each cell.
    shape : sequence of int
        Shape of the maps between the cells, without the batch.
    fresh : bool
        Whether weights between channels are drawn anew. If not, they are the cell's weights
        between channels of the same part.

    Raises
    ------
    CellError
        If a cell's code needs all channels.
    """
    sizes = torch.bincount(parts_of(shape[0], parts)).tolist()
    made = []
    for part, size in enumerate(sizes):
        chain = OrderedDict(
            (f"from_{name}", _of_part(cell, owner, part, fresh=fresh))
            for (name, cell), owner in zip(cells.items(), divided, strict=True)
        )
        made.append(nn.Sequential(chain))
        _check_runs(made[-1], (size, *shape[1:]))
    return Split(made, sizes)


def _of_part(cell: nn.Module, divided: Owners, part: int, *, fresh: bool) -> nn.Module:
    """The cell with the channels of one part alone."""
    narrower = copy.deepcopy(cell)
    for path, module in narrower.named_modules():
        if is_layer(module) and path in divided.made:
            read, made = divided.read[path], divided.made[path]
            try:
                narrow(module, _has(read, part), _has(made, part), fresh=fresh)
            except CellError as error:
                raise CellError(f"{path}: {error}") from None
    for name, of_elements in divided.own.items():
        path, _, attribute = name.rpartition(".")
        kept = _has(of_elements, part)
        narrow_parameter(narrower.get_submodule(path), attribute, kept, len(of_elements))
    return narrower


def _has(owner: Tensor, part: int) -> Tensor:
    return ((owner == part) | (owner == ALL)).nonzero()[:, 0]


def _check_runs(cells: nn.Module, shape: Sequence[int]) -> None:
    """Refuse cells whose code needs all channels: they are run on shapes alone."""
    try:
        with torch.no_grad():
            (x,) = example_inputs(on_meta := copy.deepcopy(cells).to("meta"), shape)
            result = on_meta(x)
    except Exception as error:
        why = " ".join(str(error).split("\n")[0].split())
        raise CellError(f"its code needs all channels: {why}") from error
    if result.shape != x.shape:
        raise CellError(f"it turns {shape[0]} channels into {tuple(result.shape[1:])}")
