"""Products along tokens, looked-up embeddings, and weights that all tasks need."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import pairwise

import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from perturbation import check_all
from torch import Tensor, nn
from torch.nn import functional

import hgpart
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph

SAMPLES, TOKENS, FEATURES = 3, 6, 4


@dataclass(frozen=True)
class Mixing:
    """How a block mixes tokens.

    Attributes
    ----------
    written : str
        "linear" (of transposed tokens), "matmul" (by a matrix on the left) or "einsum".
    gates : str
        "" , "halves" (one half of the features gates the other, and is mixed) or "glu".
    hidden : int
        Tokens between two products; 0 for one product.
    """

    written: str = "linear"
    gates: str = ""
    hidden: int = 0


mixings = st.builds(
    Mixing,
    written=st.sampled_from(["linear", "matmul", "einsum"]),
    gates=st.sampled_from(["", "halves", "glu"]),
    hidden=st.sampled_from([0, 5]),
)


class Mixer(nn.Module):
    """An embedding of patches, a norm, a mixer of tokens, a residual add, a mixer of features."""

    def __init__(self, mixing: Mixing) -> None:
        super().__init__()
        self.mixing = mixing
        self.embed = nn.Conv1d(2, FEATURES, 2, 2)
        self.norm, self.gates = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 2 * FEATURES)
        sizes = [TOKENS, mixing.hidden, TOKENS] if mixing.hidden else [TOKENS, TOKENS]
        self.products = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.up, self.down = nn.Linear(FEATURES, 5), nn.Linear(5, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """Features of each token."""
        tokens = self.embed(x).transpose(1, 2)
        read = self.norm(tokens)
        if self.mixing.gates == "halves":
            read, mixed = self.gates(read).chunk(2, 2)
            read = read * self._mix(mixed)
        elif self.mixing.gates == "glu":
            read = self._mix(functional.glu(self.gates(read)))
        else:
            read = self._mix(read)
        tokens = tokens + read
        made: Tensor = tokens + self.down(functional.gelu(self.up(tokens)))
        return made

    def _mix(self, tokens: Tensor) -> Tensor:
        for product in self.products:
            if self.mixing.written == "linear":
                tokens = product(tokens.transpose(1, 2)).transpose(1, 2)
            elif self.mixing.written == "matmul":
                tokens = product.weight @ tokens + product.bias[:, None]
            else:
                made = torch.einsum("bnf,mn->bmf", tokens, product.weight)
                tokens = made + product.bias[:, None]
            tokens = functional.gelu(tokens)
        return tokens


def images() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(SAMPLES, 2, 2 * TOKENS, dtype=torch.float64)


def mixer(mixing: Mixing) -> Mixer:
    torch.manual_seed(0)
    return Mixer(mixing).double()


def divided(graph: ChannelGraph) -> bool:
    return all(layer.kind not in ("whole", "reduce") for layer in graph.layers)


@given(
    mixing=mixings,
    training=st.booleans(),
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.integers(2, 4),
    single=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_mixer_of_tokens_in_any_parts(mixing, training, grain, k, single, seed):
    model, inputs = mixer(mixing).train(training), [images()]
    traced, graph = placements.traced_model(model, inputs)
    assert divided(graph)
    draw = placements.of_single_tasks if single else placements.of_random_blocks
    plan = draw(traced, graph, Modelling(grain=grain, batch_size=SAMPLES), k, seed)
    placements.check_equal(model, inputs, plan)


@given(mixing=mixings)
def test_a_feature_of_all_tokens_is_mixed_by_itself(mixing):
    traced, graph = placements.traced_model(mixer(mixing).float().eval(), [images().float()])
    check_all(traced, graph, limit=6)


def test_tokens_that_a_model_is_given_are_no_tasks() -> None:
    """Features are: nothing that divides tokens keeps weights where they are."""
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    inputs = [torch.randn(SAMPLES, TOKENS, FEATURES, dtype=torch.float64)]
    _, graph = placements.traced_model(model, inputs)
    assert [(layer.kind, layer.tasks) for layer in graph.layers[1:-1]] == [
        ("linear", 5),
        ("linear", 3),
    ]


# ------------------------------------------------------------------ weights that all tasks need


class Octave(nn.Module):
    """Four convolutions with pieces of one weight, which divide both its rows and its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(5, 3, 1)
        self.weight = nn.Parameter(torch.randn(5, 6, 3, 3) / 5)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.first(x)
        high, low = maps[:, :4], functional.avg_pool2d(maps[:, 4:], 2)
        rows = self.weight[:3], self.weight[3:]
        made_high = functional.conv2d(high, rows[0][:, :4], padding=1)
        made_high = made_high + functional.interpolate(
            functional.conv2d(low, rows[0][:, 4:], padding=1), scale_factor=2
        )
        made_low = functional.conv2d(functional.avg_pool2d(high, 2), rows[1][:, :4], padding=1)
        made_low = made_low + functional.conv2d(low, rows[1][:, 4:], padding=1)
        return self.last(
            torch.cat([made_high, functional.interpolate(made_low, scale_factor=2)], 1)
        )


