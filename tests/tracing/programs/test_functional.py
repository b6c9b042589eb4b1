"""Programs without in-place operators: beside torch's own, and beside the modules in Python."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from builtin_graphs import FAMILIES, each_model
from torch import fx, nn
from torch._ops import OpOverload

from hgpart.errors import TraceError
from hgpart.operators.table import TRACED_AS
from hgpart.tracing.programs.divisible import leave_out_idle_dropouts
from hgpart.tracing.programs.functional import made_functional
from hgpart.tracing.traced_model import trace
from hgpart.zoo import load_model

# torch views the input of efficientnet's classifier twice, since a dropout writes into it.
ALIKE = [name for name in FAMILIES if name != "efficientnet_b0"]
Program = torch.export.ExportedProgram


def exported(model: nn.Module, example: torch.Tensor) -> Program:
    shapes = ({0: torch.export.Dim.AUTO},)
    return torch.export.export(model, (example,), dynamic_shapes=shapes)


def plain(program: Program) -> list[Any]:
    """Operators, their arguments by place in this list, and what they make; sizes by dimension."""
    names: dict[fx.Node, str] = {}
    found: list[Any] = []
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            names[node] = f"size {node.args[1]}"
            continue
        names[node] = node.name if node.op == "placeholder" else str(len(found))
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda old: f"%{names[old]}")
        values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        types = [(one.dtype, str(one.shape)) for one in values if isinstance(one, torch.Tensor)]
        module = [*(node.meta.get("nn_module_stack") or {})]
        target = "" if node.op == "output" else str(node.target)
        found.append((target, str(arguments), types, module * (node.op == "call_function")))
    return found


def results(program: Program) -> list[tuple[Any, Any]]:
    return [(spec.kind, spec.target) for spec in program.graph_signature.output_specs]


@pytest.mark.long
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", each_model(names=ALIKE, quick=["lenet5"]))
def test_programs_of_models_are_those_that_torch_makes(name: str, training: bool) -> None:
    model, shape = load_model(name, device="meta")
    program = exported(model.train(training), torch.zeros(2, *shape, device="meta"))
    leave_out_idle_dropouts(program)
    by_torch = program.run_decompositions(dict(TRACED_AS))
    made = made_functional(program)
    assert plain(made) == plain(by_torch)
    assert results(made) == results(by_torch)


# ------------------------------------------------------------------ what Python does


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y + 1
        y.relu_().add_(z)
        y.clamp_(max=3)
        return y - z


class Counting(nn.Module):
    """Buffers that are written twice, and read before, between and after."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(()))
        self.register_buffer("unread", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x * self.count
        self.count.mul_(3)
        second = x * self.count
        self.count.add_(1)
        self.unread.copy_(x.mean(0))
        return first + second * self.count


class Norms(nn.Module):
    """One norm for two maps, then dropouts that draw nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer_norm = nn.BatchNorm1d(3), nn.LayerNorm(3)
        self.drop = nn.Dropout(0.0, inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x)) + self.layer_norm(self.norm(x * 2).relu_())


class Idle(nn.Module):
    """What dropouts that drop nothing return is what they are given, not a copy."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        same = torch.nn.functional.dropout(torch.nn.functional.alpha_dropout(y, 0.3, False), 0.0)
        same.mul_(2)
        return y * 3, torch.nn.functional.dropout1d(same, training=False)


class OfView(nn.Module):
    """What is written into a view is read there alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).reshape(-1).sigmoid_().view(-1, 3)


class OfHalves(nn.Module):
    """Views of one tensor, which may overlap for all that is known."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.cat((x, x), 1).chunk(2, 1)
        return first + second.mul_(2)


class Constants(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0]).mul_(2)


class BaseRead(nn.Module):
    """What is written into a view is read through its base."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y[:, 0].mul_(5)
        return y


class ViewRead(nn.Module):
    """What is written into a base is read through a view that is older."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        view = y.view(-1)
        y.mul_(5)
        return view * 2


