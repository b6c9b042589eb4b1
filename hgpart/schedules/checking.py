"""Schedule -> what is wrong with it: the definition, slowly, without what rules use."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from hgpart.schedules.schedule import Action, Direction, Message, Schedule

FORWARD = Direction.FORWARD
PASSES = (FORWARD, Direction.BACKWARD, Direction.MAPS, Direction.WEIGHTS)
SILENT = (Direction.WEIGHTS, Direction.UPDATE)  # which await and send nothing


def problems(schedule: Schedule) -> list[str]:
    """Say what is wrong, a line each; nothing if the schedule is valid."""
    found = [*_incomplete(schedule)]
    if not found:
        found += _out_of_order(schedule)
        found += _stuck(schedule)
        found += _kept(schedule)
        found += _of_others(schedule)
    return found


def _incomplete(schedule: Schedule) -> Iterator[str]:
    """Whether each chunk of each micro-batch is done once, backward whole or in two halves.

    In a stream whole, and whether each part updates its weights once for each batch.
    """
    least = schedule.micro_batches * sum(len(outline.forward) for outline in schedule.outlines)
    if len(schedule.order) < least:  # before anything grows with a number that a file says
        yield f"{len(schedule.order)} actions, where forward passes alone have {least}"
        return
    counts = Counter(schedule.order)
    for action, count in counts.items():
        if action.part >= schedule.k:
            yield f"part {action.part} does {action}, but there are {schedule.k} parts"
        if count > 1:
            yield f"part {action.part} does {action} {count} times"
    for part, outline in enumerate(schedule.outlines):
        if not outline.forward or not outline.backward:
            yield f"part {part} has no chunks"
        wanted = {
            Action(part, FORWARD, micro_batch, chunk)
            for micro_batch in range(schedule.micro_batches)
            for chunk in range(len(outline.forward))
        }
        for micro_batch in range(schedule.micro_batches if schedule.backward else 0):
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
            yield f"part {part} does {action}, which it has not"


def _out_of_order(schedule: Schedule) -> Iterator[str]:
    """Whether each part goes through its passes in order, and through micro-batches in theirs."""
    for part, sequence in enumerate(schedule.sequences):
        at = {action: number for number, action in enumerate(sequence)}
        last = len(schedule.outlines[part].forward) - 1
        for action in sequence:
            before = []
            if action.micro_batch:
                before.append(action._replace(micro_batch=action.micro_batch - 1))
                if schedule.outlines[part].serial and action.direction is FORWARD:
                    before.append(Action(part, FORWARD, action.micro_batch - 1, last))
            if action.direction is Direction.UPDATE:
                before += [
                    one
                    for one in sequence
                    if one.micro_batch == action.micro_batch and one.direction in PASSES
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
    """Let the parts run, each by its own sequence; messages of two arrive in order of departure."""
    channels: dict[tuple[int, int], deque[Message]] = {}
    there: set[tuple[int, int, bool, int]] = set()  # receiver, micro-batch, gradient, transfer
    todo = [deque(sequence) for sequence in schedule.sequences]
    expected = {ends: deque[Message]() for ends in {m[2:4] for m in schedule.messages}}
    for message in schedule.messages:
        expected[message.sender, message.receiver].append(message)
    moved = True
    while moved:
        moved = False
        for part, actions in enumerate(todo):
            while actions and _arrived(schedule, actions[0], channels, there, expected):
                action = actions.popleft()
                moved = True
                if action.direction in SILENT:
                    continue
                for receiver, transfers in schedule.chunk(action).messages.items():
                    backward = action.direction is not FORWARD
                    facts = action.micro_batch, part, receiver, backward, transfers
                    channels.setdefault((part, receiver), deque()).append(Message(0, *facts))
    for part, actions in enumerate(todo):
        if actions:
            yield f"part {part} waits for ever to do {actions[0]}"
    for (sender, receiver), messages in channels.items():
        if messages:
            yield f"part {receiver} leaves {len(messages)} messages of part {sender} unread"


def _arrived(
    schedule: Schedule,
    action: Action,
    channels: dict[tuple[int, int], deque[Message]],
    there: set[tuple[int, int, bool, int]],
    expected: dict[tuple[int, int], deque[Message]],
) -> bool:
    """Whether all that an action awaits is there; takes what has come, if it is what should."""
    for (sender, receiver), messages in channels.items():
        while receiver == action.part and messages:
            message, wanted = messages.popleft(), expected[sender, receiver].popleft()
            if message[1:] != wanted[1:]:
                return False
            there |= {
                (receiver, message.micro_batch, message.backward, transfer)
                for transfer in message.transfers
            }
    if action.direction in SILENT:
        return True
    backward = action.direction is not FORWARD
    return all(
        (action.part, action.micro_batch, backward, transfer) in there
        for transfer in schedule.chunk(action).awaits
    )


def _of_others(schedule: Schedule) -> Iterator[str]:
    """Whether weights of which others have copies are updated behind all gradients, and in time."""
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
    """Whether a part keeps the maps of as many micro-batches as the schedule says, and may."""
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
