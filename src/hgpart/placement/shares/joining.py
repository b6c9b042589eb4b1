"""Units of work of all shares -> which of them parts do at once, and in which order.

A part's program is one sequence for all shares of the batch. Share by share, a part would wait for
others when it could go on; layer by layer, one share would wait for another that is late. So the
order is that of a list schedule by estimated costs: of what has arrived, a part takes the unit with
the longest work after it (HEFT: Topcuoglu et al., IEEE TPDS 13(3), 2002). Backward passes go
through it in reverse; all of them take longer by the same factor.

If a part has the same work in the same layers for several shares, these can be one batch there: it
goes through the weights once, and products are larger. But then the first share waits for the last.
So runs of consecutive units are joined where this does not delay the end of the list schedule of
all parts; if joining all shares would, each half of them is tried, in the order in which they come.
This is compiled: `native/joining.cpp`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from hgpart import _native

MOST = 200_000  # units in all schedules that are tried
ROUNDING = 1e-9

Group = tuple[int, ...]


@dataclass(frozen=True)
class WorkUnit:
    """Work that a part does at once.

    Attributes
    ----------
    seconds : float
        Seconds that grow with the samples.
    needs : mapping of int to float
        Numbers of the units before it, all smaller than its own, and the seconds that their results
        take to arrive.
    once : float
        Further seconds that do not depend on the samples; equal for all units that are alike.
    alike : hashable, optional
        Equal for units of other shares that the part can do at once with this one, layer by layer.
    """

    part: int
    seconds: float
    needs: Mapping[int, float]
    once: float = 0.0
    alike: Hashable = None

    @property
    def time(self) -> float:
        """Seconds in total."""
        return self.seconds + self.once


def joined(units: Sequence[WorkUnit]) -> list[Group]:
    """The numbers of all units, grouped by what is done at once, each after those that it needs.

    >>> same = [WorkUnit(0, 1.0, {}, once=0.5, alike="conv") for share in range(2)]
    >>> joined([*same, WorkUnit(1, 9.0, {1: 0.1})])
    [(1,), (0,), (2,)]
    >>> joined([*same, WorkUnit(0, 9.0, {1: 0.1})])
    [(0, 1), (2,)]
    """
    classes: dict[Hashable, int] = {None: -1}
    alike = [classes.setdefault(unit.alike, len(classes) - 1) for unit in units]
    begins, members = _native.joined(
        np.array([unit.part for unit in units], dtype=np.int32),
        np.array([unit.seconds for unit in units], dtype=np.float64),
        np.array([unit.once for unit in units], dtype=np.float64),
        np.array(alike, dtype=np.int32),
        np.cumsum([0, *(len(unit.needs) for unit in units)], dtype=np.int64),
        np.fromiter(chain.from_iterable(unit.needs for unit in units), dtype=np.int32),
        np.fromiter(chain.from_iterable(unit.needs.values() for unit in units), dtype=np.float64),
        MOST,
        ROUNDING,
    )
    numbers = members.tolist()
    return [tuple(numbers[begin:end]) for begin, end in pairwise(begins.tolist())]
