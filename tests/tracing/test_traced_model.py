from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from hgpart.errors import ArgumentError, TraceError
from hgpart.tracing.traced_model import TracedModel, example_inputs, result_of, trace
from hgpart.tracing.traced_nodes import averages_batches
from hgpart.zoo import load_model


def run(traced: TracedModel, model: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Run the traced graph with the model's own parameters; returns all that it returns."""
    state = {**model.state_dict(), **dict(model.named_buffers())}
    names = {**traced.parameters, **traced.buffers}
    given = {**traced.constants, **dict(zip(traced.inputs, inputs, strict=True))}
    placeholders = [n.name for n in traced.graph_module.graph.nodes if n.op == "placeholder"]
    values = [given[name] if name in given else state[names[name]].clone() for name in placeholders]
    with torch.no_grad():
        return tuple(traced.graph_module(*values))


class Small(nn.Module):
    """In-place operators, batch norm, a shared module, a buffer and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.register_buffer("scale", torch.rand(3, 1, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.conv(x).relu_()
        z += self.norm(self.conv(z)) * self.scale
        z[:, 0] = 0
        return z, y.mul(2).add_(1)


@pytest.mark.few(1)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [2, 5])
def test_the_graph_computes_what_the_model_computes(training: bool, batch: int) -> None:
    torch.manual_seed(0)
    model = Small().train(training)
    traced = trace(model, (torch.zeros(2, 3, 6, 6), torch.zeros(2, 4)))
    x, y = torch.rand(batch, 3, 6, 6), torch.rand(batch, 4)
    results = run(traced, model, x.clone(), y.clone())
    expected = model(x.clone(), y.clone())
    for got, wanted in zip(results[-2:], expected, strict=True):
        torch.testing.assert_close(got, wanted)
    assert model.training is training
    assert len(results) == (5 if training else 2)  # new running mean, variance, batches


def test_the_graph_is_functional() -> None:
    traced = trace(Small(), (torch.zeros(2, 3, 6, 6), torch.zeros(2, 4)))
    for node in traced.graph_module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable, node.format_node()


def test_the_record_names_what_the_state_dict_names() -> None:
    model = Small()
    traced = trace(model, (torch.zeros(2, 3, 6, 6), torch.zeros(2, 4)))
    assert sorted(traced.parameters.values()) == sorted(
        name for name, _ in model.named_parameters()
    )
    assert {"scale", "norm.running_mean", "norm.running_var"} <= set(traced.buffers.values())
    updated = {traced.buffers[name] for name in traced.updated}
    assert updated == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert traced.inputs == ("x", "y")
    assert traced.batch_size == 2
    placeholders = {n.name for n in traced.graph_module.graph.nodes if n.op == "placeholder"}
    assert placeholders == {
        *traced.parameters,
        *traced.buffers,
        *traced.constants,
        *traced.inputs,
    }


def test_results_are_the_models_own() -> None:
    """Not the new running statistics, which functional batch norm returns as well."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    traced = trace(model, torch.zeros(2, 3, 4, 4))
    assert [str(node.target) for node in traced.results] == ["aten.relu.default"]


def test_evaluation_mode_updates_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    assert trace(model, torch.zeros(2, 3, 4, 4)).updated == frozenset()


def test_updates_hold_the_new_value_of_each_buffer() -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.register_buffer("average", torch.rand(3))
            self.register_buffer("calls", torch.tensor(4))
            self.register_buffer("kept", torch.rand(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.average.mul_(0.5).add_(x.mean((0, 2, 3)))
            self.calls.add_(1)
            return self.norm(self.norm(x)) * self.kept.view(3, 1, 1)

    torch.manual_seed(0)
    model = Averaging()
    x = torch.rand(5, 3, 4, 4)
    traced = trace(model, torch.zeros(2, 3, 4, 4))
    assert traced.updates.keys() == traced.updated
    output = next(n for n in traced.graph_module.graph.nodes if n.op == "output")
    made = dict(zip(output.args[0], run(traced, model, x), strict=True))
    model(x)
    buffers = dict(model.named_buffers())
    assert {traced.buffers[name] for name in traced.updates} == buffers.keys() - {"kept"}
    for name, node in traced.updates.items():
        torch.testing.assert_close(made[node], buffers[traced.buffers[name]])


def test_a_result_that_is_a_buffers_new_value_is_one_result() -> None:
    """It was listed twice: the graph's output node names it once as a result, once as a buffer."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls.add_(1)
            return x.relu(), self.calls

    traced = trace(Counting(), torch.zeros(2, 3))
    assert len(traced.results) == 2
    assert traced.results[1] is traced.updates["b_calls"]


@pytest.mark.parametrize(
    "model", [nn.ReLU(inplace=True), nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 1))]
)
def test_model_that_changes_its_input(model: nn.Module) -> None:
    with pytest.raises(TraceError) as caught:
        trace(model, torch.zeros(2, 3, 4, 4))
    assert str(caught.value) == (
        f"{type(model).__name__} changes its input 'input' in place: accepted are models that "
        "leave their inputs as they are"
    )


def test_the_batch_stays_dynamic_where_the_model_allows_it() -> None:
    traced = trace(nn.Conv2d(3, 4, 1), torch.zeros(2, 3, 4, 4))
    assert isinstance(traced.results[0].meta["val"].shape[0], torch.SymInt)

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(3, -1)

    traced = trace(Fixed(), torch.zeros(3, 3, 4, 4))
    assert traced.batch_size == 3
    assert traced.results[0].meta["val"].shape == (3, 48)


def test_one_sample_stays_one_where_a_trace_of_two_finds_their_number_in_the_code() -> None:
    """torch.export then keeps the batch as a symbol that is 2: batches of one were refused."""

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch = int(x.shape[0])
            return x.reshape(batch * 3, -1).sum(1).reshape(batch, 3)

    traced = trace(Counted(), torch.zeros(1, 3, 4, 4))
    assert (traced.batch_size, traced.has_dynamic_batch) == (1, False)
    assert trace(Counted(), torch.zeros(2, 3, 4, 4)).batch_size == 2


def test_one_sample_leaves_the_batch_dynamic() -> None:
    """torch.export takes a size of 1 for a constant: the model seemed to compute with it."""
    traced = trace(nn.Conv2d(3, 4, 1), torch.zeros(1, 3, 4, 4))
    assert isinstance(traced.results[0].meta["val"].shape[0], torch.SymInt)
    assert (traced.batch_size, traced.example[0].shape) == (2, (2, 3, 4, 4))

    class Alone(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() if len(x) == 1 else x.view(7, -1)

    traced = trace(Alone(), torch.zeros(1, 3, 4, 4))
    assert (traced.batch_size, traced.results[0].meta["val"].shape) == (1, (1, 3, 4, 4))


def test_any_number_of_inputs_leaves_the_batch_dynamic() -> None:
    """What says which sizes are dynamic did not fit `*images`: the batch was fixed in silence."""

    class Several(nn.Module):
        def forward(self, *images: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
            return images[0] + images[1] * scale

    traced = trace(Several(), [torch.zeros(2, 3), torch.zeros(2, 3)])
    assert isinstance(traced.results[0].meta["val"].shape[0], torch.SymInt)
    x, y = torch.rand(5, 3), torch.rand(5, 3)
    torch.testing.assert_close(run(traced, Several(), x, y)[0], x + 2 * y)


def test_only_inputs_as_large_as_the_batch_are_batches() -> None:
    """Each input had a size of its own that stood for the batch."""

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return x * table.mean(0)

    traced = trace(Scaled(), [torch.zeros(2, 3), torch.zeros(5, 3)])
    shapes = {
        node.name: node.meta["val"].shape for node in traced.graph_module.graph.nodes if node.users
    }
    assert isinstance(shapes["x"][0], torch.SymInt)
    assert [type(size) for size in shapes["table"]] == [int, int]


def test_tracing_on_meta_allocates_nothing() -> None:
    model, shape = load_model("vgg16", device="meta")
    (example,) = example_inputs(model, shape)
    assert example.is_meta
    assert example.shape == (2, 3, 224, 224)
    traced = trace(model, example)
    assert all(parameter.is_meta for parameter in model.parameters())
    for node in traced.graph_module.graph.nodes:
        value = node.meta.get("val")
        assert not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor)


def test_values_of_buffers_and_constants_are_known_off_the_meta_device() -> None:
    class Indexed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.tensor([2, 0]))
            self.register_buffer("passing", torch.tensor([1, 0]), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, self.kept][:, self.passing][:, [0, 0, 1]]

    def values(model: nn.Module, device: str) -> list[list[int]]:
        traced = trace(model.to(device), torch.zeros(2, 3, device=device))
        assert traced.values.keys() <= {*traced.buffers, *traced.constants}
        return sorted(value.tolist() for value in traced.values.values())

    assert values(Indexed(), "cpu") == [[0, 0, 1], [1, 0], [2, 0]]
    assert values(Indexed(), "meta") == [[0, 0, 1]]  # what the code itself says


def test_tracing_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = Small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace(model, (torch.zeros(2, 3, 6, 6), torch.zeros(2, 4)))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert type(value) is torch.Tensor


def test_example_takes_device_and_type_of_the_model() -> None:
    (example,) = example_inputs(nn.Linear(3, 4).double(), (3,))
    assert (example.dtype, example.device.type, example.shape) == (torch.float64, "cpu", (2, 3))
    (example,) = example_inputs(nn.BatchNorm1d(3, affine=False).double(), (3,))
    assert example.dtype == torch.float64  # its buffers say it
    (example,) = example_inputs(nn.ReLU(), (7, 5))
    assert (example.dtype, example.shape) == (torch.float32, (2, 7, 5))


def test_example_of_several_inputs_is_by_the_names_of_forward() -> None:
    class Labelled(nn.Module):
        def forward(
            self, image: torch.Tensor, mask: torch.Tensor, *, labels: torch.Tensor
        ) -> None: ...

    shape = ["3,8,8", "mask=1,8,8:bool", "labels=:int64:10"]
    example = example_inputs(Labelled().to("meta"), shape)
    assert {name: (value.shape, value.dtype) for name, value in example.items()} == {
        "image": ((2, 3, 8, 8), torch.float32),
        "mask": ((2, 1, 8, 8), torch.bool),
        "labels": ((2,), torch.int64),
    }
    by_position = example_inputs(Labelled(), ["3,8,8", "4:int32"])
    assert [value.dtype for value in by_position] == [torch.float32, torch.int32]
    with pytest.raises(ArgumentError, match=r"^input 4 has no name: accepted are inputs for f"):
        example_inputs(Labelled(), ["3,8,8", "1", "4", "labels=:int64"])
    with pytest.raises(ArgumentError, match=r"^image is an input by name and by position"):
        example_inputs(Labelled(), ["3,8,8", "image=1"])


@pytest.mark.parametrize("shape", [(10**20, 1, 1), (1, 2**31, 2**31), (2**60,)])
def test_an_input_larger_than_a_tensor_can_be(shape: tuple[int, ...]) -> None:
    """torch raised RuntimeError where the product overflows, TypeError where a size does."""
    with pytest.raises(ArgumentError, match="bytes that a tensor can have") as caught:
        example_inputs(nn.ReLU(), shape)
    assert f"input {','.join(map(str, shape))}:" in str(caught.value)


@pytest.mark.few(1)
@pytest.mark.parametrize("names", [["a\nb", "a_b"], ['a"', "a_", "a__"], ["\\", "\r", "_", "-"]])
def test_names_that_torch_does_not_quote_in_the_code_that_it_writes(names: list[str]) -> None:
    """torch.export wrote getattr(self, "<name>") with the name as it is, and could not read it."""
    model = nn.Sequential(OrderedDict((name, nn.BatchNorm2d(2)) for name in names))
    traced = trace(model, torch.zeros(2, 2, 3, 3))
    assert sorted(traced.parameters.values()) == sorted(dict(model.named_parameters()))
    assert sorted(traced.buffers.values()) == sorted(dict(model.named_buffers()))
    assert {traced.buffers[name] for name in traced.updated} == set(dict(model.named_buffers()))
    x = torch.rand(2, 2, 3, 3)
    torch.testing.assert_close(run(traced, model, x)[-1], model(x))


@pytest.mark.parametrize("example", [(3,), torch.zeros(()), {"input": None}])
def test_example_without_a_batch(example: Any) -> None:
    with pytest.raises(ArgumentError, match="no batch"):
        trace(nn.ReLU(), example)


class Branching(nn.Module):
    """Takes a way that depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x.relu()
        return -x


class Looping(nn.Module):
    """Computes with a value in Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: int(x.max())] if float(x.mean()) > 1 else x


class Raising(nn.Module):
    """Refuses its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing\nand a second line")


class Exiting(nn.Module):
    """Ends the process as if all were well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.exit(0)


class Silent(nn.Module):
    """Fails without a message."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "shape", "says"),
    [
        (Branching(), (2, 3), "test_traced_model.py"),
        (Looping(), (2, 3), "test_traced_model.py"),
        (nn.Conv2d(3, 4, 3), (2, 5, 8, 8), "5 channels"),
        (nn.Sequential(nn.Flatten(), nn.Linear(10, 2)), (2, 3, 4), ""),
        (nn.MaxPool2d(9), (2, 3, 4, 4), ""),
        (Raising(), (2, 3), "no such thing"),
        (Silent(), (2, 3), "NotImplementedError"),
        (Exiting(), (2, 3), "its code ends the process: sys.exit(0)"),
    ],
)
def test_untraceable_model_is_one_clear_line(
    model: nn.Module, shape: tuple[int, ...], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TraceError) as caught:
        trace(model, torch.zeros(shape))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"can't trace {type(model).__name__} with input ")
    assert "x".join(map(str, shape)) in message
    assert says in message
    assert caught.value.exit_status == 5
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_message_names_the_line_of_the_model() -> None:
    with pytest.raises(TraceError) as caught:
        trace(Branching(), torch.zeros(2, 3))
    line = Branching.forward.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}: " in str(caught.value)


