"""Way + Problem -> Outcome: what a partition of a model costs in a training step."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.compare.step_seconds import step_seconds
from hgpart.errors import ArgumentError, HgpartError, InfeasibleError
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import imbalance, traffic
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.step_traffic import Flow, step_flows, together
from hgpart.partition.ways.way import Way


@dataclass(frozen=True)
class Outcome:
    """What one way of splitting a model costs with k devices.

    Attributes
    ----------
    strategy : str
        Name of the way.
    eps : float or None
        The imbalance allowed; None for a way that does not search.
    batch_size : int
        Samples of a step; `smallest_batch` where fewer were asked for.
    max_over_average : float
        Work of the most loaded device over the average.
    forward_bytes : int
        Between devices in a forward pass of a batch.
    bytes_per_sample, bytes_per_step : float, int
        Between devices in a training step (forward, backward and what synchronises parameters):
        what grows with the batch, for one sample, and what does not.
    largest_device_bytes : int
        Most that one device sends and receives in a step.
    messages : int
        In a step.
    largest_parameters : int
        Most parameter elements on one device.
    largest_activation_bytes : int
        Most feature maps, made or received, on one device, for a batch.
    seconds : float
        To find it.
    smallest_batch : int
        Fewest samples of a step that the way can divide: one for each slice of the batch.
    step_seconds : float or None
        About what a step takes, as `hgpart.compare.step_seconds` estimates it.
    """

    strategy: str
    k: int
    eps: float | None
    batch_size: int
    max_over_average: float
    imbalance: float
    forward_bytes: int
    bytes_per_sample: float
    bytes_per_step: int
    largest_device_bytes: int
    messages: int
    largest_parameters: int
    largest_activation_bytes: int
    seconds: float
    smallest_batch: int = 1
    step_seconds: float | None = None

    @property
    def step_bytes(self) -> int:
        """Bytes between devices in a training step."""
        return round(self.bytes_per_sample * self.batch_size) + self.bytes_per_step

    def epoch_bytes(self, samples: int, batch_size: int) -> int | None:
        """Bytes between devices in an epoch with batches of another size (thesis table 5.14).

        None where such a batch is too small to be divided; the last one may be.
        """
        if batch_size < self.smallest_batch:
            return None
        steps = -(-samples // batch_size)
        return round(self.bytes_per_sample * samples) + self.bytes_per_step * steps


@dataclass(frozen=True)
class NotApplicable:
    """A way that can't be used with k devices, and why."""

    strategy: str
    k: int
    eps: float | None
    why: str


class Failed(NotApplicable):
    """A way that could perhaps be used, had not something gone wrong, and what.

    A partitioner that ran out of time, or no memory: another attempt may succeed.
    """


Row = Outcome | NotApplicable


def outcome_of(way: Way, problem: Problem, seed: int, slices: int | None = None) -> Row:
    """Divide a model one way, and measure how long that takes.

    Parameters
    ----------
    problem : Problem
        With a batch that is not in slices; ways that need a slice for each part get one of at least
        as many samples, as smaller batches have no meaning for them.
    slices : int, optional
        Number of slices for the ways that would choose one.
    """
    start = time.perf_counter()
    eps = problem.eps if way.searches else None
    try:
        enough = _with_samples(problem, way)
        outcome = outcome_of_parts(way, enough, *way.parts(enough, Search(seed), slices))
    except (ArgumentError, InfeasibleError) as error:
        return NotApplicable(way.name, problem.k, eps, " ".join(str(error).split()))
    except MemoryError as error:
        why = " ".join(["out of memory", *str(error).split()])
        return Failed(way.name, problem.k, eps, why)
    except (HgpartError, OSError) as error:
        return Failed(way.name, problem.k, eps, " ".join(str(error).split()))
    return replace(outcome, seconds=time.perf_counter() - start)


def _with_samples(problem: Problem, way: Way) -> Problem:
    least = 1 if way.slices is None else way.slices(problem)
    batch_size = max(least, problem.modelling.batch_size)
    return replace(problem, modelling=replace(problem.modelling, batch_size=batch_size))


# ------------------------------------------------------------------ partitions of the tasks


