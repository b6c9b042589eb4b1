"""Schedule + CostModel -> text: which part does what when, by estimated costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap

from hgpart.schedules.costs import CostModel
from hgpart.schedules.schedule import Action, Direction, Schedule
from hgpart.schedules.simulation import bubble, times_of

WIDTH = 66  # a whole row fits 80 columns
LINE = 80
FIRST = {Direction.FORWARD: "0", Direction.BACKWARD: "a", Direction.MAPS: "a"}


def draw_schedule(schedule: Schedule, costs: CostModel) -> str:
    """Draw a row per part: digits are forward, letters backward, capitals its weights' half.

    The same follows as a list: ``F0.0-3`` is chunks 0 to 3 of micro-batch 0, ``U0.0`` the update
    of the part's weights by batch 0. The schedule is a rule's, without weights that travel.
    """
    when = times_of(schedule, costs)
    idle = bubble(schedule, costs)
    return draw_times(schedule, when, f"idle {100 * idle:.0f} % by costs")


def draw_times(schedule: Schedule, when: Sequence[tuple[float, float]], heading: str) -> str:
    """Draw the same with a known begin and end of each action.

    Updates, and weights that travel, are not drawn.

    Parameters
    ----------
    when : sequence of (float, float)
        Begin and end of each action of the order, in seconds.
    heading : str
        Text that follows the name of the schedule.
    """
    end = max((until for _, until in when), default=0.0)
    rows = [["."] * WIDTH for _ in range(schedule.k)]
    for action, (begin, until) in zip(schedule.order, when, strict=True):
        if end:
            columns = range(int(begin / end * WIDTH), max(1, round(until / end * WIDTH)))
            shown = action.direction in FIRST or action.direction is Direction.WEIGHTS
            for column in columns if shown and until > begin else ():
                rows[action.part][column] = _letter(action)
    count = f"{schedule.micro_batches} micro-batch{'es' * (schedule.micro_batches > 1)}"
    if schedule.in_flight is not None:
        count = f"{schedule.micro_batches} batches, {schedule.in_flight} in flight at most,"
    lines = [f"{schedule.rule}: {count} on {schedule.k} parts, {heading}"]
    digits = len(str(schedule.k - 1))
    for part, row in enumerate(rows):
        lines.append(f"{part:{digits}} |{''.join(row)}| keeps {schedule.alive[part]}")
    for part, sequence in enumerate(schedule.sequences):
        runs = f"{part:{digits}}  {' '.join(_runs(sequence))}"
        lines += wrap(runs, LINE, subsequent_indent=" " * (digits + 2), break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _letter(action: Action) -> str:
    if action.direction is Direction.WEIGHTS:
        return chr(ord("A") + action.micro_batch % 26)
    most = 10 if action.direction is Direction.FORWARD else 26
    return chr(ord(FIRST[action.direction]) + action.micro_batch % most)


def _runs(sequence: tuple[Action, ...]) -> list[str]:
    """Runs of consecutive chunks."""
    runs = []
    begun = (action for action in sequence if action.piece is None or action.piece[0] == 0)
    numbered = enumerate(action for action in begun if not action.is_of_weights)
    for (_, direction, micro_batch), run in groupby(
        numbered, lambda item: (item[1].chunk - item[0], *item[1][1:3])
    ):
        chunks = [action.chunk for _, action in run]
        last = f"-{chunks[-1]}" if len(chunks) > 1 else ""
        runs.append(f"{direction.value}{micro_batch}.{chunks[0]}{last}")
    return runs
