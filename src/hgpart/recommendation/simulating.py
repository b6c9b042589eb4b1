"""Trials, LayerTimes, Machine -> ways ranked by simulation: divide, order, place, simulate.

The one search for seconds: `rank_ways` asks for the best way on some devices, `least_time` for the
fastest partition within a problem's limits.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
from torch import nn

from hgpart.errors import ArgumentError, HgpartError, InfeasibleError
from hgpart.hypergraph.shares import part_shares
from hgpart.machines.machine import Machine
from hgpart.partition import Partition
from hgpart.partition.partition import evaluated, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.steering.checking import broken
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement import Placement, place
from hgpart.placement.ordering.within_memory import dropped_within
from hgpart.plan import Plan
from hgpart.prediction.device_times import Times, cautions, sources
from hgpart.prediction.predict import Prediction, forward_seconds, predict
from hgpart.prediction.sketching.estimate import Sketched, estimate
from hgpart.prediction.sketching.layer_facts import LayerFacts
from hgpart.recommendation.bound import least_seconds
from hgpart.recommendation.memory import OPTIMIZER, lasting_bytes, needed_bytes, what_is_over
from hgpart.recommendation.ranking import (
    Dropped,
    Ranked,
    Recommendation,
    ServedWay,
    ranked_by,
    served_ways,
    trains,
)
from hgpart.recommendation.replicas import MANY, exchange_seconds, partition_of_one, with_exchange
from hgpart.recommendation.trials import Trial
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Recompute, Scheduling
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.input_shape import InputShape
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.layer_times import LayerTimes

ONE_OF_MANY = (
    f"Of more than {MANY} devices one replica is simulated for all, and what they exchange is "
    "reckoned by the links, with nothing hidden behind it"
)
PLACED = 2  # of the best ways: their memory is found out, which takes longest
STREAMED = 6  # of those that could be fastest as streams
PLACED_IF_TIGHT = 6  # where memory may not do, as no other way is known to fit
ROOM = 2  # times what one device needs: a part has no more weights and maps, and is sent no more
UNKNOWN_MEMORY = "not known to fit into memory: it is found out of the best ways alone"
LEAST_TIME, REPLICAS = "least-time", "data-parallel"
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
    def shape(self) -> InputShape:
        """The inputs that the model takes for each sample."""
        return self.traced.arguments.sample_shape()


@dataclass(eq=False)
class _Divided:
    """A trial's partition, and what is placed of it: of many replicas one of them.

    Attributes
    ----------
    orders : list of Scheduling
        The schedules to try; once they are estimated, the best first, and without streams.
    estimates : list of float
        Seconds of a step by each of them.
    """

    trial: Trial
    partition: Partition
    placed: Partition
    orders: list[Scheduling]
    streams: list[Scheduling] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)


@dataclass(eq=False)
class _Placed:
    """A trial's placement, and what each part has from step to step."""

    divided: _Divided
    placement: Placement
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
    twins: dict[str, list[Trial]] = field(default_factory=lambda: defaultdict(list))
    simulated: int = 0
    one_device: Ranked | None = None
    facts: LayerFacts | None = None

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
        """Simulate all trials; returns how many ways are left out."""
        left_out = self._estimate_first() if self._estimates else self._place_all()
        if not self.asked.is_bound:
            self._drop_slower_searches()
        return left_out

    def _estimate_first(self) -> int:
        """All trials without a placement, then the most promising with their memory."""
        made: list[_Divided] = []
        left_out = 0
        for number, trial in enumerate(self.trials):
            if (self.best or made) and self._is_late():
                left_out = len(self.trials) - number
                break
            self.tell(trial.text, 0.7 * number / len(self.trials))
            divided = self._divided(trial)
            if divided is not None and self._estimate_all(divided):
                made.append(divided)
        if not self.asked.is_bound:
            self._place_best(made)
        return left_out

    def _drop_slower_searches(self) -> None:
        """Leave a search for the least time out where another way takes less.

        A known way that is the same as what it found stays, under its own name.
        """
        best, *others = sorted(self.best, key=lambda text: self.best[text].seconds) or [""]
        for text in filter(_is_search, others):
            ranked = self.best.pop(text)
            twin = next((trial for trial in self.twins[text] if not _is_search(trial.text)), None)
            if twin is None:
                self.dropped.append(Dropped(text, f"slower than {best}, by simulation"))
                continue
            self.best[twin.text] = replace(ranked, trial=twin)
            self.dropped.remove(_same(twin.text, text))
            self.dropped.append(_same(text, twin.text))

    @property
    def _estimates(self) -> bool:
        """Whether steps are simulated before anything is placed."""
        return self.asked.goal != "memory"

    def _estimate_all(self, divided: _Divided) -> bool:
        """Simulate a division by all schedules of a step, and sort them; whether one can be.

        Partitions that have no sketch, such as fine-grain ones, are placed at once.
        """
        try:
            sketched = self._sketched(divided.placed)
        except ArgumentError:
            self._place_at_once(divided)
            return False
        estimates: list[tuple[Ranked, Scheduling]] = []
        refused: HgpartError | None = None
        for scheduling in divided.orders:
            if not scheduling.is_stream:
                try:
                    estimates.append((self._estimated(divided, sketched, scheduling), scheduling))
                except HgpartError as error:
                    refused = refused or error
        if not estimates:
            if refused is not None:
                self._drop(divided.trial, refused)
            return False
        estimates.sort(key=lambda pair: pair[0].value(self.asked.goal))
        divided.streams = [order for order in divided.orders if order.is_stream]
        divided.orders = [scheduling for _, scheduling in estimates]
        divided.estimates = [ranked.seconds for ranked, _ in estimates]
        ranked = estimates[0][0]
        if divided.trial.k == 1 and self.one_device is None:
            self.one_device = ranked
        if self._may_be_best(divided):
            self.best[divided.trial.text] = ranked
        return True

    def _may_be_best(self, divided: _Divided) -> bool:
        """Whether a way is not only to compare others with."""
        problem, partition = self.asked.problem, divided.partition
        if self.asked.is_bound and divided.trial.k != problem.k:
            return False
        return not broken(partition.model, partition.parts, problem.constraints)

    def _place_at_once(self, divided: _Divided) -> None:
        """Simulate a division by all schedules, as far as there is time."""
        placed = self._placed(divided)
        if placed is None:
            return
        for scheduling in divided.orders:
            if divided.trial.text not in self.best or not self._is_late():
                self._try(placed, scheduling)

    def _place_best(self, made: Sequence[_Divided]) -> None:
        """Place one device and the most promising, until the memory of the best ways is known.

        Where memory may not do for each way, all others are dropped: they are not known to fit.
        """
        waiting = {divided.trial.text: divided for divided in made if divided.placed.k <= MANY}
        known = 0
        while (text := self._best_unknown(waiting)) and (not known or not self._is_late()):
            divided = waiting.pop(text)
            self.tell(f"memory of {text}", 0.7 + 0.3 * known / (PLACED_IF_TIGHT + 1))
            estimated = self.best.pop(text, None)  # none of one device that is only compared with
            placed = self._placed(divided)
            if placed is None:
                continue
            known += 1
            for scheduling in divided.orders[:1] + divided.streams:
                self._try(placed, scheduling)
            self._try_others(placed)
            if divided.trial.k == 1:
                self.one_device = self.best.get(text, estimated or self.one_device)
        if self._is_tight:
            for text in [text for text in self.best if text in waiting]:
                del self.best[text]
                self.dropped.append(Dropped(text, UNKNOWN_MEMORY))

    def _try_others(self, placed: _Placed) -> None:
        """Try other orders of a trial if the best does not fit, or has to recompute."""
        divided = placed.divided
        for scheduling, seconds in list(zip(divided.orders, divided.estimates, strict=True))[1:]:
            best = self.best.get(divided.trial.text)
            fits = best is not None and not best.scheduling.recompute
            if fits or self._is_late():
                return
            if best is None or seconds < best.seconds:
                self._try(placed, scheduling)

    def _in_order(self) -> list[str]:
        """The trials that have a way, the best first."""
        return sorted(self.best, key=lambda text: self.best[text].value(self.asked.goal))

    @property
    def _is_tight(self) -> bool:
        """Whether a way may need more memory than a device has."""
        limits = [limit for limit in self.asked.limits if limit is not None]
        whole = None if self.one_device is None else self.one_device.largest_bytes
        return bool(limits) and (whole is None or min(limits) < ROOM * whole)

    def _best_unknown(self, waiting: Mapping[str, _Divided]) -> str | None:
        """One device, or the best of the few best ways whose memory is not known yet.

        A stream keeps its busiest device at work, at best, whatever a step's devices wait for.
        """
        alone = [text for text, divided in waiting.items() if divided.trial.k == 1]
        in_order = self._in_order()
        promising = alone + in_order[: PLACED_IF_TIGHT if self._is_tight else PLACED]
        if any(divided.streams for divided in waiting.values()):
            computing = {text: ranked.computing_seconds for text, ranked in self.best.items()}
            balanced = sorted(computing, key=computing.__getitem__)[:STREAMED]
            least = self.best[in_order[0]].seconds
            promising += [text for text in balanced if computing[text] < least]
        return next((text for text in promising if text in waiting), None)

    def _is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def _place_all(self) -> int:
        """All trials by their first schedule, then by the others; how many are left out."""
        made: list[_Placed] = []
        left_out = 0
        for number, trial in enumerate(self.trials):
            if made and self._is_late():
                left_out = len(self.trials) - number
                break
            self.tell(trial.text, 0.6 * number / len(self.trials))
            divided = self._divided(trial)
            placed = None if divided is None else self._placed(divided)
            if placed is not None:
                made.append(placed)
                for order in placed.divided.orders[:1]:
                    self._try(placed, order)
        made.sort(key=lambda placed: self._promise(placed.divided))
        waiting = [(placed, order) for placed in made for order in placed.divided.orders[1:]]
        for number, (placed, order) in enumerate(waiting):
            if self._is_late():
                left_out += len(waiting) - number
                break
            self.tell(placed.divided.trial.text, 0.6 + 0.4 * number / len(waiting))
            self._try(placed, order)
        alone = [ranked for ranked in self.best.values() if ranked.trial.k == 1]
        self.one_device = alone[0] if alone else self.one_device
        return left_out

    def _promise(self, divided: _Divided) -> tuple[bool, bool, float, float]:
        best = self.best.get(divided.trial.text)
        return (True, True, inf, inf) if best is None else (False, *best.value(self.asked.goal))

    def _search(self) -> Search:
        """A trial's search, with its share of the time where that is limited."""
        searching = sum(trial.way.searches for trial in self.trials)
        return self.asked.search.part(1 / max(1, searching))

    def _divided(self, trial: Trial) -> _Divided | None:
        """Divide, or say why that can't be."""
        asked = self.asked
        try:
            partition = uninterrupted(trial.partition(asked.problem, self._search(), asked.machine))
            known = self.names.setdefault(_shares(partition), trial.text)
            if known != trial.text:
                self.dropped.append(_same(trial.text, known))
                self.twins[known].append(trial)
                return None
            if trial.k > 1 and np.count_nonzero(partition.evaluation.loads) == 1:
                self.dropped.append(Dropped(trial.text, "one device would do all work"))
                return None
            if asked.is_bound and trial.k > 1:
                partition = self._within(trial, partition)
            placed = partition
            if trial.replicas > 1:
                of_all = replace(asked.problem, k=trial.k, eps=trial.eps)
                placed = partition_of_one(of_all, trial.replicas, asked.search)
        except HgpartError as error:
            self._drop(trial, error)
            return None
        return _Divided(trial, partition, placed, [*asked.orders(placed)])

    def _drop(self, trial: Trial, error: HgpartError) -> None:
        self.dropped.append(Dropped(trial.text, " ".join(str(error).split())))

    def _within(self, trial: Trial, partition: Partition) -> Partition:
        """The same by the eps and objective of the problem, if it is within it."""
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
        return judged

    def _estimated(self, divided: _Divided, sketched: Sketched, scheduling: Scheduling) -> Ranked:
        """What a way should take, without placing it; its memory is not known."""
        asked, placed, replicas = self.asked, divided.placed, divided.trial.replicas
        machine, size = asked.machine.of_fastest(divided.trial.k), placed.modelling.batch_size
        estimated = estimate(sketched, scheduling, machine, asked.times)
        self.simulated += 1
        versions = _parameter_bytes(placed)
        exchange = exchange_seconds(versions, replicas, machine)
        unknown = (None,) * placed.k
        prediction = Prediction(
            seconds=estimated.seconds,
            # No batch follows one whose latency is asked for.
            period=estimated.seconds if asked.goal == "latency" else estimated.period,
            batch_size=size,
            schedule=Schedule(scheduling.rule, scheduling.micro_batches, (), ()),
            spans=(),
            busy=estimated.busy,
            update_seconds=estimated.update_seconds,
            peak_bytes=unknown,
            step_bytes=unknown,
            offloaded_bytes=np.zeros(placed.k, dtype=np.int64),
            sent_bytes=estimated.sent_bytes,
        )
        return self._as_ranked(divided, scheduling, prediction, unknown, versions, exchange)

    def _sketched(self, partition: Partition) -> Sketched:
        """The partition's sketch; an ArgumentError if it has to be placed to be simulated."""
        if self.facts is None:
            named = self.asked.module.named_parameters()
            trainable = frozenset(name for name, value in named if value.requires_grad)
            traced, trains = self.asked.traced, self.asked.trains
            self.facts = LayerFacts.of(traced, partition, trainable, trains)
        return Sketched.of(self.facts, partition)

    def _placed(self, divided: _Divided) -> _Placed | None:
        """Place a division, or say why that can't be."""
        asked, partition = self.asked, divided.placed
        size = partition.modelling.batch_size
        # A placement does not ask what the cut between layers is like.
        whole = PartitionedModel(asked.traced, partition, partition.evaluation, {})
        try:
            placement = place(asked.module, whole, ["meta"] * partition.k)
            placement.train(asked.trains)
            placement.for_batch(size).passes.check_samples((size,))
        except HgpartError as error:
            self._drop(divided.trial, error)
            return None
        sizes = [
            sum(parameter.nbytes for parameter in placement.programs.submodule(part).parameters())
            for part in range(partition.k)
        ]
        return _Placed(
            divided,
            placement,
            lasting_bytes(placement, size, OPTIMIZER if asked.trains else None),
            tuple(sizes),
        )

    def _try(self, placed: _Placed, scheduling: Scheduling) -> None:
        """Simulate a way, and keep it if it is the trial's best that fits."""
        trial = placed.divided.trial
        ranked = self._ranked(placed, scheduling)
        if ranked is None:
            return
        if trial.k == 1 and self.one_device is None:
            self.one_device = ranked
        if not self._may_be_best(placed.divided):
            if trial.k == 1 and self.asked.problem.constraints:
                self.one_device = ranked
            return
        fastest = self.asked.machine.fastest(trial.k)
        limits = [self.asked.limits[device] for device in fastest]
        text, over = trial.text, what_is_over(ranked.needed_bytes, limits)
        if over is None:
            known = self.best.get(text)
            if known is None or ranked.value(self.asked.goal) < known.value(self.asked.goal):
                self.best[text] = ranked
            return
        least = float(ranked.largest_bytes or inf)
        if least < self.short.get(text, ("", inf))[1]:
            self.short[text] = over, least
        goal, best = self.asked.goal, self.best.get(text)
        if best is not None and goal != "memory" and ranked.value(goal) >= best.value(goal):
            return  # to drop what it keeps takes longer still
        may_drop = self.asked.trains and trial.k > 1
        if may_drop and not scheduling.recompute and scheduling.stash:
            chosen = self._dropping(placed, ranked, limits)
            self._try(placed, replace(scheduling, recompute=chosen or True))

    def _dropping(
        self, placed: _Placed, ranked: Ranked, limits: Sequence[int | None]
    ) -> Recompute | None:
        """What each part drops, so that a way fits in the least seconds; None if none fits."""
        asked, placement, scheduling = self.asked, placed.placement, ranked.scheduling
        taken = ranked.prediction.step_bytes
        left = [
            None if limit is None or needed is None or step is None else limit - (needed - step)
            for limit, needed, step in zip(limits, ranked.needed_bytes, taken, strict=False)
        ]
        size = ranked.prediction.batch_size
        sizes = (size,) if scheduling.is_stream else scheduling.sizes(size)
        seconds = forward_seconds(placement, asked.machine, asked.times, max(sizes))
        made = wanted_schedule(
            placement, scheduling, True, batches=scheduling.sample_batches, batch_size=size
        )
        devices = asked.machine.of_fastest(placement.k).devices
        slower = [device.slower for device in devices]
        return dropped_within(placement, made, left, seconds, size, slower=slower)

    def _ranked(self, placed: _Placed, scheduling: Scheduling) -> Ranked | None:
        """What a way should take; None where its micro-batches are too small for it."""
        asked, divided, placement = self.asked, placed.divided, placed.placement
        machine = asked.machine.of_fastest(divided.trial.k)
        size = divided.placed.modelling.batch_size
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
                self._drop(divided.trial, error)
            return None
        self.simulated += 1
        needed = needed_bytes(placed.lasting, placed.versions, prediction.step_bytes, scheduling)
        copies = divided.trial.replicas if asked.trains else 1  # others exchange nothing
        exchange = exchange_seconds(placed.versions, copies, machine)
        return self._as_ranked(divided, scheduling, prediction, needed, placed.versions, exchange)

    def _as_ranked(
        self,
        divided: _Divided,
        scheduling: Scheduling,
        prediction: Prediction,
        needed: tuple[int | None, ...],
        versions: Sequence[int],
        exchange: float,
    ) -> Ranked:
        asked, trial = self.asked, divided.trial
        copies = trial.replicas if asked.trains else 1
        return Ranked(
            trial=trial,
            plan=Plan(divided.partition, asked.name, asked.shape, scheduling),
            prediction=with_exchange(prediction, exchange),
            needed_bytes=needed,
            link_seconds=_link_seconds(prediction, asked.machine.of_fastest(trial.k)) + exchange,
            exchange_bytes=2 * (copies - 1) * sum(versions),
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
            served=self._served(),
            notes=tuple(self._notes()),
            cautions=cautions(asked.machine, asked.times),
        )

    def _served(self) -> tuple[ServedWay, ...]:
        """Parameter servers, where devices are alike and can have equal shares of the batch."""
        asked, problem = self.asked, self.asked.problem
        if problem.constraints:
            return ()
        replicas = next(
            (
                way
                for way in self.best.values()
                if way.trial.way.name == REPLICAS and way.k == problem.k
            ),
            None,
        )
        if replicas is None or self.one_device is None or asked.machine.speeds is not None:
            return ()
        if not asked.trains or asked.is_bound:
            return ()
        own = (item for layer in problem.graph.layers for item in layer.own_parameters)
        nbytes = sum(item.elements * item.element_bytes for item in own)
        machine = asked.machine.of_fastest(problem.k)
        return served_ways(replicas, self.one_device, nbytes, machine)

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
            training=asked.trains,
            streams=asked.goal.endswith("throughput"),
        )

    def _notes(self) -> Iterator[str]:
        if self.asked.problem.k > MANY:
            yield ONE_OF_MANY
        if self.asked.machine.speeds is not None:
            order = ", ".join(map(str, self.asked.machine.by_speed))
            yield f"Devices differ in speed: ways for fewer take the first of {order}"
        if mixing := self.asked.problem.graph.mixing.of_norms("slice"):
            yield f"No way divides the batch: {mixing}"

    def _dropped(self) -> Iterator[Dropped]:
        yield from self.dropped
        for text, (over, _) in self.short.items():
            if text not in self.best:
                yield Dropped(text, over)


def _is_search(text: str) -> bool:
    return text.startswith(LEAST_TIME)


def _same(text: str, known: str) -> Dropped:
    return Dropped(text, f"the same as {known}")


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


def _parameter_bytes(partition: Partition) -> tuple[int, ...]:
    """Bytes of each part's parameters: of a layer it has the share that it has of its tasks."""
    shares, nbytes = partition.shares.layer_tasks, np.zeros(partition.k)
    for at, layer in enumerate(partition.problem.graph.layers):
        whole = sum(own.elements * own.element_bytes for own in layer.own_parameters)
        nbytes += whole * shares[at] / max(1, int(shares[at].sum()))
    return tuple(map(round, nbytes.tolist()))


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
