"""Seconds of one device, links -> seconds of a batch on several, by published formulas.

The formulas are those of Jansen, "A performance-based recommender system for distributed DNN
training" (chapters 4 to 7); that for PipeDream, which it lacks, is by PipeDream's authors. They
know nothing of a plan inside layers, of waiting or of devices that share a processor; they are here
to be compared with.

A link is a function: of a number of bytes, the seconds that they take over it. In that thesis it
is ``L + bytes / BW`` with a latency L in seconds and a bandwidth BW in bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

from hgpart.errors import ArgumentError

__all__ = [
    "PipeDreamStage",
    "data_parallel_seconds",
    "gpipe_scalability",
    "gpipe_seconds",
    "gpipe_sending_seconds",
    "pipedream_seconds",
    "sequential_seconds",
]

LinkSeconds = Callable[[float], float]


def sequential_seconds(measured: Sequence[float], batches: int) -> float:
    """Seconds of an epoch on one device: the mean of some batches, times all (section 4.1).

    Parameters
    ----------
    measured : sequence of float
        Seconds of some batches.
    batches : int
        Batches of an epoch.

    Raises
    ------
    ArgumentError
        If no batch was measured, or there are to be less than none.

    >>> sequential_seconds([0.25, 0.75], batches=100)
    50.0
    """
    if not measured:
        raise ArgumentError("no measured batch: accepted is one or more")
    _check_count("batches", batches, least=0)
    return sum(_seconds("a batch", one) for one in measured) / len(measured) * batches


def data_parallel_seconds(
    sequential: float,
    gradient_bytes: float,
    ring: Sequence[LinkSeconds],
    threshold: float = math.inf,
) -> float:
    """Seconds of a batch by data parallelism with a ring all-reduce, as Horovod's (equation 5.1).

    ``T_seq / W + 2 (W - 1) max_i (L_i + min(G, th) / (W BW_i))``: all devices compute their share
    of the batch, and only the last all-reduce is not hidden behind that.

    Parameters
    ----------
    sequential : float
        T_seq, seconds of the batch on one device.
    gradient_bytes : float
        G, of the whole model.
    ring : sequence of link
        From each of the W devices to the next one, and from the last to the first; of one device
        none are used.
    threshold : float
        th, bytes that are reduced at a time at most.

    Raises
    ------
    ArgumentError
        If there is no device, or a number is negative.

    >>> data_parallel_seconds(8.0, 100e6, [lambda nbytes: 0.5 + nbytes / 100e6] * 4)
    6.5
    """
    workers = _check_count("links of a ring", len(ring))
    reduced = min(_bytes("gradients", gradient_bytes), _bytes("an all-reduce", threshold))
    slowest = max(link(reduced / workers) for link in ring) if workers > 1 else 0.0
    return _seconds("a batch", sequential) / workers + 2 * (workers - 1) * slowest


def gpipe_scalability(workers: int, micro_batches: int) -> float:
    """Share of one device's seconds that GPipe computes for (equation 6.1, table 6.1).

    ``(W + #mb - 1) / (W #mb)``: W equal stages, a fill and an emptying of W - 1 micro-batches.

    Parameters
    ----------
    workers : int
        W, stages.
    micro_batches : int
        #mb: micro-batches of a batch.

    Raises
    ------
    ArgumentError
        If one of them is less than 1.

    >>> [f"{gpipe_scalability(4, each):.2f}" for each in (12, 12, 20, 28, 30)]
    ['0.31', '0.31', '0.29', '0.28', '0.28']
    """
    _check_count("workers", workers)
    _check_count("micro-batches", micro_batches)
    return (workers + micro_batches - 1) / (workers * micro_batches)


def gpipe_sending_seconds(
    links: Sequence[LinkSeconds], nbytes: Sequence[float], micro_batches: int
) -> float:
    """Seconds in which GPipe's stages send, where nothing is hidden behind it (equation 6.2).

    All stages send at once, and wait for the slowest: ``2 (sum_i max_{j<=i} c_j + (#mb - (W - 2))
    max_j c_j + sum_{i>=2} max_{j>=i} c_j)`` with ``c_j = L_j + mb A_j / BW_j``, forward and
    backward; the sums are over the W - 2 steps that fill and empty the pipeline.

    Parameters
    ----------
    links : sequence of link
        Links from each of the W stages but the last to the next one.
    nbytes : sequence of float
        mb A_j: bytes of the maps of a micro-batch that go over each link.
    micro_batches : int
        #mb: micro-batches of a batch.

    Raises
    ------
    ArgumentError
        If there are not as many sizes as links, or a number is too small.

    >>> gpipe_sending_seconds([lambda nbytes: nbytes / 100] * 3, [100, 200, 100], micro_batches=4)
    20.0
    """
    if len(links) != len(nbytes):
        raise ArgumentError(
            f"{len(links)} links and bytes of {len(nbytes)}: accepted are as many of both"
        )
    _check_count("micro-batches", micro_batches)
    if not links:
        return 0.0
    seconds = [link(_bytes("maps", size)) for link, size in zip(links, nbytes, strict=True)]
    filling = len(links) - 1
    fill = sum(max(seconds[: step + 1]) for step in range(filling))
    empty = sum(max(seconds[step + 1 :]) for step in range(filling))
    return 2 * (fill + (micro_batches - filling) * max(seconds) + empty)


def gpipe_seconds(
    sequential: float, links: Sequence[LinkSeconds], nbytes: Sequence[float], micro_batches: int
) -> float:
    """Seconds of a batch by GPipe: computing (equation 6.1), and sending (6.2) behind it.

    Parameters
    ----------
    sequential : float
        T_seq, seconds of the batch on one device, in as small batches as the micro-batches.
    links, nbytes, micro_batches
        The same as in `gpipe_sending_seconds`.

    Raises
    ------
    ArgumentError
        If the seconds are negative, or an argument is refused by `gpipe_sending_seconds`.

    >>> gpipe_seconds(8.0, [lambda nbytes: nbytes / 100], [50], micro_batches=4)
    9.0
    """
    computing = _seconds("a batch", sequential) * gpipe_scalability(len(links) + 1, micro_batches)
    return computing + gpipe_sending_seconds(links, nbytes, micro_batches)


@dataclass(frozen=True)
class PipeDreamStage:
    """A run of layers that some devices have copies of, each for other batches.

    Attributes
    ----------
    seconds : float
        Seconds of a batch, forward and backward, on one device.
    workers : int
        Number of devices that have the run.
    weight_bytes : float
        Bytes of the weights.
    among : link
        Link between the devices.
    """

    seconds: float
    workers: int
    weight_bytes: float
    among: LinkSeconds


def pipedream_seconds(
    stages: Sequence[PipeDreamStage], links: Sequence[LinkSeconds], nbytes: Sequence[float]
) -> float:
    """Seconds from one batch's end to the next one's in PipeDream's full pipeline.

    The slowest of all stages and links: ``max(T / m, 2 (m - 1) |w| / (m B))`` of a stage of m
    devices, which takes m batches at a time and hides the exchange of gradients behind them, and
    ``2 a / B`` of a link, for maps and their gradients. From Narayanan et al., "PipeDream:
    Generalized Pipeline Parallelism for DNN Training" (SOSP 2019, section 3.1). The thesis has no
    formula, as what it measured did not work so (figures 7.1 and 7.2).

    Parameters
    ----------
    stages : sequence of PipeDreamStage
        Stages in order.
    links : sequence of link
        Links from each stage but the last to the next one.
    nbytes : sequence of float
        a: bytes of the maps of a batch that go over each link.

    Raises
    ------
    ArgumentError
        If there is no stage, there are not as many links and sizes as there are between them, or
        a number is too small.

    >>> link = lambda nbytes: nbytes / 100  # the 2-1-1 setup of figure 7.1
    >>> stages = [PipeDreamStage(2.0, 2, 50, link), *[PipeDreamStage(1.0, 1, 50, link)] * 2]
    >>> pipedream_seconds(stages, [link, link], [10, 20])
    1.0
    """
    between = _check_count("stages", len(stages)) - 1
    if len(links) != between or len(nbytes) != between:
        raise ArgumentError(
            f"{len(links)} links and bytes of {len(nbytes)} for {len(stages)} stages: accepted are "
            f"{between} of both"
        )
    slowest = [2 * link(_bytes("maps", size)) for link, size in zip(links, nbytes, strict=True)]
    for stage in stages:
        workers = _check_count("workers of a stage", stage.workers)
        slowest.append(_seconds("a stage", stage.seconds) / workers)
        if workers > 1:
            size = _bytes("weights", stage.weight_bytes)
            slowest.append(2 * (workers - 1) / workers * stage.among(size))
    return max(slowest)


def _check_count(what: str, number: int, least: int = 1) -> int:
    if not isinstance(number, Integral) or number < least:
        raise ArgumentError(f"{number!r} {what}: accepted is {least} or more")
    return int(number)


def _seconds(what: str, seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ArgumentError(f"{what} of {seconds!r} s: accepted is 0 or more")
    return float(seconds)


def _bytes(what: str, nbytes: float) -> float:
    if not nbytes >= 0:
        raise ArgumentError(f"{what} of {nbytes!r} bytes: accepted is 0 or more")
    return float(nbytes)
