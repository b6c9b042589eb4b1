"""ChannelGraph + work + k -> Outcome: what each way of splitting a model costs, on one scale."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, HgpartError, InfeasibleError
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import imbalance, messages, traffic
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT, LINEAR, OUTPUT, PARAMETER, ChannelGraph
from hgpart.partition.backends import BACKENDS
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import (
    layerwise,
    layerwise_by_count,
    layerwise_by_parameters,
)
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve
from hgpart.sequences import Sequences
from hgpart.work.figures import Work


@dataclass(frozen=True)
class Task:
    """What a strategy is asked for."""

    graph: ChannelGraph
    work: Work
    modelling: Modelling
    k: int
    eps: float
    seed: int

    def problem(self, grain: str) -> Problem:
        """What is to be partitioned, where the strategy does that."""
        modelling = replace(self.modelling, grain=grain)
        return Problem(self.graph, self.work, modelling, self.k, self.eps)


@dataclass(frozen=True)
class Outcome:
    """What one strategy costs with k devices.

    Attributes
    ----------
    strategy : str
    k : int
    eps : float or None
        The imbalance allowed; None for a strategy that does not take one.
    batch_size : int
        Samples of a step; `smallest_batch` where fewer were asked for.
    max_over_average : float
        Work of the most loaded device over the average.
    imbalance : float
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
        Fewest samples of a step that the strategy can do with.
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
    """A strategy that can't be used with k devices, and why."""

    strategy: str
    k: int
    eps: float | None
    why: str


@dataclass(frozen=True)
class Failed:
    """A strategy that could perhaps be used, had not something gone wrong, and what.

    A partitioner that ran out of time, or no memory: another attempt may succeed.
    """

    strategy: str
    k: int
    eps: float | None
    why: str


Row = Outcome | NotApplicable | Failed


@dataclass(frozen=True)
class Strategy:
    """A way of splitting a model.

    Attributes
    ----------
    name : str
    source : str
        Where it comes from.
    uses_eps : bool
    run : callable
        Task -> Outcome without its time; raises an ArgumentError or InfeasibleError that says why
        where it can't be used.
    """

    name: str
    source: str
    uses_eps: bool
    run: Callable[[Strategy, Task], Outcome]


def run_strategy(strategy: Strategy, task: Task) -> Row:
    """Split a model one way, and measure how long it took to find."""
    start = time.perf_counter()
    eps = task.eps if strategy.uses_eps else None
    try:
        outcome = strategy.run(strategy, task)
    except (ArgumentError, InfeasibleError) as error:
        return NotApplicable(strategy.name, task.k, eps, " ".join(str(error).split()))
    except MemoryError as error:
        why = " ".join(["out of memory", *str(error).split()])
        return Failed(strategy.name, task.k, eps, why)
    except (HgpartError, OSError) as error:
        return Failed(strategy.name, task.k, eps, " ".join(str(error).split()))
    return replace(outcome, seconds=time.perf_counter() - start)


# ------------------------------------------------------------------ partitions of the tasks


def outcome_of_parts(strategy: Strategy, task: Task, model: CnnHypergraph, parts: Int32) -> Outcome:
    """Evaluate a partition as a strategy.

    A backward pass sends what the forward pass sent, the other way, except that no gradient goes
    back to an input.
    """
    k, batch_size = task.k, model.modelling.batch_size
    between = model.nets.of_parts(model.weights, parts, k)
    every = np.arange(k, dtype=np.int32)  # its vertices are the parts
    kinds = np.array([layer.kind for layer in task.graph.layers] * 2)  # maps, then reductions
    trained = _nets(between, kinds[between.net_layers] != INPUT)
    forward = traffic(between, every, k)
    step = forward + traffic(trained, every, k).T
    once = (_whatever_the_batch(model, nets) for nets in (between, trained))
    per_step = sum(int(traffic(nets, every, k).sum()) for nets in once)
    shares = part_shares(model, parts, k)
    loads = between.weights
    return Outcome(
        strategy=strategy.name,
        k=k,
        eps=task.eps if strategy.uses_eps else None,
        batch_size=batch_size,
        max_over_average=1.0 + imbalance(loads),
        imbalance=imbalance(loads),
        forward_bytes=int(forward.sum()),
        bytes_per_sample=(int(step.sum()) - per_step) / batch_size,
        bytes_per_step=per_step,
        largest_device_bytes=int((step.sum(axis=0) + step.sum(axis=1)).max()),
        messages=int((messages(between, every, k) + messages(trained, every, k)).sum()),
        largest_parameters=int(shares.parameters.max()),
        largest_activation_bytes=int(shares.activation_bytes.max()),
        seconds=0.0,
    )


