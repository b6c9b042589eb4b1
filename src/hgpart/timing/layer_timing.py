"""Model + TracedModel + ChannelGraph -> LayerTimes: measured seconds of shares of each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from rich.progress import TaskProgressColumn, TimeRemainingColumn
from torch import nn

from hgpart.arrays import Float64
from hgpart.errors import ArgumentError, ModelError, first_line
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.terminal import progress_bar
from hgpart.timing.rising import rising
from hgpart.timing.share_alone import LayerShares, TimedShare
from hgpart.timing.steady import steady_seconds
from hgpart.timing.step_timing import BRIEF, StepTimes, time_steps
from hgpart.timing.whole_model import whole_model
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.devices import device_named, measured_on
from hgpart.work.layer_times import LayerTimes, Pass, ShareTimes
from hgpart.work.watching import Watch

ENOUGH = 0.05  # seconds of measuring a point, after which its runs end
REPEATING = 6.0  # seconds of measuring all points
EIGHTHS, FEW_EIGHTHS = (1, 2, 4, 6, 8), (2, 4, 8)  # of a layer's tasks


def time_layers(
    model: nn.Module,
    traced: TracedModel,
    graph: ChannelGraph,
    *,
    batch_size: int = 32,
    device: str = "cpu",
    briefly: bool = False,
) -> LayerTimes:
    """Measure the seconds of shares of each layer in batches of up to `batch_size` samples.

    Whole layers are measured in steps of the whole model: with all samples, a quarter of them, and
    so on down to two, and with one, as long as a step takes no more than 8 s; on a CPU once more
    while other processes go through such steps on the remaining cores. Shares of a layer are
    measured alone, with all of these sizes but the largest: one task, an eighth, a quarter, half,
    three quarters and all of them, each until it is steady or has run for 50 ms, and all for 6 s
    or once. A share's seconds, relative to those of all tasks measured alone, are then applied to
    the seconds of the whole layer. Layers that compute the same have the same shares. Seconds are
    made to rise with tasks and samples (`rising`), as measured ones may not. The optimizer is plain
    gradient descent.

    A measurement that other programs disturb is made once more; if they disturb that as well, the
    times say so.

    Where memory has no room for a whole step, seconds are those of layers measured alone.

    Parameters
    ----------
    model : nn.Module
        The traced model. It is measured with random weights.
    graph : ChannelGraph
        Channel graph of `traced`.
    batch_size : int
        The largest number of samples. A model that only runs with the batch size of its trace is
        measured with that.
    device : str
        "cpu", with as many threads as torch has been told, or an accelerator.
    briefly : bool
        Whether some ten seconds must do, where steps are run afterwards: of all numbers of samples
        the two largest, of all shares one task, a quarter, half and all of them, nothing beside
        other processes, and a third of the repetitions.

    Raises
    ------
    ArgumentError
        If `batch_size` is less than 1, or there is no such device.
    PlacementError
        If the model can't be placed.
    ModelError
        If a layer can't run on the device, for lack of memory for example.
    """
    if batch_size < 1:
        raise ArgumentError(f"batch size {batch_size}: accepted is 1 or more")
    where = device_named(device)
    fixed = not traced.has_dynamic_batch
    samples = (traced.batch_size,) if fixed else _samples(batch_size)[-2 if briefly else 0 :]
    watch = Watch(repeats=not briefly)
    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("profile steps", total=1.0)

        def tell(what: str, done: float) -> None:
            progress.update(bar, description=f"profile {what}", completed=done)

        steps = None
        whole = whole_model(model, traced, graph, samples, where)
        if whole is not None:
            with _named("the whole model", where, samples[-1]):
                steps = time_steps(whole, lambda what: tell(what, 0.0), watch, briefly=briefly)
            samples = steps.samples
        shares = LayerShares(model, traced, graph, where)
        alone = _shares_alone(
            shares,
            samples[: max(1, len(samples) - (steps is not None))],
            where,
            tell,
            watch,
            briefly=briefly,
        )
    layers = tuple(
        None if times is None else _in_steps(times, at, steps) for at, times in enumerate(alone)
    )
    most = f"batches of {samples[-1]}" if fixed else f"batches of up to {samples[-1]}"
    suffix = "" if steps is not None else ", layers on their own"
    return LayerTimes(
        samples,
        layers,
        f"profile {measured_on(where, most + suffix)}",
        neighbours=0 if steps is None else steps.neighbours,
        beside=1.0 if steps is None else steps.beside,
        disturbed=watch.disturbed,
    )


def _shares_alone(
    shares: LayerShares,
    samples: Sequence[int],
    device: torch.device,
    tell: Callable[[str, float], None],
    watch: Watch,
    *,
    briefly: bool,
) -> list[_LayerAlone | None]:
    """The times of each layer's shares, measured alone; layers that compute the same, once."""
    layers = shares.graph.layers
    texts: dict[int, tuple[str, ...]] = {}
    for at, layer in enumerate(layers):
        if layer.operators:
            texts[at] = shares.share(at, layer.tasks).text(samples[-1])
    first = {text: at for at, text in reversed(texts.items())}
    eighths = FEW_EIGHTHS if briefly else EIGHTHS
    counts = {text: _counts(layers[at].tasks, eighths) for text, at in first.items()}
    points = len(samples) * sum(map(len, counts.values()))
    enough = min(ENOUGH, REPEATING / max(1, points)) / (BRIEF if briefly else 1)
    known: dict[tuple[str, ...], _LayerAlone] = {}
    for text, at in reversed(first.items()):
        tell(layers[at].name, len(known) / len(first))
        known[text] = watch.measure(
            partial(_timed, shares, at, counts[text], samples, device, enough),
            computes=device.type == "cpu",
        )
    return [known[texts[at]] if at in texts else None for at in range(len(layers))]


