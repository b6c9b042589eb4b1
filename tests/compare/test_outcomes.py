"""What a strategy is said to cost, against counting it net by net, device by device and by hand."""

from __future__ import annotations

import dataclasses
from functools import cache
from importlib.util import find_spec
from random import Random

import numpy as np
import pytest
from builtin_graphs import full_size_graph
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import MODELS, GraphMaker, channel_graphs, graph_of, modellings, read
from torch import nn

from hgpart.compare.outcomes import (
    Failed,
    NotApplicable,
    Outcome,
    outcome_of,
    outcome_of_parts,
)
from hgpart.errors import ArgumentError, BackendError, InfeasibleError, MissingPackageError
from hgpart.hypergraph.blocks import layer_blocks, single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.parameters import vertex_parameters
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER, ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import partition_graph
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import (
    layerwise,
    layerwise_by_count,
    layerwise_by_parameters,
)
from hgpart.partition.baselines.one_weird_trick import linear_tail
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve
from hgpart.partition.step_traffic import step_flows
from hgpart.partition.ways.catalogue import partition_by, ways
from hgpart.partition.ways.way import Way
from hgpart.report.partition.record import Report
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.figures import Work, flops, whole_work

ANY = Way("any", "a test", lambda problem, search: None, searches=True)
COPIES = ("data-parallel", "parameter-server", "one-weird-trick")


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is found by slices, figures alone are looked at here."""
    monkeypatch.setattr("hgpart.compare.outcomes.Search", lambda seed: Search(seed, 0.01))


def run(name: str, graph: ChannelGraph, k: int, eps: float = 0.2, seed: int = 0, **modelling):
    problem = Problem(graph, flops(graph), Modelling(**modelling), k, eps)
    return outcome_of(ways()[name], problem, seed, slices=2)


# ------------------------------------------------------------------ partitions of the tasks


@dataclasses.dataclass
class Counted:
    """What crosses between parts in a training step, net by net."""

    sent: list[int]  # and received, by each part
    messages: set[tuple]
    forward: int
    step: int
    once: int  # whatever the batch


def count(
    graph: ChannelGraph, modelling: Modelling, model: CnnHypergraph, parts: np.ndarray, k: int
) -> Counted:
    nets, counted = model.hypergraph, Counted([0] * k, set(), 0, 0, 0)
    for net in range(nets.nets):
        cost, layer = int(nets.costs[net]), int(nets.net_layers[net])
        of_slice, within = divmod(layer, 2 * len(graph.layers))
        is_sum = of_slice == modelling.slices  # of gradients of a parameter
        kind, once = graph.layers[within % len(graph.layers)].kind, 0
        if is_sum:
            kind, once = "sum", cost
        elif kind == PARAMETER:
            once = cost
        elif not nets.gathers[net]:
            fixed = graph.layers[within].fixed_elements
            samples = modelling.samples[of_slice]
            elements = graph.layers[within].map_elements * samples + fixed
            once = cost // elements * fixed
        pins = nets.pins[nets.pointers[net] : nets.pointers[net + 1]]
        root = int(parts[pins[0]])
        for other in {int(parts[pin]) for pin in pins} - {root}:
            counted.forward += 0 if is_sum else cost
            ways = [(other, root) if nets.gathers[net] else (root, other)]
            if kind != INPUT:  # its gradient goes the other way
                ways.append(ways[0][::-1])
            for back, (sender, receiver) in enumerate(ways):
                counted.step += cost
                counted.once += once
                counted.sent[sender] += cost
                counted.sent[receiver] += cost
                if cost:
                    counted.messages.add((back, layer, sender, receiver))
    return counted


@given(channel_graphs(), modellings, st.integers(1, 3), st.integers(1, 4), st.data())
def test_a_partition_costs_what_its_nets_send(
    made: tuple[ChannelGraph, Work], modelling: Modelling, slices: int, k: int, data: st.DataObject
) -> None:
    graph, work = made
    batch_size = max(slices, modelling.batch_size)
    modelling = dataclasses.replace(modelling, batch_size=batch_size, slices=slices)
    model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    vertices = model.hypergraph.vertices
    drawn = data.draw(st.lists(st.integers(0, k - 1), min_size=vertices, max_size=vertices))
    parts = np.array(drawn, dtype=np.int32)
    found = outcome_of_parts(ANY, Problem(graph, work, modelling, k, 0.1), model, parts)
    counted = count(graph, modelling, model, parts, k)
    assert found.forward_bytes == counted.forward
    assert found.step_bytes == counted.step
    assert found.bytes_per_step == counted.once
    of_samples = counted.step - counted.once
    assert found.bytes_per_sample * modelling.batch_size == pytest.approx(of_samples)
    assert found.largest_device_bytes == max(counted.sent)
    assert found.messages == len(counted.messages)
    loads = np.bincount(parts, weights=model.hypergraph.weights, minlength=k)
    average = loads.sum() / k
    assert found.max_over_average == pytest.approx(loads.max() / average if average else 1.0)
    assert found.imbalance == pytest.approx(found.max_over_average - 1)
    shares = part_shares(model, parts, k)
    assert found.largest_parameters == shares.parameters.max()
    assert found.largest_activation_bytes == shares.activation_bytes.max()
    assert (found.k, found.eps, found.batch_size) == (k, 0.1, modelling.batch_size)
    assert found.smallest_batch == slices


@given(channel_graphs(), st.integers(2, 4), st.integers(2, 4), st.randoms(use_true_random=False))
def test_a_ring_sends_as_much_as_a_sum_on_one_device_and_spreads_it(
    made: tuple[ChannelGraph, Work], slices: int, k: int, random: Random
) -> None:
    graph, work = made
    modelling = Modelling(batch_size=slices, slices=slices)
    model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    parts = np.array([random.randrange(k) for _ in range(model.vertices)], dtype=np.int32)
    problem = Problem(graph, work, modelling, k, 0.1)
    on_one, ring = (
        outcome_of_parts(dataclasses.replace(ANY, ring=ring), problem, model, parts)
        for ring in (False, True)
    )
    assert ring.step_bytes == on_one.step_bytes
    still = dataclasses.replace(modelling, training=False)
    maps = count(graph, still, cnn_hypergraph(graph, work, model.blocks, still), parts, k)
    busy = np.array(maps.sent, dtype=float)
    rings: set[tuple[int, frozenset[int]]] = set()
    held = vertex_parameters(model)[1]
    for vertex, own in enumerate(parts.reshape(slices, -1).T.tolist()):
        devices = frozenset(own)
        if len(devices) > 1 and held[vertex]:
            rings.add((int(model.vertex_layers[vertex]), devices))
            busy[list(devices)] += 4 * (len(devices) - 1) / len(devices) * held[vertex]
    assert ring.largest_device_bytes == pytest.approx(busy.max(), abs=4 * k)
    messages = sum(2 * len(devices) * (len(devices) - 1) for _, devices in rings)
    assert ring.messages == len(maps.messages) + messages


def test_a_parameter_that_travels_does_so_once_a_step_whatever_the_batch() -> None:
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=1, elements=5)
    scale = maker.add(PARAMETER, 1, channels=1, elements=7)
    maps = maker.add("dense", 2, (read(image), read(scale)), elements=3)
    maker.add(OUTPUT, 1, (read(maps),), channels=0)
    graph, parts = maker.graph(), np.array([0, 0, 0, 1, 0], dtype=np.int32)
    for batch in (1, 6):
        modelling = Modelling(batch_size=batch)
        work = flops(graph)
        model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
        problem = Problem(graph, work, modelling, 2, 0.1)
        found = outcome_of_parts(ANY, problem, model, parts)
        # Image (5) and parameter (7) go to part 1, which sends its map (3) to the output.
        assert found.forward_bytes == 4 * (5 * batch + 7 + 3 * batch)
        assert found.bytes_per_step == 2 * 4 * 7
        assert found.bytes_per_sample == 4 * (5 + 3 + 3)
        assert found.step_bytes == count(graph, modelling, model, parts, 2).step
        assert found.epoch_bytes(12, 6) == 12 * 44 + 2 * 56


def of_layers(cut):
    def make(graph, work, modelling, k):
        model = cnn_hypergraph(graph, work, layer_blocks(modelling.views(graph)), modelling)
        cuts = cut(Problem(graph, work, modelling, k))
        return model, cuts.astype(np.int32)[model.vertex_layers]

    return make


def of_backend(grain):
    def make(graph, work, modelling, k):
        modelling = dataclasses.replace(modelling, grain=grain)
        found = partition_graph(graph, work, k, 0.2, modelling=modelling)
        return found.model, found.parts

    return make


def by_rule(rule, grain):
    return lambda graph, work, modelling, k: rule(
        Problem(graph, work, dataclasses.replace(modelling, grain=grain), k)
    )


PARTITIONS = {
    "coarse-kahypar": of_backend("coarse"),
    "fine-kahypar": of_backend("fine"),
    "layerwise": of_layers(layerwise),
    "layerwise-uniform": of_layers(layerwise_by_count),
    "layerwise-params": of_layers(layerwise_by_parameters),
    "horizontal": by_rule(horizontal, "coarse"),
    "incremental": by_rule(incremental, "coarse"),
    "incremental-channels": by_rule(incremental, "fine"),
    "random": lambda graph, work, modelling, k: random_parts(Problem(graph, work, modelling, k), 0),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PARTITIONS)
def test_each_strategy_is_the_partition_that_its_name_says(name: str) -> None:
    graph, k = graph_of("plain"), 2
    model, parts = PARTITIONS[name](graph, flops(graph), Modelling(), k)
    found, evaluation = run(name, graph, k), evaluate(model.hypergraph, parts, k)
    assert found.forward_bytes == evaluation.volume
    assert found.imbalance == evaluation.imbalance
    assert found.step_bytes == count(graph, Modelling(), model, parts, k).step
    assert found.eps == (0.2 if "kahypar" in name or name == "hybrid" else None)
    assert found.seconds > 0


def test_every_partition_has_a_strategy() -> None:
    named = set(PARTITIONS) | set(COPIES)
    named |= {"coarse", "fine", "sliced"}
    named |= {"hybrid", "replicated-stages", "opposed-replicas"}
    assert {name for name in ways() if "mtkahypar" not in name} == named


# ------------------------------------------------------------------ copies of the model


@pytest.mark.parametrize("k", [1, 2, 3, 32])
def test_data_parallel_sends_gradients_round_a_ring(k: int) -> None:
    found = run("data-parallel", full_size_graph("lenet5"), k)
    size = 4 * 61_706
    assert found.forward_bytes == found.bytes_per_sample == 0
    assert found.step_bytes == found.bytes_per_step == 2 * (k - 1) * size
    # k - 1 rounds of adding up and k - 1 of handing round, each device a k-th in each.
    assert found.largest_device_bytes == pytest.approx(2 * 2 * (k - 1) * size / k, abs=4)
    assert found.messages == 5 * 2 * (k - 1) * k  # of each layer
    assert found.largest_parameters == 61_706
    assert found.max_over_average == pytest.approx({1: 1, 2: 1, 3: 11 / (32 / 3), 32: 1}[k])
    assert found.smallest_batch == k


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_parameter_server_is_the_largest_device(k: int) -> None:
    found, ring = (
        run(name, full_size_graph("lenet5"), k) for name in ("parameter-server", COPIES[0])
    )
    assert found.step_bytes == ring.step_bytes == found.largest_device_bytes
    assert found.messages == 5 * 2 * (k - 1)
    for same in ("max_over_average", "largest_parameters", "largest_activation_bytes"):
        assert getattr(found, same) == getattr(ring, same)


def test_a_copy_makes_the_maps_of_its_samples() -> None:
    graph = full_size_graph("lenet5")
    maps = 32 * 32 + 6 * 14 * 14 + 16 * 5 * 5 + 120 + 84 + 10
    assert run("data-parallel", graph, 3).largest_activation_bytes == 4 * 11 * maps


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_has_every_parameter_of_the_model(name: str) -> None:
    model = MODELS[name][0]()
    found = run("data-parallel", graph_of(name), 2)
    elements = sum(parameter.numel() for parameter in model.parameters())
    assert found.largest_parameters == elements
    assert found.bytes_per_step == 2 * 4 * elements


@cache
def small_cnn() -> ChannelGraph:
    """Two maps of 4 x 4, six neurons, four neurons."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 4)),
    ).to("meta")
    return channel_graph(trace(model, example_inputs(model, (1, 4, 4))))