class Scaled(nn.Module):
    """Weights that a scale of all their elements normalises."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed
        shapes = [(2, 6, 3, 3), (6, 2, 3, 3)] if transposed else [(6, 2, 3, 3), (4, 3, 3, 3)]
        self.first, self.second = (nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        product = functional.conv_transpose2d if self.transposed else functional.conv2d
        maps = product(x, self.first / self.first.std())
        return product(maps, self.second.tanh() * self.second.norm(), groups=2)


class BothWays(nn.Module):
    """A weight, and the same one transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv_transpose2d(functional.conv2d(x, self.weight).relu(), self.weight)


SHARING = {
    "octave": Octave,
    "scaled": lambda: Scaled(transposed=False),
    "transposed": lambda: Scaled(transposed=True),
    "both ways": BothWays,
}


def check_divided(model: nn.Module, inputs: list[Tensor]) -> None:
    """In both modes the model is divided, and tasks in parts at random compute what it computes."""
    for training in (True, False):
        traced, graph = placements.traced_model(model.train(training), inputs)
        assert divided(graph)
        for seed in range(4):
            grain = ("coarse", "fine")[seed % 2]
            modelling = Modelling(grain=grain, batch_size=SAMPLES)
            plan = placements.of_single_tasks(traced, graph, modelling, 3, seed)
            placed = placements.check_equal(model, inputs, plan)
            with torch.no_grad():  # parameters that are sent require gradients all the same
                torch.testing.assert_close(placed(*inputs), model(*inputs))


@pytest.mark.full
@pytest.mark.parametrize("name", SHARING)
def test_weights_without_slices_are_sent_by_one_task(name: str) -> None:
    """Their convolutions were one task each."""
    torch.manual_seed(0)
    model = SHARING[name]().double()
    inputs = [torch.randn(SAMPLES, 2, 8, 8, dtype=torch.float64)]
    check_divided(model, inputs)
    model, inputs = model.float(), [inputs[0].float()]
    check_all(*placements.traced_model(model, inputs), limit=6)


class Binarise(torch.autograd.Function):
    """Signs of filters, times a number that depends on their size."""

    @staticmethod
    def forward(ctx, weight):
        return weight.sign() * math.sqrt(2 / math.prod(weight.shape[1:]))

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_weights_that_a_function_binarises_filter_by_filter() -> None:
    """Sizes of all dimensions were varied at once: wrn20_10_1bit_cifar10 was kept whole."""

    class Binarised(Octave):
        def forward(self, x: Tensor) -> Tensor:
            maps = functional.conv2d(self.first(x), Binarise.apply(self.weight))
            return self.last(maps.relu())

    torch.manual_seed(0)
    model, inputs = Binarised().double(), [torch.randn(SAMPLES, 2, 8, 8, dtype=torch.float64)]
    for training in (True, False):
        traced, graph = placements.traced_model(model.train(training), inputs)
        assert [layer.tasks for layer in graph.layers[1:-1]] == [6, 5, 3]
        plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=SAMPLES), 3, 1)
        placements.check_equal(model, inputs, plan)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "normed", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]
)
def test_a_spectral_norm_is_where_its_weight_and_its_buffers_are(normed) -> None:
    """Each pass of training changes these buffers, so that one part has them."""
    torch.manual_seed(0)
    model = nn.Sequential(normed(nn.Conv2d(2, 4, 3)), nn.ReLU()).double()
    inputs = [torch.randn(SAMPLES, 2, 8, 8, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    assert graph.layers[1].kind == "whole"
    plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=SAMPLES), 2, 0)
    original, placed = copy.deepcopy(model), hgpart.place(model, plan)
    for training in (True, False):
        for each in (original, placed):
            each.zero_grad()
            each.train(training)
        placements.check_as(original, placed, inputs)


# ------------------------------------------------------------------ filters of each sample


