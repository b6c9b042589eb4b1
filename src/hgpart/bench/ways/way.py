"""Text -> Way: a way of training a model in several processes, and whether it can use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hgpart.errors import ArgumentError, not_one_of
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES, STREAMS

MOST_PROCESSES = 64  # of one machine
MICRO_BATCHES = 4  # of torch's pipelines, where nothing is said

SINGLE, APART, DISTRIBUTED, HYBRID = "single", "apart", "distributed", "hybrid-"
REPLICATED = ("ddp", "fsdp")
PIPELINES = ("pipeline-gpipe", "pipeline-1f1b")
SERVERS = ("ps-sync", "ps-async")
OF_TRANSFORMED = "transformed-parts"  # only models of `hgpart.transform` can be divided so
PLACED = {
    "layerwise": "the cut between layers of the smallest largest load (thesis 5.1.1)",
    "filterwise": "filters in order, a device after the other (thesis 5.1.3)",
    "halves": "every layer's filters in equal shares (thesis 5.1.2)",
    "coarse": "coarse-grain hypergraph partition (thesis 3.4), by native",
    "fine": "fine-grain hypergraph partition (thesis 3.3), by native",
    "sliced": "coarse-grain hypergraph over slices of the batch, by native",
    "weird-trick": "slices of the batch, but filters of the linear layers at the end "
    "(Krizhevsky 2014)",
    "gems": "two copies cut between layers, in opposite order on the same devices (GEMS)",
    OF_TRANSFORMED: "each part of what hgpart.transform made on a device of its own (Brakel 2024)",
}
MEANINGS = {
    SINGLE: "one process has the whole model and the whole batch",
    APART: "processes that never talk, each with its share of the batch: the limit of the machine, "
    "and no training of one model",
    "ddp": "torch's DistributedDataParallel: a copy of the model and an equal share of the batch "
    "in each process",
    "fsdp": "torch's fully_shard: the same, with parameters in shards",
    "pipeline-gpipe": "torch.distributed.pipelining by ScheduleGPipe, cut as layerwise is",
    "pipeline-1f1b": "the same by Schedule1F1B",
    "ps-sync": "a parameter server waits for all workers' gradients (thesis 5.2.3), over torch RPC",
    "ps-async": "a parameter server does not wait (Downpour SGD)",
    **PLACED,
    f"{HYBRID}R": "R replicas, each on as many devices as the others and divided as coarse is "
    "(DistBelief); on one device each that is data parallelism",
}


@dataclass(frozen=True)
class Way:
    """A way of training a model.

    Attributes
    ----------
    text : str
        As it was asked for; names its row.
    name : str
        One of `MEANINGS`; of replicas with their number.
    scheduling : Scheduling
        Of partitions; of torch's pipelines its micro-batches count.
    distributed : bool
        Whether each worker is the server of some parameters, and no process is the server of all.
    """

    text: str
    name: str
    scheduling: Scheduling = field(default_factory=Scheduling)
    distributed: bool = False

    @property
    def replicas(self) -> int | None:
        """Of the model, in a hybrid."""
        return int(self.name.removeprefix(HYBRID)) if self.name.startswith(HYBRID) else None

    @property
    def has_plan(self) -> bool:
        """Whether it is a partition of the model, that hgpart runs."""
        return self.name in PLACED or self.replicas is not None

    @property
    def is_free(self) -> bool:
        """Whether its processes go on without waiting for each other at the end of a step."""
        return self.name == "ps-async" or (self.has_plan and self.scheduling.is_stream)

    @property
    def meaning(self) -> str:
        """What it is, and where it comes from."""
        return MEANINGS[self.name if self.replicas is None else f"{HYBRID}R"]

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
        return workers + (self.name in SERVERS and not self.distributed)

    def why_not(self, workers: int, batch_size: int) -> str | None:
        """Why it can't use so many workers for a batch of that size, if it can't."""
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
        if self.replicas is not None and self.replicas not in numbers_of_replicas(workers):
            others = [f"{HYBRID}{number}" for number in numbers_of_replicas(workers)]
            return (
                f"{self.text} with {workers} processes: accepted are replicas that share them out "
                f"evenly, {', '.join(others)}"
            )
        return None


def numbers_of_replicas(workers: int) -> tuple[int, ...]:
    """How many replicas there can be, all on as many devices.

    >>> numbers_of_replicas(12)
    (2, 3, 4, 6, 12)
    """
    return tuple(number for number in range(2, workers + 1) if workers % number == 0)


def all_ways(workers: int) -> tuple[Way, ...]:
    """Each way that any model has, once, parameter servers both ways."""
    hybrids = [f"{HYBRID}{number}" for number in numbers_of_replicas(workers)]
    servers = [f"{name}{how}" for how in ("", f":{DISTRIBUTED}") for name in SERVERS]
    divided = f":{workers}" if workers > MICRO_BATCHES else ""  # a stage's micro-batch, or more
    pipelines = [f"{name}{divided}" for name in PIPELINES]
    placed = (name for name in PLACED if name != OF_TRANSFORMED)
    names = (SINGLE, APART, *REPLICATED, *pipelines, *servers, *placed, *hybrids)
    return tuple(way_of(name) for name in names)


def chosen_ways(texts: Sequence[str] | None, workers: int) -> tuple[Way, ...]:
    """The ways of these texts, each once; all that there are when None.

    Raises
    ------
    ArgumentError
        If there is no such way, or one can't be had with so many processes.
    """
    if not 2 <= workers <= MOST_PROCESSES:
        raise ArgumentError(f"--processes {workers}: accepted are 2 to {MOST_PROCESSES}")
    return all_ways(workers) if texts is None else tuple(map(way_of, dict.fromkeys(texts)))


def way_of(text: str) -> Way:
    """Read ``NAME``, ``pipeline-…:M``, ``ps-…:distributed``, and of a partition ``NAME:RULE:M``.

    Raises
    ------
    ArgumentError
        If it is none of them; says what is near.

    >>> way_of("coarse:1f1b:8").scheduling
    Scheduling(rule='1f1b', micro_batches=8, in_flight=None, stash=True, recompute=False, file=None)
    >>> way_of("ps-async:distributed").processes(2)
    2
    """
    name, *options = text.split(":")
    number = name.removeprefix(HYBRID)
    is_hybrid = number != name and number.isdecimal() and int(number) > 0
    if name not in MEANINGS and not is_hybrid:
        raise not_one_of("way", name, MEANINGS)
    if name == f"{HYBRID}R":
        raise ArgumentError(f"way {name!r}: accepted is a number for R, as in {HYBRID}2")
    if name in PLACED or is_hybrid:
        if len(options) <= 2 and (not options or options[0] in (*RULES, *STREAMS)):
            count = _count(text, options[1:], default=1)
            return Way(text, name, Scheduling(options[0], count) if options else Scheduling())
        accepted = f"a rule ({', '.join((*RULES, *STREAMS))}), and behind it micro-batches"
    elif name in PIPELINES:
        if len(options) <= 1:
            return Way(text, name, Scheduling("gpipe", _count(text, options, MICRO_BATCHES)))
        accepted = "a number of micro-batches"
    elif name in SERVERS:
        if options in ([], [DISTRIBUTED]):
            return Way(text, name, distributed=bool(options))
        accepted = DISTRIBUTED
    elif not options:
        return Way(text, name)
    else:
        accepted = "nothing"
    raise ArgumentError(f"way {text!r}: accepted behind {name}: is {accepted}")


def _count(text: str, options: Sequence[str], default: int) -> int:
    if not options:
        return default
    if not options[0].isdecimal() or int(options[0]) < 1:
        raise ArgumentError(f"way {text!r}: accepted are 1 micro-batch or more, not {options[0]!r}")
    return int(options[0])


def check_ways(ways: Iterable[Way], workers: int, batch_size: int) -> None:
    """Raise an ArgumentError for the first one that can't use so many workers."""
    for way in ways:
        if (why := way.why_not(workers, batch_size)) is not None:
            raise ArgumentError(why)
