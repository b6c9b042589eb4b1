"""LayerFacts, Partition, Scheduling, Machine, LayerTimes -> Estimate: a step without a placement.

`hgpart.prediction.predict` simulates the programs that a placement has built, which takes seconds.
Here jobs and messages come from a sketch of these programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hgpart.arrays import Float64, Int64
from hgpart.errors import ArgumentError, PlacementError
from hgpart.execution.program import Share
from hgpart.layers.channel_graph import PARAMETER
from hgpart.machines.machine import Machine
from hgpart.partition import Partition
from hgpart.prediction.device_times import Times
from hgpart.prediction.jobs import Sharing, TimedStep
from hgpart.prediction.measured_costs import Overheads
from hgpart.prediction.predict import period_of, sharing_of
from hgpart.prediction.simulation import simulated
from hgpart.prediction.sketching.costs import SketchedCosts
from hgpart.prediction.sketching.layer_facts import LayerFacts
from hgpart.prediction.sketching.lowering import lowered
from hgpart.prediction.sketching.orders import Ordering
from hgpart.prediction.sketching.sketch import Sketch, sketch
from hgpart.prediction.sketching.step import timed
from hgpart.prediction.sketching.tiles import sketch_of_tiles
from hgpart.prediction.sketching.weights import Weights, weights_of
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes


@dataclass(frozen=True, eq=False)
class Estimate:
    """The simulated time of a step: of training, or of a pass forward where a plan is for one.

    Attributes
    ----------
    seconds, update_seconds, busy, sent_bytes
        See `Prediction`.
    step, sharing
        The simulated jobs and messages, and what they share.
    """

    seconds: float
    update_seconds: float
    busy: Float64
    sent_bytes: Int64
    step: TimedStep
    sharing: Sharing

    @cached_property
    def period(self) -> float:
        """Seconds from one step's end to the next one's; asking for it simulates several steps."""
        return period_of(self.step, self.sharing)

    @property
    def batch_seconds(self) -> float:
        """Seconds of a batch, including the optimizer, when batches follow each other."""
        return self.period + self.update_seconds


@dataclass(frozen=True, eq=False)
class Sketched:
    """A partition of a model, ready to be estimated by several schedules.

    Attributes
    ----------
    drawn : Sketch
        The work of its parts and what they send.
    weights : Weights or None
        The weights that parts send each other, if training is in slices or bands.
    """

    facts: LayerFacts
    partition: Partition
    drawn: Sketch
    weights: Weights | None

    @classmethod
    def of(cls, facts: LayerFacts, partition: Partition) -> Sketched:
        """Sketch a partition.

        Raises
        ------
        ArgumentError
            If it is a fine-grain one, or if its batch is in slices and norms are of the batch, or
            tasks read parameters.
        PlacementError
            If rows are in bands and it can't be placed.
        """
        modelling, why = partition.modelling, ""
        if modelling.grain == "fine":
            why = "a fine-grain plan"
        elif modelling.slices > 1 and modelling.norms == "batch":
            why = "norms of a batch in slices"
        elif modelling.slices > 1 and any(fact.layer.kind == PARAMETER for fact in facts.layers):
            why = "parameters that tasks read, with a batch in slices"
        if why:
            raise ArgumentError(f"an estimate of {why}: accepted is to place the plan")
        drawn = (sketch if modelling.bands == 1 else sketch_of_tiles)(facts, partition)
        has_copies = len(drawn.shares) * modelling.bands > 1 and facts.trains
        weights = weights_of(facts, partition, drawn.shares) if has_copies else None
        return cls(facts, partition, drawn, weights)


def estimate(
    sketched: Sketched,
    scheduling: Scheduling,
    machine: Machine,
    times: Times,
    batch_size: int | None = None,
    overheads: Overheads | None = None,
) -> Estimate:
    """Simulate a step of a partition on a machine, like `predict`, without a placement.

    It has a backward pass if the facts are of training.

    Bytes are those of `predict`, and so are seconds, but for what leaves or is added up in another
    order: with small layers in random parts they differ by up to some 1 %.

    Parameters
    ----------
    machine, times, batch_size, overheads
        See `predict`.

    Raises
    ------
    ArgumentError
        If the schedule is a stream, comes from a file or recomputes, the machine has fewer devices
        than parts, or the batch has fewer samples than micro-batches.
    PlacementError
        If a batch can't be divided so, or too few samples are left for a norm.
    """
    facts, partition, drawn = sketched.facts, sketched.partition, sketched.drawn
    if scheduling.file is not None or scheduling.is_stream or scheduling.recompute:
        raise ArgumentError(
            f"an estimate of the schedule {scheduling.text}: accepted are rules of a step"
        )
    machine.fastest(partition.k)  # refuses fewer devices
    size = partition.modelling.batch_size if batch_size is None else batch_size
    sizes = micro_batch_sizes(size, scheduling.micro_batches)
    _check_samples(facts, [share.share for share in drawn.shares], sizes)
    of_step = overheads or Overheads()
    costs = SketchedCosts(facts, drawn, times, machine, of_step, sizes, sketched.weights)
    tables = costs.tables
    ordering = Ordering.of(drawn, tables.chunks, partition, size, len(sizes), facts.trains)
    orders = ordering.by_rule(scheduling.rule)
    step = timed(tables, orders) if sketched.weights is None else lowered(costs, orders)
    sharing = sharing_of(machine, partition.k, times)
    spans = simulated(step, sharing)
    return Estimate(
        seconds=spans.end,
        update_seconds=costs.update() if facts.trains else 0.0,
        busy=spans.busy,
        sent_bytes=costs.sent(),
        step=step,
        sharing=sharing,
    )


def _check_samples(facts: LayerFacts, shares: Sequence[Share], sizes: Sequence[int]) -> None:
    """Raise a PlacementError if a batch can't be divided so."""
    blueprint = facts.blueprint
    if len(shares) > 1:
        blueprint.check_divided("slices")
    if len(sizes) > 1:
        blueprint.check_divided("micro-batches")
    for size in {share.samples(size) for share in shares for size in sizes}:
        if not size:
            raise PlacementError(
                f"{len(sizes)} micro-batches of {sum(sizes)} samples in {shares[0].of} slices, of "
                "which some have no sample: accepted are larger batches"
            )
        blueprint.input_shapes(size)
        if facts.trains:
            blueprint.check_norms(size)
