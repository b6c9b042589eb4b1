"""Model + Placement + inputs -> Verification: the placed model side by side with the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, RunError
from hgpart.execution.records.totals import Traffic
from hgpart.operators.calls import has_gradients
from hgpart.placement import Placement
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.expected import float_type
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.run.placed_model import held_by_parts
from hgpart.run.reference import accumulated
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.arguments import Inputs, as_called

# The parts add the same terms in another order, so results differ by rounding: by the type's
# epsilon (2e-16, 1e-7), times what the layers make of it. These leave room for a factor of half
# a million and of a thousand; what is wrong in the placement differs by far more.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}

# Tensors much smaller than the others are compared on the others' scale: the gradient of a bias
# in front of a batch norm, say, is nothing but rounding.
FLOOR = 1e-3


@dataclass(frozen=True)
class Difference:
    """The largest relative difference among tensors of one kind, and which has it.

    The difference of two tensors is the largest of their elements', over the largest element of
    the original, or over a thousandth of the largest of all originals if that is more. Elements
    that are NaN in both, or the same infinity, are equal. It is infinite where shapes or whole
    numbers differ, and where an element is NaN or infinite in one alone.

    Attributes
    ----------
    value : float
    name : str
    nan_in : str
        The first tensor that has NaN, at the same places in both; empty if none has.
    """

    value: float = 0.0
    name: str = ""
    nan_in: str = ""


@dataclass(frozen=True, eq=False)
class Verification:
    """A placed model beside the original, on one batch.

    Attributes
    ----------
    k, batch_size : int
    scheduling : Scheduling or None
        By which micro-batches were run; None if the placement was called like the model.
    norms : str
        What updates running statistics, ``micro-batch`` or ``batch``.
    training : bool
        The mode of both.
    dtype : torch.dtype
    tolerance : float
        What differences may be.
    outputs, gradients, buffers : Difference
        Of the results, of the parameters' gradients, and of what the pass made of the buffers,
        such as running statistics.
    traffic : Traffic
        As the runtime counted it.
    planned : Traffic
        As the table says it: forward from the partition's hypergraph; backward all that can have
        a gradient comes back.
    planned_bytes : int or None
        All that travels forward, by the plan's hypergraph over all slices. None where a slice has
        no sample, of which a plan says nothing.
    misplaced : tuple of str
        Parameters with an element that not exactly one part holds.
    """

    k: int
    batch_size: int
    scheduling: Scheduling | None
    norms: str
    training: bool
    dtype: torch.dtype
    tolerance: float
    outputs: Difference
    gradients: Difference
    buffers: Difference
    traffic: Traffic
    planned: Traffic
    planned_bytes: int | None
    misplaced: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each thing that is not as it should be, the results first."""
        found = [
            f"{kind} differ {self._how(one)}"
            for kind, one in (
                ("outputs", self.outputs),
                ("gradients", self.gradients),
                ("buffers", self.buffers),
            )
            if not one.value <= self.tolerance
        ]
        for figure in ("forward_bytes", "forward_messages", "backward_bytes", "backward_messages"):
            found += _unequal(figure, getattr(self.traffic, figure), getattr(self.planned, figure))
        parts_send = int(self.planned.forward_bytes.sum())
        if self.planned_bytes is not None and parts_send != self.planned_bytes:
            found.append(
                f"forward, parts send {parts_send:,} bytes by the table of their shares of the "
                f"batch, {self.planned_bytes:,} by the plan's"
            )
        return (
            *found,
            *(f"an element of {name} is in no part, or in several" for name in self.misplaced),
        )

    def _how(self, difference: Difference) -> str:
        if difference.value < math.inf:
            return (
                f"by {difference.value:.1e} in {difference.name}, accepted is {self.tolerance:.0e}"
            )
        return (
            f"in {difference.name}: in shape or whole numbers, or in elements that are NaN or "
            "infinite in one alone"
        )


