"""LayerTimes, Machine -> seconds that no step takes less than, however the work is divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.machine import Machine
from hgpart.prediction.predict import sharing_of
from hgpart.work.layer_times import LayerTimes, Pass


def least_seconds(
    times: LayerTimes,
    graph: ChannelGraph,
    machine: Machine,
    batch_size: int,
    *,
    divides_batch: bool = True,
    training: bool = True,
    streams: bool = False,
) -> float:
    """Seconds of a batch, its update included, that the simulation of no way can be below.

    It is the largest of three. All work, each layer in the share and batch in which it takes least
    for what it does, over the speed of all devices, as much as they have together. The critical
    path: one sample goes through all layers and, in training, back, each layer divided among all
    devices; of a layer with rows, one row of one filter. And the longest task: one device computes
    a filter, or a row of it, for the whole batch where that can't be divided. What travels counts
    as nothing, so that a step may always take longer.

    Parameters
    ----------
    machine : Machine
        All of its devices may be used.
    divides_batch : bool
        Whether devices, or micro-batches, may have samples of their own.
    training : bool
        Whether there is a backward pass and an update.
    streams : bool
        Whether batches follow each other without a stop: none waits for the path of another.
    """
    bound = _Bound(times, graph, batch_size if not divides_batch else 1, batch_size, training)
    speeds = [device.speed for device in machine.devices]
    work = sum(bound.work(at) for at in bound.computing) / _speed(machine, times)
    alone = bound.task() if streams else max(bound.task(), bound.path(machine.k))
    return max(work, alone / max(speeds))


class _Bound:
    """What layers take at least; `fewest` is the least number of samples of a device."""

    def __init__(
        self, times: LayerTimes, graph: ChannelGraph, fewest: int, batch_size: int, training: bool
    ) -> None:
        self._times, self._graph, self._training = times, graph, training
        self._fewest, self._batch = fewest, batch_size
        self._learns: list[bool] = []  # of each layer, whether gradients go back through it
        self._returns: list[bool] = []  # whether they go on to what it reads
        for layer in graph.layers:
            self._returns.append(any(self._learns[at] for at in graph.sources(layer)))
            self._learns.append(bool(layer.parameter_names) or self._returns[-1])

    @property
    def computing(self) -> Iterator[int]:
        """Layers that compute something."""
        return (at for at, known in enumerate(self._times.layers) if known is not None)

    def work(self, at: int) -> float:
        """Least seconds of all tasks of a layer for all samples, however they are divided."""
        total = self._both_ways(at, lambda which: self._batch * self._of_a_sample(at, which))
        if self._training:
            shares = self._shares(at)
            total += min(self._times.seconds(at, Pass.UPDATE, share, 1) / share for share in shares)
        return total

    def _of_a_sample(self, at: int, which: Pass) -> float:
        """Least seconds of all tasks of a layer for one sample, however they are divided."""
        # Seconds of a task and sample are least at a measured point: between two of them they
        # are a sum of terms that fall or rise all the way, and beyond them constant.
        needed, of_tile = self._rows(at)
        fewest = self._fewest * of_tile
        measured = (size for size in self._times.samples if fewest <= size <= self._batch)
        return needed * min(
            self._times.seconds(at, which, share, size) / (share * size)
            for share in self._shares(at)
            for size in {*measured, fewest, self._batch}
        )

    def _shares(self, at: int) -> list[float]:
        known = self._times.layers[at]
        assert known is not None
        return [count / known.tasks[-1] for count in known.tasks]

    def _rows(self, at: int) -> tuple[float, float]:
        """Fractions of a layer's rows: what all its tiles need, and the least that one computes."""
        rows = self._graph.layer_rows[at]
        if rows.total is not None:
            return 1.0, 1 / rows.total.height
        if not rows.is_banded or rows.height is None:
            return 1.0, 1.0
        if rows.head is None:
            return 1.0, 1 / rows.height
        return len(np.unique(rows.head.reads.values)) / rows.head.height, 1 / rows.head.height

    def path(self, k: int) -> float:
        """Least seconds of one batch of the fewest samples through all layers, and back."""
        through = list[float]()
        for at, layer in enumerate(self._graph.layers):
            own = 0.0
            if self._times.layers[at] is not None:
                passes = [Pass.FORWARD, *[Pass.MAPS] * (self._training and self._returns[at])]
                own = sum(self._divided(at, which, k) for which in passes)
            sources = self._graph.sources(layer)
            through.append(own + max((through[source] for source in sources), default=0.0))
        return max(through, default=0.0)

    def _divided(self, at: int, which: Pass, k: int) -> float:
        """Least seconds of a layer for the fewest samples, divided among all devices."""
        tile = self._tile(at, which)
        if self._rows(at)[1] < 1:  # the next layer need not wait for all of its rows
            return tile
        return max(tile, self._times.seconds(at, which, 1 / k, self._fewest))

    def _tile(self, at: int, which: Pass) -> float:
        """Seconds of one task of a layer, and one row of it, for the fewest samples."""
        known = self._times.layers[at]
        assert known is not None
        samples = self._fewest * self._rows(at)[1]
        return self._times.seconds(at, which, 1 / known.tasks[-1], samples)

    def task(self) -> float:
        """Seconds of the longest task, for the fewest samples."""
        return max(
            (self._both_ways(at, partial(self._tile, at)) for at in self.computing), default=0.0
        )

    def _both_ways(self, at: int, seconds: Callable[[Pass], float]) -> float:
        """Forward and, in training, the cheaper of the ways back."""
        total = seconds(Pass.FORWARD)
        if not self._training or not self._learns[at]:
            return total
        apart = [Pass.MAPS] * self._returns[at]
        apart += [Pass.WEIGHTS] * bool(self._graph.layers[at].parameter_names)
        return total + min(seconds(Pass.BACKWARD), sum(map(seconds, apart)))


def _speed(machine: Machine, times: LayerTimes) -> float:
    """How many devices of speed 1 all of them are worth, where they slow each other down."""
    sharing = sharing_of(machine, machine.k, times)
    ends = [0]
    for count in machine.nodes:
        ends.append(ends[-1] + count)
    total = 0.0
    for begin, end in pairwise(ends):
        speeds = sorted((device.speed for device in machine.devices[begin:end]), reverse=True)
        total += max(
            sum(speeds[:count]) / min(sharing.slowdown.of(count), sharing.memory_bound.of(count))
            for count in range(1, len(speeds) + 1)
        )
    return total