def _nets(hypergraph: Hypergraph, chosen: NDArray[np.bool_]) -> Hypergraph:
    """The hypergraph in which only the chosen nets cost anything."""
    return replace(hypergraph, costs=np.where(chosen, hypergraph.costs, 0))


def _whatever_the_batch(model: CnnHypergraph, hypergraph: Hypergraph) -> Hypergraph:
    """The hypergraph in which a net costs what it does whatever the batch, as of a parameter."""
    graph, modelling = model.graph, model.modelling

    def of_each(samples: int) -> Int64:  # map, then partial sum: that grows with the batch
        size, sums = modelling.bytes_per_element, [0] * len(graph.layers)
        maps = [graph.map_bytes(layer, samples, size) for layer in graph.layers]
        return np.array(maps + sums)[hypergraph.net_layers]

    maps = hypergraph.costs // np.maximum(1, of_each(modelling.batch_size))
    return replace(hypergraph, costs=maps * of_each(0))


def _by_layers(cut: Callable[[Problem], Int64]) -> Callable[[Strategy, Task], Outcome]:
    def run(strategy: Strategy, task: Task) -> Outcome:
        busy = sum(
            layer.tasks > 0 and each > 0
            for layer, each in zip(task.graph.layers, task.work.per_task, strict=True)
        )
        if task.k > busy:
            raise ArgumentError(f"{task.k} devices, but only {busy} layers that compute")
        problem = task.problem("coarse")
        model = problem.hypergraph(layer_blocks(problem.views))
        parts = cut(problem).astype(np.int32)[model.vertex_layers]
        return outcome_of_parts(strategy, task, model, parts)

    return run


def _by_rule(
    rule: Callable[[Problem], tuple[CnnHypergraph, Int32]], grain: str
) -> Callable[[Strategy, Task], Outcome]:
    def run(strategy: Strategy, task: Task) -> Outcome:
        return outcome_of_parts(strategy, task, *rule(task.problem(grain)))

    return run


def _random(strategy: Strategy, task: Task) -> Outcome:
    return outcome_of_parts(strategy, task, *random_parts(task.problem("coarse"), task.seed))


def _by_backend(backend: str, grain: str) -> Callable[[Strategy, Task], Outcome]:
    def run(strategy: Strategy, task: Task) -> Outcome:
        found = solve(task.problem(grain), Search(task.seed), backend)
        if found.interrupted:
            raise KeyboardInterrupt
        return outcome_of_parts(strategy, task, found.model, found.parts)

    return run


# ------------------------------------------------------------------ replicas of the model


def _divisible(modelling: Modelling, k: int) -> Modelling:
    """With at least one sample for each device: what is said of smaller batches has no meaning."""
    return replace(modelling, batch_size=max(k, modelling.batch_size))


def _samples_of_devices(batch: int, k: int) -> Int64:
    """How many samples of a batch each device gets: some one more where k does not divide it."""
    return batch // k + (np.arange(k) < batch % k)


def _bytes_of_parameters(
    graph: ChannelGraph, modelling: Modelling, chosen: NDArray[np.bool_]
) -> int:
    return sum(
        layer.parameters * (modelling.bytes_per_element or layer.bytes_per_element)
        for layer, counts in zip(graph.layers, chosen.tolist(), strict=True)
        if counts
    )


def _bytes_of_maps(
    graph: ChannelGraph, modelling: Modelling, samples: int, chosen: NDArray[np.bool_]
) -> int:
    """Of all maps of the chosen layers."""
    return sum(
        layer.tasks * graph.map_bytes(layer, samples, modelling.bytes_per_element)
        for layer, counts in zip(graph.layers, chosen.tolist(), strict=True)
        if counts and layer.kind != PARAMETER
    )