def verify(
    model: nn.Module,
    placement: Placement,
    inputs: Inputs,
    seed: int = 0,
    tolerance: float | None = None,
    scheduling: Scheduling | None = None,
) -> Verification:
    """Run both on the same batch, forward and backward, and compare all that comes of it.

    Random masks are the same in both, since torch's generator has the same seed before each; they
    are drawn on the CPU, so a model with dropout has to be there. Both are left with the gradients
    and running statistics of this pass, and the generator with the state that it had.

    Parameters
    ----------
    model : nn.Module
        The original, with the weights and in the mode of the placement.
    placement : Placement
        All its parts in this process.
    inputs : tensor, sequence or mapping
        A batch, as `Placement.step` takes it.
    seed : int
        Of the masks, and of the random gradients of the results.
    tolerance : float, optional
        By default 1e-10 for float64 and 1e-4 for float32.
    scheduling : Scheduling, optional
        Run in micro-batches, beside the original that adds up their gradients one after the other.
        Where the batch is in slices it is always run so. The original is run on the whole batch at
        once, unless that makes something else: norms in training take statistics of, or update
        running ones by, each micro-batch and slice (of all slices together if norms are of the
        batch), and a loss that the model returns is one of each.

    Raises
    ------
    ArgumentError
        If the two are not in the same mode, there is no tolerance for the model's type, or the
        inputs are not the model's.
    PlacementError
        As in `Passes.check_batch`, for each micro-batch.
    RunError
        If the results are not of the same kind.
    """
    if placement.training != model.training:
        modes = {True: "training", False: "evaluation"}
        raise ArgumentError(
            f"the model is in {modes[model.training]} mode, the placement in "
            f"{modes[placement.training]} mode: accepted are two in one mode"
        )
    # Where a tensor lies in memory decides in which order a model draws a mask for it.
    args, kwargs = pytree.tree_map_only(Tensor, Tensor.contiguous, as_called(inputs))
    inputs, tensors = kwargs or args, placement.programs.arguments.tensors_of(args, kwargs)
    placement.for_inputs(inputs)
    dtype = float_type([*model.parameters(), *tensors])
    if tolerance is None:
        if dtype not in TOLERANCES:
            raise ArgumentError(f"{dtype}: accepted without a tolerance are float64 and float32")
        tolerance = TOLERANCES[dtype]
    batch_size = placement.programs.batch_size_of(tensors)
    shares = placement.programs.shares
    if scheduling is None and len(shares) > 1:
        scheduling = Scheduling("sequential")
    sizes = (batch_size,) if scheduling is None else scheduling.sizes(batch_size)
    placement.passes.check_batch(batch_size, [None] * len(tensors))
    placement.passes.check_alike(sizes)
    placement.copies.let_weights_travel()  # as the table has it, whatever was run before
    with torch.random.fork_rng(devices=[]):
        if scheduling is None:
            expected = _passes(model, inputs, seed)
            found = _passes(placement, inputs, seed)
        else:
            of_shares = [each for size in sizes for each in sizes_of(shares, size)]
            whole = partial(
                accumulated,
                model,
                inputs,
                sizes=of_shares,
                norms=placement.programs.norms,
                shares=len(shares),
                together=placement.programs.has_norms_of_batch,
            )
            if placement.programs.blueprint.keeps_samples_apart:
                whole = partial(whole, shares=len(of_shares), together=True)
            expected = _steps(model, whole, sizes, seed)
            order = wanted_schedule(placement, scheduling, backward=True, batch_size=batch_size)
            step = partial(placement.step, inputs, schedule=order)
            found = _steps(placement, step, sizes, seed)
    if found.keys() != expected.keys():
        raise RunError(
            f"the placed model returns {', '.join(found)}; the original {', '.join(expected)}"
        )
    last = placement.runtime.last
    learns = any(result.requires_grad for result in expected.values())
    return Verification(
        k=placement.k,
        batch_size=batch_size,
        scheduling=scheduling,
        norms=placement.programs.norms,
        training=model.training,
        dtype=dtype,
        tolerance=tolerance,
        outputs=_largest(_gap(name, expected[name], found[name]) for name in expected),
        gradients=_largest(_gradients(model, placement)),
        buffers=_largest(_buffers(model, placement)),
        traffic=last.traffic,
        planned=placement.programs.expected_traffic(sizes, learns),
        planned_bytes=placement.programs.planned_bytes(sizes, learns),
        misplaced=tuple(_misplaced(model, placement)),
    )


def _passes(model: nn.Module, inputs: Inputs, seed: int) -> dict[str, Tensor]:
    """Forward, and backward from random gradients; the results by where they stand."""
    args, kwargs = as_called(inputs)
    model.zero_grad()
    torch.manual_seed(seed)
    with torch.enable_grad():
        results = _named(model(*args, **kwargs))
    torch.manual_seed(seed)
    learning = [
        (result, torch.randn(result.shape, dtype=torch.float64).to(result))
        for result in results.values()
        if result.requires_grad
    ]
    if learning:
        heads, gradients = zip(*learning, strict=True)
        torch.autograd.backward(heads, gradients)
    return results


