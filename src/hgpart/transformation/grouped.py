"""A convolution -> the same convolution in groups, each of which reads only its own channels.

F. Brakel's GroupedResNet (MSc thesis, 2024, section 3.3.2).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from hgpart.operators.calls import module_of
from hgpart.transformation.cells import Cell
from hgpart.transformation.narrowing import narrow, parts_of


class UnequalGroups(nn.Module):
    """A grouped convolution whose groups differ in size: ``part_p`` is the convolution of group p.

    Group p reads channels ``p * C // groups`` to ``(p + 1) * C // groups - 1``, and makes the
    corresponding share of the result.
    """

    def __init__(self, groups: Sequence[nn.Module]) -> None:
        super().__init__()
        for part, group in enumerate(groups):
            self.add_module(f"part_{part}", group)
        self.sizes = [int(group.get_parameter("weight").shape[1]) for group in groups]

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> (N, C', H', W')."""
        pieces = zip(self.children(), torch.split(x, self.sizes, dim=1), strict=True)
        return torch.cat([group(piece) for group, piece in pieces], dim=1)


def groupable(model: nn.Module, cell: Cell) -> tuple[str, ...]:
    """Paths of a cell's convolutions, except those whose result the cell adds to its input.

    The groups meet in these: a convolution that reads all channels mixes what the groups make.
    """
    paths = []
    meeting = set(_last_convolutions(model, cell))
    for path, module in model.get_submodule(cell.path).named_modules(prefix=cell.path):
        if _is_convolution(module) and path not in meeting:
            paths.append(path)
    return tuple(paths)


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _last_convolutions(model: nn.Module, cell: Cell) -> Iterable[str]:
    """The last convolutions before the cell's result: only other operators come after them."""
    waiting, seen = [cell.result], {cell.entry}
    while waiting:
        node = waiting.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        path = module_of(node)
        if _is_convolution(model.get_submodule(path)):
            yield path
        else:
            waiting.extend(node.all_input_nodes)


def number_of_groups(convolution: _ConvNd, parts: int) -> int:
    """The largest number of groups, up to `parts`, that divides the channels read and made.

    >>> number_of_groups(nn.Conv2d(48, 64, 1), 4), number_of_groups(nn.Conv2d(18, 27, 1), 4)
    (4, 3)
    """
    common = math.gcd(convolution.in_channels, convolution.out_channels)
    return max(groups for groups in range(1, parts + 1) if common % groups == 0)


def in_groups(convolution: _ConvNd, groups: int, *, fresh: bool) -> nn.Module:
    """A copy of a convolution with groups.

    Parameters
    ----------
    convolution : nn.Conv1d, nn.Conv2d or nn.Conv3d
        A convolution without groups. If `groups` does not divide its channels, the result is an
        `UnequalGroups`.
    groups : int
        At least 1.
    fresh : bool
        Whether weights are drawn anew, by the convolution's own rule. If not, they are the
        convolution's weights between channels of the same group.

    Raises
    ------
    CellError
        If the convolution has fewer channels than groups.
    """
    read = parts_of(convolution.in_channels, groups)
    made = parts_of(convolution.out_channels, groups)
    pieces = []
    for group in range(groups):
        piece = copy.deepcopy(convolution)
        narrow(piece, (read == group).nonzero()[:, 0], (made == group).nonzero()[:, 0], fresh=fresh)
        pieces.append(piece)
    if number_of_groups(convolution, groups) < groups:
        return UnequalGroups(pieces)
    result = copy.deepcopy(convolution)
    result.groups = groups
    for name, old in convolution.named_parameters():
        of_groups = torch.cat([piece.get_parameter(name).detach() for piece in pieces])
        setattr(result, name, nn.Parameter(of_groups, old.requires_grad))
    return result
