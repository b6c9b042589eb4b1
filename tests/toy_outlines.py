"""Parts of models that there are not, as chunks."""

from __future__ import annotations

from hgpart.schedules.costs import Costs
from hgpart.schedules.outline import Chunk, Outline, Sent

EVEN = Costs(work=1.0, byte=0.0, message=0.0)


def pipeline(stages: int) -> list[Outline]:
    """A cut between layers, each stage as much work as the others."""
    found = []
    for at in range(stages):
        before, after = (at - 1,) if at else (), (at,) if at + 1 < stages else ()
        forward = Chunk(before, tuple(Sent(n, n + 1, 1) for n in after), 1.0)
        backward = Chunk(after, tuple(Sent(n, n, 1) for n in before), 1.0)
        found.append(Outline((forward,), (backward,)))
    return found


def replicas() -> list[Outline]:
    """Two parts that do the same with halves of the batch, and own half of the weights each."""
    chunk = Chunk((), (), 1.0)
    return [Outline((chunk,), (chunk,), owners=((other, 1),)) for other in (1, 0)]


def halves(layers: int) -> list[Outline]:
    """Each layer divided among two parts, which send each other what they make of it."""
    found = []
    for part in range(2):
        mine, theirs = (
            [2 * at + part for at in range(layers)],
            [2 * at + 1 - part for at in range(layers)],
        )
        chunks = [Chunk((), (Sent(mine[0], 1 - part, 1),), 1.0)]
        chunks += [
            Chunk((theirs[at - 1],), (Sent(mine[at], 1 - part, 1),), 1.0) for at in range(1, layers)
        ]
        chunks.append(Chunk((theirs[-1],), (), 0.0))
        back = [Chunk((), (Sent(theirs[-1], 1 - part, 1),), 0.0)]
        back += [
            Chunk((mine[at],), (Sent(theirs[at - 1], 1 - part, 1),) if at else (), 1.0)
            for at in reversed(range(layers))
        ]
        found.append(Outline(tuple(chunks), tuple(back)))
    return found