def _steps(
    model: nn.Module, step: Callable[..., object], sizes: Sequence[int], seed: int
) -> dict[str, Tensor]:
    """The same in micro-batches, by a function of targets and loss function."""
    model.zero_grad()
    made: dict[str, Tensor] = {}

    def loss_of(result: object, samples: Tensor) -> Tensor:
        first = int(samples[0])
        results = {f"{name} of sample {first} on": one for name, one in _named(result).items()}
        made.update(
            (name, one.detach().requires_grad_(one.requires_grad)) for name, one in results.items()
        )
        generator = torch.Generator().manual_seed(seed + first)
        terms = [
            (
                one * torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one)
            ).real.sum()
            for one in results.values()
            if one.requires_grad
        ]
        return torch.stack(terms).sum() if terms else torch.zeros(())

    torch.manual_seed(seed)
    with torch.enable_grad():
        step(targets=torch.arange(sum(sizes)), loss_fn=loss_of)
    return made


def _named(result: object) -> dict[str, Tensor]:
    """Tensors by where they stand."""
    leaves = pytree.tree_leaves_with_path(result)
    return {
        f"result{pytree.keystr(path)}": leaf for path, leaf in leaves if isinstance(leaf, Tensor)
    }


def _unequal(figure: str, counted: Int64, planned: Int64) -> Iterator[str]:
    direction, unit = figure.split("_")
    for sender, receiver in np.argwhere(counted != planned).tolist():
        yield (
            f"{direction}, part {sender} sent {counted[sender, receiver]:,} {unit} to part "
            f"{receiver}, by the table {planned[sender, receiver]:,}"
        )


# ------------------------------------------------------------------ differences


class _Gap(NamedTuple):
    """Name, largest difference, largest element of the original, whether both have NaN alike."""

    name: str
    value: float
    scale: float
    nan: bool = False


def _gap(name: str, expected: Tensor, found: Tensor, whole: Tensor | None = None) -> _Gap:
    """Compare two tensors, be they a slice of a whole."""
    scale = _largest_element(expected if whole is None else whole)
    expected, found = expected.detach(), found.detach().to(expected.device)
    if expected.shape != found.shape:
        return _Gap(name, math.inf, scale)
    if torch.equal(expected, found):
        return _Gap(name, 0.0, scale)
    if not has_gradients(expected.dtype):  # counters and indices are equal or wrong
        return _Gap(name, math.inf, scale)
    nan = expected.isnan() & found.isnan()
    differing = ~(nan | (expected == found))
    if not (expected.isfinite() & found.isfinite())[differing].all():
        return _Gap(name, math.inf, scale)
    return _Gap(name, _largest_element((expected - found)[differing]), scale, bool(nan.any()))


def _largest_element(tensor: Tensor) -> float:
    """Of those that are finite."""
    if not has_gradients(tensor.dtype):
        return 0.0
    tensor = tensor.detach()
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _largest(gaps: Iterable[_Gap]) -> Difference:
    gaps = list(gaps)
    floor = FLOOR * max((gap.scale for gap in gaps), default=0.0)
    found = Difference(nan_in=next((gap.name for gap in gaps if gap.nan), ""))
    for gap in gaps:
        scale = max(gap.scale, floor)
        value = gap.value / scale if scale else gap.value
        if value > found.value:
            found = replace(found, value=value, name=gap.name)
    return found


def _gradients(model: nn.Module, placement: Placement) -> Iterator[_Gap]:
    originals = dict(model.named_parameters(remove_duplicate=False))
    for _, held, tensor in held_by_parts(placement):
        if held.name in originals:
            gradient = originals[held.name].grad
            if gradient is None and tensor.grad is None:
                continue
            whole = torch.zeros_like(originals[held.name]) if gradient is None else gradient
            own = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            yield _gap(held.name, held.take(whole), own, whole)


def _buffers(model: nn.Module, placement: Placement) -> Iterator[_Gap]:
    originals = dict(model.named_buffers(remove_duplicate=False))
    for _, held, tensor in held_by_parts(placement):
        if held.name in originals:
            whole = originals[held.name]
            yield _gap(held.name, held.take(whole), tensor, whole)


# ------------------------------------------------------------------ who holds what


def _misplaced(model: nn.Module, placement: Placement) -> Iterator[str]:
    names = {name: id(one) for name, one in model.named_parameters(remove_duplicate=False)}
    slices: dict[int, list[Slice]] = {}
    for _, held, _ in held_by_parts(placement):
        if held.name in names:
            slices.setdefault(names[held.name], []).append(held)
    for name, parameter in model.named_parameters():
        times = torch.zeros(parameter.shape, dtype=torch.int16)
        for held in slices.get(id(parameter), []):
            one = torch.zeros_like(times)
            held.put(one, torch.ones(held.local_shape))
            times += one
        if not (times == 1).all():
            yield name