def _data_parallel(
    strategy: Strategy, task: Task, largest_device_bytes: Callable[[int, int], int], messages: int
) -> Outcome:
    graph, k = task.graph, task.k
    modelling = _divisible(task.modelling, k)
    samples = int(_samples_of_devices(modelling.batch_size, k).max())
    every = np.ones(len(graph.layers), dtype=bool)
    parameters = _bytes_of_parameters(graph, modelling, every)
    over = samples * k / modelling.batch_size
    return Outcome(
        strategy=strategy.name,
        k=k,
        eps=None,
        batch_size=modelling.batch_size,
        max_over_average=over,
        imbalance=over - 1,
        forward_bytes=0,
        bytes_per_sample=0.0,
        bytes_per_step=2 * (k - 1) * parameters,
        largest_device_bytes=largest_device_bytes(parameters, k),
        messages=messages,
        largest_parameters=sum(layer.parameters for layer in graph.layers),
        largest_activation_bytes=_bytes_of_maps(graph, modelling, samples, every),
        seconds=0.0,
        smallest_batch=k,
    )


def _ring(strategy: Strategy, task: Task) -> Outcome:
    """Ring all-reduce: every device sends and receives 2 (k - 1) / k of the gradients."""
    return _data_parallel(strategy, task, _ring_bytes, 2 * (task.k - 1) * task.k)


