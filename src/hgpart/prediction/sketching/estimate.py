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
from hgpart.prediction.sketching.sketch import sketch
from hgpart.prediction.sketching.step import timed
from hgpart.prediction.sketching.weights import weights_of
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes


@dataclass(frozen=True, eq=False)
class Estimate:
    """The simulated time of a training step.

    Attributes
    ----------
    seconds, update_seconds, busy, sent_bytes
        As in `Prediction`.
    step, sharing
        What was simulated.
    """

    seconds: float
    update_seconds: float
    busy: Float64
    sent_bytes: Int64
    step: TimedStep
    sharing: Sharing

    @cached_property
    def period(self) -> float:
        """As in `Prediction`: this simulates several steps."""
        return period_of(self.step, self.sharing)

    @property
    def batch_seconds(self) -> float:
        """Seconds of a batch, including the optimizer, when batches follow each other."""
        return self.period + self.update_seconds


def estimate(
    facts: LayerFacts,
    partition: Partition,
    scheduling: Scheduling,
    machine: Machine,
    times: Times,
    batch_size: int | None = None,
    overheads: Overheads | None = None,
) -> Estimate:
    """Simulate a training step of a partition on a machine, like `predict`, without a placement.

    Seconds and bytes are those of `predict`, but for a batch in slices where other parts compute
    with only some of a part's weights: there, seconds may differ by some 0.1 %.

    Parameters
    ----------
    facts : LayerFacts
        Facts of the partition's model.
    machine, times, batch_size, overheads
        See `predict`.

    Raises
    ------
    ArgumentError
        If there is an `obstacle`, the machine has fewer devices than parts, or the batch has fewer
        samples than micro-batches.
    PlacementError
        If a batch can't be divided so, or too few samples are left for a norm.
    """
    if why := obstacle(facts, partition, scheduling):
        raise ArgumentError(f"an estimate of {why}: accepted is to place the plan and predict it")
    if machine.k < partition.k:
        raise ArgumentError(
            f"a machine of {machine.k} devices for {partition.k} parts: accepted are "
            f"{partition.k} or more"
        )
    size = partition.modelling.batch_size if batch_size is None else batch_size
    sizes = micro_batch_sizes(size, scheduling.micro_batches)
    drawn = sketch(facts, partition)
    _check_samples(facts, [share.share for share in drawn.shares], sizes)
    weights = weights_of(facts, partition, drawn.shares) if len(drawn.shares) > 1 else None
    costs = SketchedCosts(facts, drawn, times, machine, overheads or Overheads(), sizes, weights)
    tables = costs.tables
    ordering = Ordering.of(drawn, tables.chunks, partition, size, len(sizes))
    orders = ordering.by_rule(scheduling.rule)
    step = timed(tables, orders) if weights is None else lowered(costs, orders)
    sharing = sharing_of(machine, partition.k, times)
    spans = simulated(step, sharing)
    return Estimate(
        seconds=spans.end,
        update_seconds=costs.update(),
        busy=spans.busy,
        sent_bytes=costs.sent(),
        step=step,
        sharing=sharing,
    )


def obstacle(facts: LayerFacts, partition: Partition, scheduling: Scheduling) -> str:
    """What keeps a step of a plan from being estimated; "" if nothing does."""
    modelling = partition.modelling
    if scheduling.file is not None or scheduling.is_stream or scheduling.recompute:
        return f"the schedule {scheduling.text}"
    if modelling.grain == "fine":
        return "a fine-grain plan"
    if modelling.slices > 1 and modelling.norms == "batch":
        return "norms of a batch in slices"
    if modelling.slices > 1 and any(fact.layer.kind == PARAMETER for fact in facts.layers):
        return "parameters that tasks read, with a batch in slices"
    return ""


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
        blueprint.check_norms(size)
