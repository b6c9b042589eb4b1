"""Memory and seconds of steps, a limit -> the stretches to drop so that a part keeps to it.

A part may drop some of what its steps keep for backward, and compute it a second time or, where it
has slower memory, write it there and read it back. A stretch of consecutive steps is recomputed at
once, when backward comes to its last step, from the values that it reads; of an offloaded one each
step reads its own; steps outside stretches keep all of it. Where stretches begin and end decides
both what is kept and what is in memory at a time. The checkpoints of Chen et al. (arXiv 1604.06174)
are the special case of stretches of equal length, all of them recomputed.

The least seconds are found by dynamic programming over the steps, from the first to the last, on
pairs (bytes kept, seconds), of which those are left out that are no better in either. Each memory
counts once, whichever steps keep or read it, so that of two choices up to a step the set matters,
not the bytes alone: the result is exact for chains of steps that keep what they read and what is
their own, and a good choice where they keep what they make, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from hgpart.execution.offloading.graphs import LEAST
from hgpart.machines.machine import SlowerMemory
from hgpart.placement.rehearsal import StepMemory
from hgpart.schedules.outline import Stretch

MOST, FEWEST = 24, 6  # choices that are followed at a time; fewer of them in long programs
MUCH = 1500  # choices of all instructions
LONGEST = 40  # instructions of a stretch
KEPT = (1.0, 0.75, 0.55, 0.4, 0.3, 0.2, 0.14, 0.1, 0.06, 0.03)  # of all, by others meanwhile


class _Choice(NamedTuple):
    """What is chosen for the steps so far: a memory is a bit of `held` or `elsewhere`."""

    nbytes: int
    seconds: float
    held: int
    dropped: tuple[tuple[range, bool], ...]  # instructions, and whether they are offloaded
    elsewhere: int = 0


class Dropping(NamedTuple):
    """The stretches that a part drops, and the seconds that this takes."""

    stretches: tuple[Stretch, ...]
    seconds: float


def least_seconds(
    steps: Sequence[StepMemory],
    seconds: Mapping[str, float],
    limit: int,
    alive: int = 1,
    slower: SlowerMemory | None = None,
) -> Dropping | None:
    """The choice that adds the fewest seconds, of those that keep to a limit.

    Parameters
    ----------
    steps : sequence of StepMemory
        All instructions of a part's program.
    seconds : mapping of str to float
        Seconds of each step's forward pass.
    limit : int
        The most bytes at any time.
    alive : int
        The most micro-batches at a time: all but one keep meanwhile what they have for backward.
    slower : SlowerMemory, optional
        Where stretches may be offloaded to, which takes the time to write and to read.

    Returns
    -------
    Dropping or None
        None if no choice keeps to the limit.
    """
    room = None if slower is None or slower.memory is None else slower.memory // alive
    search = _Search(steps, seconds, None if slower is None else 2 / slower.bandwidth, room)
    best: _Choice | None = None
    for share in KEPT if alive > 1 else (1.0,):
        others = round(share * search.all_bytes)
        choice = search.best(limit - (alive - 1) * others, others)
        if choice is not None and (best is None or choice.seconds < best.seconds):
            best = choice
    if best is None:
        return None
    return Dropping(tuple(search.stretches(best)), best.seconds)


def most_bytes(steps: Sequence[StepMemory], alive: int = 1) -> int:
    """The most bytes at any time, by the same reckoning, with nothing dropped."""
    return _Search(steps, {}).most_bytes(alive)


class _Search:
    def __init__(
        self,
        steps: Sequence[StepMemory],
        seconds: Mapping[str, float],
        seconds_a_byte: float | None = None,
        room: int | None = None,
    ) -> None:
        self._steps, self._seconds_a_byte, self._room = steps, seconds_a_byte, room
        self._seconds = [seconds.get(step.name, 0.0) for step in steps]
        self._sizes: list[int] = []
        self._bits: dict[int, int] = {}
        self._kept = [self._mask(step.kept) for step in steps]
        self._live = [self._mask(step.live) for step in steps]
        self._reads = [
            {slot: self._mask(memory) for slot, memory in step.reads.items()} for step in steps
        ]
        held = 0
        for kept in self._kept:
            held |= kept
        self.all_bytes = self._bytes(held)
        small = sum(1 << bit for bit, size in enumerate(self._sizes) if size < LEAST)
        inputs = (self._bits[at] for step in steps for at in step.inputs if at in self._bits)
        self._staying = small | sum(1 << bit for bit in {*inputs})

    def _mask(self, memory: Mapping[int, int]) -> int:
        mask = 0
        for address, size in memory.items():
            if address not in self._bits:
                self._bits[address] = len(self._sizes)
                self._sizes.append(size)
            mask |= 1 << self._bits[address]
        return mask

    def _bytes(self, mask: int) -> int:
        total = 0
        while mask:
            bit = mask & -mask
            total += self._sizes[bit.bit_length() - 1]
            mask ^= bit
        return total

    def most_bytes(self, alive: int) -> int:
        """The most bytes at any time with nothing dropped."""
        most, choice = 0, _Choice(0, 0.0, 0, ())
        for at, kept in enumerate(self._kept):
            choice = self._with(choice, kept)
            most = max(most, choice.nbytes + self._needed(at, choice.held))
        return most + (alive - 1) * self.all_bytes

    def stretches(self, choice: _Choice) -> Iterator[Stretch]:
        """The stretches of a choice; offloaded steps that follow each other are one."""
        waiting, end = Stretch((), offloaded=True), 0
        for places, offloaded in choice.dropped:
            names = self._names(places)
            if waiting.steps and not (offloaded and not self._names(range(end, places[0]))):
                yield waiting
                waiting = Stretch((), offloaded=True)
            if offloaded:
                waiting = Stretch(waiting.steps + names, offloaded=True)
            else:
                yield Stretch(names)
            end = places[-1] + 1
        if waiting.steps:
            yield waiting

    def _names(self, places: range) -> tuple[str, ...]:
        return tuple(self._steps[at].name for at in places if self._steps[at].name)

    def best(self, limit: int, most_kept: int) -> _Choice | None:
        """The choice of least seconds that keeps at most so much in the end."""
        count = len(self._steps)
        waiting: list[list[_Choice]] = [[] for _ in range(count + 1)]
        waiting[0].append(_Choice(0, 0.0, 0, ()))
        for at in range(count):
            most = max(FEWEST, min(MOST, MUCH // count))
            there = None if self._room is None else self._there
            for choice in _undominated(waiting[at], most, there):
                for end, following in self._after(choice, at, limit):
                    if following.nbytes <= most_kept:
                        waiting[end].append(following)
        return min(waiting[count], key=lambda choice: choice.seconds, default=None)

    def _after(self, choice: _Choice, at: int, limit: int) -> Iterator[tuple[int, _Choice]]:
        """Choices for the next steps: the first is kept or offloaded, or some are recomputed."""
        kept = self._with(choice, self._kept[at])
        fits = kept.nbytes + self._needed(at, kept.held) <= limit
        if fits:
            yield at + 1, kept
        if not self._steps[at].name:
            return
        if fits and (offloaded := self._offloaded(choice, at, limit)) is not None:
            yield at + 1, offloaded
        made, read = set[int](), choice.held
        inside, inside_bytes = choice.held, choice.nbytes
        spent = choice.seconds
        for end in range(at, min(at + LONGEST, len(self._steps))):
            step = self._steps[end]
            for slot, memory in self._reads[end].items():
                if slot not in made:
                    read |= memory
            made |= step.makes
            more = (read | self._kept[end]) & ~inside
            inside |= more
            inside_bytes += self._bytes(more)
            spent += self._seconds[end]
            if inside_bytes + self._needed(end, inside) > limit:
                return
            if step.name:
                dropped = (*choice.dropped, (range(at, end + 1), False))
                yield end + 1, self._with(choice, read)._replace(seconds=spent, dropped=dropped)

    def _offloaded(self, choice: _Choice, at: int, limit: int) -> _Choice | None:
        """The next step offloaded; None if there is nothing to offload, or no room for it."""
        if self._seconds_a_byte is None:
            return None
        moved = self._kept[at] & ~self._staying
        elsewhere = choice.elsewhere | moved
        if not moved or (self._room is not None and self._bytes(elsewhere) > self._room):
            return None
        # What steps before it keep is here a second time when backward has read it.
        inside = self._with(choice, self._kept[at])
        twice = self._bytes(moved & choice.held)
        if inside.nbytes + twice + self._steps[at].backward_bytes > limit:
            return None
        spent = self._seconds_a_byte * self._bytes(moved & ~choice.elsewhere)
        return self._with(choice, self._kept[at] & self._staying)._replace(
            seconds=choice.seconds + spent,
            dropped=(*choice.dropped, (range(at, at + 1), True)),
            elsewhere=elsewhere,
        )

    def _there(self, choice: _Choice) -> int:
        """Bytes in slower memory."""
        return self._bytes(choice.elsewhere)

    def _needed(self, at: int, held: int) -> int:
        """Bytes of a step at work beside those that are kept."""
        step = self._steps[at]
        forward = step.forward_bytes + self._bytes(self._live[at] & ~held)
        return max(forward, step.backward_bytes)

    def _with(self, choice: _Choice, more: int) -> _Choice:
        nbytes = choice.nbytes + self._bytes(more & ~choice.held)
        return choice._replace(nbytes=nbytes, held=choice.held | more)


def _undominated(
    choices: Sequence[_Choice], most: int, there: Callable[[_Choice], int] | None
) -> list[_Choice]:
    """Those that keep less than all that take no more seconds; of more than `most` some, evenly.

    Where slower memory is limited, all those with as few bytes `there`.
    """
    best = list[_Choice]()
    sizes = list[tuple[int, int]]()
    for choice in sorted(choices, key=lambda choice: (choice.seconds, choice.nbytes)):
        size = choice.nbytes, 0 if there is None else there(choice)
        rivals = sizes[-1:] if there is None else sizes  # the last of them keeps the least
        if not any(kept <= size[0] and moved <= size[1] for kept, moved in rivals):
            best.append(choice)
            sizes.append(size)
    if len(best) <= most:
        return best
    return [best[at * (len(best) - 1) // (most - 1)] for at in range(most)]


def worth_recomputing(
    steps: Sequence[StepMemory], chunks: Sequence[tuple[str, ...]]
) -> tuple[Stretch, ...]:
    """The chunks that save memory if they are recomputed, as they read less than they keep.

    Each memory counts once at the end of the forward pass, whichever chunks hold it; chunk by
    chunk, one is recomputed if that leaves less memory in use.
    """
    of_name = {step.name: step for step in steps}
    reads, keeps = list[dict[int, int]](), list[dict[int, int]]()
    for names in chunks:
        own = [of_name[name] for name in names]
        made = frozenset(chain.from_iterable(step.makes for step in own))
        read, kept = dict[int, int](), dict[int, int]()
        for step in own:
            kept.update(step.kept)
            for slot, memory in step.reads.items():
                if slot not in made:
                    read.update(memory)
        reads.append(read)
        keeps.append(kept)
    return tuple(Stretch(chunks[at]) for at in sorted(_least(reads, keeps)))


def _least(
    reads: Sequence[Mapping[int, int]], keeps: Sequence[Mapping[int, int]]
) -> frozenset[int]:
    """The chunks of which only what they read should be kept.

    >>> sorted(_least([{1: 10}, {2: 10}], [{1: 10, 2: 20}, {3: 5}]))
    [0]
    """
    holders = Counter(chain.from_iterable(keeps))
    chosen = set()
    for at, (read, kept) in enumerate(zip(reads, keeps, strict=True)):
        freed = sum(size for key, size in kept.items() if holders[key] == 1 and key not in read)
        taken = sum(size for key, size in read.items() if holders[key] == 0)
        if freed > taken:
            chosen.add(at)
            holders.subtract(kept.keys())
            holders.update(read.keys())
    return frozenset(chosen)
