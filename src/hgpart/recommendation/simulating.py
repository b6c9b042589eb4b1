"""Trials, LayerTimes, Machine -> ways ranked by simulation: divide, order, place, simulate.

The one search for seconds: `rank_ways` asks for the best way on some devices, `least_time` for the
fastest partition within a problem's limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from torch import nn

from hgpart.errors import HgpartError, InfeasibleError
from hgpart.hypergraph.shares import part_shares
from hgpart.machines.machine import Machine
from hgpart.partition import Partition
from hgpart.partition.partition import evaluated, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.topology import seconds_a_byte
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement import Placement, place
from hgpart.plan import Plan
from hgpart.prediction.device_times import Times, cautions, sources
from hgpart.prediction.predict import Prediction, predict
from hgpart.recommendation.bound import least_seconds
from hgpart.recommendation.memory import lasting_bytes, needed_bytes, what_is_over
from hgpart.recommendation.ranking import Dropped, Ranked, Recommendation, ranked_by, trains
from hgpart.recommendation.replicas import MANY, exchange_seconds, partition_of_one, with_exchange
from hgpart.recommendation.trials import Trial
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.layer_times import LayerTimes

ONE_OF_MANY = (
    f"Of more than {MANY} devices one replica is simulated for all, and what they exchange is "
    "reckoned by the links, with nothing hidden behind it"
)
Tell = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Asked:
    """What ways are simulated of, and what they have to keep within.

    Attributes
    ----------
    module : nn.Module
        In training mode; may lie on the meta device.
    name : str
        The model, as `load_model` takes it, for the plans.
    problem : Problem
        The model, its work and the batch; trials say how many devices, and what they are allowed.
    limits : tuple of int or None
        Bytes of each device.
    search : Search
        Seed and effort of each trial's search; where it has a time limit, the trials share it.
    orders : function of a Partition
        The schedules to try, the likeliest first.
    is_bound : bool
        Whether a partition must be within the problem's own eps and memory, and whatever takes
        longer to send its maps than the best step takes is left out.
    """

    module: nn.Module
    name: str
    traced: TracedModel
    problem: Problem
    times: Times
    machine: Machine
    goal: str
    limits: tuple[int | None, ...]
    search: Search
    orders: Callable[[Partition], Sequence[Scheduling]]
    is_bound: bool = False

    @property
    def trains(self) -> bool:
        """Whether it is a step of training that is simulated, or else a pass forward."""
        return trains(self.goal)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.traced.arguments.sample_shape()


@dataclass(eq=False)
class _Divided:
    """A trial's partition, its placement, and what each part has from step to step.

    Of many replicas the placement is that of one of them.
    """

    trial: Trial
    partition: Partition
    placement: Placement
    orders: Sequence[Scheduling]
    lasting: tuple[int | None, ...]
    versions: tuple[int, ...]


@dataclass(eq=False)
class Simulations:
    """Simulates ways until all are done, or time is up.

    Attributes
    ----------
    trials : sequence of Trial
        The first one is the whole model on one device, with which all are compared.
    deadline : float
        When no further way is begun, in seconds of `time.monotonic`.
    tell : function of a str and a float
        Told what is simulated next, and the share of all that is done.
    """

    asked: Asked
    trials: Sequence[Trial]
    deadline: float
    tell: Tell
    best: dict[str, Ranked] = field(default_factory=dict)  # of each trial
    short: dict[str, tuple[str, float]] = field(default_factory=dict)  # of memory, and how much
    dropped: list[Dropped] = field(default_factory=list)
    names: dict[bytes, str] = field(default_factory=dict)  # of trials, by who computes what
    simulated: int = 0
    one_device: Ranked | None = None

    def run(self) -> Recommendation:
        """Rank all ways, or those that were simulated before Ctrl-C.

        Raises
        ------
        InfeasibleError
            If no way is within the limits.
        KeyboardInterrupt
            On Ctrl-C, if there is no way yet.
        """
        try:
            return self._found(self._simulate())
        except KeyboardInterrupt:
            if self.one_device is None or not self.best:
                raise
            return replace(self._found(0), interrupted=True)

    def _simulate(self) -> int:
        """All trials by their first schedule, then by the others; how many are left out."""
        made: list[_Divided] = []
        left_out = 0
        for number, trial in enumerate(self.trials):
            if made and (self.best or not self.asked.is_bound) and time.monotonic() > self.deadline:
                left_out = len(self.trials) - number
                break
            self.tell(trial.text, 0.6 * number / len(self.trials))
            divided = self._divided(trial)
            if divided is not None:
                made.append(divided)
                # The sooner there is a fast step, the more need not be placed.
                for order in divided.orders[: None if self.asked.is_bound else 1]:
                    self._try(divided, order)
        if self.asked.is_bound:
            return left_out
        made.sort(key=self._promise)
        waiting = [(divided, order) for divided in made for order in divided.orders[1:]]
        for number, (divided, order) in enumerate(waiting):
            if time.monotonic() > self.deadline:
                left_out += len(waiting) - number
                break
            self.tell(divided.trial.text, 0.6 + 0.4 * number / len(waiting))
            self._try(divided, order)
        return left_out

    def _promise(self, divided: _Divided) -> tuple[bool, bool, float, float]:
        best = self.best.get(divided.trial.text)
        return (True, True, inf, inf) if best is None else (False, *best.value(self.asked.goal))

    def _search(self) -> Search:
        """A trial's search, with its share of the time where that is limited."""
        searching = sum(trial.way.searches for trial in self.trials)
        return self.asked.search.part(1 / max(1, searching))

    def _divided(self, trial: Trial) -> _Divided | None:
        """Divide and place, or say why that can't be."""
        asked = self.asked
        try:
            partition = uninterrupted(trial.partition(asked.problem, self._search(), asked.machine))
            known = self.names.setdefault(_shares(partition), trial.text)
            if known != trial.text:
                self.dropped.append(Dropped(trial.text, f"the same as {known}"))
                return None
            if asked.is_bound and trial.k > 1:
                partition = self._within(trial, partition)
            placed = partition
            if trial.replicas > 1:
                of_all = replace(asked.problem, k=trial.k, eps=trial.eps)
                placed = partition_of_one(of_all, trial.replicas, asked.search)
            placement = self._placed(placed)
        except HgpartError as error:
            self.dropped.append(Dropped(trial.text, " ".join(str(error).split())))
            return None
        sizes = [
            sum(parameter.nbytes for parameter in placement.programs.submodule(part).parameters())
            for part in range(placed.k)
        ]
        return _Divided(
            trial=trial,
            partition=partition,
            placement=placement,
            orders=asked.orders(placed),
            lasting=lasting_bytes(placement, placed.modelling.batch_size, asked.trains),
            versions=tuple(sizes),
        )

    def _within(self, trial: Trial, partition: Partition) -> Partition:
        """The same by the eps and objective of the problem, if it can be the fastest within it."""
        problem = self.asked.problem
        judged = evaluated(
            replace(problem, modelling=partition.modelling),
            partition.model,
            partition.parts,
            seed=partition.seed,
            backend=partition.backend,
            start=trial.name,
        )
        if not judged.feasible:
            imbalance = judged.evaluation.imbalance
            raise InfeasibleError(
                f"its imbalance is {imbalance:.3g}"
                if imbalance > problem.eps
                else "it needs more memory than there is"
            )
        least = sending_seconds(judged, self.asked.machine)
        if self.best and least >= min(ranked.seconds for ranked in self.best.values()):
            raise InfeasibleError(f"sending its maps takes {least:.3g} s")
        return judged

    def _placed(self, partition: Partition) -> Placement:
        asked = self.asked
        # A placement does not ask what the cut between layers is like.
        whole = PartitionedModel(asked.traced, partition, partition.evaluation, {})
        placement = place(asked.module, whole, ["meta"] * partition.k)
        placement.train(asked.trains)
        size = partition.modelling.batch_size
        placement.for_batch(size).passes.check_samples((size,))
        return placement

    def _try(self, divided: _Divided, scheduling: Scheduling) -> None:
        """Simulate a way, and keep it if it is the trial's best that fits."""
        ranked = self._ranked(divided, scheduling)
        if ranked is None:
            return
        if divided.trial.k == 1 and self.one_device is None:
            self.one_device = ranked
        if self.asked.is_bound and divided.trial.k != self.asked.problem.k:
            return  # to compare with alone
        fastest = self.asked.machine.fastest(divided.trial.k)
        limits = [self.asked.limits[device] for device in fastest]
        text, over = divided.trial.text, what_is_over(ranked.needed_bytes, limits)
        if over is None:
            known = self.best.get(text)
            if known is None or ranked.value(self.asked.goal) < known.value(self.asked.goal):
                self.best[text] = ranked
            return
        least = float(ranked.largest_bytes or inf)
        if least < self.short.get(text, ("", inf))[1]:
            self.short[text] = over, least
        may_recompute = self.asked.trains and divided.trial.k > 1
        if may_recompute and not scheduling.recompute and scheduling.stash:
            self._try(divided, replace(scheduling, recompute=True))

    def _ranked(self, divided: _Divided, scheduling: Scheduling) -> Ranked | None:
        """What a way should take; None where its micro-batches are too small for it."""
        asked, placement, replicas = self.asked, divided.placement, divided.trial.replicas
        problem, machine = asked.problem, asked.machine.of_fastest(divided.trial.k)
        size = problem.modelling.batch_size // replicas
        try:
            if not scheduling.is_stream:
                placement.for_batch(size).passes.check_samples(scheduling.sizes(size))
            made = wanted_schedule(
                placement,
                scheduling,
                asked.trains,
                batches=scheduling.sample_batches,
                batch_size=size,
            )
            prediction = predict(placement, made, machine, asked.times, size)
            if asked.goal == "latency":  # no batch follows
                prediction = replace(prediction, period=prediction.seconds)
        except HgpartError as error:
            if scheduling == divided.orders[0]:
                self.dropped.append(Dropped(divided.trial.text, " ".join(str(error).split())))
            return None
        self.simulated += 1
        copies = replicas if asked.trains else 1  # others exchange nothing
        exchange = exchange_seconds(divided.versions, copies, machine)
        plan = Plan(divided.partition, asked.name, asked.shape, scheduling)
        return Ranked(
            trial=divided.trial,
            plan=plan,
            prediction=with_exchange(prediction, exchange),
            needed_bytes=needed_bytes(divided.lasting, divided.versions, prediction, scheduling),
            link_seconds=_link_seconds(prediction, machine) + exchange,
            exchange_bytes=2 * (copies - 1) * sum(divided.versions),
        )

    def _found(self, left_out: int) -> Recommendation:
        asked, does = self.asked, "train" if self.asked.trains else "run"
        if self.one_device is None:
            raise InfeasibleError(f"one device can't {does} it: {self.dropped[0].why}")
        if not self.best and not self.short:
            last = self.dropped[-1]
            raise InfeasibleError(
                f"no way to divide the model among {asked.problem.k} devices: the last that was "
                f"tried, {last.what}, failed, as {last.why}"
            )
        if not self.best:
            text, (over, _) = min(self.short.items(), key=lambda item: item[1][1])
            raise InfeasibleError(
                f"no way to {does} {asked.name} fits in memory: the one that needs least, {text}:"
                f" {over}; more memory, more devices or a smaller batch than "
                f"{asked.problem.modelling.batch_size} may do"
            )
        return Recommendation(
            model=asked.name,
            machine=asked.machine,
            times=sources(asked.machine, asked.times),
            devices=asked.problem.k,
            batch_size=asked.problem.modelling.batch_size,
            goal=asked.goal,
            ranked=ranked_by(asked.goal, self.best),
            one_device=self.one_device,
            dropped=tuple(self._dropped()),
            simulated=self.simulated,
            left_out=left_out,
            least_seconds=self._least_seconds(),
            notes=tuple(self._notes()),
            cautions=cautions(asked.machine, asked.times),
        )

    def _least_seconds(self) -> float:
        asked = self.asked
        problem = asked.problem
        if not isinstance(asked.times, LayerTimes):
            return 0.0  # what is fast on one kind of device need not be on another
        return least_seconds(
            asked.times,
            problem.graph,
            asked.machine.of_fastest(problem.k),
            problem.modelling.batch_size,
            divides_batch=problem.divides_batch,
            streams=asked.goal == "throughput",
        )

    def _notes(self) -> Iterator[str]:
        if self.asked.problem.k > MANY:
            yield ONE_OF_MANY
        if self.asked.machine.speeds is not None:
            yield _fewer(self.asked.machine, {trial.k for trial in self.trials})
        if mixing := self.asked.problem.graph.mixing.of_norms("slice"):
            yield f"No way divides the batch: {mixing}"

    def _dropped(self) -> Iterator[Dropped]:
        yield from self.dropped
        for text, (over, _) in self.short.items():
            if text not in self.best:
                yield Dropped(text, over)


