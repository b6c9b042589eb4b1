"""Recommendation -> its answer in words, its figures, JSON, and a table of the ways."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Any

from rich.console import Console

from hgpart.files.columns import BYTES, UNITS, Column, fields_of
from hgpart.files.fields import report_json
from hgpart.recommendation.memory import BESIDES
from hgpart.recommendation.ranking import Ranked, Recommendation, ServedWay
from hgpart.report.running import dropped_lines, schedule_fields
from hgpart.report.tables import print_ways


def ranked_columns(recommendation: Recommendation) -> list[Column[Ranked | ServedWay]]:
    """The columns of a recommendation."""
    step, median = "Simulated.", "Median of a step, where it was run."
    epoch = "Steps of an epoch, times the median of a measured one, or the simulated seconds."
    over = "Over one device: of measured seconds, where there are any."
    is_measured = any(way.measured_seconds is not None for way in recommendation.ranked)

    columns: list[Column[Ranked | ServedWay]] = [
        Column("way", value=lambda way: way.text),
        Column("", "way", value=lambda way: way.name),
        Column("k", "devices", "Number of devices."),
        Column("simulated_seconds", f"a {recommendation.step}", step, "ms"),
        Column("measured_seconds", "measured" * is_measured, median, "ms"),
        Column(
            "epoch_seconds",
            "an epoch" * (recommendation.epoch_steps is not None),
            epoch,
            "s",
            value=recommendation.epoch_seconds,
        ),
        Column("speed_up", "speed-up", over, value=recommendation.speed_up, decimals=2),
        Column("sent_bytes", "sends", "All devices together.", BYTES),
        Column("largest_bytes", "needs", "The device that needs most memory.", BYTES),
        Column("computing_seconds", "computes", "The device that computes longest.", "ms"),
        Column("waiting_seconds", "waits", "Mean of all devices.", "ms"),
        Column("", "schedule", "Order of the step.", value=lambda way: way.order),
        Column("update_seconds"),
        Column("link_seconds"),
    ]
    return columns


def recommendation_json(recommendation: Recommendation) -> str:
    """All figures as a JSON object, a line for each key and way; of a batch, in seconds."""
    columns = ranked_columns(recommendation)

    def fields(way: Ranked) -> dict[str, Any]:
        return {
            **fields_of(columns, way),
            **schedule_fields(way.scheduling),
            "needed_bytes": way.needed_bytes,
        }

    return report_json(
        {
            "model": recommendation.model,
            "devices": recommendation.devices,
            "machine": recommendation.machine.name,
            "times": recommendation.times,
            "batch_size": recommendation.batch_size,
            "goal": recommendation.goal,
            "cautions": recommendation.cautions,
            "notes": recommendation.notes,
            "simulated_ways": recommendation.simulated,
            "left_out": recommendation.left_out,
            "epoch_steps": recommendation.epoch_steps,
            "least_seconds": recommendation.least_seconds,
            "interrupted": recommendation.interrupted,
            "splits": recommendation.is_split,
            "one_device": fields(recommendation.one_device),
            "measured_besides": recommendation.measured,
            "ways": [*map(fields, recommendation.ranked)],
            "served": [fields_of(columns, way) for way in recommendation.served],
            "dropped": [
                {"way": dropped.what, "why": dropped.why} for dropped in recommendation.dropped
            ],
        }
    )


def _named(ranked: Ranked) -> str:
    """The name of a way, with its schedule unless that is one micro-batch on one device."""
    is_plain = ranked.trial.k == 1 and ranked.scheduling.micro_batches == 1
    if is_plain:
        return ranked.trial.text
    name, text = ranked.scheduling.name, ranked.scheduling.text
    word = "" if ranked.scheduling.is_stream else " schedule"
    return f"{ranked.trial.text}, {name}{word}{text.removeprefix(name)}"


def answer(recommendation: Recommendation, unit: str) -> str:
    """The first line: the best way, what it takes, and what one device takes."""
    best = recommendation.best
    line = f"Best: {_named(best)}: {_of_goal(recommendation, best, unit)}"
    if (faster := recommendation.faster_elsewhere) is not None:
        name, spent = faster
        line = f"Fastest: {name}, {seconds(spent)} a step (measured); best of hgpart{line[4:]}"
    if not recommendation.is_split:
        if faster is not None or recommendation.devices == 1:
            return line
        aim = "needs less" if recommendation.goal == "memory" else "is faster"
        return f"{line}; no split {aim}{_bound(recommendation, ', nor can any be')}"
    speed_up = recommendation.speed_up(best)
    if speed_up is None:
        return line
    line = f"{line}, {speed_up:.2f} times as fast as one device"
    return f"{line}{_bound(recommendation, '; no way can be')}"


def _bound(recommendation: Recommendation, none: str) -> str:
    """The speed-up that no way can exceed, by simulation; nothing where it is not known."""
    most = recommendation.most_speed_up
    if most is None or recommendation.goal == "memory":
        return ""
    how = "" if recommendation.best.measured_seconds is None else ", by simulation"
    return f"{none} more than {most:.2f} times as fast{how}"


def reasons(recommendation: Recommendation, unit: str) -> Iterator[str]:
    """Why it is the best: what it computes, waits and sends, and what others do."""
    best = recommendation.best
    if recommendation.is_split:
        if best.partition.modelling.bands > 1:
            yield f"{best.trial.way.name}: {best.trial.way.words}"
        yield (
            f"The busiest device computes for {seconds(best.computing_seconds)}; a device waits "
            f"for {seconds(best.waiting_seconds)} on average; {_bytes(best.sent_bytes, unit)} "
            f"travel, for {seconds(best.link_seconds)} on the links of the device that sends "
            f"longest{_memory(best, unit)} (simulated)"
        )
        if best.scheduling.is_stream:
            yield (
                "It trains as a stream, without a flush: weights are up to "
                f"{best.scheduling.most_in_flight - 1} updates old, so losses differ"
            )
    dropped = [*dropped_lines(best.scheduling.recompute)]
    yield from (f"So as to fit into memory, {line}" for line in dropped)
    if dropped:
        yield f"Leave room in the limit: {BESIDES}"
    if (other := recommendation.runner_up) is not None:
        name = "Next" if recommendation.is_split else "The best split"
        yield (
            f"{name}: {_named(other)}: {_of_goal(recommendation, other, unit)}; the busiest device "
            f"computes for {seconds(other.computing_seconds)}, a device waits for "
            f"{seconds(other.waiting_seconds)} on average, {_bytes(other.sent_bytes, unit)} travel"
            f"{_memory(other, unit)}"
        )
    if recommendation.is_split:
        alone = recommendation.one_device
        fits = any(ranked.trial.k == 1 for ranked in recommendation.ranked)
        yield (
            f"One device{'' if fits else _why_not(recommendation)} takes "
            f"{seconds(alone.seconds)}{_how(alone)}{_memory(alone, unit)}"
        )
    elif recommendation.devices > 1:
        yield f"To split it among {recommendation.devices} devices does not pay"
    if recommendation.epoch_steps is not None:
        count, alone = recommendation.epoch_steps, recommendation.one_device
        on_one = f", on one device {seconds(count * alone.seconds)}" * recommendation.is_split
        yield f"An epoch of {count:,} steps takes {seconds(count * best.seconds)}{on_one}"
    if recommendation.measured:
        listed = ", ".join(
            f"{name} {seconds(spent)}" for name, spent in recommendation.measured.items()
        )
        yield f"Also measured, a step: {listed}"


def seconds(value: float) -> str:
    """Seconds with three digits.

    >>> seconds(0.21234), seconds(12.3456), seconds(1234.5)
    ('0.212 s', '12.3 s', '1,234 s')
    """
    return f"{value:,.0f} s" if value >= 1000 else f"{value:.3g} s"


def _of_goal(recommendation: Recommendation, ranked: Ranked, unit: str) -> str:
    if recommendation.goal in ("throughput", "inference-throughput"):
        return f"{recommendation.batch_size / ranked.seconds:,.1f} samples/s{_how(ranked)}"
    if recommendation.goal == "memory" and ranked.largest_bytes is not None:
        return (
            f"{_bytes(ranked.largest_bytes, unit)} a device at most, {seconds(ranked.seconds)} "
            f"a step{_how(ranked)}"
        )
    return f"{seconds(ranked.seconds)} a {recommendation.step}{_how(ranked)}"


def _why_not(recommendation: Recommendation) -> str:
    """Why one device is only compared with."""
    if recommendation.best.plan.partition.problem.constraints:
        return ", which does not keep to the constraints,"
    return ", which has no memory for it,"


def _how(ranked: Ranked) -> str:
    return " (simulated)" if ranked.measured_seconds is None else " (measured)"


def _memory(ranked: Ranked, unit: str) -> str:
    if ranked.largest_bytes is None:
        return ""
    where = "it" if ranked.trial.k == 1 else "the fullest device"
    return f"; {where} needs {_bytes(ranked.largest_bytes, unit)}"


def _bytes(size: int, unit: str) -> str:
    return f"{size / UNITS[unit]:,.1f} {unit}"


def print_recommendation(
    recommendation: Recommendation, console: Console, unit: str, *, wide: bool = False
) -> None:
    """Print the answer first, then why, the ways in their order, and those that were dropped.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    wide : bool
        Whether all columns are printed, however wide the console is.
    """
    console.print(answer(recommendation, unit), style="bold")
    reason = reasons(recommendation, unit)
    for line in (*recommendation.cautions, *reason, *recommendation.notes):
        console.print(line, soft_wrap="hgpart " in line)  # a command is copied whole
    console.print()
    is_measured = any(ranked.measured_seconds is not None for ranked in recommendation.ranked)
    how = "simulated, except where it says measured" if is_measured else "simulated"
    title = (
        f"{recommendation.model}, {recommendation.steps} on {recommendation.machine.name} ({how})"
    )
    print_ways(console, title, ranked_columns(recommendation), recommendation.rows, unit, wide=wide)
    for way in recommendation.served:
        of_step = f"--devices {way.workers} --batch-size {recommendation.batch_size}"
        train = f"hgpart train {quote(recommendation.model)} {of_step} --way {way.name}"
        console.print(f"{way.name} is no plan, and is run by: {train}", soft_wrap=True)
    left = (
        f"; no time for {recommendation.left_out} others: --time-limit"
        if recommendation.left_out
        else ""
    )
    console.print(
        f"{recommendation.simulated} ways simulated, the best of each division is shown{left}"
    )
    if recommendation.dropped:
        console.print()
        console.print("Dropped", style="bold")
        for dropped in recommendation.dropped:
            console.print(f"{dropped.what}: {dropped.why}")
