"""Schedule -> what is wrong with it: straight from the definition, slowly, by code of its own."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

from hgpart.schedules.schedule import Action, Direction, Piece, Schedule

FORWARD = Direction.FORWARD
Pieces = tuple[Piece, ...]  # of a message
PASSES = (FORWARD, Direction.BACKWARD, Direction.MAPS, Direction.WEIGHTS)


def problems(schedule: Schedule) -> list[str]:
    """Say what is wrong, one line each; nothing if the schedule (of a rule or lowered) is valid."""
    computing = _computing(schedule)
    lines = [*_incomplete(computing)]
    if not lines:
        lines += _out_of_order(computing)
        lines += _stuck(schedule)
        lines += _kept(computing)
        lines += _stale_copies(computing)
        lines += _travelled(schedule)
    return lines


def _computing(schedule: Schedule) -> Schedule:
    """The order of the rule: all that is computed, without weights that travel."""
    begun = (action for action in schedule.order if action.piece is None or action.piece[0] == 0)
    order = (action._replace(piece=None) for action in begun if not action.is_of_weights)
    return replace(schedule, order=tuple(order), travels=(), departing={})


def _incomplete(schedule: Schedule) -> Iterator[str]:
    """Check that each chunk of each micro-batch is done once, backward whole or in two halves.

    In a stream backward is whole, and each part updates its weights once for each batch.
    """
    least = schedule.micro_batches * sum(len(outline.forward) for outline in schedule.outlines)
    if schedule.turns:
        least = schedule.micro_batches * schedule.k
    if len(schedule.order) < least:  # before anything grows with a number that a file says
        yield f"{len(schedule.order)} actions, where forward passes alone have {least}"
        return
    counts = Counter(schedule.order)
    for action, count in counts.items():
        if action.part >= schedule.k:
            yield f"part {action.part} does {action}, but there are {schedule.k} parts"
        if count > 1:
            yield f"part {action.part} does {action} {count} times"
    for part in range(schedule.k):
        outlines = [
            schedule.outlines_of(micro_batch)[part] for micro_batch in range(schedule.micro_batches)
        ]
        if not all(outline.forward and outline.backward for outline in outlines):
            yield f"part {part} has no chunks"
        wanted = {
            Action(part, FORWARD, micro_batch, chunk)
            for micro_batch, outline in enumerate(outlines)
            for chunk in range(len(outline.forward))
        }
        for micro_batch, outline in enumerate(outlines if schedule.backward else ()):
            for chunk in range(len(outline.backward)):
                whole = Action(part, Direction.BACKWARD, micro_batch, chunk)
                halves = {
                    Action(part, half, micro_batch, chunk)
                    for half in (Direction.MAPS, Direction.WEIGHTS)
                }
                halved = schedule.in_flight is None and halves & counts.keys()
                wanted |= halves if halved else {whole}
        if schedule.in_flight is not None:
            wanted |= {
                Action(part, Direction.UPDATE, batch, 0) for batch in range(schedule.micro_batches)
            }
        done = {action for action in counts if action.part == part}
        for action in sorted(wanted - done):
            yield f"part {part} does not do {action}"
        for action in sorted(done - wanted):
            yield f"part {part} does {action}, which it does not have"


def _out_of_order(schedule: Schedule) -> Iterator[str]:
    """Check that each part goes through its passes, and through micro-batches, in order."""
    for part, sequence in enumerate(schedule.sequences):
        at = {action: number for number, action in enumerate(sequence)}
        for action in sequence:
            before = []
            outline = schedule.outlines_of(action.micro_batch)[part]
            last = len(outline.forward) - 1
            apart = 1 if action.direction is Direction.UPDATE else max(1, len(schedule.turns))
            if action.micro_batch >= apart:
                before.append(action._replace(micro_batch=action.micro_batch - apart))
                if outline.serial and action.direction is FORWARD:
                    before.append(Action(part, FORWARD, action.micro_batch - apart, last))
            if action.direction is Direction.UPDATE:
                before += [
                    done
                    for done in sequence
                    if done.micro_batch == action.micro_batch and done.direction in PASSES
                ]
            elif action.direction is Direction.WEIGHTS:
                before.append(action._replace(direction=Direction.MAPS))
                earlier = action._replace(chunk=action.chunk - 1)
                before += [earlier] if earlier in at else []  # it may be whole there
            elif action.chunk:
                earlier = action._replace(chunk=action.chunk - 1)
                other = {Direction.BACKWARD: Direction.MAPS, Direction.MAPS: Direction.BACKWARD}
                if earlier not in at:  # the pass may be whole in one chunk and halved in another
                    earlier = earlier._replace(direction=other[action.direction])
                before.append(earlier)
            elif action.direction is not FORWARD:
                before.append(Action(part, FORWARD, action.micro_batch, last))
            for other_action in before:
                if at.get(other_action, -1) > at[action]:
                    yield f"part {part} does {action} in front of {other_action}"


def _stuck(schedule: Schedule) -> Iterator[str]:
    """Run each part by its sequence; messages between two parts arrive as they departed."""
    channels: dict[tuple[int, int], deque[Pieces]] = {}
    there: set[tuple[int, Piece]] = set()  # receiver, and a piece that has arrived
    todo = [deque(sequence) for sequence in schedule.sequences]
    expected: dict[tuple[int, int], deque[Pieces]] = {}
    for message in schedule.messages:
        ends = message.sender, message.receiver
        expected.setdefault(ends, deque()).append(message.pieces)
    moved = True
    while moved:
        moved = False
        for part, actions in enumerate(todo):
            while actions and _arrived(schedule, actions[0], channels, there, expected):
                action = actions.popleft()
                moved = True
                for receiver, pieces in schedule.sends(action).items():
                    channels.setdefault((part, receiver), deque()).append(pieces)
    for part, actions in enumerate(todo):
        if actions:
            yield f"part {part} waits for ever to do {actions[0]}"
    for (sender, receiver), messages in channels.items():
        if messages:
            yield f"part {receiver} leaves {len(messages)} messages of part {sender} unread"


def _arrived(
    schedule: Schedule,
    action: Action,
    channels: dict[tuple[int, int], deque[Pieces]],
    there: set[tuple[int, Piece]],
    expected: dict[tuple[int, int], deque[Pieces]],
) -> bool:
    """Whether all that an action awaits has arrived, with no message out of its expected order."""
    for (sender, receiver), messages in channels.items():
        while receiver == action.part and messages:
            pieces = messages.popleft()
            if pieces != expected[sender, receiver].popleft():
                return False
            there |= {(receiver, piece) for piece in pieces}
    return all((action.part, piece) in there for piece in schedule.awaits(action))


def _stale_copies(schedule: Schedule) -> Iterator[str]:
    """Check that an update comes after all gradients of copies, and before it is needed."""
    at = {action: number for number, action in enumerate(schedule.order)}
    for part, outline in enumerate(schedule.outlines):
        for owner, _ in outline.owners if schedule.in_flight is not None else ():
            for batch in range(schedule.micro_batches):
                update = Action(owner, Direction.UPDATE, batch, 0)
                last = Action(part, Direction.BACKWARD, batch, len(outline.backward) - 1)
                later = Action(part, FORWARD, batch + (schedule.in_flight or 0), 0)
                if at[update] < at[last]:
                    yield f"part {owner} does {update} in front of {last} of part {part}"
                if later in at and at[later] < at[update]:
                    yield f"part {part} does {later} in front of {update} of part {owner}"


def _kept(schedule: Schedule) -> Iterator[str]:
    """Check that a part keeps the maps of as many micro-batches as the schedule says, and may."""
    for part, sequence in enumerate(schedule.sequences):
        most = 0
        for now in range(len(sequence)):
            begun = {action.micro_batch for action in sequence[: now + 1]}
            coming = {action.micro_batch for action in sequence[now:]}
            most = max(most, len(begun & coming))
        if most != schedule.alive[part]:
            yield f"part {part} keeps {most} micro-batches, not {schedule.alive[part]}"
        if schedule.in_flight is not None and most > schedule.in_flight:
            yield f"part {part} has {most} batches in flight, accepted are {schedule.in_flight}"


def _travelled(schedule: Schedule) -> Iterator[str]:
    """Check that weights travel there and back once, in a stream once for each batch.

    The parts have the weights of the first batch of a stream already.
    """
    is_stream, batches = schedule.in_flight is not None, schedule.micro_batches
    counts = Counter((action.part, action.direction, action.chunk) for action in schedule.order)
    for number, (owner, holder) in enumerate(schedule.travels):
        there, back = (batches - 1, batches) if is_stream else (1, 1)
        wanted = {(holder, Direction.GATHER): there, (owner, Direction.COLLECT): back}
        if owner != holder:
            wanted |= {(owner, Direction.SPREAD): there, (holder, Direction.REDUCE): back}
        for (part, direction), count in wanted.items():
            if (done := counts[part, direction, number]) != count:
                yield f"part {part} does {direction.value} of {number} {done} times, not {count}"
