"""Text -> TrainingWay: a way of training, or running, in several processes, and what it can use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hgpart.bench.ways.tiles import FusedTiles
from hgpart.errors import ArgumentError
from hgpart.partition.ways.built_in import HYBRID
from hgpart.partition.ways.catalogue import way_named
from hgpart.partition.ways.of_users import ways_of_users
from hgpart.partition.ways.way import Way
from hgpart.plan import Plan, PlanFile, load_plan
from hgpart.run.servers.serving import ASYNC, DISTRIBUTED, SERVERS, SETTINGS, Serving
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES, STREAMS

MOST_PROCESSES = 64  # of one machine
MICRO_BATCHES = 4  # of torch's pipelines, where nothing is said

SINGLE, APART, PLAN = "single", "apart", ".json"
REPLICATED = ("ddp", "fsdp")
PIPELINES = ("pipeline-gpipe", "pipeline-1f1b")
FUSED = "fused-tiles"
DIVISIONS = (  # of the catalogue, that are run where no ways are named
    "layerwise",
    "incremental",
    "horizontal",
    "coarse",
    "fine",
    "sliced",
    "one-weird-trick",
    "opposed-replicas",
    "data-parallel",
)
ONLY_TRAINED = (*REPLICATED, *SERVERS, PIPELINES[1])
RUN = (SINGLE, APART, "layerwise", "horizontal", "spatial", "rows-then-filters", FUSED)  # forward
MEANINGS = {  # of the ways that are not divisions
    SINGLE: "one process has the whole model and the whole batch",
    APART: "processes that never talk, each with its share of the batch: the limit of the machine, "
    "and no training of one model; in inference, replicas",
    "ddp": "torch's DistributedDataParallel: a copy of the model and an equal share of the batch "
    "in each process",
    "fsdp": "torch's fully_shard: the same, with parameters in shards",
    "pipeline-gpipe": "torch.distributed.pipelining by ScheduleGPipe, cut as layerwise is",
    "pipeline-1f1b": "the same by Schedule1F1B",
    "ps-sync": "a parameter server waits for all workers' gradients (thesis 5.2.3)",
    "ps-async": "a parameter server does not wait (Downpour SGD)",
    FUSED: "leading layers in bands of rows, each process computing all that its band needs from "
    "a crop of the input, and the first one the layers behind (DeepThings, Zhao et al. 2018)",
}


@dataclass(frozen=True)
class TrainingWay:
    """A way of training a model, or of running it forward.

    Attributes
    ----------
    text : str
        The way as it was asked for, or the name of a plan's file; it names the row.
    name : str
        One of `MEANINGS`, or the name of the division.
    scheduling : Scheduling
        The schedule of a partition; torch's pipelines take its micro-batches.
    serving : Serving or None
        The settings of parameter servers.
    division : Way or None
        The way to divide the model that hgpart runs, where it is one.
    plan : Plan, PlanFile or None
        A partition that there is already.
    """

    text: str
    name: str
    scheduling: Scheduling = field(default_factory=Scheduling)
    serving: Serving | None = None
    division: Way | None = None
    plan: Plan | PlanFile | None = None

    @property
    def has_plan(self) -> bool:
        """Whether it is a partition of the model, that hgpart runs."""
        return self.division is not None or self.plan is not None

    @property
    def is_free(self) -> bool:
        """Whether its processes go on without waiting for each other at the end of a step."""
        return self.name == ASYNC or (self.has_plan and self.scheduling.is_stream)

    @property
    def meaning(self) -> str:
        """What it is, and where it comes from."""
        if self.plan is not None:
            return f"the plan of {self.name}"
        return MEANINGS[self.name] if self.division is None else self.division.words

    def processes(self, workers: int) -> int:
        """How many processes it has, where there are to be so many workers.

        One parameter server is a device of its own, beside the workers, as in the thesis (1.1: "is
        sent to another device which is called the parameter server"); distributed servers are the
        workers themselves (5.2.3).

        >>> way_of("ps-sync").processes(2), way_of("ps-sync:distributed").processes(2)
        (3, 2)
        """
        if self.name == SINGLE:
            return 1
        return workers if self.serving is None else self.serving.processes(workers)

    def why_not(self, workers: int, batch_size: int, inference: bool = False) -> str | None:
        """Why it can't use so many workers for a batch of that size, if it can't."""
        if inference and (self.name in ONLY_TRAINED or self.scheduling.is_stream):
            return (
                f"{self.text} trains: accepted with --inference are {', '.join(RUN)}, plans, and "
                "any other way that runs forward"
            )
        if self.name == FUSED and not inference:
            return f"{FUSED} runs passes forward: accepted is with --inference"
        if self.name in (APART, *REPLICATED, *SERVERS) and batch_size % workers:
            return (
                f"{self.text} with {workers} processes and a batch of {batch_size}: accepted are "
                f"batches of a multiple of {workers}, as all have equal shares of it"
            )
        count = self.scheduling.micro_batches
        if self.name in PIPELINES and batch_size % count:
            return (
                f"{self.text} with a batch of {batch_size}: accepted are batches of a multiple of "
                f"its {count} micro-batches, {self.name}:M for others"
            )
        if self.name == PIPELINES[1] and count < workers:
            return (
                f"{self.text} with {workers} processes: torch's Schedule1F1B accepts as many "
                f"micro-batches as stages, or more, as in {self.name}:{workers}"
            )
        if self.has_plan and count > batch_size:
            return (
                f"{self.text} with a batch of {batch_size}: accepted are at most as many "
                "micro-batches"
            )
        if isinstance(self.plan, PlanFile) and self.plan.k != workers:
            return (
                f"{self.text} with {workers} processes: the plan has {self.plan.k} parts, accepted "
                "are as many processes"
            )
        return None


def all_ways(workers: int) -> tuple[TrainingWay, ...]:
    """Each way that any model has, once, parameter servers both ways; those of users at the end."""
    servers = [f"{name}{how}" for how in ("", f":{DISTRIBUTED}") for name in SERVERS]
    divided = f":{workers}" if workers > MICRO_BATCHES else ""  # a stage's micro-batch, or more
    pipelines = [f"{name}{divided}" for name in PIPELINES]
    hybrids = [f"{HYBRID}{count}" for count in range(2, workers) if workers % count == 0]
    of_users = [*ways_of_users()]
    names = (SINGLE, APART, *REPLICATED, *pipelines, *servers, *DIVISIONS, *hybrids, *of_users)
    return tuple(way_of(name) for name in names)


def chosen_ways(
    texts: Sequence[str] | None, workers: int, inference: bool = False
) -> tuple[TrainingWay, ...]:
    """The ways of these texts, each once; all that there are, or that run forward, when None.

    Raises
    ------
    ArgumentError
        If there is no such way, or one can't be had with so many processes.
    FormatError
        If a plan file can't be read.
    """
    if not 2 <= workers <= MOST_PROCESSES:
        raise ArgumentError(f"--processes {workers}: accepted are 2 to {MOST_PROCESSES}")
    if texts is None:
        return tuple(map(way_of, RUN)) if inference else all_ways(workers)
    chosen = tuple(map(way_of, dict.fromkeys(texts)))
    rows: dict[str, TrainingWay] = {}
    for way in chosen:
        if way.text in rows:
            raise ArgumentError(
                f"{way.name} and {rows[way.text].name}: both rows would be called {way.text}, "
                "accepted are plan files of different names"
            )
        rows[way.text] = way
    return chosen


def way_of(text: str) -> TrainingWay:
    """Read ``NAME``, ``pipeline-…:M``, ``ps-…:KEY=VALUE``, ``PLAN.json``, or ``NAME:RULE:M``.

    The last is a way of the catalogue (`hgpart.partition.ways`) by a schedule.

    Raises
    ------
    ArgumentError
        If it is none of them; says what is near.

    >>> way_of("coarse:1f1b:8").scheduling
    Scheduling(rule='1f1b', micro_batches=8, in_flight=None, stash=True, recompute=False, file=None)
    >>> way_of("ps-async:distributed").processes(2)
    2
    """
    if text.endswith(PLAN):
        plan = load_plan(text)
        return TrainingWay(Path(text).stem, text, plan.scheduling or Scheduling(), plan=plan)
    name, *options = text.split(":")
    if name not in MEANINGS:
        if name == f"{HYBRID}R":
            raise ArgumentError(f"way {name!r}: accepted is a number for R, as in {HYBRID}2")
        division = _division(name)
        if len(options) <= 2 and (not options or options[0] in (*RULES, *STREAMS)):
            count = _count(text, options[1:], default=1)
            scheduling = Scheduling(options[0], count) if options else Scheduling()
            return TrainingWay(text, name, scheduling, division=division)
        accepted = f"a rule ({', '.join((*RULES, *STREAMS))}), and behind it micro-batches"
    elif name in PIPELINES:
        if len(options) <= 1:
            return TrainingWay(
                text, name, Scheduling("gpipe", _count(text, options, MICRO_BATCHES))
            )
        accepted = "a number of micro-batches"
    elif name in SERVERS:
        return TrainingWay(text, name, serving=_serving(text, name, options))
    elif not options:
        return TrainingWay(text, name)
    else:
        accepted = "nothing"
    raise ArgumentError(f"way {text!r}: behind {name}, accepted is {accepted}")


def _serving(text: str, name: str, options: Sequence[str]) -> Serving:
    """The settings of `hgpart train --way`, and ``distributed`` for ``servers=distributed``."""
    settings = dict[str, Any]()
    for option in options:
        key, equals, value = (
            option.partition("=") if option != DISTRIBUTED else ("servers", "=", option)
        )
        kind = SETTINGS.get(key)
        if not equals or kind is None or (kind is int and not value.isdecimal()):
            keys = "=, ".join((DISTRIBUTED, *SETTINGS)).replace("=", "", 1)
            raise ArgumentError(f"way {text!r}: behind {name}, accepted are {keys}=")
        settings[key] = kind(value)
    return Serving(name, **settings)


def _division(name: str) -> Way:
    known = (*MEANINGS, *DIVISIONS, f"{HYBRID}R")
    return way_named(name, known, "others of hgpart compare, PLAN.json")


def _count(text: str, options: Sequence[str], default: int) -> int:
    if not options:
        return default
    if not options[0].isdecimal() or int(options[0]) < 1:
        raise ArgumentError(f"way {text!r}: accepted are 1 micro-batch or more, not {options[0]!r}")
    return int(options[0])


def check_ways(
    ways: Iterable[TrainingWay], workers: int, batch_size: int, inference: bool = False
) -> None:
    """Raise an ArgumentError for the first one that can't use so many workers."""
    for way in ways:
        if (why := way.why_not(workers, batch_size, inference)) is not None:
            raise ArgumentError(why)


@dataclass(frozen=True)
class Head:
    """The first operator of a stage: a kind of operator, and its number in the order of calls.

    Attributes
    ----------
    target : str
        Name of the operator in torch.export.
    """

    target: str
    number: int


# A plan for parts, tiles, the heads of a pipeline's stages after the first, or None for others.
Layout = Plan | PlanFile | FusedTiles | tuple[Head, ...] | None
