"""Two partitions of a model -> PlanDifference: what lies elsewhere, and what that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import networkx as nx
import numpy as np

from hgpart.arrays import Float64, Int32, Int64
from hgpart.errors import HgpartError, PlanError
from hgpart.explanation.common_blocks import are_alike, on_common_blocks
from hgpart.explanation.moves import memory_of
from hgpart.explanation.share_nets import ShareNets
from hgpart.explanation.steps import SimulatedStep, Steps
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.parameters import vertex_parameters
from hgpart.machines.machine import Machine
from hgpart.partition import Partition
from hgpart.partitioned_model import PartitionedModel
from hgpart.prediction.device_times import Times
from hgpart.schedule_wanted import Scheduling


@dataclass(frozen=True, eq=False)
class LayerDifference:
    """A layer that lies elsewhere, or for which other bytes travel.

    Attributes
    ----------
    name : str
        Name of the layer; of layers that share a weight, of the first.
    elsewhere : float
        Share of the layer's work (of its filters where it has none) that is on another device.
    work : float
        The same as a share of the model's work.
    before, after : tuple of int
        The devices that have any of it, in the numbers of the first plan.
    sent_before, sent_after : int
        Bytes each way of its own nets. Their differences add up to that of the volumes.
    received_before, received_after : int
        Bytes each way that come for it from other layers' nets.
    weight_bytes : int or None
        Bytes of its weights that devices have only in the second plan; None where plans have
        other vertices.
    alone_bytes : int or None
        Bytes by which the volume would change if only this layer lay as in the second plan.
    alone_seconds : float or None
        Simulated seconds by which a step would then change.
    """

    name: str
    elsewhere: float
    work: float
    before: tuple[int, ...]
    after: tuple[int, ...]
    sent_before: int
    sent_after: int
    received_before: int
    received_after: int
    weight_bytes: int | None = None
    alone_bytes: int | None = None
    alone_seconds: float | None = None

    @property
    def importance(self) -> tuple[int, float]:
        """Sort key: the change of the bytes that its own nets send, then the work elsewhere."""
        return abs(self.sent_after - self.sent_before), self.work


@dataclass(frozen=True, eq=False)
class PlanDifference:
    """What differs between two partitions of a model.

    Attributes
    ----------
    before, after : Partition
        The two.
    devices : tuple of int
        For each device of the second, the device of the first that it is taken for; numbers from
        the first one's k on are devices that the first does not have.
    is_renumbered : bool
        Whether a device has another number than its own: all are alike, and so least work moves.
    elsewhere : float
        Share of the model's work that is on another device.
    is_least : bool
        Whether that is only what is elsewhere at least, as the plans have other vertices.
    layers : tuple of LayerDifference
        The most important first.
    weight_bytes : int or None
        Bytes of weights that devices have only in the second plan.
    not_compared : tuple of str
        What can't be compared, and why.
    memory_before, memory_after : int64 arrays, shape (k,)
        Bytes that each part needs, in each plan's own numbers.
    step_before, step_after : SimulatedStep or None
        A step of each, where it was simulated.
    no_seconds : str
        Why there is none.
    """

    before: Partition
    after: Partition
    devices: tuple[int, ...]
    is_renumbered: bool
    elsewhere: float
    is_least: bool
    layers: tuple[LayerDifference, ...]
    weight_bytes: int | None
    not_compared: tuple[str, ...]
    memory_before: Int64 = field(repr=False)
    memory_after: Int64 = field(repr=False)
    step_before: SimulatedStep | None = None
    step_after: SimulatedStep | None = None
    no_seconds: str = ""


def diff(
    before: PartitionedModel | Partition,
    after: PartitionedModel | Partition,
    *,
    machine: str | None = None,
    times: Times | None = None,
    scheduling: Scheduling | None = None,
) -> PlanDifference:
    """Say what differs between two partitions of a model: places, bytes, load, memory, seconds.

    Steps are simulated if both are PartitionedModels, which have a trace.

    Parameters
    ----------
    machine, times, scheduling
        See `explain`.

    Raises
    ------
    PlanError
        If they are of two models.
    ArgumentError
        If the machine has too few devices.

    >>> import torch
    >>> from torch import nn
    >>> import hgpart
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> example = torch.zeros(2, 3, 16, 16)
    >>> cut = hgpart.partitioned_as(model, example, {"0": 1, "2": 0})
    >>> other = hgpart.partitioned_as(model, example, {"0": 0, "2": [1] * 6 + [0] * 2})
    >>> difference = hgpart.diff(cut, other)
    >>> difference.devices, [layer.name for layer in difference.layers]
    ((1, 0), ['2', 'output'])
    """
    if isinstance(before, Partition) or isinstance(after, Partition):
        return difference(_partition_of(before), _partition_of(after))
    on = machine, times, scheduling
    steps = [Steps.of_model(divided, *on) for divided in (before, after)]
    return difference(before.partition, after.partition, *steps)


def _partition_of(divided: PartitionedModel | Partition) -> Partition:
    return divided if isinstance(divided, Partition) else divided.partition


def difference(
    before: Partition,
    after: Partition,
    steps_before: Steps | None = None,
    steps_after: Steps | None = None,
) -> PlanDifference:
    """Compare two partitions, with the seconds that simulators of each say; see `diff`."""
    check_one_model([partition.problem.graph.fingerprint for partition in (before, after)])
    is_alike = are_alike(before.modelling, after.modelling)
    common = on_common_blocks(before, after) if is_alike else None
    places = _shared(before, after) if common is None else _overlap(*common, before.k, after.k)
    work = before.shares.layer_work.sum(axis=1) / max(1, before.problem.total)
    machines = [steps.machine for steps in (steps_before, steps_after) if steps is not None]
    devices = tuple(range(after.k))
    if _equal_devices(before, after, machines):
        devices = matched(np.tensordot(work, places, 1), places.sum(axis=0))
    step_before = step_after = fixed = None
    no_seconds = ""
    if steps_before is not None and steps_after is not None:
        try:
            step_before = steps_before.of_partition(before)
            step_after = steps_after.of_partition(after)
            fixed = steps_before.fixed(step_before.scheduling)
        except HgpartError as error:
            step_before, no_seconds = None, str(error)
    layers = [*_layers(before, after, places, work, devices)]
    is_counted = common is not None and before.k == after.k
    if common is not None and is_counted:
        blocks, first, second = common
        renumbered = np.array(devices, dtype=np.int32)[second]
        single = _Single(before, blocks, first, renumbered, fixed, step_before)
        layers = [single.added(layer) for layer in layers]
    return PlanDifference(
        before=before,
        after=after,
        devices=devices,
        is_renumbered=devices != tuple(range(after.k)),
        elsewhere=sum(layer.work for layer in layers),
        is_least=common is None,
        layers=tuple(sorted(layers, key=lambda layer: layer.importance, reverse=True)),
        weight_bytes=sum(layer.weight_bytes or 0 for layer in layers) if is_counted else None,
        not_compared=tuple(_not_compared(before, after)),
        memory_before=memory_of(before),
        memory_after=memory_of(after),
        step_before=step_before,
        step_after=step_after,
        no_seconds=no_seconds,
    )


def check_one_model(
    fingerprints: Sequence[str], names: Sequence[str] = ("the first plan", "the second plan")
) -> None:
    """Raise a PlanError if two plans are of two models."""
    own, other = fingerprints
    if own != other:
        raise PlanError(
            f"{names[0]} is for a model with fingerprint {own}, {names[1]} for another, with "
            f"{other}: accepted are two plans of one model"
        )


def matched(work: Float64, tasks: Float64) -> tuple[int, ...]:
    """For each device of the second plan, the device of the first that it has most in common with.

    A matching of largest weight: work that both have, then tasks, then equal numbers. Devices that
    are left over keep their numbers where these are free; others get numbers from k of the first
    plan on.

    Parameters
    ----------
    work, tasks : float64 arrays, shape (k of the first plan, k of the second)
        What each pair of devices has in common.

    >>> matched(np.array([[0.0, 0.4], [0.6, 0.0]]), np.zeros((2, 2)))
    (1, 0)
    """
    firsts, seconds = work.shape
    graph = nx.Graph()
    score = np.rint(1e9 * work / max(1e-300, work.sum())).astype(np.int64) * 10**6
    score += np.rint(1e5 * tasks / max(1e-300, tasks.sum())).astype(np.int64) * 2
    for own in range(firsts):
        for other in range(seconds):
            weight = int(score[own, other])
            if weight or own == other:
                graph.add_edge(("first", own), ("second", other), weight=weight + (own == other))
    pairs = dict[int, int]()
    for edge in nx.max_weight_matching(graph):
        ends = dict(edge)
        pairs[ends["second"]] = ends["first"]
    free = [own for own in range(firsts) if own not in pairs.values()]
    further = iter([*free, *range(firsts, firsts + seconds)])
    for other in range(seconds):
        if other not in pairs:
            pairs[other] = next(further)
    return tuple(pairs[other] for other in range(seconds))


def _overlap(
    common: CnnHypergraph, first: Int32, second: Int32, k_first: int, k_second: int
) -> Float64:
    """Share of each layer that lies on device a of the first plan and on b of the second.

    By work; where a layer has none, by its vertices.
    """
    count = len(common.views)
    work = np.zeros((count, k_first, k_second))
    vertices = np.zeros_like(work)
    np.add.at(work, (common.vertex_layers, first, second), common.weights)
    np.add.at(vertices, (common.vertex_layers, first, second), 1)
    return _normalised(np.where(work.sum(axis=(1, 2), keepdims=True) > 0, work, vertices))


def _shared(before: Partition, after: Partition) -> Float64:
    """The same at most, by the shares that devices have, where plans have other vertices."""
    shares = []
    for partition in (before, after):
        work, tasks = partition.shares.layer_work, partition.shares.layer_tasks
        held = np.where(work.sum(axis=1, keepdims=True) > 0, work, tasks).astype(np.float64)
        shares.append(held / np.maximum(1e-300, held.sum(axis=1))[:, None])
    at_most: Float64 = np.minimum(shares[0][:, :, None], shares[1][:, None, :])
    return at_most


def _normalised(amounts: Float64) -> Float64:
    totals = amounts.sum(axis=(1, 2))
    shares: Float64 = amounts / np.where(totals > 0, totals, 1)[:, None, None]
    return shares


def _equal_devices(before: Partition, after: Partition, machines: list[Machine]) -> bool:
    """Whether devices of the plans can be renumbered: none differs from another."""
    for partition in (before, after):
        problem = partition.problem
        memory = () if problem.memory is None else problem.memory.bytes
        links = problem.objective.links
        is_even = links is None or len(set(links[~np.eye(partition.k, dtype=bool)].tolist())) == 1
        is_even &= not problem.constraints.pins
        if len(set(memory)) > 1 or len(set(problem.rates)) > 1 or not is_even:
            return False
    return all(
        machine.speeds is None
        and not machine.pairs
        and (len(machine.nodes) == 1 or max(machine.nodes) == 1)
        for machine in machines
    )


def _layers(
    before: Partition,
    after: Partition,
    places: Float64,
    work: Float64,
    devices: tuple[int, ...],
) -> Iterator[LayerDifference]:
    """The layers that lie elsewhere or send other bytes."""
    nets = ShareNets.of(before), ShareNets.of(after)
    sent = [own.sent_by() for own in nets]
    views = before.model.views
    for view in views:
        if not view.is_own:
            continue
        at = view.at
        tied = [other.at for other in views if other.exists and other.first == at]
        kept = sum(
            float(places[at, device, own])
            for own, device in enumerate(devices)
            if device < before.k
        )
        sent_before, sent_after = (int(by_layer[tied].sum()) for by_layer in sent)
        received = [own.received_by(at) for own in nets]
        elsewhere = max(0.0, 1 - kept) if kept < 1 - 1e-12 else 0.0
        if not elsewhere and sent_before == sent_after and received[0] == received[1]:
            continue
        held = [own.parts[own.layers == at].tolist() for own in nets]
        yield LayerDifference(
            name=view.layer.name,
            elsewhere=elsewhere,
            work=elsewhere * float(work[at]),
            before=tuple(held[0]),
            after=tuple(sorted(devices[part] for part in held[1])),
            sent_before=sent_before,
            sent_after=sent_after,
            received_before=received[0],
            received_after=received[1],
        )


@dataclass(frozen=True, eq=False)
class _Single:
    """What the first plan would be with one layer as in the second.

    Attributes
    ----------
    first, second : int32 arrays
        The device of each vertex of `common` in either plan, in the first plan's numbers.
    """

    before: Partition
    common: CnnHypergraph
    first: Int32
    second: Int32
    steps: Steps | None
    step: SimulatedStep | None

    def added(self, layer: LayerDifference) -> LayerDifference:
        """The layer's difference with what it would change alone."""
        at = next(view.at for view in self.common.views if view.layer.name == layer.name)
        if not layer.elsewhere:
            return replace(layer, weight_bytes=0, alone_bytes=0)
        parts = np.where(self.common.vertex_layers == at, self.second, self.first)
        alone = self.before.with_parts(self.common, parts.astype(np.int32))
        seconds = None if self.steps is None else self.steps.seconds(alone)
        return replace(
            layer,
            weight_bytes=self._new_weights(at),
            alone_bytes=alone.evaluation.volume - self.before.evaluation.volume,
            alone_seconds=None
            if seconds is None or self.step is None
            else seconds - self.step.seconds,
        )

    @cached_property
    def _weight_bytes(self) -> Int64:
        """Bytes of the weights of each vertex, in the first band of a slice."""
        _, in_bytes = vertex_parameters(self.common)
        return in_bytes

    def _new_weights(self, at: int) -> int:
        """Bytes of a layer's weights that devices have in the second plan alone."""
        in_bytes, count = self._weight_bytes, len(self._weight_bytes)
        firsts = np.tile(self.common.first_bands, self.common.modelling.slices)
        own = self.common.vertex_layers == at
        held = [
            np.unique(parts[own].astype(np.int64) * count + firsts[own])
            for parts in (self.first, self.second)
        ]
        new = np.setdiff1d(held[1], held[0], assume_unique=True)
        return int(in_bytes[new % count].sum())


def _not_compared(before: Partition, after: Partition) -> Iterator[str]:
    """What two plans have not in common, and what can't be said therefore."""
    own, other = before.modelling, after.modelling
    for name in ("grain", "linear", "slices", "bands", "input_vertex", "output_vertex"):
        first, second = getattr(own, name), getattr(other, name)
        if first != second:
            yield (
                f"{name.replace('_', '-')}={first} and {second}: what lies elsewhere is known by "
                "each device's share of a layer, and so at least"
            )
    if own.batch_size != other.batch_size:
        yield (
            f"batches of {own.batch_size} and {other.batch_size} samples: bytes are of each plan's "
            "own batch"
        )
    if before.k != after.k:
        yield f"{before.k} and {after.k} devices: what a layer alone would change is not known"
    if before.problem.work.source != after.problem.work.source:
        yield "work from two sources: loads are shares of each plan's own"
    if own.training != other.training:
        yield "one plan is of training, the other of inference: bytes are of each one's passes"
