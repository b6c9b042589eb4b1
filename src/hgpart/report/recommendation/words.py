"""Recommendation -> sentences: which way is best, and why."""

from __future__ import annotations

from collections.abc import Iterator

from hgpart.recommendation.ranking import Ranked, Recommendation
from hgpart.report.tables import UNITS


def way(one: Ranked) -> str:
    """Say what a way is; of one device its schedule says something only of micro-batches."""
    is_plain = one.division.k == 1 and one.scheduling.micro_batches == 1
    if is_plain:
        return one.division.text
    name, said = one.scheduling.name, one.scheduling.text
    word = "" if one.scheduling.is_stream else " schedule"
    return f"{one.division.text}, {name}{word}{said.removeprefix(name)}"


def answer(found: Recommendation, unit: str) -> str:
    """The first line: the best way, what it takes, and what one device takes."""
    best = found.best
    said = f"Best: {way(best)}: {_of_goal(found, best, unit)}"
    if not found.is_split:
        aim = {"time": "is faster", "memory": "needs less", "throughput": "is faster"}[found.goal]
        return f"{said}; no split {aim}" if found.devices > 1 else said
    speed_up = found.speed_up(best)
    return said if speed_up is None else f"{said}, {speed_up:.2f} times one device"


def reasons(found: Recommendation, unit: str) -> Iterator[str]:
    """Why it is the best: what it computes, waits and sends, and what others do."""
    best = found.best
    if found.is_split:
        yield (
            f"Its devices compute {seconds(best.computing_seconds)} at most and wait "
            f"{seconds(best.waiting_seconds)} on average; {_bytes(best.sent_bytes, unit)} travel, "
            f"{seconds(best.link_seconds)} on the links of the one that sends longest"
            f"{_memory(best, unit)} (simulated)"
        )
        if best.scheduling.is_stream:
            yield (
                "It trains without a stop, by weights that are up to "
                f"{best.scheduling.most_in_flight - 1} updates older than a step's: losses differ"
            )
    other = found.runner_up if found.is_split else _best_split(found)
    if other is not None:
        name = "Next" if found.is_split else "The best split"
        yield (
            f"{name}: {way(other)}: {_of_goal(found, other, unit)}; computes "
            f"{seconds(other.computing_seconds)}, waits {seconds(other.waiting_seconds)}, "
            f"{_bytes(other.sent_bytes, unit)} travel{_memory(other, unit)}"
        )
    if found.is_split:
        alone = found.one_device
        fits = any(one.division.k == 1 for one in found.ranked)
        yield (
            f"One device{'' if fits else ', which has no memory for it,'} takes "
            f"{seconds(alone.seconds)}{_how(alone)}{_memory(alone, unit)}"
        )
    elif found.devices > 1:
        yield f"To split it among {found.devices} devices does not pay"
    if found.measured:
        listed = ", ".join(f"{name} {seconds(one)}" for name, one in found.measured.items())
        yield f"Beside it, measured: {listed} a step"
        fastest = min(found.measured, key=lambda name: found.measured[name])
        if found.goal != "memory" and found.measured[fastest] < best.seconds:
            yield f"{fastest} is faster here than the best of these"


def seconds(value: float) -> str:
    """Three digits.

    >>> seconds(0.21234), seconds(12.3456), seconds(1234.5)
    ('0.212 s', '12.3 s', '1,234 s')
    """
    return f"{value:,.0f} s" if value >= 1000 else f"{value:.3g} s"


def _best_split(found: Recommendation) -> Ranked | None:
    return next((one for one in found.ranked if one.division.k > 1), None)


def _of_goal(found: Recommendation, one: Ranked, unit: str) -> str:
    if found.goal == "throughput":
        return f"{found.batch_size / one.seconds:,.1f} samples/s{_how(one)}"
    if found.goal == "memory" and one.largest_bytes is not None:
        return (
            f"{_bytes(one.largest_bytes, unit)} a device at most, {seconds(one.seconds)} a step"
            f"{_how(one)}"
        )
    return f"{seconds(one.seconds)} a step{_how(one)}"


def _how(one: Ranked) -> str:
    return " (simulated)" if one.measured_seconds is None else " (measured)"


def _memory(one: Ranked, unit: str) -> str:
    if one.largest_bytes is None:
        return ""
    where = "it" if one.division.k == 1 else "the fullest device"
    return f"; {where} needs {_bytes(one.largest_bytes, unit)}"


def _bytes(size: int, unit: str) -> str:
    return f"{size / UNITS[unit]:,.1f} {unit}"
