"""Whatever arrives when, a part does all of its actions, each after what it needs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from toy_programs import Cut, cuts, of_parts, shared

from hgpart.execution.outlines import outline
from hgpart.schedules import make_schedule
from hgpart.schedules.checking import problems
from hgpart.schedules.costs import Costs
from hgpart.schedules.dynamic.order import DynamicOrder
from hgpart.schedules.lowering import lower
from hgpart.schedules.schedule import Action, Direction, Piece


class NothingError(Exception):
    """A part has nothing that is ready."""


class Inbox:
    """The channel of one part: pieces that were delivered so far."""

    def __init__(self) -> None:
        self.pieces: set[Piece] = set()

    def has(self, piece: Piece) -> bool:
        return piece in self.pieces

    def wait_for(self, find):
        if (found := find()) is None:
            raise NothingError
        return found


@given(cuts(), st.integers(1, 3), st.integers(1, 5), st.booleans(), st.data(), st.randoms())
def test_any_delays(
    cut: Cut, in_flight: int, batches: int, serial: bool, data: st.DataObject, deal: Random
) -> None:
    travels, of_steps = data.draw(shared(cut))
    outlines = []
    for part in range(cut.k):
        owners = {owner: 1 for owner, holder in travels if holder == part != owner}
        own = outline(cut.placed.programs[part], {})
        outlines.append(replace(own, serial=serial, owners=tuple(owners.items())))
    made = make_schedule(outlines, "dynamic", batches, Costs(message=1.0), in_flight=in_flight)
    lowered = lower(made, travels, range(len(travels)), of_parts(cut, of_steps))
    assert problems(made) == problems(lowered) == []
    inboxes = [Inbox() for _ in outlines]
    parts = [DynamicOrder(lowered, part, inbox.has) for part, inbox in enumerate(inboxes)]
    orders = [part.actions(inbox.wait_for) for part, inbox in zip(parts, inboxes, strict=True)]
    on_the_way, going, done = list[tuple[int, Piece]](), [*range(cut.k)], list[Action]()
    while going:
        for _ in range(deal.randrange(len(on_the_way) + 1)):
            receiver, piece = on_the_way.pop(deal.randrange(len(on_the_way)))
            inboxes[receiver].pieces.add(piece)
        part = deal.choice(going)
        try:
            action = next(orders[part])
        except StopIteration:
            going.remove(part)
            continue
        except NothingError:
            assert on_the_way or len(going) > 1  # someone else goes on
            orders[part] = parts[part].actions(
                inboxes[part].wait_for
            )  # an error has ended the other
            continue
        assert all(piece in inboxes[part].pieces for piece in lowered.awaits(action))
        done.append(action)
        for receiver, pieces in lowered.sends(action).items():
            on_the_way += [(receiver, piece) for piece in pieces]
    assert Counter(done) == Counter(lowered.order)
    computed = tuple(action for action in done if not action.is_of_weights)
    assert problems(replace(made, order=computed)) == []
    for part, owners in enumerate(one.owners for one in outlines):
        taken = Counter[int]()
        for action in (one for one in done if one.part == part):
            if action.direction is Direction.GATHER:
                taken[action.chunk] = action.micro_batch
            elif action.direction is Direction.FORWARD and action.chunk == 0:
                for number, (owner, holder) in enumerate(travels):
                    if holder == part and owner in dict(owners):
                        assert taken[number] >= action.micro_batch - in_flight + 1