@dataclass(frozen=True, eq=False)
class _LayerAlone:
    """Times of a layer measured alone.

    Attributes
    ----------
    counts : tuple of int
        Numbers of tasks.
    table : float64 array, shape (counts, samples, 4)
        Seconds of forward, maps, weights and update.
    """

    counts: tuple[int, ...]
    table: Float64


def _in_steps(alone: _LayerAlone, at: int, steps: StepTimes | None) -> ShareTimes:
    """Times of a layer's shares in steps, where the whole layer takes what was measured there."""
    forward, maps, weights, update = np.moveaxis(alone.table, 2, 0)
    tables = {
        Pass.FORWARD: forward,
        Pass.BACKWARD: maps + weights,
        Pass.MAPS: maps,
        Pass.WEIGHTS: weights,
        Pass.UPDATE: update,
    }
    if steps is not None:
        for which, table in tables.items():
            whole = steps.seconds[which][at]
            columns = np.minimum(np.arange(len(whole)), table.shape[1] - 1)
            # Shares are made to rise first: noise may make one take longer than the whole layer.
            risen = rising(table)[:, columns]
            tables[which] = risen / np.maximum(risen[-1], 1e-12) * whole
    # An update has no samples.
    tables[Pass.UPDATE] = np.median(tables[Pass.UPDATE], axis=1, keepdims=True)
    seconds = {which: tuple(map(tuple, rising(tables[which]).tolist())) for which in Pass}
    return ShareTimes(alone.counts, seconds)


def _samples(most: int) -> tuple[int, ...]:
    """All samples, a quarter of them, and so on down to two; and one, whose kernels differ.

    >>> _samples(32), _samples(12), _samples(1)
    ((1, 2, 8, 32), (1, 2, 3, 12), (1,))
    """
    sizes = [most]
    while sizes[-1] > 2:
        sizes.append(max(2, -(-sizes[-1] // 4)))
    return tuple(sorted({1, *sizes}))


def _counts(tasks: int, eighths: Sequence[int] = EIGHTHS) -> tuple[int, ...]:
    """One task, and so many eighths of them; ascending.

    >>> _counts(64), _counts(6), _counts(1)
    ((1, 8, 16, 32, 48, 64), (1, 2, 3, 5, 6), (1,))
    """
    return tuple(sorted({1, *(-(-tasks * count // 8) for count in eighths)}))


def _timed(
    shares: LayerShares,
    at: int,
    counts: tuple[int, ...],
    samples: Sequence[int],
    device: torch.device,
    enough: float,
) -> _LayerAlone:
    """Measure a layer; each point for `enough` seconds."""
    table = np.zeros((len(counts), len(samples), 4))
    for row, count in enumerate(counts):
        with _named(f"layer {shares.graph.layers[at].name!r}", device, samples[-1]):
            share = shares.share(at, count)
            shares.fill(share)
            for column, size in enumerate(samples):
                run = TimedShare(share, size, device).run
                table[row, column] = steady_seconds(run, enough)
    return _LayerAlone(counts, table)


@contextmanager
def _named(what: str, device: torch.device, most: int) -> Iterator[None]:
    """Name what could not be measured in the error."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        why = first_line(error) or type(error).__name__
        raise ModelError(
            f"can't profile {what} on {device} in batches of up to {most}: {why}"
        ) from error
