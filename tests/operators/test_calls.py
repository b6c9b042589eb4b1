from __future__ import annotations

from typing import Any

import torch
from torch import fx

from hgpart.operators.calls import only_updated
from hgpart.operators.effects import Call

aten = torch.ops.aten


def test_argument_by_position_or_name() -> None:
    node = fx.Graph().call_function(aten.softmax.int)
    assert Call(node, (1, 2), {}, ()).argument("dim") == 2
    assert Call(node, (1,), {"dim": 3}, ()).argument("dim") == 3
    assert Call(node, (1, 2), {}, ()).argument("dtype", "none given") is None  # as in the schema
    assert Call(node, (1, 2), {}, ()).argument("weight", "no such argument") == "no such argument"
    conv = fx.Graph().call_function(aten.conv2d.default)
    assert Call(conv, (1, 2), {}, ()).argument("groups") == 1


def test_statistics_that_training_replaces_are_no_data() -> None:
    graph = fx.Graph()
    value, mean, variance = (graph.placeholder(name) for name in ("x", "mean", "variance"))
    rest = (0.1, 1e-5)

    def norm(operator: Any, *args: Any) -> frozenset[fx.Node]:
        return only_updated(graph.call_function(operator, (value, None, None, *args)))

    functional = aten._native_batch_norm_legit_functional.default
    assert norm(functional, mean, variance, True, *rest) == {mean, variance}
    assert norm(functional, mean, variance, False, *rest) == frozenset()
    assert norm(aten._native_batch_norm_legit.no_stats, True, *rest) == frozenset()
    no_training = aten._native_batch_norm_legit_no_training.default
    assert norm(no_training, mean, variance, *rest) == frozenset()