class Conditional(nn.Module):
    """Filters that a linear layer makes for each sample, and maybe biases (CondConv).

    `groups` is 1 or the number of channels.
    """

    def __init__(self, groups: int, written: str, has_bias: bool) -> None:
        super().__init__()
        self.groups, self.written, self.has_bias = groups, written, has_bias
        self.filters = 6 if groups > 1 else 5
        self.first, self.route = nn.Conv2d(2, 6, 1), nn.Linear(6, 3)
        elements = self.filters * 6 // groups * 9
        self.experts = nn.Parameter(torch.randn(3, elements) / 5)
        self.biases = nn.Parameter(torch.randn(3, self.filters))
        self.norm, self.last = nn.BatchNorm2d(self.filters), nn.Conv2d(self.filters, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.first(x)
        samples, _, *size = maps.shape
        routed = torch.sigmoid(self.route(maps.mean((2, 3))))
        if self.written == "linear":
            made = functional.linear(routed, self.experts.t()).tanh()
        else:
            made = routed @ self.experts
        bias = (routed @ self.biases).flatten() if self.has_bias else None
        filters = made.view(samples * self.filters, 6 // self.groups, 3, 3)
        groups = samples * self.groups
        maps = maps.reshape(1, -1, *size)
        maps = functional.conv2d(maps, filters, bias, padding=1, groups=groups)
        scores: Tensor = self.last(self.norm(maps.view(samples, -1, *size)).relu())
        return scores


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize(("written", "has_bias"), [("matmul", False), ("linear", True)])
def test_filters_of_each_sample_are_made_where_they_are_used(groups, written, has_bias):
    """They were one task with their convolution, 55 % of the work of tf_efficientnet_cc_b0_4e."""
    torch.manual_seed(0)
    model = Conditional(groups, written, has_bias).double()
    inputs = [torch.randn(SAMPLES, 2, 8, 8, dtype=torch.float64)]
    for training in (True, False):
        traced, graph = placements.traced_model(model.train(training), inputs)
        assert divided(graph)
        makes = next(layer for layer in graph.layers if "experts" in layer.parameter_names)
        assert has_bias or any("conv2d" in operator for operator in makes.operators)
        for seed in range(4):
            grain = ("coarse", "fine")[seed % 2]
            modelling = Modelling(grain=grain, batch_size=SAMPLES)
            plan = placements.of_single_tasks(traced, graph, modelling, 3, seed)
            placements.check_equal(model, inputs, plan)
    model, inputs = model.float(), [inputs[0].float()]
    check_all(*placements.traced_model(model, inputs), limit=6)


def test_a_part_convolves_with_its_own_filters_alone() -> None:
    """It would compute all of them, with zeros for those of others."""
    torch.manual_seed(0)
    model, inputs = Conditional(1, "matmul", False).double(), [torch.randn(2, 2, 8, 8).double()]
    traced, graph = placements.traced_model(model, inputs)
    at = next(at for at, one in enumerate(graph.layers) if "experts" in one.parameter_names)
    plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=2), 2, 1)
    parts = plan.partition.parts[plan.partition.model.task_vertices[at]].tolist()
    assert {*parts} == {0, 1}
    placed, convolve = hgpart.place(model, plan), torch.ops.aten.conv2d.default
    for part in range(2):
        step = placed.programs.submodule(part).get_submodule(graph.layers[at].name)
        held = {tuple(each.shape) for each in step.parameters()}
        assert (3, parts.count(part) * 6 * 9) in held
        filters = []

        def noted(*given, filters=filters):
            filters.append(given[1].shape[0])
            return convolve(*given)

        for node in step.graph.nodes:
            if node.target is convolve:
                node.target = noted
        step.recompile()
        placed(*inputs)
        assert filters == [2 * parts.count(part)]


# ------------------------------------------------------------------ decoders of text


class Decoder(nn.Module):
    """A decoder of text like GPT-2; `tied` if the table of words is also the last weight."""

    def __init__(self, tied: bool, words: int = 11, features: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(words, features), nn.Embedding(TOKENS, features)
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(3))
        self.joint, self.project = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.up, self.down = nn.Linear(features, 16), nn.Linear(16, features)
        self.head = nn.Linear(features, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        maps = self.words(words) + self.places(torch.arange(words.shape[1]))
        query, key, value = (
            one.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for one in self.joint(self.norms[0](maps)).chunk(3, 2)
        )
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        maps = maps + self.project(attention.transpose(1, 2).flatten(2))
        maps = maps + self.down(functional.gelu(self.up(self.norms[1](maps))))
        scores: Tensor = self.head(self.norms[2](maps))
        return scores


@pytest.mark.full
@pytest.mark.parametrize("tied", [False, True])
def test_a_decoder_of_text(tied: bool) -> None:
    """Its table of words was one task, and a last weight that it shares as well."""
    torch.manual_seed(0)
    model, inputs = Decoder(tied).double(), [torch.randint(11, (SAMPLES, TOKENS))]
    check_divided(model, inputs)
