"""Steps, LayerTimes, Machine -> a CostModel of measured seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hgpart.errors import check_number
from hgpart.machines.machine import Machine
from hgpart.prediction.jobs import Job
from hgpart.prediction.steps import LayerShare, PartSteps
from hgpart.schedules.costs import CostModel
from hgpart.schedules.outline import Chunk
from hgpart.schedules.schedule import Action, Direction
from hgpart.work.layer_times import LayerTimes, Pass

ADDING = {Pass.BACKWARD, Pass.WEIGHTS}  # to gradients of weights
# Of an update, which reads weights and gradients and writes weights; what is added to gradients is
# in the caches still.
OF_UPDATE = 2 / 3


class Weights(NamedTuple):
    """Weights that travel from one part to another, or their gradients.

    Attributes
    ----------
    nbytes : int
    packed : bool
        Whether they are several tensors in one message.
    """

    nbytes: int
    packed: bool


@dataclass(frozen=True)
class Overheads:
    """What steps of programs and transfers cost besides, in Python and autograd; estimates.

    Attributes
    ----------
    step : float
        Seconds of a step of a part's program, in each pass.
    transfer : float
        Seconds of a transfer, in the part that sends it and in the one that takes it in.
    byte : float
        Seconds of a byte that a part packs to send it, takes apart when it has come, or adds to a
        gradient of its own.
    """

    step: float = 3e-5
    transfer: float = 5e-5
    byte: float = 4e-10

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, value in vars(self).items():
            check_number(name, value)


@dataclass(frozen=True, eq=False)
class MeasuredCosts(CostModel):
    """Seconds of what parts do by what their layers take, and of messages by the links.

    Attributes
    ----------
    steps : mapping of int to PartSteps
        Of all parts.
    sizes : sequence of int
        Samples of each micro-batch, or of each batch of a stream.
    again : sequence of tuple of int
        Of each part, the forward chunks that backward computes again; see `Outline.recomputed`.
    times : LayerTimes
    machine : Machine
        Whose device of a number has the part of that number.
    overheads : Overheads
    is_stream : bool
        Whether `sizes` are those of batches of a stream.
    weights : sequence of Weights or None
        What the weights of each number come to in a lowered schedule; None where a part has a copy
        of its own, so that nothing travels.
    """

    steps: Mapping[int, PartSteps]
    sizes: Sequence[int]
    again: Sequence[tuple[int, ...]]
    times: LayerTimes
    machine: Machine
    overheads: Overheads = Overheads()
    is_stream: bool = False
    weights: Sequence[Weights | None] = ()
    _known: dict[tuple[object, ...], Job] = field(default_factory=dict, init=False)

    def action(self, action: Action, chunk: Chunk) -> float:
        """The seconds of all steps of a chunk."""
        return self.job(action).seconds

    def job(self, action: Action) -> Job:
        """The same, and how much of them is memory-bound."""
        if action.is_of_weights:
            return self._of_weights(action)
        part, direction, micro_batch, at, piece = action
        key = part, direction, at, self.sizes[micro_batch], micro_batch > 0, piece
        if key not in self._known:
            if direction is Direction.UPDATE:
                self._known[key] = Job(self.update(part), memory_bound=1.0)
            else:
                steps = self.again_in(action), *self.jobs_of_steps(action), self.moved_in(action)
                self._known[key] = together(steps)
        return self._known[key]

    def names(self, action: Action) -> tuple[str, ...]:
        """The steps of an action, in order."""
        if action.direction is Direction.UPDATE:
            return ()
        steps = self.steps[action.part]
        forward = action.direction is Direction.FORWARD
        names = (steps.forward if forward else steps.backward)[action.chunk]
        if action.piece is None:
            return names
        places = (steps.forward_places if forward else steps.backward_places)[action.chunk]
        begin, end = action.piece
        pairs = zip(names, places, strict=True)
        return tuple(name for name, place in pairs if begin <= place < end)

    def _of_weights(self, action: Action) -> Job:
        """To pack weights, to take them apart, or to add gradients to others."""
        weights = self.weights[action.chunk]
        if weights is None:
            return Job(0.0)
        direction, nbytes = action.direction, weights.nbytes
        if direction is Direction.COLLECT:
            return Job(self.handled(1, nbytes))
        departs = direction is Direction.REDUCE  # a message sent while its part would compute
        return Job(self.handled(departs, nbytes if weights.packed else 0))

    def jobs_of_steps(self, action: Action) -> list[Job]:
        """What each step of an action takes, for its micro-batch."""
        samples, shares = self.sizes[action.micro_batch], self.steps[action.part].shares
        return [self._job(shares.get(name), action, samples) for name in self.names(action)]

    def _job(self, share: LayerShare | None, action: Action, samples: float) -> Job:
        if share is None:
            return Job(self.overheads.step)
        of_batch = share.of_batch * samples
        trains = share.trains and not (self._waits_for_all and share.is_product(of_batch))
        passes = _passes(action.direction, share.returns, trains)
        seconds = sum(
            self.times.seconds(share.layer, which, share.share, of_batch) for which in passes
        )
        if self._waits_for_all and action.micro_batch and not ADDING.isdisjoint(passes):
            # To the gradients of the first micro-batch others are added.
            seconds += OF_UPDATE * self.times.seconds(share.layer, Pass.UPDATE, share.share, 1)
        return Job(seconds, memory_bound=float(not share.multiplies))

    @property
    def _waits_for_all(self) -> bool:
        """Whether gradients of large matrices are computed for all micro-batches at once."""
        return not self.is_stream and len(self.sizes) > 1

    def products(self, part: int) -> Job:
        """What a part computes at the end of a step, for all of its micro-batches."""
        if not self._waits_for_all:
            return Job(0.0)
        steps, samples = self.steps[part], max(self.sizes)
        names = {name for chunk in steps.backward for name in chunk} & steps.shares.keys()
        late = [one for one in map(steps.shares.__getitem__, sorted(names)) if one.trains]
        return Job(
            sum(
                self.times.seconds(
                    one.layer, Pass.WEIGHTS, one.share, one.of_batch * sum(self.sizes)
                )
                for one in late
                if one.is_product(one.of_batch * samples)
            )
        )

    def moved_in(self, action: Action) -> Job:
        """What an action takes to pack what it sends, and to take apart what has come.

        Where a chunk is in pieces, all of it is counted in the piece with the last step.
        """
        part, direction, micro_batch, at, piece = action
        if direction is Direction.WEIGHTS:
            return Job(0.0)
        steps = self.steps[part]
        forward = direction is Direction.FORWARD
        places = (steps.forward_places if forward else steps.backward_places)[at]
        if piece is not None and not piece[0] <= max(places) < piece[1]:
            return Job(0.0)
        transfers, nbytes = (steps.forward_moved if forward else steps.backward_moved)[at]
        return Job(self.handled(transfers, self.sizes[micro_batch] * nbytes))

    def handled(self, transfers: int, nbytes: float) -> float:
        """Seconds that transfers cost the part that packs them, or takes them apart."""
        each = self.overheads.transfer + self.machine.stall
        return each * transfers + self.overheads.byte * nbytes

    def again_in(self, action: Action) -> Job:
        """What an action computes again of forward chunks."""
        part, direction, _, at, piece = action
        later = piece is not None and piece[0] > 0
        if later or direction in (Direction.FORWARD, Direction.WEIGHTS):
            return Job(0.0)
        again = {*self.again[part]} & {*self.steps[part].again[at]}
        forward = action._replace(direction=Direction.FORWARD, piece=None)
        return together([self.job(forward._replace(chunk=chunk)) for chunk in sorted(again)])

    def update(self, part: int) -> float:
        """Seconds of the optimizer on a part."""
        owned = self.steps[part].owned.items()
        return sum(self.times.seconds(layer, Pass.UPDATE, share, 1) for layer, share in owned)

    def travel(self, action: Action, chunk: Chunk, receiver: int, both_ways: bool = False) -> float:
        """Seconds over the link for the samples of the micro-batch."""
        nbytes = self._sent(action, chunk, receiver)
        return self.exchange(action.part, receiver, nbytes, both_ways)

    def handling(self, action: Action, chunk: Chunk, receiver: int) -> float:
        """What its bytes take of computing on their way."""
        return self.machine.handling * self._sent(action, chunk, receiver)

    def _sent(self, action: Action, chunk: Chunk, receiver: int) -> float:
        if action.is_of_weights:
            weights = self.weights[action.chunk]
            return 0.0 if weights is None else float(weights.nbytes)
        nbytes = sum(sent.nbytes for sent in chunk.sends if sent.receiver == receiver)
        return self.sizes[action.micro_batch] * nbytes

    def exchange(self, sender: int, receiver: int, nbytes: float, both_ways: bool = False) -> float:
        """Seconds over the link."""
        return self.machine.link(sender, receiver).seconds_of(nbytes, both_ways)


def _passes(direction: Direction, returns: bool, trains: bool) -> tuple[Pass, ...]:
    """What is measured of what a step does in a direction.

    >>> _passes(Direction.BACKWARD, returns=True, trains=False)
    (<Pass.MAPS: 'maps'>,)
    """
    if direction is Direction.FORWARD:
        return (Pass.FORWARD,)
    if direction is Direction.BACKWARD and returns and trains:
        return (Pass.BACKWARD,)
    maps = (Pass.MAPS,) * (returns and direction is not Direction.WEIGHTS)
    return maps + (Pass.WEIGHTS,) * (trains and direction is not Direction.MAPS)


def together(jobs: Sequence[Job]) -> Job:
    """Jobs one behind the other as one, that neither awaits nor sends.

    >>> together([Job(1.0), Job(3.0, memory_bound=1.0)])
    Job(seconds=4.0, awaits=(), sends=(), memory_bound=0.75)
    """
    seconds = sum(job.seconds for job in jobs)
    bound = sum(job.seconds * job.memory_bound for job in jobs)
    return Job(seconds, memory_bound=bound / seconds if seconds else 0.0)
