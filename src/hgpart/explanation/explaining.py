"""Partition (+ simulated steps) -> Explanation: what each layer costs where it is, and why there.

Every figure of a move is that of the partition with the move made, computed from definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hgpart.arrays import Int64
from hgpart.errors import HgpartError
from hgpart.explanation.moves import Move, Moves, OtherPlace
from hgpart.explanation.share_nets import Grown, Paid
from hgpart.explanation.steps import SimulatedStep, Steps
from hgpart.partition import Partition
from hgpart.partition.problem import layer_constraints
from hgpart.partition.problem.memory import COPIES
from hgpart.partitioned_model import PartitionedModel
from hgpart.prediction.device_times import Times
from hgpart.schedule_wanted import Scheduling

NEIGHBOURS, CONSTRAINTS, BALANCE = "neighbours", "constraints", "balance"
MEMORY, NOTHING = "memory", "nothing"
TRIED = 24  # moves off the bottleneck that are simulated: those that should save most
GAIN = 0.999  # share of a step's seconds above which a move saves nothing


@dataclass(frozen=True)
class HeldShare:
    """A layer's share on a part.

    Attributes
    ----------
    work : float
        Share of the layer's work, or of its filters where it has no work.
    of_load : float
        Share of the part's work that it is.
    parameter_bytes, map_bytes : int
        Bytes of the weights that it holds, and of the maps that it makes of a batch.
    """

    part: int
    work: float
    of_load: float
    parameter_bytes: int
    map_bytes: int


@dataclass(frozen=True, eq=False)
class Hold:
    """What holds a layer where it is.

    Attributes
    ----------
    why : str
        "neighbours": any other place costs more; "constraints": the cheapest other place breaks
        some; "balance" or "memory": it has no room; "nothing": another place is allowed and costs
        no more.
    move : Move or None
        The cheapest other place, whether it is allowed or not; None on a single device.
    growth : tuple of Grown
        The nets for which it pays more, the largest first.
    """

    why: str
    move: Move | None
    growth: tuple[Grown, ...]


@dataclass(frozen=True, eq=False)
class LayerExplanation:
    """Why a layer lies where it does.

    Attributes
    ----------
    name : str
        Name of the layer; of layers that share a weight, of the first.
    tied : tuple of str
        The layers that share its weight, and so its place.
    work : float
        Share of the model's work that it is.
    sent_bytes : int
        Bytes each way of its own nets: maps, partial sums, gradients, statistics. Those of all
        layers add up to the volume.
    received_bytes : int
        Bytes each way that come for it from other layers' nets; layers that read the same maps on
        the same part each count them.
    shares : tuple of HeldShare
        What the parts have of it.
    best : Move or None
        The cheapest other place within eps and memory, if any place is.
    hold : Hold
        What holds it.
    payments : tuple of Paid
        Its own nets and those it reads that pay, the largest first.
    """

    index: int
    name: str
    tied: tuple[str, ...]
    work: float
    sent_bytes: int
    received_bytes: int
    shares: tuple[HeldShare, ...]
    best: Move | None
    hold: Hold
    payments: tuple[Paid, ...] = field(repr=False)

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that have any of it."""
        return tuple(share.part for share in self.shares)


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """The device that others wait for, and what would relieve it.

    Attributes
    ----------
    part : int
        The part that computes longest in the simulated step; without one, that with most work for
        its speed.
    load : float
        Its work, as a multiple of its share.
    relief : Move or None
        The single move of work away from it, within all limits, after which the simulated step
        is shortest, or else after which the largest load is smallest; None where none helps.
    tried : int
        Moves that were simulated, or compared by their loads.
    possible : int
        Moves away from it that are within eps and keep to the constraints.
    """

    part: int
    load: float
    relief: Move | None
    tried: int
    possible: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a partition is as it is.

    Attributes
    ----------
    layers : tuple of LayerExplanation
        The layers that were asked for, in the model's order.
    payments : tuple of Paid
        All nets that pay, the largest first.
    bottleneck : Bottleneck
        The device that others wait for.
    memory_bytes : int64 array, shape (k,)
        Bytes that each part needs.
    copies : float
        Copies of each parameter that these count.
    step : SimulatedStep or None
        A step, where it was simulated.
    no_seconds : str
        Why there is none; empty where there is, and where nobody asked.
    """

    partition: Partition
    layers: tuple[LayerExplanation, ...]
    payments: tuple[Paid, ...] = field(repr=False)
    bottleneck: Bottleneck
    memory_bytes: Int64 = field(repr=False)
    copies: float
    step: SimulatedStep | None = None
    no_seconds: str = ""

    def __repr__(self) -> str:
        """Short, without the layers."""
        return f"Explanation({self.partition!r}, {len(self.layers)} layers)"


def explain(
    divided: PartitionedModel | Partition,
    layers: str = "*",
    *,
    machine: str | None = None,
    times: Times | None = None,
    scheduling: Scheduling | None = None,
) -> Explanation:
    """Say why each layer of a partition lies where it does, and what other places would cost.

    For each layer all other places are tried: whole on another part, or its share of one part on
    another. Steps are simulated of a PartitionedModel, which has its trace.

    Parameters
    ----------
    layers : str
        The layers to explain: a name, a module, or a pattern such as ``layer4.*``.
    machine : str, optional
        A named machine such as "10gbe", or a file. Default: links of 10 Gb/s that are assumed.
    times : Times, optional
        Measured times of layers. Default: in proportion to the work.
    scheduling : Scheduling, optional
        The schedule of simulated steps. Default: the one by which the partition is fastest.

    Raises
    ------
    ArgumentError
        If no layer has the name, or the machine has too few devices.

    >>> import torch
    >>> from torch import nn
    >>> import hgpart
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> result = hgpart.partitioned_as(model, torch.zeros(2, 3, 16, 16), {"0": 0, "2": 1})
    >>> first = hgpart.explain(result, "0").layers[0]
    >>> first.sent_bytes, first.hold.why
    (200704, 'balance')
    """
    if isinstance(divided, Partition):
        return explained(divided, layers)
    steps = Steps.of_model(divided, machine, times, scheduling)
    return explained(divided.partition, layers, steps)


def explained(partition: Partition, layers: str = "*", steps: Steps | None = None) -> Explanation:
    """Explain a partition, with the seconds that `steps` simulates; see `explain`."""
    chosen = layers_named(partition, layers)
    moves = Moves(partition)
    step, no_seconds = None, ""
    if steps is not None and partition.k > 1:
        try:
            step = steps.of_partition(partition)
            steps = steps.fixed(step.scheduling)
        except HgpartError as error:
            steps, no_seconds = None, str(error)
    bottleneck = _bottleneck(moves, step, steps)
    memory = partition.problem.memory
    return Explanation(
        partition=partition,
        layers=tuple(_layer(moves, at, steps) for at in chosen),
        payments=tuple(moves.nets.payments()),
        bottleneck=bottleneck,
        memory_bytes=moves.memory_bytes,
        copies=COPIES if memory is None else memory.copies,
        step=step,
        no_seconds=no_seconds,
    )


def layers_named(partition: Partition, word: str) -> list[int]:
    """The layers of a name, module or pattern; those that share a weight by the first of them.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    return sorted(layer_constraints.layers_named(partition.model.views, word, "explain"))