def _shares(partition: Partition) -> bytes:
    """What two trials that are alike have in common: shares of layers, slices, traffic."""
    shares = part_shares(partition.model, partition.parts, partition.k).layer_work
    return b"".join(
        (
            repr((partition.k, partition.modelling.slices)).encode(),
            shares.tobytes(),
            partition.evaluation.traffic.tobytes(),
        )
    )


def _fewer(machine: Machine, counts: Iterable[int]) -> str:
    """Say which devices ways for fewer of them take."""
    chosen = [
        " and ".join(map(str, machine.fastest(count)))
        for count in sorted(counts)
        if count < machine.k
    ]
    return f"Of devices that differ, ways for fewer take the fastest: {', or '.join(chosen)}"


def sending_seconds(partition: Partition, machine: Machine) -> float:
    """At least, for the maps of a batch, of the device that sends longest: no step takes less.

    A placement of hundreds of parts takes minutes, and more where all send to all. Where elements
    were counted as other bytes than they have, 0: nothing is known of what will travel.
    """
    if partition.modelling.bytes_per_element is not None:
        return 0.0
    seconds = seconds_a_byte(
        machine.of_fastest(partition.k), lambda link: link.least_seconds_a_byte
    )
    return float((seconds * partition.evaluation.traffic).sum(axis=1).max())


def _link_seconds(prediction: Prediction, machine: Machine) -> float:
    """Seconds a batch that the device sends which sends longest, one message after another."""
    seconds = [
        sum(
            machine.link(sender, receiver).seconds_of(float(size))
            for receiver, size in enumerate(row)
            if size
        )
        for sender, row in enumerate(prediction.sent_bytes.tolist())
    ]
    return max(seconds) / prediction.batches
