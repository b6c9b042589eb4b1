"""Placement, Schedule, limits -> the stretches that each part drops so as to fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hgpart.machines.machine import SlowerMemory
from hgpart.placement.accounting import part_step_bytes, step_memory
from hgpart.placement.ordering.stretches import Dropping, least_seconds, most_bytes
from hgpart.placement.placement import Placement
from hgpart.placement.rehearsal import StepMemory
from hgpart.schedules.outline import Stretch
from hgpart.schedules.schedule import GO_BACK, Direction, Schedule

ATTEMPTS = 6  # budgets that are tried for a part
LESS = 0.03  # of the limit: so much less is tried at least where a choice does not fit
ENOUGH = 0.01  # of the limit: so much room is not worth another attempt


def dropped_within(
    placement: Placement,
    schedule: Schedule,
    limits: Sequence[int | None],
    seconds: Sequence[Mapping[str, float]],
    batch_size: int | None = None,
    devices: Sequence[str] | None = None,
    slower: Sequence[SlowerMemory | None] | None = None,
) -> tuple[tuple[Stretch, ...], ...] | None:
    """Choose what each part recomputes or offloads: the least seconds that keep to its limit.

    A choice is made by what each step keeps and takes by itself, then counted as the part would run
    it, and made again with more room or less.

    Parameters
    ----------
    placement : Placement
        Placement in the mode of the schedule, with all its parts in this process.
    limits : sequence of int or None
        The most bytes that each part may take in a step; see `StepBytes.taken`. None: any number.
    seconds : sequence of mapping of str to float
        Seconds of a forward pass of each part's steps, by name.
    batch_size : int, optional
        Samples of a step. Default: as in `account`.
    devices : sequence of str, optional
        See `known_step_bytes`.
    slower : sequence of SlowerMemory or None, optional
        The slower memory that each part's device has. Default: none has any.

    Returns
    -------
    tuple or None
        The stretches of each part; None if some part does not fit, whatever it drops.

    Raises
    ------
    PlacementError
        If a part's memory can't be counted.
    """
    if any(limit is not None and limit <= 0 for limit in limits):
        return None  # weights alone are too much: nothing has to be counted
    chosen = list[tuple[Stretch, ...]]()
    known: dict[object, tuple[tuple[range, bool], ...]] = {}
    for part, limit in enumerate(limits):
        stretches: tuple[Stretch, ...] | None = ()
        if limit is not None and placement.k > 1:
            own = None if slower is None else slower[part]
            fit = _Fit(placement, schedule, part, batch_size, devices, own)
            stretches = fit.best(limit, seconds[part], known)
        if stretches is None:
            return None
        chosen.append(stretches)
    return tuple(chosen)


class _Fit:
    """What a part takes in a step, by the stretches that it drops."""

    def __init__(
        self,
        placement: Placement,
        schedule: Schedule,
        part: int,
        batch_size: int | None,
        devices: Sequence[str] | None,
        slower: SlowerMemory | None,
    ) -> None:
        self._placement, self._schedule, self._part = placement, schedule, part
        self._batch_size, self._devices, self._slower = batch_size, devices, slower

    def best(
        self,
        limit: int,
        seconds: Mapping[str, float],
        known: dict[object, tuple[tuple[range, bool], ...]],
    ) -> tuple[Stretch, ...] | None:
        """The stretches that take the least seconds, of those that fit; None if none do.

        `known` has the instructions of the stretches that were chosen for earlier parts: a part
        whose steps differ from theirs in nothing but names tries these first. It is added to.
        """
        left = self._room(limit, ())
        if left >= 0:
            return ()
        count = self._schedule.micro_batches if self._schedule.in_flight is None else 1
        steps = step_memory(self._placement, self._part, count, self._batch_size, most=True)
        names = [step.name for step in steps if step.name]
        costs = tuple((seconds.get(name, 0.0), *_sizes(step)) for name, step in _named(steps))
        alike = costs, self._slower
        if alike in known:
            stretches = tuple(
                Stretch(tuple(names[at] for at in places), offloaded)
                for places, offloaded in known[alike]
            )
            if self._room(limit, stretches) >= 0:
                return stretches
        best = self._search(steps, limit, seconds, limit - left)
        if best is not None:
            known[alike] = tuple(
                (range(names.index(own[0]), names.index(own[-1]) + 1), offloaded)
                for own, offloaded in best
            )
        return best

    def _search(
        self, steps: Sequence[StepMemory], limit: int, seconds: Mapping[str, float], keeping: int
    ) -> tuple[Stretch, ...] | None:
        """`best`, for a part that takes `keeping` bytes if it drops nothing."""
        alive = _alive(self._schedule, self._part)
        # What steps take by themselves is not all: messages, and several graphs as one, count too.
        budget = limit - (keeping - most_bytes(steps, alive))
        best: Dropping | None = None
        rooms: dict[tuple[Stretch, ...], int] = {(): limit - keeping}
        for _ in range(ATTEMPTS):
            dropped = least_seconds(steps, seconds, budget, alive, self._slower)
            if dropped is None:
                break
            if dropped.stretches not in rooms:
                rooms[dropped.stretches] = self._room(limit, dropped.stretches)
            elif best is not None:
                break
            room = rooms[dropped.stretches]
            if room >= 0 and (best is None or dropped.seconds < best.seconds):
                best = dropped
            if 0 <= room <= ENOUGH * limit:
                break
            budget += room if room > 0 else min(room, -round(LESS * limit))
        return None if best is None else best.stretches

    def _room(self, limit: int, stretches: tuple[Stretch, ...]) -> int:
        """Bytes that are left of the limit; below 0 where it, or slower memory, is too small."""
        outlines = [
            replace(outline, dropped=stretches if part == self._part else ())
            for part, outline in enumerate(self._schedule.outlines)
        ]
        order = replace(self._schedule, outlines=tuple(outlines))
        size, devices = self._batch_size, self._devices
        step = part_step_bytes(self._placement, self._part, order, size, devices)
        left = limit - step.taken
        if self._slower is not None and self._slower.memory is not None:
            left = min(left, self._slower.memory - step.elsewhere)
        return left


def _named(steps: Sequence[StepMemory]) -> Iterator[tuple[str, StepMemory]]:
    yield from ((step.name, step) for step in steps if step.name)


def _sizes(step: StepMemory) -> tuple[int, ...]:
    return sum(step.kept.values()), step.forward_bytes, step.backward_bytes


def _alive(schedule: Schedule, part: int) -> int:
    """The most micro-batches that a part has begun and not gone back through."""
    back = [action for action in schedule.sequences[part] if action.direction in GO_BACK]
    last = {action.micro_batch: action for action in back}
    begun, most = set[int](), 1
    for action in schedule.sequences[part]:
        if action.direction is Direction.FORWARD:
            begun.add(action.micro_batch)
            most = max(most, len(begun))
        elif action is last.get(action.micro_batch):
            begun.discard(action.micro_batch)
    return most
