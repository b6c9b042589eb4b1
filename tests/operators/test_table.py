from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from operator_calls import effect, per_channel
from torch import fx

from hgpart.errors import ArgumentError, TraceError
from hgpart.operators import table
from hgpart.operators.channelwise import reduction, same_place
from hgpart.operators.effects import Call, Channels, Constant, Reindex, SameIndex, Whole
from hgpart.operators.moving import copied
from hgpart.operators.products import Product
from hgpart.operators.table import Operator, channel_rule, effect_of, macs_of, record_of

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
    monkeypatch.setattr(table, "_users", {})
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
    monkeypatch.setattr(table, "_users", {})
    product = channel_rule(aten.addbmm)(Product("batch1", "batch2", "self", row_dim=1))
    known = record_of(aten.addbmm.default)
    assert (known.rule, known.product) == (product, product)
    matrices = (Constant((2, 5)), Constant((7, 2, 4)), Constant((7, 4, 5)))
    call = Call(fx.Graph().call_function(aten.addbmm.default), matrices, {}, (2, 5))
    assert macs_of(call) is None  # no weight of two dimensions: torch counts
    assert channel_rule(aten.addbmm, macs=lambda call: 7)(product) is product
    assert macs_of(call) == 7


def test_a_later_rule_replaces_all_that_an_earlier_one_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cut and the count of the earlier rule stayed: of a Product, both."""
    monkeypatch.setattr(table, "_users", {})
    channel_rule(aten.trace, cut="copy", macs=lambda call: 7)(copied)
    known = record_of(aten.trace.default)
    assert (known.rule, known.cut, known.macs is None) == (copied, "copy", False)
    channel_rule(aten.trace)(same_place)
    assert record_of(aten.trace.default) == Operator(same_place)
    channel_rule(aten.linear)(same_place)
    known = record_of(aten.linear.default)  # what its backward needs, no rule decides
    assert known == Operator(same_place, frees_result=True)
    assert (known.product, known.macs) == (None, None)


def test_facts_of_an_operator_stay_whatever_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_users", {})
    norm = aten._native_batch_norm_legit_functional.default
    named = (aten.relu.default, aten.view.default, aten.index.Tensor, aten.sym_size.int, norm)
    for operator in named:
        known = record_of(operator)
        channel_rule(operator.overloadpacket)(same_place)
        assert record_of(operator) == dataclasses.replace(known, rule=same_place)


def test_a_packet_is_all_its_overloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overloads with a record of their own, the table's or a user's, kept that."""
    monkeypatch.setattr(table, "_users", {})
    channel_rule(aten.max.dim)(copied)
    assert record_of(aten.max.dim).rule is copied
    assert record_of(aten.max.default).rule is reduction
    channel_rule(aten.max)(same_place)
    for name in aten.max.overloads():
        assert record_of(getattr(aten.max, name)).rule is same_place
    channel_rule(aten.max.dim)(copied)
    assert record_of(aten.max.dim).rule is copied
    assert record_of(aten.max.default).rule is same_place


@pytest.mark.parametrize(
    ("product", "named"),
    [
        (Product("batch1", "batch2"), "bias"),
        (Product("batch", "batch2", ""), "batch"),
        (Product("batch1", "wieght", "self"), "wieght"),
    ],
)
def test_a_product_names_arguments_that_there_are(product: Product, named: str) -> None:
    accepted = re.escape(f"Product names {named!r}: accepted are the arguments of aten.addbmm.")
    with pytest.raises(
        ArgumentError, match=accepted + "default: self, batch1, batch2, beta, alpha"
    ):
        channel_rule(aten.addbmm)(product)


def test_products_of_the_table_name_arguments_that_there_are() -> None:
    for record, *operators in table._ATEN:
        if record.product:
            for overload in itertools.chain.from_iterable(map(table._overloads, operators)):
                table._check_names(record.product, overload)


@pytest.mark.parametrize("operator", [torch.relu, "relu", None])
def test_a_rule_for_what_is_no_operator(operator: Any) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"operator {operator!r}: accepted are pack")):
        channel_rule(operator)


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (lambda call: call.wieght, "raises AttributeError: 'Call' object has no attribute"),
        (lambda call: 1.5, "returns 1.5: accepted are whole numbers from 0 on and None"),
        (lambda call: -1, "returns -1: accepted"),
        (lambda call: "7", "returns '7': accepted"),
    ],
)
def test_a_count_that_fails_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, count: Callable[[Call], Any], says: str
) -> None:
    """A float made bytes and loads floats; a traceback ended the command."""
    monkeypatch.setattr(table, "_users", {})
    channel_rule(aten.relu, macs=count)(same_place)
    call = Call(fx.Graph().call_function(aten.relu.default), (), {}, (2, 4))
    with pytest.raises(TraceError, match="its count of multiply-accumulates <lambda> ") as caught:
        macs_of(call)
    assert says in str(caught.value)
    channel_rule(aten.relu, macs=lambda call: np.int64(8))(same_place)
    assert macs_of(call) == 8
    assert type(macs_of(call)) is int


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
    monkeypatch.setattr(table, "_users", {})

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
    monkeypatch.setattr(table, "_users", {})
    channel_rule(aten.relu)(lambda call: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TraceError, match="<lambda> returns None: accepted are Reindex, SameIndex"):
        effect(aten.relu.default, (2, 4), Channels(per_channel(2, 4)))


@pytest.mark.long
@pytest.mark.full  # a process of its own
def test_a_rule_of_the_user_comes_before_the_built_in_one_whenever_it_is_registered() -> None:
    """The built-in rules were registered when the first graph was made, after the user's."""
    code = (
        "import torch, hgpart\n"
        "from torch import nn\n"
        "hgpart.channel_rule(torch.ops.aten.max_pool2d)(lambda call: hgpart.operators.Whole())\n"
        "model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2))\n"
        "graph = hgpart.channel_graph(hgpart.trace(model, torch.zeros(2, 3, 8, 8)))\n"
        "print([layer.kind for layer in graph.layers])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "['input', 'dense', 'whole', 'output']\n"
