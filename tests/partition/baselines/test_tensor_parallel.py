"""Dense layers in pairs: what stays on a part, what travels, and that it can be placed."""

from __future__ import annotations

import placements
import pytest
import torch
from attention_blocks import FEATURES, TOKENS, Attention, AttentionBlock, attentions
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import channel_graphs
from torch import nn

from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.tensor_parallel import tensor_parallel
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work, flops


@pytest.mark.parametrize("k", [2, 4])
def test_a_pair_sends_the_two_halves_of_an_all_reduce(k: int) -> None:
    """Of a perceptron's hidden maps nothing travels; of its result, partial sums."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Linear(8, 4))
    graph = placements.traced_model(model, [torch.randn(3, 8)])[1]
    modelling = Modelling("fine", batch_size=3, input_vertex=False, output_vertex=False)
    model_parts = tensor_parallel(Problem(graph, flops(graph), modelling, k))
    found = evaluate_parts(*model_parts, k)
    partial_sums, result = 4 * 3 * 8 * (k - 1), 4 * 3 * 8 * (k - 1)
    assert found.volume == partial_sums + result
    assert found.imbalance == 0


class Perceptron(nn.Module):
    """Normed, and added to what it was given: its second layer adds maps that it does not sum."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.hidden, self.back, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Scores of each sample."""
        maps = self.embed(features)
        scores: torch.Tensor = self.head(
            maps + self.back(nn.functional.gelu(self.hidden(self.norm(maps))))
        )
        return scores


@pytest.mark.parametrize("k", [2, 4])
def test_a_residual_does_not_end_a_pair(k: int) -> None:
    """The hidden maps of all but a transformer's first block went to all parts."""
    graph = placements.traced_model(Perceptron(), [torch.randn(3, 8)])[1]
    modelling = Modelling("fine", batch_size=3, input_vertex=False, output_vertex=False)
    model_parts = tensor_parallel(Problem(graph, flops(graph), modelling, k))
    normed = partial_sums = result = 4 * 3 * 8 * (k - 1)
    statistics = 2 * (2 * 4 * 3) * (k - 1)  # two numbers to the statistic's part, and back
    assert evaluate_parts(*model_parts, k).volume == normed + partial_sums + result + statistics


@given(channel_graphs(), st.integers(1, 4))
def test_any_graph_is_divided(graph_and_work: tuple[ChannelGraph, Work], k: int) -> None:
    graph, work = graph_and_work
    model, parts = tensor_parallel(Problem(graph, work, Modelling("fine", batch_size=1), k))
    assert len(parts) == model.vertices
    assert parts.min() >= 0
    assert parts.max() < k


@pytest.mark.full
@pytest.mark.long
@given(attentions(), st.integers(2, 3))
def test_blocks_are_placed_and_heads_stay_with_what_they_read(attention: Attention, k: int) -> None:
    torch.manual_seed(0)
    block = AttentionBlock(attention).double().eval()
    tokens = torch.randn(2, TOKENS, FEATURES, dtype=torch.float64)
    traced, graph = placements.traced_model(block, [tokens])
    modelling = Modelling("fine", batch_size=2)
    divided = tensor_parallel(Problem(graph, flops(graph), modelling, k))
    plan = placements.partitioned(traced, graph, modelling, k, *divided)
    placements.check_equal(block, [tokens], plan)
