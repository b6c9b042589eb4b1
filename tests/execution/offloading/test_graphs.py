"""What goes to slower memory comes back as it was, once, and leaves nothing behind."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn

from hgpart.errors import RunError
from hgpart.execution.held_memory import kept_by_graph, storages
from hgpart.execution.instructions import Graph
from hgpart.execution.offloading import graphs
from hgpart.execution.offloading.graphs import Offloading, inspected
from hgpart.execution.offloading.stores import InFile


class Counting(InFile):
    """Notes what is written and read."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.returned = list[int](), list[int]()

    def write(self, data):
        self.written.append(data.nbytes)
        return super().write(data)

    def read(self, file, begin, nbytes):
        self.returned.append(nbytes)
        return super().read(file, begin, nbytes)


def offloaded(memory: InFile, module: nn.Module, inputs: Tensor) -> Tensor:
    """The module's result, whose graph keeps all but weights elsewhere."""
    offloading = Offloading(memory)
    offloading.let_stay([*module.parameters(), *module.buffers()])
    with offloading.graphs():
        return module(inputs)


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch):
    monkeypatch.setattr(graphs, "LEAST", 1)


def modules():
    """Layers that keep maps in different ways: of several, in views, in halves and in place."""
    torch.manual_seed(0)
    return {
        "layers": nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 6), nn.Softmax(1),
        ),
        "in place": nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        "complex": nn.Sequential(Spectrum(), nn.Conv2d(3, 4, 1)),
        "recurrent": nn.Sequential(nn.Flatten(2), Last(nn.LSTM(100, 5, batch_first=True))),
    }  # fmt: skip


class Spectrum(nn.Module):
    def forward(self, maps):
        spectrum = torch.fft.rfft2(maps)
        return torch.fft.irfft2(spectrum * spectrum.conj())


class Last(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, maps):
        return self.inner(maps)[0]


@pytest.mark.parametrize("name", [*modules()])
def test_gradients_are_the_same_bits(name):
    module = modules()[name]
    inputs = torch.randn(2, 3, 10, 10, requires_grad=True)

    def gradients(result: Tensor) -> list[Tensor]:
        weights = [*module.parameters()]
        return [*torch.autograd.grad(result.square().sum(), [inputs, *weights])]

    torch.manual_seed(1)
    expected = gradients(module(inputs))
    torch.manual_seed(1)
    memory = Counting()
    result = offloaded(memory, module, inputs)
    assert memory.written
    assert not memory.returned
    found = gradients(result)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert sorted(memory.returned) == sorted(memory.written)


def test_what_several_graphs_keep_is_written_and_read_once():
    """The map between two layers is what both keep; weights stay."""
    layers = nn.Sequential(nn.Sigmoid(), nn.Linear(10, 10, bias=False))
    inputs = torch.randn(5, 10, requires_grad=True)
    memory = Counting()
    result = offloaded(memory, layers, inputs)
    assert memory.written == [200]
    result.sum().backward()
    assert memory.returned == [200]


def test_a_graph_that_is_looked_into_reads_nothing():
    layers = nn.Sequential(nn.Sigmoid(), nn.Tanh())
    memory = Counting()
    result = offloaded(memory, layers, torch.randn(5, 10, requires_grad=True))
    edge = torch.autograd.graph.get_gradient_edge(result)
    with inspected() as met:
        kept = [*kept_by_graph([edge])]
    assert len(met) == 2
    assert sum(tensor.nbytes for tensor in kept if not tensor.requires_grad) == 0
    assert not memory.returned


def test_what_stays_and_is_changed_before_backward_is_refused():
    """As autograd does, which looks at nothing that goes through hooks."""
    layer = nn.Linear(10, 10)
    inputs = torch.randn(5, 10, requires_grad=True)
    result = offloaded(InFile(), layer, inputs)
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RunError, match=r"a tensor of shape \(10, 10\) .* was changed in place"):
        result.sum().backward()


def test_a_graph_that_others_have_read_for_is_counted_anew():
    """The map between the two is back when the second has run, and the first keeps it, too."""
    inputs = torch.randn(5, 10, requires_grad=True)
    with Offloading(InFile()).graphs():
        between = torch.sigmoid(inputs)
        read = between.detach().requires_grad_()
        result = read.square()
    graph = Graph([(0, torch.autograd.graph.get_gradient_edge(between))], [], [])
    known = WeakKeyDictionary()
    assert sum(storages(graph, known).values()) == inputs.nbytes
    torch.autograd.grad(result.sum(), [read], retain_graph=True)
    assert sum(storages(graph, known).values()) == inputs.nbytes + between.nbytes