def outcome_of_parts(way: Way, problem: Problem, model: CnnHypergraph, parts: Int32) -> Outcome:
    """Evaluate what a way has made of a problem: blocks of its model, and the part of each.

    A backward pass sends what the forward pass sent, the other way, except that no gradient goes
    back to an input. Gradients of parameters that several devices have are summed: on one of them,
    which hands the sum back, or in a ring; statistics of norms over all slices on one. With
    batches of another size slices keep their shares.
    """
    k, modelling, ring = problem.k, model.modelling, way.ring
    flows = step_flows(model, parts, k)
    volume = together(flows.values()).volume
    others = sum(flow.volume for name, flow in flows.items() if not name.startswith("maps"))
    per_step = _whatever_the_batch(model, parts, k) + others
    every = np.arange(k, dtype=np.int32)
    nets = model.map_nets if ring else model.nets
    between = traffic(nets.of_parts(model.weights, parts, k), every, k)
    if ring:  # each device hands on shares of the gradients, then of the sums
        shares_of_ring = _in_ring(model.parameter_nets.of_parts(model.weights, parts, k), k)
        flows = {**flows, "gradients": shares_of_ring, "weights": shares_of_ring}
        between[every, np.roll(every, -1)] += shares_of_ring.sent  # to the next one
    step = together(flows.values())
    in_forward = ("maps forward", "statistics")  # these there and back: half of a step's
    shares = part_shares(model, parts, k)
    loads = np.zeros(k, dtype=np.int64)
    np.add.at(loads, parts, model.weights)
    takes = step_seconds(problem.graph, problem.work, modelling, between, shares.layer_work)
    return Outcome(
        strategy=way.name,
        k=k,
        eps=problem.eps if way.searches else None,
        batch_size=modelling.batch_size,
        max_over_average=1.0 + imbalance(loads),
        imbalance=imbalance(loads),
        forward_bytes=sum(flow.volume for name, flow in flows.items() if name in in_forward),
        bytes_per_sample=(volume - per_step) / modelling.batch_size,
        bytes_per_step=per_step,
        largest_device_bytes=step.most,
        messages=step.messages,
        largest_parameters=int(shares.parameters.max()),
        largest_activation_bytes=int(shares.activation_bytes.max()),
        seconds=0.0,
        smallest_batch=modelling.slices,
        step_seconds=None if takes is None else takes.seconds,
    )


def _whatever_the_batch(model: CnnHypergraph, parts: Int32, k: int) -> int:
    """Bytes of maps, and of their gradients, that a step sends whatever the batch: parameters'."""
    graph, modelling = model.graph, model.modelling
    nets = model.map_nets.of_parts(model.weights, parts, k)

    def of_each(samples: tuple[int, ...]) -> Int64:  # map, then partial sum: that grows with them
        size, sums = modelling.bytes_per_element, [0] * len(graph.layers)
        maps = [[graph.map_bytes(layer, n, size) for layer in graph.layers] for n in samples]
        return np.array([own + sums for own in maps]).ravel()[nets.net_layers]

    maps = nets.costs // np.maximum(1, of_each(modelling.samples))
    sent = maps * of_each((0,) * modelling.slices) * (np.diff(nets.pointers) - 1)
    is_input = np.array([layer.kind == INPUT for layer in graph.layers])
    return int(sent.sum() + sent[~is_input[nets.net_layers % len(is_input)]].sum())


def _in_ring(nets: Hypergraph, k: int) -> Flow:
    """A ring's n devices each send and receive (n - 1) / n of what they have of a layer.

    It is half of an all-reduce: they add up shares of the gradients, or hand round the sums.
    """
    sizes = np.diff(nets.pointers)
    shared = np.zeros((k + 1, k), dtype=np.int64)  # by size of the ring, and device
    owners = np.repeat(np.arange(len(sizes)), sizes)
    np.add.at(shared, (sizes[owners], nets.pins), nets.costs[owners])
    ring_sizes = np.arange(k + 1)[:, None]
    busy = (-(-(ring_sizes - 1) * shared // np.maximum(1, ring_sizes))).sum(axis=0)
    pins = np.split(nets.pins, nets.pointers[1:-1]) if len(sizes) else []
    rings = {
        (layer, frozenset(own.tolist()))
        for layer, own in zip(nets.net_layers.tolist(), pins, strict=True)
    }
    return Flow(busy, busy, sum((len(ring) - 1) * len(ring) for _, ring in rings))