class ViewWritten(nn.Module):
    """What is written into a view is read through its base, which was itself written into."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x + 1).relu_()
        y += x
        y[:, 0] = 0
        return y


class LastInMemory(nn.Module):
    """A norm in a permuted map, whose result lies in memory otherwise than torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(5), nn.Linear(15, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = (x[:, None] * torch.arange(1.0, 6.0)[:, None]).transpose(1, 2)
        return self.head(torch.nn.functional.gelu(self.norm(maps)).flatten(1))


class ReadNumber(nn.Module):
    """A size that is the value of a buffer: only torch can trace what it is computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.tensor([1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.tensor_split(self.place, 1)
        return first.sum() + second * 2


class ByShare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).multiply_(1 / x.shape[0])


class Several(nn.Module):
    """One operator that writes into two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("sum", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._foreach_lerp_([self.mean, self.sum], [x.mean(0), x.sum(0)], 0.1)
        return x * self.mean + self.sum


class Masked(nn.Module):
    """What is written in place keeps its layout; the operator that returns it does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = (x[:, :, None, None] * torch.ones(2, 5)).contiguous(
            memory_format=torch.channels_last
        )
        maps = maps + 1
        maps.masked_fill_(maps > 1, 0.0)
        return maps.permute(0, 2, 3, 1).flatten(1)


class Filled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(3)
        mask[1:] = 2
        return x * mask


class Narrowed(nn.Module):
    """A number of less precision stays one when a more precise one is added in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half().add_(x.double()).float()


BY_US = [Chain, Counting, Norms, Idle, OfView, Constants, LastInMemory]
BY_TORCH = [OfHalves, BaseRead, ViewRead, ViewWritten, Filled, Narrowed]
BY_TORCH += [Masked, Several, ReadNumber, ByShare]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", BY_US + BY_TORCH)
def test_programs_compute_what_modules_do(
    kind: type[nn.Module], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind().train(training)
    program = exported(model, torch.randn(4, 3))
    leave_out_idle_dropouts(program)
    by_torch = []
    decompose = Program.run_decompositions
    monkeypatch.setattr(
        Program, "run_decompositions", lambda *args: by_torch.append(kind) or decompose(*args)
    )
    made = made_functional(program)
    monkeypatch.undo()
    assert by_torch == [kind] * (kind in BY_TORCH)
    targets = [node.target for node in made.graph.nodes if isinstance(node.target, OpOverload)]
    assert not any(target._schema.is_mutable for target in targets)
    alone = made.module()
    original = copy.deepcopy(model)
    for _ in range(2):
        example = torch.randn(5, 3)
        torch.testing.assert_close(alone(example), original(example), rtol=0, atol=1e-6)
    state = dict(alone.named_buffers())
    for name, buffer in original.named_buffers():
        torch.testing.assert_close(state[name], buffer, rtol=0, atol=1e-6)


def test_what_a_replacement_calls_by_its_overload_stays_whole() -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bi,ci->bc", x, x)

    made = made_functional(exported(Product(), torch.randn(4, 3)))
    targets = [node.target for node in made.graph.nodes]
    assert torch.ops.aten.matmul.default in targets
    assert torch.ops.aten.mm.default not in targets


class Sharing(nn.Module):
    """A buffer and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.ones(3))
        self.register_buffer("first", self.counts[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts.add_(1)
        return x * self.first.sum()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_buffers_that_share_memory_are_refused_if_they_are_written(device: str) -> None:
    """What is written into one was not seen in the other."""
    model = Sharing()
    if device == "meta":
        model.counts = model.counts.to("meta")
        model.first = model.counts[:2]
    with pytest.raises(TraceError):
        trace(model, torch.zeros(4, 3, device=device))


def test_a_module_with_two_names_has_running_statistics() -> None:
    """Under its other name their memory seemed to be shared, so that it could not be traced."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model.alias = model[1]
    traced = trace(model, torch.randn(2, 3, 8, 8))
    written = {traced.buffers[placeholder] for placeholder in traced.updates}
    assert written == {f"alias.{name}" for name, _ in model[1].named_buffers()}


def test_a_buffer_that_is_detached_is_not_written() -> None:
    class Detaching(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.detach_()
            return x * self.count

    made = made_functional(exported(Detaching(), torch.randn(4, 3)))
    assert [spec.kind.name for spec in made.graph_signature.output_specs] == ["USER_OUTPUT"]
