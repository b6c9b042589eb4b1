"""What comes to a part and leaves it is what others send and await, and is settled in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from toy_programs import Cut, cuts

from hgpart.execution.outlines import outline
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.mail import mail
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule import Direction


@given(cuts(), st.sampled_from([*RULES, "async"]), st.integers(1, 3))
def test_mail(cut: Cut, rule: str, micro_batches: int) -> None:
    outlines = [outline(cut.placed.programs[part], {}) for part in range(cut.k)]
    made = make_schedule(outlines, rule, micro_batches, Costs(message=1.0))
    found = [mail(made, part) for part in range(cut.k)]
    comes = [number for one in found for number in one.incoming]
    assert sorted(comes) == list(made.messages)  # each has one receiver
    leaves = {message for one in found for message in one.departing.values()}
    assert leaves == set(made.messages)
    assert {own.under_way for own in found} == {
        under_way(made) if rule == "async" else micro_batches
    }
    for part, own in enumerate(found):
        numbers = [message.number for message in own.incoming]
        assert numbers == sorted(numbers)
        settled = [number for several in own.settled.values() for number in several]
        assert len(settled) == len({*settled})
        for number, several in own.settled.items():
            answer = made.messages[number]
            for other in several:
                asked = made.messages[other]
                assert (asked.sender, asked.receiver) == (part, answer.sender)
                assert answer.receiver == part
                assert first_await(made, asked) <= departure(made, answer)


def under_way(made):
    """Most batches at a time of which some part has done something, and some has yet to."""
    most = 0
    for at in range(len(made.order)):
        begun = {action.micro_batch for action in made.order[: at + 1]}
        most = max(most, len(begun & {action.micro_batch for action in made.order[at:]}))
    return most


def facts(action):
    """Of the maps, or gradients of maps, that an action sends or awaits."""
    forward = action.direction is Direction.FORWARD
    return Direction.FORWARD if forward else Direction.BACKWARD, action.micro_batch


def carried(message):
    """The same of a message, and the numbers of its transfers."""
    (kind,) = {piece[:2] for piece in message.pieces}
    return kind, tuple(piece.number for piece in message.pieces)


def departure(made, message):
    """Where in the sender's sequence a message leaves."""
    receiver = message.receiver
    return first_of(
        *(made, message.sender, message),
        lambda chunk, numbers: chunk.messages.get(receiver) == numbers,
    )


def first_await(made, message):
    """Where in the receiver's sequence a message has to be there."""
    return first_of(
        *(made, message.receiver, message), lambda chunk, numbers: {*chunk.awaits} & {*numbers}
    )


def first_of(made, part, message, has_to_do):
    """Where a part first does something that has to do with a message."""
    kind, numbers = carried(message)
    for at, action in enumerate(made.sequences[part]):
        moves = action.direction not in (Direction.WEIGHTS, Direction.UPDATE)
        if moves and facts(action) == kind and has_to_do(made.chunk(action), numbers):
            return at
    raise AssertionError(message)
