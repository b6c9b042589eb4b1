"""Plans over bands in use: other sizes of images, memory, streams, files of weights, types."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import placements
import pytest
import torch
from torch import Tensor, nn

from hgpart import Modelling, Placement, place
from hgpart.errors import ArgumentError, PlacementError
from hgpart.execution.held_memory import memory_counted
from hgpart.placement.accounting import peak_bytes
from hgpart.run.measuring import mean_square, measure
from hgpart.run.scheduling import schedule
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling


class Network(nn.Module):
    """Down, up, and beside: rows of three heights, a norm, and windows that overlap."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm(4), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first(images)
        return self.last(torch.cat([maps, self.up(self.down(maps))], 1))


def banded(
    dtype: torch.dtype = torch.float64, samples: int = 2, norm: type[nn.Module] = nn.BatchNorm2d
) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Network(norm).to(dtype), torch.randn(samples, 3, 12, 6, dtype=dtype)


def placed(model: nn.Module, images: Tensor, k: int = 3, bands: int = 4) -> Placement:
    """In tiles that are dealt out at random."""
    traced, graph = placements.traced_model(model, [images])
    modelling = Modelling(batch_size=len(images), bands=bands)
    plan = placements.of_whole_tiles(traced, graph, modelling, k, 1)
    assert plan.partition.modelling.bands == bands
    return place(copy.deepcopy(model), plan)


def loss_of(result: Tensor, targets: object) -> Tensor:
    return mean_square(result)


@pytest.mark.full
def test_bands_follow_images_of_other_sizes():
    """Of heights that bands divide and that they don't, and back; they have a row each at least."""
    model, images = banded()
    placement = placed(model, images)
    for height, width in ((24, 6), (14, 10), (6, 6), (46, 6), (12, 6)):
        others = torch.randn(3, 3, height, width, dtype=torch.float64)
        assert verify(model, placement.for_inputs([others]), (others,)).failures == ()
    with pytest.raises(ArgumentError, match="4 bands: the tallest maps have 2 rows: accepted is"):
        placement.for_inputs([torch.randn(2, 3, 2, 2, dtype=torch.float64)])


@pytest.mark.full
@pytest.mark.parametrize("recompute", [False, True])
def test_what_bands_hold_is_what_is_computed(recompute):
    model, images = banded(samples=4)
    placement, scheduling = placed(model, images), Scheduling("gpipe", 2, recompute=recompute)
    assert verify(model, placement, (images,), scheduling=scheduling).failures == ()
    order = schedule(placement, "gpipe", 2, recompute=recompute)
    with memory_counted():
        placement.step(images, None, loss_of, order)
    assert placement.runtime.last.peak_bytes == peak_bytes(placement, order)
    assert any(outline.dropped for outline in order.outlines) == recompute


def trained(
    placement: Placement, run: Callable[[list[torch.optim.Optimizer]], None]
) -> list[Tensor]:
    """The state after what `run` does with an optimizer for each part that has weights."""
    modules = (placement.programs.submodule(part) for part in range(placement.k))
    groups = [{"params": [*module.parameters()]} for module in modules]
    run([torch.optim.SGD([group], lr=0.05, momentum=0.9) for group in groups])
    return [*placement.state_dict().values()]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d, pytest.param(nn.Identity, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_streams_over_bands(in_flight, norm):
    """With one batch in flight they are steps, to the bit; with two they are reproducible."""
    model, images = banded(norm=norm)
    batches = [torch.randn_like(images) for _ in range(4)]

    def stream() -> list[Tensor]:
        placement = placed(model, images)
        order = schedule(placement, "async", len(batches), in_flight=in_flight)

        def run(optimizers: list[torch.optim.Optimizer]) -> None:
            def update(part: int) -> None:
                optimizers[part].step()

            placement.stream([(batch, None) for batch in batches], loss_of, update, order)

        return trained(placement, run)

    def steps() -> list[Tensor]:
        placement = placed(model, images)

        def run(optimizers: list[torch.optim.Optimizer]) -> None:
            for batch in batches:
                placement.zero_grad()
                placement.step(batch, None, loss_of, schedule(placement, "sequential"))
                for optimizer in optimizers:
                    optimizer.step()

        return trained(placement, run)

    expected = steps() if in_flight == 1 else stream()
    assert all(map(torch.equal, stream(), expected))


def test_weights_come_from_files_and_go_to_them(tmp_path: Path):
    model, images = banded()
    file = tmp_path / "weights.pt"
    torch.save(model.state_dict(), file)
    placement = placed(Network(nn.BatchNorm2d).double(), images)
    placement.load_checkpoint(file)
    state = placement.state_dict()
    assert [*state] == [*model.state_dict()]
    assert all(map(torch.equal, state.values(), model.state_dict().values()))
    assert verify(model, placement, (images,)).failures == ()


def test_types_of_sixteen_bits():
    model, images = banded(torch.float32, norm=nn.Identity)
    placement = placed(model, images)
    with torch.autocast("cpu", torch.bfloat16):
        result, expected = placement(images), model(images)
    torch.testing.assert_close(result, expected, rtol=0.05, atol=0.05)
    model, images = model.bfloat16(), images.bfloat16()
    torch.testing.assert_close(placed(model, images)(images), model(images), rtol=0.05, atol=0.05)
    with pytest.raises(PlacementError, match="norms over slices or bands are float32 and"):
        half = banded(torch.bfloat16)
        placed(*half)(half[1])


def test_a_timeline_has_each_part():
    model, images = banded(torch.float32)
    found = measure(placed(model, images), images, 1, backward=True, timeline=True)
    assert {event.action.part for step in found.timeline for event in step} == {0, 1, 2}
