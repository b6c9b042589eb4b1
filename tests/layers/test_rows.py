"""Rows of parameters and of what is computed of them row by row."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from proven_graphs import (
    IMAGE,
    Net,
    StandardisedConv2d,
    VarianceConv2d,
    parameter,
)
from torch import fx, nn

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace


class Constants(fx.Interpreter):
    """Runs a traced model and keeps what each node makes, for some values of its parameters."""

    def __init__(self, module: fx.GraphModule, given: dict[str, torch.Tensor]) -> None:
        super().__init__(module)
        self.given = given
        self.made: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.made[n.name] = self.given[n.name] if n.op == "placeholder" else super().run_node(n)
        return self.made[n.name]


def rows_found(model: nn.Module) -> dict[str, torch.Tensor]:
    """The rows of a graph, after proving them: exactly those elements change with a row."""
    torch.manual_seed(0)
    traced = trace(model, torch.zeros(IMAGE))
    graph = channel_graph(traced)
    placeholders = [n for n in traced.graph_module.graph.nodes if n.op == "placeholder"]
    given = {node.name: torch.rand(IMAGE) for node in placeholders}
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for placeholder, name in {**traced.parameters, **traced.buffers}.items():
        given[placeholder] = state[name].detach().clone()

    def made(given: dict[str, torch.Tensor]) -> dict[str, Any]:
        run = Constants(traced.graph_module, given)
        with torch.no_grad():
            run.run(*given.values())
        return run.made

    before = made(given)
    for row in range(max(int(rows.max()) for rows in graph.rows.values()) + 1):
        changed = dict(given)
        for placeholder in traced.parameters:
            value = changed[placeholder] = given[placeholder].clone()
            if value.dim() == 0:
                value += 1 if row == 0 else 0
            elif row < len(value):
                value[row] += torch.rand(value[row].shape) + 0.1
        after = made(changed)
        for name, rows in graph.rows.items():
            assert rows.shape == before[name].shape, name
            assert torch.equal(before[name] != after[name], rows == row), (name, row)
    return dict(graph.rows)


def test_rows_of_parameters_and_of_what_is_computed_row_by_row() -> None:
    rows = rows_found(
        nn.Sequential(StandardisedConv2d(4, 6, 3), VarianceConv2d(6, 4, 3), nn.PReLU(4))
    )
    assert {name for name in rows if name.startswith("p_")} == {
        "p_0_weight",
        "p_0_bias",
        "p_0_gain",
        "p_1_weight",
        "p_1_bias",
        "p_2_weight",
    }
    computed = [ids for name, ids in rows.items() if not name.startswith("p_")]
    assert any(tuple(ids.shape) == (6, 4, 3, 3) for ids in computed)
    assert any(tuple(ids.shape) == (4, 6, 3, 3) for ids in computed)
    weight = rows["p_0_weight"]
    assert weight.shape == (6, 4, 3, 3)
    assert weight.stride() == (1, 0, 0, 0)  # one number a row


def test_rows_that_moved() -> None:
    rows = rows_found(
        Net(
            lambda net, x: (x.permute(0, 2, 3, 1) @ net.w.t().exp()) * net.s.flip(0),
            w=parameter(3, 4),
            s=parameter(3),
        )
    )
    assert rows["flip"].tolist() == [2, 1, 0]
    assert rows["exp"].tolist() == [[0, 1, 2]] * 4


def test_what_is_made_of_several_rows_or_of_none_has_no_rows() -> None:
    rows = rows_found(
        Net(
            lambda net, x: net.norm(
                F.conv2d(x, net.w / net.w.std(), F.pad(net.b, (0, 1)) * net.k.exp())
                * net.b.softmax(0).sum()
                + F.conv2d(x, net.k.exp().view(3, 1, 1, 1).expand(-1, 4, -1, -1))
            ),
            w=parameter(3, 4, 1, 1),
            b=parameter(2),
            k=torch.rand(3),
            norm=nn.BatchNorm2d(3),
        )
    )
    assert set(rows) == {"p_w", "p_b", "p_norm_weight", "p_norm_bias"}


def test_rows_are_not_in_the_fingerprint() -> None:
    graph = channel_graph(trace(nn.Conv2d(4, 3, 1), torch.zeros(IMAGE)))
    assert graph.rows
    assert ChannelGraph(graph.layers, graph.ids).fingerprint == graph.fingerprint
