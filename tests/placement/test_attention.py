"""Attention in parts: the graph proven by perturbation, parts beside the original."""

from __future__ import annotations

import placements
import pytest
import torch
from attention_blocks import FEATURES, TOKENS, Attention, AttentionBlock, attentions
from hypothesis import assume, given
from hypothesis import strategies as st
from perturbation import check_all
from torch import nn
from torch.nn import functional

import hgpart
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.placement.cutting.layouts import spread
from hgpart.run.verifying import verify

SAMPLES = 3


def tokens() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(SAMPLES, TOKENS, FEATURES, dtype=torch.float64)


def block(attention: Attention) -> AttentionBlock:
    torch.manual_seed(0)
    return AttentionBlock(attention).double()


def heads_of(graph: ChannelGraph) -> list[int]:
    """Tasks of the layers that work matrix by matrix."""
    assert not [layer.name for layer in graph.layers if layer.kind in ("whole", "reduce")]
    return [layer.tasks for layer in graph.layers if layer.kind == "matrices"]


@given(
    attention=attentions(),
    training=st.booleans(),
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.integers(2, 4),
    single=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_attention_in_any_parts(attention, training, grain, k, single, seed):
    model, inputs = block(attention).train(training), [tokens()]
    traced, graph = placements.traced_model(model, inputs)
    # A head of a single feature is a channel like any other, which may join a layer.
    if attention.heads == 1:  # what values make may join these
        assert heads_of(graph) in ([], [attention.width])
    else:
        assert attention.width == 1 or heads_of(graph) == [attention.heads]
    draw = placements.of_single_tasks if single else placements.of_random_blocks
    plan = draw(traced, graph, Modelling(grain=grain, batch_size=SAMPLES), k, seed)
    placements.check_equal(model, inputs, plan)


@pytest.mark.full
@given(attention=attentions())
def test_a_head_reads_its_queries_keys_and_values_alone(attention):
    # Of one head the tokens are tasks, and these masks hide some of them.
    assume(attention.heads > 1 or attention.mask not in ("chosen", "causal"))
    traced, graph = placements.traced_model(block(attention).float().eval(), [tokens().float()])
    check_all(traced, graph, limit=6)


@pytest.mark.parametrize("sharing", [1, 2])
def test_a_part_computes_its_own_heads_alone(sharing):
    """The attention is cut, rather than run on whole tensors with zeros for other heads."""
    model, inputs = block(Attention(sharing=sharing)).eval(), [tokens()]
    traced, graph = placements.traced_model(model, inputs)
    at = next(at for at, layer in enumerate(graph.layers) if layer.kind == "matrices")
    plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=SAMPLES), 2, 5)
    parts = plan.partition.parts[plan.partition.model.task_vertices[at]].tolist()
    assert {*parts} == {0, 1}
    placed, heads = hgpart.place(model, plan), dict[int, int]()
    for part in range(2):
        step = placed.programs.submodule(part).get_submodule(graph.layers[at].name)
        assert not [node for node in step.graph.nodes if node.target is spread]
        step.register_forward_hook(
            lambda _, given, made, part=part: heads.update({part: made.shape[1]})
        )
    placed(*inputs)
    assert heads == {part: parts.count(part) for part in range(2)}


class Multihead(nn.Module):
    """torch's own attention, which puts heads beside samples where it returns their weights."""

    def __init__(self, batch_first: bool, with_weights: bool) -> None:
        super().__init__()
        self.embed, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 4, dropout=0.2, batch_first=batch_first)
        self.batch_first, self.with_weights = batch_first, with_weights

    def forward(self, x):
        maps = self.embed(x)
        maps = maps if self.batch_first else maps.transpose(0, 1)
        made = self.attention(maps, maps, maps, need_weights=self.with_weights)[0]
        return self.last(made if self.batch_first else made.transpose(0, 1))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_attention_of_torch(batch_first, with_weights, training):
    torch.manual_seed(0)
    model = Multihead(batch_first, with_weights).double().train(training)
    traced, graph = placements.traced_model(model, [tokens()])
    assert heads_of(graph) == [4]
    for seed in range(4):
        grain = ("coarse", "fine")[seed % 2]
        modelling = Modelling(grain=grain, batch_size=SAMPLES)
        plan = placements.of_single_tasks(traced, graph, modelling, 3, seed)
        placements.check_equal(model, [tokens()], plan)


class JoinedBias(nn.Module):
    """Queries and values have a bias, keys have none (EVA)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, 6), nn.Linear(4, 3)
        self.weight = nn.Parameter(torch.randn(12, 6))
        self.of_queries, self.of_values = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.register_buffer("of_keys", torch.zeros(4), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of each token."""
        bias = torch.cat([self.of_queries, self.of_keys, self.of_values])
        joint = functional.linear(self.embed(tokens), self.weight, bias)
        scores: torch.Tensor = self.head(
            functional.scaled_dot_product_attention(*joint.split(4, -1))
        )
        return scores


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_copies_of_a_bias_that_no_step_reads_travel_as_the_table_says(grain, slices):
    """A part whose filters need none of a joined bias was not sent it: fewer bytes than counted."""
    torch.manual_seed(0)
    model, tokens = JoinedBias().double(), torch.randn(6, 7, 5, dtype=torch.float64)
    traced, graph = placements.traced_model(model, [tokens])
    modelling = Modelling(grain, batch_size=6, slices=slices)
    for seed in range(8):
        plan = placements.of_random_blocks(traced, graph, modelling, 3, seed)
        assert verify(model, hgpart.place(model, plan), (tokens,)).failures == ()