def test_one_weird_trick_counted_by_hand() -> None:
    found = run("one-weird-trick", small_cnn(), 2, batch_size=4)
    switch = 2 * (2 * 16 * 4) * 2  # each of 2 devices gets 2 maps of the other's 2 samples
    inside = 6 * 4 * 4  # each of 6 neurons' results for 4 samples goes to the other device
    result = 2 * (2 * 2 * 4)  # of 2 neurons, to the device that has the 2 samples
    convolution = 4 * (2 * 9 + 2)
    assert found.forward_bytes == switch + inside + result == 640
    assert found.bytes_per_sample == 2 * 640 / 4
    assert found.bytes_per_step == 2 * convolution
    assert found.step_bytes == 2 * 640 + 2 * convolution
    # Both devices take part in all of it, and send and receive half the ring's bytes each.
    assert found.largest_device_bytes == 2 * 640 + 4 * convolution // 2
    # Linear layers send to and fro for either slice; each device sends results of the other's.
    assert found.messages == 2 * (2 + 4 + 2) + 2 * 2
    assert found.max_over_average == 1
    assert found.largest_parameters == 20 + 3 * 33 + 2 * 7
    own = 2 * (16 + 2 * 16) * 4
    tail = (6 * 4 + 2 * 4 + 2 * 2) * 4  # made or received: a device has results of its samples
    assert found.largest_activation_bytes == own + switch // 2 + tail
    assert found.smallest_batch == 2