def test_a_result_without_data_is_of_code_that_makes_tensors_elsewhere() -> None:
    """A model on the meta device could not be called where its code makes a tensor on the CPU."""

    class Shifted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.arange(4.0)

    with torch.device("meta"):
        model, example = Shifted(3, 4), torch.zeros(2, 3)
    assert result_of(model, example).shape == (2, 4)
    with pytest.raises(TraceError, match="can't trace Shifted with input 2x5"):
        result_of(model, torch.zeros(2, 5, device="meta"))


@pytest.mark.few(2)
@pytest.mark.parametrize("result", [None, 3, ()])
def test_model_that_returns_no_tensor(result: Any) -> None:
    class Empty(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return result

    with pytest.raises(TraceError, match="Empty returns no tensor"):
        trace(Empty(), torch.zeros(2, 3))


def test_tracing_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    trace(Small(), (torch.zeros(2, 3, 6, 6), torch.zeros(2, 4)))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_tracing_leaves_logging_as_it_was() -> None:
    logger = logging.getLogger("torch")
    before = logger.level
    with pytest.raises(TraceError):
        trace(Branching(), torch.zeros(2, 3))
    assert logger.level == before


def test_same_model_same_graph() -> None:
    def code() -> str:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        return trace(model, torch.zeros(2, 3, 8, 8)).graph_module.code

    assert code() == code()


@pytest.mark.parametrize("training", [True, False])
def test_a_norm_without_momentum_says_that_it_averages_all_batches(training):
    """torch.export took the count of batches for a constant, and ended in its own words."""
    norm = nn.BatchNorm2d(3, momentum=None).train(training)
    traced = trace(norm, torch.zeros(2, 3, 4, 4))
    found = [node for node in traced.graph_module.graph.nodes if averages_batches(node)]
    assert len(found) == training
    assert norm.momentum is None
