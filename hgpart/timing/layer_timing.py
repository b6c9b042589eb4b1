"""Model + TracedModel + ChannelGraph -> LayerTimes: measured seconds of shares of each layer."""

from __future__ import annotations

import numpy as np
import torch
from rich.progress import TaskProgressColumn, TimeRemainingColumn
from torch import nn

from hgpart.errors import ArgumentError, ModelError, first_line
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.terminal import progress_bar
from hgpart.timing.passes import TimedShare
from hgpart.timing.rising import rising
from hgpart.timing.share_alone import LayerShares
from hgpart.timing.steady import steady_seconds
from hgpart.tracing.batches import has_dynamic_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.devices import device_named, measured_on
from hgpart.work.layer_times import LayerTimes, Pass, ShareTimes

ENOUGH = 0.05  # seconds of a point, after which it is not run again
REPEATING = 15.0  # the same of all points


def time_layers(
    model: nn.Module,
    traced: TracedModel,
    graph: ChannelGraph,
    *,
    batch_size: int = 32,
    device: str = "cpu",
) -> LayerTimes:
    """Measure what shares of each layer take in batches of up to `batch_size` samples.

    Of one task, an eighth, a quarter, half, three quarters and all of a layer's, with all samples,
    a quarter of them, and so on down to two, and with one: each point until it is steady or has run
    for 50 ms, and all of them for 15 s or once. A share is the step that a part of a placement
    computes, on operands in one piece each; layers that compute the same are measured once. Seconds
    are made to rise with tasks and samples (`rising`), as measured ones may not. The optimizer is
    plain gradient descent.

    Parameters
    ----------
    model : nn.Module
        What was traced. Weights on the meta device are replaced by random ones, a share at a time.
    traced : TracedModel
    graph : ChannelGraph
        Of `traced`.
    batch_size : int
        The most samples. A model that only runs with the batch size it was traced with is measured
        with that one.
    device : str
        "cpu", where as many threads compute as torch has been told, or an accelerator.

    Raises
    ------
    ArgumentError
        If there is no sample, or no such device.
    PlacementError
        If the model can't be placed.
    ModelError
        If a layer can't run on the device, for lack of memory for example.
    """
    if batch_size < 1:
        raise ArgumentError(f"batch size {batch_size}: accepted is 1 or more")
    where = device_named(device)
    fixed = not has_dynamic_batch(traced)
    samples = (traced.batch_size,) if fixed else _samples(batch_size)
    shares = LayerShares(model, traced, graph, where)
    texts: dict[int, tuple[str, ...]] = {}
    for at, layer in enumerate(graph.layers):
        if layer.operators:
            texts[at] = shares.share(at, layer.tasks).text(samples[-1])
    first = {text: at for at, text in reversed(texts.items())}
    counts = {text: _counts(graph.layers[at].tasks) for text, at in first.items()}
    points = len(samples) * sum(map(len, counts.values()))
    enough = min(ENOUGH, REPEATING / max(1, points))
    known: dict[tuple[str, ...], ShareTimes] = {}
    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("profile", total=len(first))
        for text, at in reversed(first.items()):
            progress.update(bar, description=f"profile {graph.layers[at].name}")
            known[text] = _timed(shares, at, counts[text], samples, where, enough)
            progress.advance(bar)
    found = tuple(known[texts[at]] if at in texts else None for at in range(len(graph.layers)))
    most = f"batches of {samples[-1]}" if fixed else f"batches of up to {samples[-1]}"
    return LayerTimes(samples, found, f"profile {measured_on(where, most)}")


def _samples(most: int) -> tuple[int, ...]:
    """All samples, a quarter of them, and so on down to two; and one, for which kernels differ.

    >>> _samples(32), _samples(12), _samples(1)
    ((1, 2, 8, 32), (1, 2, 3, 12), (1,))
    """
    found = [most]
    while found[-1] > 2:
        found.append(max(2, -(-found[-1] // 4)))
    return tuple(sorted({1, *found}))


def _counts(tasks: int) -> tuple[int, ...]:
    """One task, an eighth of them, a quarter, half, three quarters and all; ascending.

    >>> _counts(64), _counts(6), _counts(1)
    ((1, 8, 16, 32, 48, 64), (1, 2, 3, 5, 6), (1,))
    """
    return tuple(sorted({1, *(-(-tasks * eighths // 8) for eighths in (1, 2, 4, 6, 8))}))


def _timed(
    shares: LayerShares,
    at: int,
    counts: tuple[int, ...],
    samples: tuple[int, ...],
    device: torch.device,
    enough: float,
) -> ShareTimes:
    """Measure a layer; each point for as many seconds as are enough."""
    table = np.zeros((len(counts), len(samples), len(Pass)))
    for row, count in enumerate(counts):
        try:
            share = shares.share(at, count)
            shares.fill(share)
            for column, size in enumerate(samples):
                run = TimedShare(share, size, device).run
                table[row, column] = steady_seconds(run, enough)
        except (RuntimeError, IndexError) as error:
            why = first_line(error) or type(error).__name__
            raise ModelError(
                f"can't profile layer {shares.graph.layers[at].name!r} on {device} in batches of "
                f"up to {samples[-1]}: {why}"
            ) from error
    table[:, :, -1] = np.median(table[:, :, -1], axis=1, keepdims=True)  # an update has no samples
    seconds = {which: rising(table[:, :, number]) for number, which in enumerate(Pass)}
    seconds[Pass.UPDATE] = seconds[Pass.UPDATE][:, :1]
    rows = {which: tuple(map(tuple, one.tolist())) for which, one in seconds.items()}
    return ShareTimes(counts, rows)