@dataclasses.dataclass
class Trick:
    """One weird trick, sample by sample and neuron by neuron."""

    forward: int = 0
    step: int = 0

    def send(self, size: int, trained: bool) -> None:
        self.forward += size
        self.step += 2 * size if trained else size


def device_of(task: int, tasks: int, k: int) -> int:
    """The device of a task: layers are cut into runs of equal size, as far as possible."""
    shares = min(k, tasks)
    run = next(r for r in range(shares) if r * tasks // shares <= task < (r + 1) * tasks // shares)
    return run * k // shares


@pytest.mark.parametrize("model", ["lenet5", "small"])
@pytest.mark.parametrize(("k", "batch"), [(1, 3), (2, 4), (3, 7), (12, 12)])
def test_one_weird_trick_counted_device_by_device(model: str, k: int, batch: int) -> None:
    graph = small_cnn() if model == "small" else full_size_graph(model)
    found = run("one-weird-trick", graph, k, batch_size=batch)
    owner = {  # of the samples: runs of equal size, as far as possible
        sample: next(device for device in range(k) if sample < (device + 1) * batch // k)
        for sample in range(batch)
    }
    tail, trick, loads, head = linear_tail(graph), Trick(), [0.0] * k, 0
    readers: dict[int, set[int]] = {}  # devices that read each channel in the tail
    results: set[int] = set()  # channels that the device of a sample reads
    for at, layer in enumerate(graph.layers):
        if not tail[at]:
            head += layer.parameters
            for device in owner.values():
                loads[device] += layer.macs * layer.tasks / batch
            if layer.kind == OUTPUT:
                for channel in np.concatenate([each.channels for each in layer.reads]).tolist():
                    results.add(channel)
            continue
        for task in range(layer.tasks):
            device = device_of(task, layer.tasks, k)
            loads[device] += layer.macs
            for channel in np.unique(layer.reads[0].channels).tolist():
                readers.setdefault(channel, set()).add(device)
    for channel in readers.keys() | results:
        devices = readers.get(channel, set())
        at = int(graph.layer_of_channel(np.array([channel]))[0])
        layer = graph.layers[at]
        size = layer.map_elements * layer.bytes_per_element
        if tail[at]:
            task = channel - int(graph.first_channel[at])
            made = device_of(task, layer.tasks, k)
            for device in owner.values():
                reading = devices | {device} if channel in results else devices
                trick.send(len(reading - {made}) * size, True)
        else:
            for device in owner.values():
                trick.send(len(devices - {device}) * size, layer.kind != INPUT)
    assert found.forward_bytes == trick.forward
    assert found.step_bytes == trick.step + 2 * (k - 1) * 4 * head
    assert found.max_over_average == pytest.approx(max(loads) * k / sum(loads))


def test_an_image_that_linear_layers_read_gets_no_gradient() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).to("meta")
    graph = channel_graph(trace(model, example_inputs(model, (1, 4, 4))))
    found = run("one-weird-trick", graph, 2, batch_size=2)
    image, result = 2 * 16 * 4, 2 * 2 * 4
    assert found.forward_bytes == image + result
    assert found.step_bytes == image + 2 * result
    assert found.messages == 2 + 2 * 2  # nothing goes round a ring


# ------------------------------------------------------------------ the tail


def tail_of(graph: ChannelGraph) -> list[str]:
    return [
        layer.name for layer, tail in zip(graph.layers, linear_tail(graph), strict=True) if tail
    ]


@pytest.mark.full
def test_the_tail_is_the_linear_layers_at_the_end() -> None:
    assert tail_of(full_size_graph("alexnet")) == ["classifier.1", "classifier.4", "classifier.6"]
    assert tail_of(full_size_graph("lenet5")) == ["fc1", "fc2"]
    assert tail_of(full_size_graph("squeezenet1_1")) == []


def test_linear_layers_in_front_of_others_are_not_the_tail() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)
            self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, image):
            maps = self.stem(image)
            gates = self.gate(maps.mean((2, 3)))
            return self.head((self.body(maps) * gates[:, :, None, None]).mean((2, 3)))

    model = Gated().to("meta")
    graph = channel_graph(trace(model, example_inputs(model, (3, 8, 8))))
    assert tail_of(graph) == ["head"]