def _ring_bytes(parameters: int, k: int) -> int:
    """What one device of a ring all-reduce sends and receives."""
    return -(-4 * (k - 1) * parameters // k)


def _parameter_server(strategy: Strategy, task: Task) -> Outcome:
    """One device collects all gradients and sends all parameters back (thesis 2.6.1, 5.1.8)."""
    return _data_parallel(
        strategy, task, lambda parameters, k: 2 * (k - 1) * parameters, 2 * (task.k - 1)
    )


def _one_weird_trick(strategy: Strategy, task: Task) -> Outcome:
    """Data-parallel convolutions, then linear layers whose neurons are divided (Krizhevsky 2014).

    At the switch each device sends the maps of its samples to all others that read them, and gets
    their parts of the gradients back. Linear layers exchange maps as in `filterwise-horizontal`;
    parameters in front of the switch are all-reduced in a ring.
    """
    graph, k = task.graph, task.k
    modelling = replace(_divisible(task.modelling, k), grain="coarse", linear="neuron")
    batch = modelling.batch_size
    samples = _samples_of_devices(batch, k)
    tail = linear_tail(graph)
    if not tail.any():
        raise ArgumentError("the model does not end in linear layers")
    model, parts = horizontal(Problem(graph, task.work, modelling, k))
    every = np.arange(k, dtype=np.int32)
    maps = model.nets.of_parts(model.weights, parts, k)
    inside = _nets(maps, tail[maps.net_layers])
    between = traffic(inside, every, k)
    switch, switch_messages = _switch(graph, model, parts, samples, tail, trained=False)
    back, back_messages = _switch(graph, model, parts, samples, tail, trained=True)
    step = switch + between + (back + between).T

    loads = task.work.per_task * np.array([layer.tasks for layer in graph.layers])
    of_tail = np.zeros(k, dtype=np.int64)
    own = tail[model.vertex_layers]
    np.add.at(of_tail, parts[own], model.weights[own])
    busy = float(loads[~tail].sum()) * samples / batch + of_tail
    over = float(busy.max()) * k / max(1.0, float(busy.sum()))

    tasks = part_shares(model, parts, k).layer_tasks[tail]
    layers = [layer for layer, behind in zip(graph.layers, tail.tolist(), strict=True) if behind]
    per_task = np.array([-(-layer.parameters // layer.tasks) for layer in layers])
    map_bytes = np.array([view.map_bytes for view in model.views])[tail]
    of_samples = {n: _bytes_of_maps(graph, modelling, n, ~tail) for n in set(samples.tolist())}
    activations = np.array([of_samples[n] for n in samples.tolist()]) + map_bytes @ tasks
    activations += (switch + between).sum(axis=0)
    head = _bytes_of_parameters(graph, modelling, ~tail)
    in_head = sum(
        layer.parameters
        for layer, behind in zip(graph.layers, tail.tolist(), strict=True)
        if not behind
    )
    return Outcome(
        strategy=strategy.name,
        k=k,
        eps=None,
        batch_size=batch,
        max_over_average=over,
        imbalance=over - 1,
        forward_bytes=int((switch + between).sum()),
        bytes_per_sample=int(step.sum()) / batch,
        bytes_per_step=2 * (k - 1) * head,
        largest_device_bytes=int((step.sum(axis=0) + step.sum(axis=1)).max())
        + _ring_bytes(head, k),
        messages=(2 * k * (k - 1) if head else 0)
        + switch_messages
        + back_messages
        + 2 * int(messages(inside, every, k).sum()),
        largest_parameters=in_head + int((per_task @ tasks).max()),
        largest_activation_bytes=int(activations.max()),
        seconds=0.0,
        smallest_batch=k,
    )


def _switch(
    graph: ChannelGraph,
    model: CnnHypergraph,
    parts: Int32,
    samples: Int64,
    tail: NDArray[np.bool_],
    trained: bool,
) -> tuple[Int64, int]:
    """Bytes from device to device where layers of the tail read maps of the head; messages.

    Where `trained`, without the maps of inputs: no gradient goes back to them.
    """
    nets, k = model.nets, len(samples)
    behind = tail[model.vertex_layers[nets.sets.values[nets.sets.pointers[:-1]]]]
    own = behind[nets.lists.values]
    lists = Sequences.of_pairs(nets.lists.owners[own], nets.lists.values[own], len(nets.lists))
    parts_behind = lists.united(
        Sequences(nets.sets.pointers, parts[nets.sets.values].astype(np.int64))
    )
    needs = np.zeros(k, dtype=np.int64)  # bytes for one sample
    readers = np.zeros((len(graph.layers), k), dtype=bool)
    for net in np.flatnonzero(~tail[nets.layers]).tolist():
        at = int(nets.layers[net])
        receivers = parts_behind[int(nets.readers[net])]
        if graph.layers[at].kind == PARAMETER or (trained and graph.layers[at].kind == INPUT):
            continue  # every device has a copy; no gradient
        needs[receivers] += nets.costs[net] // samples.sum()
        readers[at, receivers] = True
    sent = np.outer(samples, needs)
    np.fill_diagonal(sent, 0)
    return sent, int(readers.sum()) * (k - 1)


def linear_tail(graph: ChannelGraph) -> NDArray[np.bool_]:
    """Whether each layer is linear with nothing but such layers behind it."""
    behind: dict[int, list[int]] = {at: [] for at in range(len(graph.layers))}
    for at, layer in enumerate(graph.layers):
        for source in graph.sources(layer):
            behind[source].append(at)
    tail = np.zeros(len(graph.layers), dtype=bool)
    for at in reversed(range(len(graph.layers))):
        readers = [reader for reader in behind[at] if graph.layers[reader].kind != OUTPUT]
        tail[at] = graph.layers[at].kind == LINEAR and all(tail[reader] for reader in readers)
    return tail


# ------------------------------------------------------------------ the list


def strategies() -> Mapping[str, Strategy]:
    """All strategies by name; hypergraph partitioning with every backend that is installed."""
    found = [
        Strategy(
            f"{grain}-{backend}",
            f"{grain}-grain hypergraph (thesis {chapter}) by {backend}",
            True,
            _by_backend(backend, grain),
        )
        for backend in BACKENDS
        if backend != "exact"  # which takes its whole time limit on most models
        and (backend == "native" or find_spec(backend) is not None)
        for grain, chapter in (("coarse", "3.4"), ("fine", "3.3"))
    ]
    found += [
        Strategy(
            "layerwise",
            "the cut between layers of the smallest largest load, whatever it moves (thesis 5.1.1)",
            False,
            _by_layers(layerwise),
        ),
        Strategy(
            "layerwise-uniform",
            "cuts between layers, equal numbers of them",
            False,
            _by_layers(layerwise_by_count),
        ),
        Strategy(
            "layerwise-params",
            "cuts between layers, equal parameters",
            False,
            _by_layers(layerwise_by_parameters),
        ),
        Strategy(
            "filterwise-horizontal",
            "every layer's filters in k equal shares (thesis 5.1.2)",
            False,
            _by_rule(horizontal, "coarse"),
        ),
        Strategy(
            "filterwise-incremental",
            "filters in order, a device after the other (thesis 5.1.3)",
            False,
            _by_rule(incremental, "coarse"),
        ),
        Strategy(
            "channelwise-incremental",
            "filter channels in order, a device after the other (thesis 5.1.4)",
            False,
            _by_rule(incremental, "fine"),
        ),
        Strategy("random", "a device for each filter at random", False, _random),
        Strategy(
            "data-parallel",
            "the model on every device, gradients all-reduced in a ring",
            False,
            _ring,
        ),
        Strategy(
            "parameter-server",
            "the model on every device, gradients to one of them and back (thesis 5.1.8)",
            False,
            _parameter_server,
        ),
        Strategy(
            "one-weird-trick",
            "data-parallel but for the linear layers at the end (Krizhevsky 2014)",
            False,
            _one_weird_trick,
        ),
    ]
    return {strategy.name: strategy for strategy in found}
