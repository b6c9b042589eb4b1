"""A trace that was kept is the trace that a new one would be."""

from __future__ import annotations

import json
import math
import random
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import hgpart
from hgpart.layers.layering import channel_graph
from hgpart.operators import table
from hgpart.tracing import traced_model
from hgpart.tracing.cache import folder, origins
from hgpart.tracing.cache.origins import origin_of, origin_of_model, set_origin
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace
from hgpart.zoo import load_model

MODELS = [
    "lenet5",
    "timm:vit_tiny_patch16_224",
    "resnet18",
    pytest.param("googlenet", marks=pytest.mark.long),
    pytest.param("densenet121", marks=pytest.mark.long),
    pytest.param("mobilenet_v2", marks=pytest.mark.long),
    pytest.param("efficientnet_b0", marks=pytest.mark.long),
    "shufflenet_v2_x1_0",
    "unet",
    "resnet18+split:2",
    pytest.param("timm:swin_tiny_patch4_window7_224", marks=pytest.mark.long),
    pytest.param("timm:mobilevit_xxs", marks=pytest.mark.long),
    "timm:convnext_atto",
    "timm:xcit_nano_12_p16_224",
    "pytorchcv:resnet10",
]


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(folder.SWITCH, folder.KEEP)
    monkeypatch.setattr(origins, "STARTED", math.inf)  # whoever writes files while tests run
    monkeypatch.setattr(table, "_users", {})  # rules that other tests and pages leave behind


def of_a_spec(model: nn.Module) -> nn.Module:
    """The model, as if `load_model` had built it."""
    set_origin(model, origin_of("lenet5"))
    return model


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called, it lets all further traces fail that are not read."""

    def forbid() -> None:
        monkeypatch.setattr(traced_model, "_trace_anew", None)

    return forbid


def _said(value: Any) -> Any:
    """A value in a trace; sizes by what they are made of, whatever the batch's symbol is called."""
    if isinstance(value, Tensor):
        facts = value.dtype, value.device, value.requires_grad
        return [_said(tuple(value.shape)), _said(value.stride()), *map(str, facts)]
    if isinstance(value, (tuple, list)):
        return [_said(item) for item in value]
    return re.sub(r"\bs\d+\b", "s", str(value))


def _facts(traced: TracedModel) -> Any:
    nodes = [
        (
            node.op,
            node.name,
            str(node.target),
            repr(node.args),
            repr(node.kwargs),
            _said(node.meta.get("val")),
            [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()],
            node.meta.get("stack_trace"),
        )
        for node in traced.graph_module.graph.nodes
    ]
    values = {name: pytree.tree_map(_content, value) for name, value in traced.values.items()}
    constants = {name: _content(value) for name, value in traced.constants.items()}
    return (
        *(nodes, values, constants, traced.parameters, traced.buffers, traced.inputs),
        *(traced.updated, traced.form, traced.outline, traced.structure.spec),
        *(traced.structure.leaves, str(traced.batch_sizes), traced.batch_sizes.are_all),
        {name: node.name for name, node in traced.updates.items()},
        [node.name for node in traced.results],
        [_said(tensor) for tensor in traced.example],
    )


def _content(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.dtype, str(value.device), value.stride(), None if value.is_meta else value.tolist()


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_trace_that_is_read_is_the_one_that_was_made(name: str, never: Any) -> None:
    model, shape = load_model(name, device="meta")
    modes = (True, False)
    made = [trace(model.train(training), example_inputs(model, shape)) for training in modes]
    never()
    read = [trace(model.train(training), example_inputs(model, shape)) for training in modes]
    for first, second in zip(made, read, strict=True):
        assert first is not second
        assert _facts(first) == _facts(second)
        graphs = channel_graph(first), channel_graph(second)
        assert graphs[0].fingerprint == graphs[1].fingerprint
        assert str(graphs[0].layers) == str(graphs[1].layers)
        works = [hgpart.flops(graph) for graph in graphs]
        assert np.array_equal(works[0].per_task, works[1].per_task)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["lenet5", "resnet18", "timm:vit_tiny_patch16_224", "unet"])
def test_plans_of_a_trace_that_is_read_compute_the_same(name: str, never: Any) -> None:
    model, shape = load_model(name)
    images = torch.randn(2, *(shape if name.startswith("timm") else (shape[0], 64, 64)))
    images = torch.randn(2, *shape) if name == "lenet5" else images
    results = []
    for _ in range(2):
        plan = hgpart.partition_model(model, images, k=3)
        placed = hgpart.place(model, plan)
        torch.manual_seed(0)
        result = placed(images)
        result.sum().backward()
        gradients = [weight.grad for weight in placed.parameters()]
        results.append((plan.partition.parts, result, gradients))
        never()
    (parts, first, gradients), (others, second, theirs) = results
    assert np.array_equal(parts, others)
    assert torch.equal(first, second)
    assert all(map(torch.equal, gradients, theirs))