# ------------------------------------------------------------------ what can't be used


@pytest.mark.parametrize(
    ("name", "model", "k", "why"),
    [
        ("layerwise", "lenet5", 6, "6 devices, but only 5 layers that compute"),
        ("layerwise-uniform", "lenet5", 6, "6 devices, but only 5 layers"),
        ("layerwise-params", "lenet5", 6, "6 devices, but only 5 layers"),
        ("hybrid", "lenet5", 2, "need 4 devices or more"),
        ("one-weird-trick", "squeezenet1_1", 2, "does not end in linear layers"),
        ("coarse-kahypar", "lenet5", 50, "the heaviest task"),
        ("fine-kahypar", "lenet5", 10**5, "k is 100000, expected at most"),
    ],
)
def test_a_strategy_that_can_not_be_used_says_why(name, model, k, why) -> None:
    found = run(name, full_size_graph(model), k)
    assert isinstance(found, NotApplicable)
    assert why in found.why
    assert (found.strategy, found.k) == (name, k)
    assert found.eps == (0.2 if "kahypar" in name or name == "hybrid" else None)


@pytest.mark.parametrize("name", COPIES)
def test_more_devices_than_samples_have_the_figures_of_a_larger_batch(name) -> None:
    graph = full_size_graph("lenet5")
    few, enough = run(name, graph, 64), run(name, graph, 64, batch_size=64)
    assert dataclasses.replace(few, seconds=0.0) == dataclasses.replace(enough, seconds=0.0)
    assert (few.smallest_batch, few.batch_size) == (64, 64)
    assert few.epoch_bytes(640, 32) is None
    assert few.epoch_bytes(640, 64) == 10 * few.step_bytes


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (ArgumentError("k is odd"), NotApplicable, "k is odd"),
        (InfeasibleError("no such\npartition"), NotApplicable, "no such partition"),
        (BackendError("ran out of time"), Failed, "ran out of time"),
        (MissingPackageError("not installed"), Failed, "not installed"),
        (MemoryError(), Failed, "out of memory"),
        (OSError(12, "Cannot allocate memory"), Failed, "[Errno 12] Cannot allocate memory"),
    ],
)
def test_what_went_wrong_is_not_what_can_not_be_used(error, kind, why) -> None:
    def run_into(problem, search):
        raise error

    graph = full_size_graph("lenet5")
    problem = Problem(graph, flops(graph), Modelling(), 2, 0.1)
    failing = dataclasses.replace(ANY, divide=run_into)
    assert outcome_of(failing, problem, 0) == kind("any", 2, 0.1, why)


