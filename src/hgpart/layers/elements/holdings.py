"""Parameters as operators use them: which element belongs to which task of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from hgpart.arrays import Int64
from hgpart.layers.elements.constants import moved_elements, of_rows
from hgpart.layers.elements.element_owners import narrowed
from hgpart.operators.effects import Constant
from hgpart.operators.ids import compact, core

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Use:
    """A constant made from parameters, as an operator of a layer takes it.

    Attributes
    ----------
    node : fx.Node
        The node that makes the constant.
    operator : str
        The operator that takes it.
    tasks : int32 tensor or None
        For each element of the constant, the only task of the layer that needs it; the tensor
        broadcasts to the constant's shape. None if one task needs all elements, or if the tasks
        are not known.
    """

    constant: Constant
    node: fx.Node
    operator: str
    tasks: torch.Tensor | None

    @cached_property
    def manner(self) -> tuple[object, ...]:
        """A key that is equal where equal tasks of two layers hold equal elements."""
        tasks: object = None
        if self.tasks is not None:
            per_element = core(compact(self.tasks.expand(self.constant.shape)))
            tasks = (tuple(per_element.shape), per_element.numpy().tobytes())
        return self.constant.moves, self.operator, tasks

    def holders(self, origin: fx.Node, shape: tuple[int, ...]) -> Int64 | None:
        """The task that holds each element of a parameter, flat; -1 where no task does.

        None if several tasks hold an element, or if it is not known which do.
        """
        numbered = self._pieces(origin, shape)
        if self.tasks is None or numbered is None:
            return None
        pieces, count = numbered
        (piece_of_element, tasks), _ = narrowed([pieces, self.tasks.expand(self.constant.shape)])
        both = np.broadcast_arrays(piece_of_element.numpy(), tasks.numpy())
        piece, task = (numbers[both[0] != NOBODY] for numbers in both)
        holders = np.full(count, NOBODY, dtype=np.int64)
        holders[piece] = task
        if (holders[piece] != task).any():
            return None
        task_of_element: Int64 = np.repeat(holders, prod(shape) // max(1, count))
        return task_of_element

    def needed(self, origin: fx.Node, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """Whether each element of a parameter is needed, flat; None if all are."""
        moved = not self.constant.computed and len(self.constant.origins) == 1
        if self.node is origin or (moved and prod(self.constant.shape) == prod(shape)):
            return None
        numbered = self._pieces(origin, shape)
        if numbered is None:
            return None
        pieces, count = numbered
        needed = np.zeros(count + 1, dtype=np.bool_)  # the last one is nobody's
        needed[np.unique(core(pieces).numpy())] = True
        is_needed: NDArray[np.bool_] = np.repeat(needed[:-1], prod(shape) // max(1, count))
        return is_needed

    def _pieces(self, origin: fx.Node, shape: tuple[int, ...]) -> tuple[torch.Tensor, int] | None:
        """For each element of the constant, its piece of a parameter; and the number of pieces.

        A piece is an element where nothing is computed, else a row; -1 marks elements of others.
        """
        if self.constant.computed:
            count, numbers = shape[0] if shape else 1, self.constant.rows
            if not of_rows(numbers):
                return None
        else:
            moved = moved_elements(self.node)
            if moved is None:
                return None
            count, numbers = prod(shape), moved.numbers - moved.first(origin)
        distinct = core(numbers)
        pieces = torch.where((distinct >= 0) & (distinct < count), distinct, NOBODY)
        return pieces.expand(numbers.shape), count


def tasks_met(constant: Constant, elements: torch.Tensor, tasks: torch.Tensor) -> torch.Tensor:
    """The task that each element of a constant meets, given the elements and tasks by place."""
    (elements, tasks), _ = narrowed([elements.expand(tasks.shape), tasks])
    shape = np.broadcast_shapes(tuple(elements.shape), tuple(tasks.shape))
    elements, tasks = elements.expand(shape), tasks.expand(shape)
    per_element = torch.full((prod(constant.shape),), NOBODY, dtype=torch.int32)
    per_element[elements.flatten().long()] = tasks.flatten()
    return compact(per_element.reshape(constant.shape))


def tasks_of_slices(constant: Constant, axis: int, tasks: int, width: int) -> torch.Tensor:
    """The task of each element of a constant that belongs to tasks in slices along `axis`."""
    view = [1] * len(constant.shape)
    view[axis] = tasks * width
    return torch.arange(tasks, dtype=torch.int32).repeat_interleave(width).reshape(view)


def tasks_of_channels(ids: torch.Tensor, start: int, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The task of each statistic of a norm over channels with these ids, the first at `start`."""
    if ids.dim() < 2 or shape != (ids.shape[1],):
        return None
    while ids.dim() > 2:
        ids = ids.select(2, 0)
    return ids[0] - start


def agree(uses: Sequence[Use], origin: fx.Node, shape: tuple[int, ...]) -> bool:
    """Whether no element of a parameter is held by different tasks in different uses."""
    if all(use.manner == uses[0].manner for use in uses):
        return True
    agreed = np.full(prod(shape), NOBODY, dtype=np.int64)
    for use in uses:
        holders = use.holders(origin, shape)
        if holders is None:
            return False
        held = holders != NOBODY
        if ((agreed != holders) & (agreed != NOBODY) & held).any():
            return False
        agreed[held] = holders[held]
    return True


def count_needed(uses: Sequence[Use], origin: fx.Node, shape: tuple[int, ...]) -> int:
    """Number of elements of a parameter that are needed."""
    any_needed = np.zeros(prod(shape), dtype=np.bool_)
    for use in uses:
        needed = use.needed(origin, shape)
        if needed is None:
            return len(any_needed)
        any_needed |= needed
    return int(any_needed.sum())
