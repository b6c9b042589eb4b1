"""TracedModel, LayerTimes, Machine -> Recommendation: divide, order, place, simulate, rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

from torch import nn

from hgpart.bench.plans import Subject
from hgpart.errors import ArgumentError, HgpartError, InfeasibleError, PlanError
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.machine import Machine
from hgpart.partition import Partition
from hgpart.partition.problem.checks import check_search
from hgpart.partitioned_model import PartitionedModel, evaluate_layerwise
from hgpart.placement import Placement, place
from hgpart.plan import Plan
from hgpart.prediction.predict import Prediction, predict
from hgpart.recommendation.divisions import Division, divisions
from hgpart.recommendation.memory import lasting_bytes, limits_of, needed_bytes, what_is_over
from hgpart.recommendation.orders import orders
from hgpart.recommendation.ranking import Dropped, Ranked, Recommendation, check_goal, ranked_by
from hgpart.recommendation.replicas import MANY, exchange_seconds, partition_of_one, with_exchange
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.figures import Work
from hgpart.work.layer_times import LayerTimes, training_work

EFFORT = 0.3  # of searches: what they find is simulated, and there are many
TIME_LIMIT = 120.0
ONE_OF_MANY = (
    f"Of more than {MANY} devices one replica is simulated for all, and what they exchange is "
    "reckoned by the links, with nothing hidden behind it"
)
Tell = Callable[[str, float], None]


def rank_ways(
    model: nn.Module,
    traced: TracedModel,
    graph: ChannelGraph,
    times: LayerTimes,
    machine: Machine,
    *,
    devices: int | None = None,
    batch_size: int = 32,
    goal: str = "time",
    memory: int | None = None,
    time_limit: float = TIME_LIMIT,
    seed: int = 0,
    name: str = "model",
    on_progress: Tell = lambda what, done: None,
) -> Recommendation:
    """Find the best way to train a model on some devices, by simulation; see `recommend`.

    Ways are divisions of the model and the batch, each by several schedules: first every division
    by its likeliest one, then the others, of the divisions that do best first. What a device has no
    memory for is dropped, or tried once more with maps computed again. Ctrl-C ends it with what was
    simulated by then, if that is one way at least.

    Parameters
    ----------
    model : nn.Module
        What was traced, in training mode; on the meta device, too.
    traced : TracedModel
    graph : ChannelGraph
        Of `traced`.
    times : LayerTimes
        Of its layers, on such a device.
    machine : Machine
        Of as many devices, or more.
    devices : int, optional
        That may be used; all of the machine's when left out.
    batch_size : int
        Samples of a step.
    goal : {"time", "memory", "throughput"}
        Seconds of a step with the optimizer's, bytes of the device that needs most, or samples a
        second: for the last one also training without a stop, whose weights are older.
    memory : int, optional
        Bytes of each device; those that the machine says when left out.
    time_limit : float
        Seconds after which no further way is begun; how many are left out is said.
    seed : int
        Of searches.
    name : str
        Of the model, as `load_model` takes it, for the plans.
    on_progress : callable
        Told what is simulated next, and the share of all that is done.

    Raises
    ------
    ArgumentError
        If a number or the goal is out of range, or the machine has fewer devices.
    PlanError
        If the times are not of so many layers.
    InfeasibleError
        If no way fits in memory; says what the one needs that needs least.
    """
    k = machine.k if devices is None else devices
    check_asked(k, batch_size, time_limit, memory, machine, goal)
    check_search(seed)
    if len(times.layers) != len(graph.layers):
        raise PlanError(
            f"times of {len(times.layers)} layers: accepted are those of the model's "
            f"{len(graph.layers)}"
        )
    shape = traced.arguments.sample_shape()
    work = _picoseconds(training_work(times, graph, batch_size))
    subject = Subject(name, shape, traced, graph, work, batch_size, k, 0.0, seed, EFFORT)
    asked = _Asked(model, subject, times, machine, goal, limits_of(machine, memory))
    return _Search(asked, time.monotonic() + time_limit, on_progress).run()


def check_asked(
    k: int,
    batch_size: int,
    time_limit: float,
    memory: int | None,
    machine: Machine | None,
    goal: str,
) -> None:
    """Raise an ArgumentError for what no recommendation can be of."""
    check_goal(goal)
    if machine is not None and not 1 <= k <= machine.k:
        raise ArgumentError(
            f"{k} devices of a machine of {machine.k}: accepted are 1 to {machine.k}"
        )
    if k < 1:
        raise ArgumentError(f"{k} devices: accepted is 1 or more")
    if batch_size < 1:
        raise ArgumentError(f"batch size {batch_size}: accepted is 1 or more")
    if not 0 <= time_limit < inf:
        raise ArgumentError(f"time limit {time_limit}: accepted is 0 s or more")
    if memory is not None and memory < 1:
        raise ArgumentError(f"memory {memory}: accepted is 1 byte or more")


def _picoseconds(work: Work) -> Work:
    """Femtoseconds of all slices of a large batch are too many for 64 bits."""
    each = 1000
    return replace(work, per_task=-(-work.per_task // each), units=work.units // each)


@dataclass(frozen=True, eq=False)
class _Asked:
    """What ways are to be of, and for."""

    model: nn.Module
    subject: Subject
    times: LayerTimes
    machine: Machine
    goal: str
    limits: tuple[int | None, ...]


@dataclass(eq=False)
class _Divided:
    """A division that could be made, its placement, and what it has from step to step.

    Of many replicas the placement is of one of them.
    """

    division: Division
    partition: Partition
    placement: Placement
    orders: tuple[Scheduling, ...]
    lasting: tuple[int | None, ...]
    versions: tuple[int, ...]


@dataclass(eq=False)
class _Search:
    """Simulates ways until all are done, or time is up."""

    asked: _Asked
    deadline: float
    tell: Tell
    best: dict[str, Ranked] = field(default_factory=dict)  # of each division
    short: dict[str, tuple[str, float]] = field(default_factory=dict)  # of memory, and of how much
    dropped: list[Dropped] = field(default_factory=list)
    names: dict[bytes, str] = field(default_factory=dict)  # of divisions, by who computes what
    simulated: int = 0
    one_device: Ranked | None = None

    def run(self) -> Recommendation:
        """What is best of all ways, or of those that were simulated before Ctrl-C."""
        try:
            return self._found(self._simulate())
        except KeyboardInterrupt:
            if self.one_device is None or not self.best:
                raise
            return replace(self._found(0), interrupted=True)

    def _simulate(self) -> int:
        """All divisions by their first schedule, then the others; how many are left out."""
        every = divisions(self.asked.subject.k)
        made: list[_Divided] = []
        left_out = 0
        for number, division in enumerate(every):
            if made and time.monotonic() > self.deadline:
                left_out = len(every) - number
                break
            self.tell(division.text, 0.6 * number / len(every))
            divided = self._divided(division)
            if divided is not None:
                made.append(divided)
                self._try(divided, divided.orders[0])
        made.sort(key=self._promise)
        waiting = [(one, order) for one in made for order in one.orders[1:]]
        for number, (divided, order) in enumerate(waiting):
            if time.monotonic() > self.deadline:
                left_out += len(waiting) - number
                break
            self.tell(divided.division.text, 0.6 + 0.4 * number / len(waiting))
            self._try(divided, order)
        return left_out

    def _promise(self, one: _Divided) -> tuple[bool, bool, float, float]:
        found = self.best.get(one.division.text)
        return (True, True, inf, inf) if found is None else (False, *found.value(self.asked.goal))

    def _divided(self, division: Division) -> _Divided | None:
        """Divide and place, or say why that can't be."""
        asked, subject = self.asked, self.asked.subject
        try:
            partition = division.partition(subject, asked.machine)
            known = self.names.setdefault(_shares(partition), division.text)
            if known != division.text:
                self.dropped.append(Dropped(division.text, f"the same as {known}"))
                return None
            placed = partition
            if division.replicas > 1:
                of_all = replace(subject, k=division.k, eps=division.eps)
                placed = partition_of_one(of_all, division.replicas)
            layerwise = evaluate_layerwise(subject.graph, subject.work, placed.modelling, placed.k)
            whole = PartitionedModel(subject.traced, placed, layerwise, {})
            placement = place(asked.model, whole, ["meta"] * placed.k)
            placement.train()
            size = placed.modelling.batch_size
            placement.for_batch(size).passes.check_samples((size,))
        except HgpartError as error:
            self.dropped.append(Dropped(division.text, " ".join(str(error).split())))
            return None
        sizes = [
            sum(one.nbytes for one in placement.programs.submodule(part).parameters())
            for part in range(placed.k)
        ]
        return _Divided(
            division=division,
            partition=partition,
            placement=placement,
            orders=orders(
                *(placed, placed.modelling.batch_size, asked.goal),
                divides_batch=not subject.graph.mixing.of_norms("slice"),
            ),
            lasting=lasting_bytes(placement, placed.modelling.batch_size),
            versions=tuple(sizes),
        )

    def _try(self, divided: _Divided, scheduling: Scheduling) -> None:
        """Simulate a way, and keep it if it is the division's best that fits."""
        found = self._ranked(divided, scheduling)
        if found is None:
            return
        if found.division.k == 1 and self.one_device is None:
            self.one_device = found
        over = what_is_over(found.needed_bytes, self.asked.limits)
        if over is None:
            known = self.best.get(found.division.text)
            if known is None or found.value(self.asked.goal) < known.value(self.asked.goal):
                self.best[found.division.text] = found
            return
        least = float(found.largest_bytes or inf)
        if least < self.short.get(found.division.text, ("", inf))[1]:
            self.short[found.division.text] = over, least
        if found.division.k > 1 and not scheduling.recompute and scheduling.stash:
            again = Scheduling(
                *(scheduling.rule, scheduling.micro_batches, scheduling.in_flight), recompute=True
            )
            self._try(divided, again)

    def _ranked(self, divided: _Divided, scheduling: Scheduling) -> Ranked | None:
        """What a way should take; None where its micro-batches are too small for it."""
        asked, subject = self.asked, self.asked.subject
        placement, replicas = divided.placement, divided.division.replicas
        size = subject.batch_size // replicas
        try:
            if not scheduling.is_stream:
                placement.for_batch(size).passes.check_samples(scheduling.sizes(size))
            made = wanted_schedule(
                placement, scheduling, True, batches=scheduling.sample_batches, batch_size=size
            )
            prediction = predict(placement, made, asked.machine, asked.times, size)
        except HgpartError as error:
            if scheduling == divided.orders[0]:
                self.dropped.append(Dropped(divided.division.text, " ".join(str(error).split())))
            return None
        self.simulated += 1
        exchange = exchange_seconds(divided.versions, replicas, asked.machine)
        plan = Plan(divided.partition, subject.model, subject.input_shape, scheduling)
        return Ranked(
            division=divided.division,
            plan=plan,
            prediction=with_exchange(prediction, exchange),
            needed_bytes=needed_bytes(divided.lasting, divided.versions, prediction, scheduling),
            link_seconds=_link_seconds(prediction, asked.machine) + exchange,
            exchange_bytes=2 * (replicas - 1) * sum(divided.versions),
        )

    def _found(self, left_out: int) -> Recommendation:
        asked, subject = self.asked, self.asked.subject
        if self.one_device is None:
            raise InfeasibleError(f"one device can't train it: {self.dropped[0].why}")
        if not self.best:
            text, (over, _) = min(self.short.items(), key=lambda item: item[1][1])
            raise InfeasibleError(
                f"no way to train {subject.model} fits in memory: the one that needs least, {text}:"
                f" {over}; more memory, more devices or a smaller batch than {subject.batch_size} "
                "may do"
            )
        return Recommendation(
            model=subject.model,
            machine=asked.machine,
            times=asked.times.source,
            devices=subject.k,
            batch_size=subject.batch_size,
            goal=asked.goal,
            ranked=ranked_by(asked.goal, self.best),
            one_device=self.one_device,
            dropped=tuple(self._dropped()),
            simulated=self.simulated,
            left_out=left_out,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self.asked.subject.k > MANY:
            yield ONE_OF_MANY
        if mixing := self.asked.subject.graph.mixing.of_norms("slice"):
            yield f"No way divides the batch: {mixing}"

    def _dropped(self) -> Iterator[Dropped]:
        yield from self.dropped
        for text, (over, _) in self.short.items():
            if text not in self.best:
                yield Dropped(text, over)


def _shares(partition: Partition) -> bytes:
    """What two divisions that are alike have in common: shares of layers, slices, traffic."""
    shares = part_shares(partition.model, partition.parts, partition.k).layer_work
    return b"".join(
        (
            repr((partition.k, partition.modelling.slices)).encode(),
            shares.tobytes(),
            partition.evaluation.traffic.tobytes(),
        )
    )


def _link_seconds(prediction: Prediction, machine: Machine) -> float:
    """Of a batch, of the device that sends longest, one message after another."""
    sent = prediction.sent_bytes
    seconds = [
        sum(
            machine.link(one, other).seconds_of(float(size))
            for other, size in enumerate(row)
            if size
        )
        for one, row in enumerate(sent.tolist())
    ]
    return max(seconds) / prediction.batches
