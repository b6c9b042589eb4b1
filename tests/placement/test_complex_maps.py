"""Complex maps, as those of Fourier layers, travel as they are, and so do their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import placements
import pytest
import torch
from torch import Tensor, nn

from hgpart import Modelling, place
from hgpart.errors import PlacementError

IMAGES = torch.randn(4, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """Computes with complex numbers between two convolutions."""

    def __init__(self, middle: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.double()
        self.scale = nn.Parameter(torch.randn(4, 1, 1, dtype=torch.complex128))
        self.modes = nn.Parameter(torch.randn(4, 4, 2, 2, dtype=torch.complex128))
        self.mix = nn.Conv2d(4, 4, 1, dtype=torch.complex128)
        self.middle = middle

    def forward(self, x: Tensor) -> Any:
        made = self.middle(self, self.first(x))
        return made if made.is_complex() else self.last(made)


def turned(maps: Tensor) -> Tensor:
    return torch.complex(maps, maps.flip(1))


def scaled(module: Any, maps: Tensor) -> Tensor:
    values = turned(maps) * module.scale * (1 + 2j)
    return torch.view_as_real(values)[..., 0] + maps + values.imag


def conjugated(module: Any, maps: Tensor) -> Tensor:
    values = (turned(maps) * module.scale).conj()
    return values.imag + (values * values.flip(1)).real


def transformed(module: Any, maps: Tensor) -> Tensor:
    found = torch.fft.rfft2(maps)
    return torch.fft.irfft2(found * found.flip(1), s=(6, 6)) + maps


def low_modes(module: Any, maps: Tensor) -> Tensor:
    """As Fourier neural operators write it."""
    found = torch.fft.rfft2(maps)
    made = torch.zeros(maps.shape[0], 4, 6, 4, dtype=torch.complex128)
    made[:, :, :2, :2] = torch.einsum("bixy,ioxy->boxy", found[:, :, :2, :2], module.modes)
    return torch.fft.irfft2(made, s=(6, 6))


def channels_written(module: Any, maps: Tensor) -> Tensor:
    values = turned(maps) * module.scale
    made = torch.zeros_like(values)
    made[:, 1:3] = values[:, :2]
    made[:, 0] = values[:, 3].conj()
    made.diagonal(0, 2, 3).copy_(values[:, :, 0])
    return made.abs() + made.real


def convolved(module: Any, maps: Tensor) -> Tensor:
    return torch.polar(module.mix(turned(maps)).abs(), maps).imag


def returned(module: Any, maps: Tensor) -> Tensor:
    return module.mix(turned(maps)) * module.scale


MIDDLES = (*(scaled, conjugated, transformed, low_modes, channels_written, convolved, returned),)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", pytest.param("fine", marks=pytest.mark.full)])
@pytest.mark.parametrize("middle", MIDDLES)
def test_complex_maps_and_their_gradients_travel_as_they_are(middle, grain) -> None:
    """A complex map was no floating one, so its gradient was left out where it came from elsewhere.

    What is written into a slice of one is traced as an operator that torch can't go back through.
    """
    model = Between(middle)
    traced, graph = placements.traced_model(model, [IMAGES])
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), 3, seed=1)
    placed = placements.check_equal(model, [IMAGES], plan)
    assert placed.programs.expected(4).traffic.sum() > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "middle", [conjugated, *(pytest.param(one, marks=pytest.mark.full) for one in MIDDLES)]
)
def test_slices_of_the_batch_have_complex_maps_and_parameters_too(middle) -> None:
    model = Between(middle)
    traced, graph = placements.traced_model(model, [IMAGES])
    modelling = Modelling(slices=2, batch_size=4)
    placed = place(model, placements.of_single_tasks(traced, graph, modelling, 2, seed=1))
    original = copy.deepcopy(model)
    found, expected = placed(IMAGES), original(IMAGES)
    torch.testing.assert_close(found, expected)
    for one in (found, expected):
        one.abs().square().mean().backward()
    for part in range(placed.k):
        for held, tensor in placed.held(part):
            wanted = original.get_parameter(held.name).grad
            if wanted is not None and tensor.numel():
                torch.testing.assert_close(tensor.grad, held.take(wanted))


def filtered(module: Any, maps: Tensor) -> Tensor:
    return torch.fft.irfft2(torch.fft.rfft2(maps) * module.scale, s=(6, 6))


def widened(module: Any, maps: Tensor) -> Tensor:
    """Real weights, and a map of larger elements than theirs."""
    values = module.first(maps[:, :3]).to(torch.complex128)
    return values.real + (values * values.flip(1)).real


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize(
    "middle",
    [
        filtered,
        widened,
        *(pytest.param(one, marks=pytest.mark.full) for one in (convolved, scaled)),
    ],
)
def test_a_parameter_has_bytes_of_its_own_type_over_slices(middle, grain) -> None:
    """Those of a complex one were counted as large as the elements of what its layer makes."""
    model, moved = Between(middle), set[int]()
    traced, graph = placements.traced_model(model, [IMAGES])
    own = {one.name: one for layer in graph.layers for one in layer.own_parameters}
    for name, parameter in model.named_parameters():
        if name in own:
            assert own[name].elements * own[name].element_bytes == parameter.nbytes
    for seed in range(2):
        plan = placements.of_single_tasks(
            traced, graph, Modelling(grain=grain, slices=2, batch_size=4), 2 + seed % 2, seed
        )
        placed = place(model, plan)
        placed(IMAGES).square().mean().backward()
        sent, expected = placed.runtime.last.traffic, placed.programs.expected_traffic([4], True)
        assert (sent.forward_bytes == expected.forward_bytes).all()
        assert (sent.backward_bytes == expected.backward_bytes).all()
        assert sent.forward_bytes.sum() == placed.programs.planned_bytes([4], True)
        moved.add(int(sent.forward_bytes.sum()))
    assert len(moved) == 2


def test_weights_are_complex_in_the_other_mode_too() -> None:
    """The trace of another mode made them real, as it made all tensors of one type."""
    model = Between(convolved)
    traced, graph = placements.traced_model(model, [IMAGES])
    placed = place(model, placements.of_single_tasks(traced, graph, Modelling(), 2, seed=0))
    placements.check_as(copy.deepcopy(model).eval(), placed.eval(), [IMAGES])


def test_another_type_is_refused_where_numbers_are_complex() -> None:
    """Of double precision they are complex128, which transfers as traced are not."""
    model = Between(scaled)
    traced, graph = placements.traced_model(model, [IMAGES])
    placed = place(model, placements.of_single_tasks(traced, graph, Modelling(), 2, seed=0))
    with pytest.raises(
        PlacementError, match=r"complex numbers, in torch.float32: accepted is torc"
    ):
        placed.float()
    placements.check_as(copy.deepcopy(model), placed, [IMAGES])
