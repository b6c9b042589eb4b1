from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from operator_calls import effect, per_channel
from torch import fx

from hgpart.errors import ArgumentError, TraceError
from hgpart.operators import table
from hgpart.operators.channelwise import same_place
from hgpart.operators.effects import Call, Channels, Reindex, SameIndex, Whole
from hgpart.operators.products import Product
from hgpart.operators.table import channel_rule, effect_of, record_of

aten = torch.ops.aten


def test_only_operators_that_keep_every_element_move_parameters() -> None:
    assert record_of(aten.view.default).moves_only
    assert record_of(aten.t.default).moves_only
    assert record_of(aten.split.Tensor).moves_only
    assert not record_of(aten.expand.default).moves_only  # one element in many places
    assert not record_of(aten.repeat.default).moves_only
    assert not record_of(aten.mul.Tensor).moves_only
    assert not record_of(aten.cat.default).moves_only


def test_rules_can_be_added_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))
    operand = Channels(per_channel(2, 4))
    assert isinstance(effect(aten.relu.default, (2, 4), operand), SameIndex)
    assert effect(aten.cholesky.default, (2, 4), operand) == Whole()

    @channel_rule(aten.relu, aten.cholesky.default)
    def rule(call: Call) -> Reindex:
        return Reindex(call.args[0].ids)

    assert isinstance(effect(aten.relu.default, (2, 4), operand), Reindex)
    assert isinstance(effect(aten.cholesky.default, (2, 4), operand), Reindex)

    @channel_rule(aten.relu.default)
    def for_the_overload(call: Call) -> Whole:
        return Whole(known=True)

    assert effect(aten.relu.default, (2, 4), operand) == Whole(known=True)


def test_a_product_of_the_user_says_how_it_is_cut_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))
    product = channel_rule(aten.addbmm)(Product("batch1", "batch2", "self", row_dim=1))
    known = record_of(aten.addbmm.default)
    assert (known.rule, known.product, known.macs) == (product, product, product.macs)
    assert channel_rule(aten.addbmm.default, macs=lambda call: 7)(same_place) is same_place
    known = record_of(aten.addbmm.default)
    assert (known.rule, known.product) == (same_place, product)
    assert known.macs(Call(fx.Graph().call_function(aten.addbmm.default), (), {}, ())) == 7


def test_a_cut_that_there_is_not() -> None:
    says = "cut 'across': accepted are copy, reshape, permutation"
    with pytest.raises(ArgumentError, match=says):
        channel_rule(aten.relu, cut="across")  # type: ignore[arg-type]


def test_no_operator_is_in_the_table_twice() -> None:
    named = [operator for _, *operators in table._ATEN for operator in operators]
    assert len(set(named)) == len(named)
    packets = {getattr(one, "overloadpacket", None) for one in named}
    assert packets.isdisjoint(named)  # else an overload would have a record beside its packet's
    assert {record.cut for record, *_ in table._ATEN if isinstance(record.cut, str)} == set(
        get_args(table.Cut)
    )


@pytest.mark.parametrize(
    "failure", [ValueError("no\nsuch  thing"), NotImplementedError(), SystemExit(0)]
)
def test_rule_that_raises_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))

    @channel_rule(aten.relu)
    def broken(call: Call) -> Whole:
        raise failure

    node = fx.Graph().call_function(aten.relu.default)
    node.meta["nn_module_stack"] = {"first": ("features", None), "second": ("features.3", None)}
    with pytest.raises(TraceError) as caught:
        effect_of(Call(node, (Channels(per_channel(2, 4)),), {}, (2, 4)))
    reason = " ".join(f"{type(failure).__name__}: {failure}".split())
    assert str(caught.value) == (
        "can't trace aten.relu.default (relu_default in features.3): "
        f"its channel rule broken raises {reason}"
    )


def test_rule_that_returns_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))
    channel_rule(aten.relu)(lambda call: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TraceError, match="<lambda> returns None: accepted are Reindex, SameIndex"):
        effect(aten.relu.default, (2, 4), Channels(per_channel(2, 4)))


@pytest.mark.full  # a process of its own
def test_a_rule_of_the_user_comes_before_the_built_in_one_whenever_it_is_registered() -> None:
    """The built-in rules were registered when the first graph was made, after the user's."""
    code = (
        "import torch, hgpart\n"
        "from torch import nn\n"
        "from hgpart.operators.effects import Whole\n"
        "hgpart.channel_rule(torch.ops.aten.max_pool2d)(lambda call: Whole())\n"
        "model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2))\n"
        "graph = hgpart.channel_graph(hgpart.trace(model, torch.zeros(2, 3, 8, 8)))\n"
        "print([layer.kind for layer in graph.layers])\n"
    )
    here = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=here, check=True
    )
    assert ended.stdout == "['input', 'dense', 'whole', 'output']\n"
