"""Steps, LayerTimes, Machine -> a CostModel of measured seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from hgpart.errors import check_number
from hgpart.machines.machine import Machine
from hgpart.prediction.device_times import TimedDevice, Times, timed_devices
from hgpart.prediction.jobs import TimedJob
from hgpart.prediction.steps import ChunkSteps, LayerShare, PartSteps
from hgpart.schedules.costs import CostModel
from hgpart.schedules.outline import Chunk, Stretch
from hgpart.schedules.schedule import Action, Direction
from hgpart.work.layer_times import Pass

ADDING = {Pass.BACKWARD, Pass.WEIGHTS}  # passes that add to gradients of weights
# Of the seconds of an update, which reads weights and gradients and writes weights; what is added
# to gradients is still in the caches.
OF_UPDATE = 2 / 3


class SentWeights(NamedTuple):
    """Weights that one part sends another, or their gradients.

    Attributes
    ----------
    packed : bool
        Whether several tensors share a message.
    """

    nbytes: int
    packed: bool


@dataclass(frozen=True)
class Overheads:
    """Estimated costs of steps and transfers in Python and autograd.

    Attributes
    ----------
    step : float
        Seconds of a step of a part's program, in each pass.
    transfer : float
        Seconds of a transfer, in the part that sends it and in the part that receives it.
    byte : float
        Seconds of a byte that a part packs, unpacks, or adds to a gradient of its own.
    """

    step: float = 3e-5
    transfer: float = 5e-5
    byte: float = 4e-10

    def __post_init__(self) -> None:
        """Raise an ArgumentError if a number is out of range."""
        for name, value in vars(self).items():
            check_number(name, value)


@dataclass(frozen=True, eq=False)
class MeasuredCosts(CostModel):
    """Seconds of actions by the measured times of their layers, and of messages by the links.

    Attributes
    ----------
    turns : sequence of mapping of int to PartSteps
        Steps of all parts; those of several turns if batches take turns.
    sizes : sequence of int
        Samples of each micro-batch, or of each batch of a stream.
    dropped : sequence of sequence of Stretch
        For each part, the stretches that it drops; see `Outline`.
    times : Times
        Times of layers; see `device_times`.
    machine : Machine
        The machine; its device p has part p.
    is_stream : bool
        Whether `sizes` are those of batches of a stream.
    weights : sequence of SentWeights or None
        The weights of each number in a lowered schedule; None where a part has its own copy and
        nothing is sent.
    offloaded : mapping of Action to int
        Bytes that actions on whole chunks write to slower memory or read from there; of a chunk in
        pieces they count in the first.
    """

    turns: Sequence[Mapping[int, PartSteps]]
    sizes: Sequence[int]
    dropped: Sequence[Sequence[Stretch]]
    times: Times
    machine: Machine
    overheads: Overheads = Overheads()
    is_stream: bool = False
    weights: Sequence[SentWeights | None] = ()
    offloaded: Mapping[Action, int] = field(default_factory=dict)
    _known: dict[tuple[object, ...], TimedJob] = field(default_factory=dict, init=False)

    def action(self, action: Action, chunk: Chunk) -> float:
        """Seconds of all steps of a chunk."""
        return self.job(action).seconds

    def job(self, action: Action) -> TimedJob:
        """The seconds of an action, with the fraction that is memory-bound."""
        job = self._of_weights(action) if action.is_of_weights else self._at_speed_1(action)
        own = self._on_device(action.part, job)
        nbytes, slower = self._offloaded(action), self.machine.devices[action.part].slower
        if not nbytes or slower is None:
            return own
        return together([own, TimedJob(nbytes / slower.bandwidth)])

    def _offloaded(self, action: Action) -> int:
        is_first = action.piece is None or action.piece[0] == 0
        return self.offloaded.get(action._replace(piece=None), 0) if is_first else 0

    @cached_property
    def _devices(self) -> tuple[TimedDevice, ...]:
        return timed_devices(self.machine, self.times)

    def _on_device(self, part: int, job: TimedJob) -> TimedJob:
        """The same job on a device that is faster than the one that was timed, or slower."""
        return job._replace(seconds=job.seconds / self._devices[part].speed)

    def _at_speed_1(self, action: Action) -> TimedJob:
        part, direction, micro_batch, at, piece = action
        turn = micro_batch % len(self.turns)
        key = part, direction, at, self.sizes[micro_batch], micro_batch > 0, piece, turn
        if key not in self._known:
            if direction is Direction.UPDATE:
                self._known[key] = TimedJob(self._update(part), memory_bound=1.0)
            else:
                steps = self.recomputing(action), *self.jobs_of_steps(action), self.packing(action)
                self._known[key] = together(steps)
        return self._known[key]

    def names(self, action: Action) -> tuple[str, ...]:
        """The steps of an action, in order."""
        if action.direction is Direction.UPDATE:
            return ()
        steps = self._chunk(action)
        if action.piece is None:
            return steps.names
        begin, end = action.piece
        pairs = zip(steps.names, steps.places, strict=True)
        return tuple(name for name, place in pairs if begin <= place < end)

    def _chunk(self, action: Action) -> ChunkSteps:
        """The steps of an action's chunk, in the action's pass."""
        steps = self._steps_of(action)
        is_forward = action.direction is Direction.FORWARD
        return (steps.forward if is_forward else steps.backward)[action.chunk]

    def _steps_of(self, action: Action) -> PartSteps:
        return self.turns[action.micro_batch % len(self.turns)][action.part]

    def _of_weights(self, action: Action) -> TimedJob:
        """The job of packing weights, unpacking them, or adding gradients to others."""
        weights = self.weights[action.chunk]
        if weights is None:
            return TimedJob(0.0)
        direction, nbytes = action.direction, weights.nbytes
        if direction is Direction.COLLECT:
            return TimedJob(self.handled(1, nbytes))
        sends = direction is Direction.REDUCE  # a message that is sent while its part would compute
        return TimedJob(self.handled(sends, nbytes if weights.packed else 0))

    def jobs_of_steps(self, action: Action) -> list[TimedJob]:
        """The job of each step of an action, for its micro-batch."""
        samples, shares = self.sizes[action.micro_batch], self._steps_of(action).shares
        return [self._job(shares.get(name), action, samples) for name in self.names(action)]

    def _job(self, share: LayerShare | None, action: Action, samples: float) -> TimedJob:
        if share is None:
            return TimedJob(self.overheads.step)
        times, of_batch = self._devices[action.part].times, share.of_batch * samples
        trains = share.trains and not (self._waits_for_all and share.is_product(of_batch))
        passes = passes_of(action.direction, share.returns, trains)
        seconds = sum(times.seconds(share.layer, which, share.share, of_batch) for which in passes)
        if self._waits_for_all and action.micro_batch and not ADDING.isdisjoint(passes):
            # Gradients of later micro-batches are added to those of the first.
            seconds += OF_UPDATE * times.seconds(share.layer, Pass.UPDATE, share.share, 1)
        return TimedJob(seconds, memory_bound=float(not share.multiplies))

    @property
    def _waits_for_all(self) -> bool:
        """Whether gradients of large matrices are computed for all micro-batches at once."""
        return not self.is_stream and len(self.sizes) > 1

    def products(self, part: int) -> TimedJob:
        """The job of a part at the end of a step, for all of its micro-batches."""
        if not self._waits_for_all:
            return TimedJob(0.0)
        steps, samples, times = self.turns[0][part], max(self.sizes), self._devices[part].times
        names = {name for chunk in steps.backward for name in chunk.names} & steps.shares.keys()
        late = [share for share in map(steps.shares.__getitem__, sorted(names)) if share.trains]
        seconds = sum(
            times.seconds(share.layer, Pass.WEIGHTS, share.share, share.of_batch * sum(self.sizes))
            for share in late
            if share.is_product(share.of_batch * samples)
        )
        return self._on_device(part, TimedJob(seconds))

    def packing(self, action: Action) -> TimedJob:
        """The job of packing what an action sends, and unpacking what it receives.

        Where a chunk is in pieces, all of it counts in the piece with the last step.
        """
        steps, piece = self._chunk(action), action.piece
        if action.direction is Direction.WEIGHTS:
            return TimedJob(0.0)
        if piece is not None and not piece[0] <= max(steps.places) < piece[1]:
            return TimedJob(0.0)
        nbytes = self.sizes[action.micro_batch] * steps.nbytes
        return TimedJob(self.handled(steps.transfers, nbytes))

    def handled(self, transfers: int, nbytes: float) -> float:
        """Seconds that transfers cost the part that packs or unpacks them."""
        per_transfer = self.overheads.transfer + self.machine.stall
        return per_transfer * transfers + self.overheads.byte * nbytes

    def recomputing(self, action: Action) -> TimedJob:
        """The job of recomputing the stretches whose last steps an action goes back through."""
        if action.direction in (Direction.FORWARD, Direction.WEIGHTS):
            return TimedJob(0.0)
        here = {*self.names(action)}
        return together(
            [
                self.forward_of(action.part, name, action.micro_batch)
                for stretch in self.dropped[action.part]
                if stretch.steps[-1] in here and not stretch.offloaded
                for name in stretch.steps
            ]
        )

    def forward_of(self, part: int, step: str, micro_batch: int = 0) -> TimedJob:
        """The job of a step's forward pass, on a device of speed 1; see `seconds_of`."""
        forward = Action(part, Direction.FORWARD, micro_batch, 0)
        share = self._steps_of(forward).shares.get(step)
        return self._job(share, forward, self.sizes[micro_batch])

    def seconds_of(self, part: int, step: str) -> float:
        """Seconds of a step's forward pass on the part's device."""
        return self._on_device(part, self.forward_of(part, step)).seconds

    def update(self, part: int) -> float:
        """Seconds of the optimizer on a part."""
        return self._on_device(part, TimedJob(self._update(part))).seconds

    def _update(self, part: int) -> float:
        owned, times = self.turns[0][part].owned.items(), self._devices[part].times
        return sum(times.seconds(layer, Pass.UPDATE, share, 1) for layer, share in owned)

    def travel(self, action: Action, chunk: Chunk, receiver: int, both_ways: bool = False) -> float:
        """Seconds over the link for the samples of the micro-batch."""
        nbytes = self.sent(action, chunk, receiver)
        return self.exchange(action.part, receiver, nbytes, both_ways)

    def handling(self, action: Action, chunk: Chunk, receiver: int) -> float:
        """Seconds of computing that the bytes of a message cost on their way."""
        return self.machine.handling * self.sent(action, chunk, receiver)

    def sent(self, action: Action, chunk: Chunk, receiver: int) -> float:
        """Bytes of the message of an action to a part."""
        if action.is_of_weights:
            weights = self.weights[action.chunk]
            return 0.0 if weights is None else float(weights.nbytes)
        nbytes = sum(sent.nbytes for sent in chunk.sends if sent.receiver == receiver)
        return self.sizes[action.micro_batch] * nbytes

    def exchange(self, sender: int, receiver: int, nbytes: float, both_ways: bool = False) -> float:
        """Seconds over the link."""
        return self.machine.link(sender, receiver).seconds_of(nbytes, both_ways)


def passes_of(direction: Direction, returns: bool, trains: bool) -> tuple[Pass, ...]:
    """The measured passes that a step goes through in a direction.

    >>> passes_of(Direction.BACKWARD, returns=True, trains=False)
    (<Pass.MAPS: 'maps'>,)
    """
    if direction is Direction.FORWARD:
        return (Pass.FORWARD,)
    if direction is Direction.BACKWARD and returns and trains:
        return (Pass.BACKWARD,)
    maps = (Pass.MAPS,) * (returns and direction is not Direction.WEIGHTS)
    return maps + (Pass.WEIGHTS,) * (trains and direction is not Direction.MAPS)


def together(jobs: Sequence[TimedJob]) -> TimedJob:
    """Consecutive jobs as one, which neither waits nor sends.

    >>> together([TimedJob(1.0), TimedJob(3.0, memory_bound=1.0)])
    TimedJob(seconds=4.0, awaits=(), sends=(), memory_bound=0.75)
    """
    seconds = sum(job.seconds for job in jobs)
    bound = sum(job.seconds * job.memory_bound for job in jobs)
    return TimedJob(seconds, memory_bound=bound / seconds if seconds else 0.0)