def _layer(moves: Moves, at: int, steps: Steps | None) -> LayerExplanation:
    partition, nets, all_shares = moves.partition, moves.nets, moves.partition.shares
    views = partition.model.views
    tied = [view for view in views if view.exists and view.first == at]
    sent = nets.sent_by()
    work, loads = moves.layer_work[at], partition.evaluation.loads
    held = work if work.any() else all_shares.layer_tasks[at]
    shares = tuple(
        HeldShare(
            part=part,
            work=float(held[part] / max(1, int(held.sum()))),
            of_load=float(work[part] / max(1, int(loads[part]))),
            parameter_bytes=int(all_shares.layer_parameter_bytes[at, part]),
            map_bytes=int(all_shares.layer_map_bytes[at, part]),
        )
        for part in moves.parts_of(at)
    )
    places = moves.places(at)
    best = moves.first_allowed(places)
    if best is not None and steps is not None:
        best = replace(best, seconds=steps.seconds(best.partition))
    return LayerExplanation(
        index=at,
        name=views[at].layer.name,
        tied=tuple(view.layer.name for view in tied if view.at != at),
        work=float(work.sum() / max(1, partition.problem.total)),
        sent_bytes=sum(int(sent[view.at]) for view in tied),
        received_bytes=nets.received_by(at),
        shares=shares,
        best=best,
        hold=_hold(moves, places, best),
        payments=tuple(nets.payments(at)),
    )


def _hold(moves: Moves, places: Sequence[OtherPlace], best: Move | None) -> Hold:
    """What holds a layer: limits, if the cheapest other place saves, or else its neighbours."""
    if not places:
        return Hold(NOTHING, None, ())
    cheapest = places[0]
    is_best = best is not None and best.more_value <= cheapest.value
    move = best if best is not None and is_best else moves.move(cheapest)
    growth = tuple(moves.nets.growth(cheapest.layer, move.source, move.target))
    if move.more_value > 0:
        return Hold(NEIGHBOURS, move, growth)
    if move.is_allowed:
        return Hold(NOTHING, move, growth)
    return Hold(limit_of(move), move, growth)


def limit_of(move: Move) -> str:
    """What forbids a move that is not allowed: constraints before the balance before memory."""
    if move.broken:
        return CONSTRAINTS
    return BALANCE if move.over_load else MEMORY


def _bottleneck(moves: Moves, step: SimulatedStep | None, steps: Steps | None) -> Bottleneck:
    """The device that computes longest, and the move away from it that helps most."""
    partition = moves.partition
    loads, rates = partition.evaluation.loads, moves.rates
    part = int((loads / rates).argmax()) if step is None else step.busiest
    share = loads.sum() * rates[part] / rates.sum()
    away = [
        place
        for at in range(len(partition.model.views))
        if moves.layer_work[at, part]
        for place in moves.places(at)
        if place.target != part and place.source in (None, part) and not place.over_load
        if moves.keeps_constraints(place)
    ]
    relief, tried = None, 0
    if step is not None and steps is not None:
        objective = steps.objective(partition)  # an estimate of the seconds that takes no time
        away.sort(key=lambda place: moves.value_of(objective, *place[:3]))
        made = (moves.move(place) for place in away)
        for move in islice((move for move in made if move.is_allowed), TRIED):
            tried += 1
            seconds = steps.seconds(move.partition)
            least = GAIN * step.seconds if relief is None else relief.seconds
            if seconds is not None and least is not None and seconds < least:
                relief = replace(move, seconds=seconds)
    else:
        now = float((loads / rates).max())
        away.sort(key=lambda place: (place.busiest, place.value))
        tried = len(away)
        relief = moves.first_allowed([place for place in away if place.busiest < now])
    return Bottleneck(part, float(loads[part] / share) if share else 1.0, relief, tried, len(away))