class Odd(nn.Module):
    """Constants, integers, inputs by name, several results, and a batch that decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("index", torch.tensor([3, 1]), persistent=False)
        self.table = torch.arange(4.0)

    def forward(self, image: Tensor, *, mask: Tensor, scale: float = 1.0) -> dict[str, Any]:
        kept = self.layer(image)[:, self.index] * scale
        offset = torch.tensor([1.5, float("inf")]).clamp(max=2)
        bounded = self.layer(image) * self.table
        return {
            "kept": kept + offset,
            "masked": (torch.where(mask, bounded, -torch.inf), None, "name"),
            "grown": bounded.reshape(-1, 2).sum(1),
        }


def test_odd_models_are_read_as_they_were(never: Any) -> None:
    model = of_a_spec(Odd())
    example = {"image": torch.zeros(3, 4), "mask": torch.ones(3, 4, dtype=torch.bool)}
    made = trace(model, example)
    with torch.no_grad():
        model.layer.weight.zero_()  # values of parameters do not count
    never()
    read = trace(model, example)
    assert _facts(made) == _facts(read)
    assert all(value.data_ptr() for value in read.values.values())
    with pytest.raises(TypeError):  # never() forbids it
        trace(model, {**example, "scale": 2.0})
    with pytest.raises(TypeError):
        trace(model, {**example, "image": torch.zeros(3, 4, dtype=torch.float64)})
    model.index[0] = 2
    with pytest.raises(TypeError):
        trace(model, example)


@dataclass
class Pair:
    maps: Tensor
    doubled: Tensor


class Paired(nn.Module):
    def forward(self, image: Tensor) -> Pair:
        return Pair(image + 1, image * 2)


def test_a_result_that_only_this_process_can_put_together_is_not_kept() -> None:
    """A dataclass that torch knows in this process ended the command."""
    torch.export.register_dataclass(Pair)
    for _ in range(2):
        assert len(trace(of_a_spec(Paired()), torch.zeros(2, 3)).results) == 2
    assert not folder.folder().exists()


class Drawing(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return image * random.random()


def test_a_trace_that_lacks_what_the_forward_pass_does_is_not_kept() -> None:
    for _ in range(2):
        assert trace(of_a_spec(Drawing()), torch.zeros(2, 3)).unheld
    assert not folder.folder().exists()


def test_nothing_is_kept_where_nobody_has_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    trace(nn.Linear(3, 4), torch.zeros(2, 3))  # a model of the user's
    monkeypatch.delenv(folder.SWITCH)
    model, shape = load_model("lenet5", device="meta")
    trace(model, example_inputs(model, shape))
    trace(of_a_spec(model), example_inputs(model, shape))
    assert not folder.folder().exists()


@pytest.mark.parametrize("facts", [{}, [], {"batch_size": 2, "graph": [["call_function"]]}])
def test_facts_that_do_not_fit_are_said_and_replaced(
    facts: Any, capsys: pytest.CaptureFixture[str], never: Any
) -> None:
    model = of_a_spec(nn.Linear(3, 4))
    trace(model, torch.zeros(2, 3))
    (file,) = folder.folder().iterdir()
    folder.save(file.stem, zlib.compress(json.dumps(facts).encode()))
    trace(model, torch.zeros(2, 3))
    assert "can't be read: the model is traced anew" in capsys.readouterr().err
    never()
    trace(model, torch.zeros(2, 3))


def test_what_is_read_calls_operators_alone() -> None:
    from hgpart.tracing.cache.graphs import Reader

    for target in ("os.system", "builtins.eval", "operator.os", "mylib.run.default", "aten"):
        listed = [["call_function", "made", target, {"tuple": ["ls"]}, {"dict": []}, None, None, 0]]
        with pytest.raises((ValueError, KeyError)):
            Reader(2).graph(listed)
    with pytest.raises(ValueError, match="load is no type"):
        Reader(2).value({"torch": "load"})


class Listed(nn.Module):
    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layer, self.form = nn.Conv2d(3, 4, 3), form

    def forward(self, image: Tensor) -> Any:
        return self.form(self.layer(image))


def in_a_tuple(image: Tensor) -> Any:
    return {(1, 2): image}


def in_bytes(image: Tensor) -> Any:
    return {b"a": image}


def largest(image: Tensor) -> Any:
    return torch.max(image, 1)


@pytest.mark.parametrize("form", [in_a_tuple, in_bytes, largest])
def test_results_whose_form_json_cannot_hold_are_not_kept(form: Any) -> None:
    """torch wrote the key (1, 2) as [1, 2], and its errors for the others ended the trace."""
    model, images = of_a_spec(Listed(form)), torch.zeros(2, 3, 8, 8)
    forms = [str(trace(model, images).structure.spec) for _ in range(2)]
    assert forms[0] == forms[1]
    assert not list(folder.folder().glob("*"))


class Unhashable(nn.Linear):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


def test_a_model_without_a_hash_has_no_origin() -> None:
    model = of_a_spec(Unhashable(3, 4))
    assert origin_of_model(model) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: model.double(),
        lambda model: model[1].eval(),
        lambda model: setattr(model[1], "p", 0.25),
        lambda model: model[0].weight.requires_grad_(False),
        lambda model: model[2].places.add_(1),
    ],
)
def test_what_changes_in_a_model_is_noticed(change: Any, never: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Flatten(), nn.BatchNorm1d(4))
    model[2].register_buffer("places", torch.tensor([1, 2]))
    images = torch.zeros(2, 4)
    trace(of_a_spec(model), images)
    never()
    with torch.no_grad():
        model[0].weight.zero_()
        model[3].running_mean.add_(1)
    trace(model, images)
    with torch.no_grad():
        change(model)
    with pytest.raises(TypeError):  # never() forbids it
        trace(model, images.to(model[0].weight.dtype))


def test_nothing_is_kept_where_code_was_written_while_the_model_was_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = of_a_spec(nn.Linear(3, 4))
    monkeypatch.setattr(origins, "STARTED", 0.0)  # as if all files were new
    trace(model, torch.zeros(2, 3))
    assert not folder.folder().exists()