def test_an_interrupted_search_has_no_figures(monkeypatch) -> None:
    """They would stand in the table as if it had been whole."""

    def search(*arguments, **options):
        return dataclasses.replace(solve(*arguments, **options), interrupted=True)

    monkeypatch.setattr("hgpart.partition.ways.built_in.solve", search)
    with pytest.raises(KeyboardInterrupt):
        run("coarse", full_size_graph("lenet5"), 2)


def test_a_named_strategy_makes_the_partition_that_is_compared() -> None:
    graph = full_size_graph("lenet5")
    for name in ("layerwise", "horizontal", "data-parallel", "replicated-stages"):
        found = partition_by(name, graph, flops(graph), 2, 0.2)
        row = outcome_of(ways()[name], Problem(graph, flops(graph), Modelling(), 2, 0.2), 0)
        assert found.evaluation.imbalance == row.imbalance
        assert step_flows(found.model, found.parts, 2)["maps forward"].volume == row.forward_bytes
        assert found.modelling.slices == row.smallest_batch
        assert (found.backend, found.k, found.problem.eps) == (name, 2, 0.2)
    with pytest.raises(ArgumentError, match=r"accepted are coarse, .*mean layerwise\?"):
        partition_by("layerwize", graph, flops(graph), 2)
    with pytest.raises(
        ArgumentError, match=r"^way 'incr': did you mean incremental or incremental-ch"
    ):
        partition_by("incr", graph, flops(graph), 2)
    with pytest.raises(ArgumentError, match=r"^k is 0, expected a whole number"):
        partition_by("layerwise", graph, flops(graph), 0)


def test_the_estimate_of_a_step_is_that_of_the_partition() -> None:
    graph = full_size_graph("alexnet")
    work = flops(graph)
    for name in ("layerwise", "horizontal"):
        found, row = partition_by(name, graph, work, 2, 0.2), run(name, graph, 2, eps=0.2)
        one = Report(found, "alexnet", (3, 224, 224), found.evaluation, {})
        assert one.step_seconds.seconds == row.step_seconds


def test_a_ring_takes_less_than_one_device_that_sums_all() -> None:
    """Both compute alike; each device's gradients, there and back, are all that is sent."""
    graph = full_size_graph("alexnet")
    ring, server = (run(name, graph, 4) for name in ("data-parallel", "parameter-server"))
    ring_bytes, server_bytes = (row.largest_device_bytes for row in (ring, server))
    computes = 3 * 32 * whole_work(flops(graph), graph) / 5e10 / 4
    assert computes < ring.step_seconds < server.step_seconds
    ratio = (ring.step_seconds - computes) / (server.step_seconds - computes)
    assert ratio == pytest.approx(ring_bytes / server_bytes, rel=0.01)


def test_a_partitioner_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called no strategy, and another one suggested."""
    monkeypatch.setattr("hgpart.partition.ways.catalogue.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "coarse-mtkahypar" not in ways()
    graph = full_size_graph("lenet5")
    with pytest.raises(MissingPackageError, match="pip install mtkahypar"):
        partition_by("coarse-mtkahypar", graph, flops(graph), 2)


def test_as_many_devices_as_layers_or_samples_can_be_used() -> None:
    graph = full_size_graph("lenet5")
    assert isinstance(run("layerwise", graph, 5), Outcome)
    assert isinstance(run("data-parallel", graph, 32), Outcome)


def test_a_backend_that_is_not_installed_is_no_strategy(monkeypatch) -> None:
    monkeypatch.setattr(
        "hgpart.partition.ways.catalogue.find_spec",
        lambda name: None if name == "mtkahypar" else find_spec(name),
    )
    assert "coarse-kahypar" in ways()
    assert not any("mtkahypar" in name for name in ways())


# ------------------------------------------------------------------ epochs, repetition


def outcome(**figures) -> Outcome:
    empty = {field.name: 0 for field in dataclasses.fields(Outcome)}
    return Outcome(**{**empty, "strategy": "any", "k": 2, "eps": None, **figures})


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(16, 1000 + 7 * 7), (32, 1000 + 4 * 7), (50, 1000 + 2 * 7), (100, 1007), (101, 1007)],
)
def test_an_epoch_ends_with_what_is_left_of_the_samples(batch: int, expected: int) -> None:
    row = outcome(bytes_per_sample=10.0, bytes_per_step=7, batch_size=32, smallest_batch=2)
    assert row.step_bytes == 327
    assert row.epoch_bytes(100, batch) == expected
    assert row.epoch_bytes(100, 1) is None


LONG = ("fine", "coarse-mtkahypar", "fine-mtkahypar")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] * (name in LONG)) for name in sorted(ways())],
)
def test_a_strategy_does_the_same_again(name: str) -> None:
    k = {"hybrid": 4, "replicated-stages": 2}.get(name, 3)
    found = [run(name, small_cnn(), k, seed=5) for _ in range(2)]
    first, second = (dataclasses.replace(each, seconds=0.0) for each in found)
    assert first == second


def test_another_seed_is_another_random_partition() -> None:
    first, second = (run("random", full_size_graph("alexnet"), 4, seed=seed) for seed in (0, 1))
    assert first.imbalance != second.imbalance
