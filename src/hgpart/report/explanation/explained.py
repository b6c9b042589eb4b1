"""Explanation -> text, tables and JSON: why each layer lies where it does, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from hgpart.explanation.explaining import (
    BALANCE,
    CONSTRAINTS,
    MEMORY,
    NEIGHBOURS,
    Explanation,
    LayerExplanation,
    limit_of,
)
from hgpart.explanation.moves import Move
from hgpart.explanation.share_nets import Grown, Paid
from hgpart.files.columns import BYTES, UNITS, Column
from hgpart.files.fields import report_json
from hgpart.partition import Partition
from hgpart.report.partition.printing import beside
from hgpart.report.partition.slice_shares import ranges
from hgpart.report.tables import counted, print_columns

MOST_PAYMENTS = 5  # of all nets that are listed, the largest
MOST_GROWTH = 3  # neighbours that a sentence names
MOST_NAMES = 2  # readers that a line names


@dataclass(frozen=True, eq=False)
class ExplanationReport:
    """An explanation, and what it is of.

    Attributes
    ----------
    model : str
        The model spec.
    named : str
        The layer, or the pattern, that was asked for; empty for all layers.
    """

    model: str
    explanation: Explanation
    named: str = ""

    @property
    def partition(self) -> Partition:
        """The partition that is explained."""
        return self.explanation.partition


def bottleneck_answer(report: ExplanationReport, unit: str) -> str:
    """The device that others wait for, and what would relieve it, in two sentences."""
    explanation, bottleneck = report.explanation, report.explanation.bottleneck
    part, relief, limits = bottleneck.part, bottleneck.relief, limits_text(report.partition)
    if report.partition.k == 1:
        return "One device computes everything: nothing travels, and there is no other place"
    if explanation.step is None:
        first = f"Device {part} has most work: {bottleneck.load:.2f} times its share"
        helps = "makes the largest load smaller"
    else:
        step = explanation.step
        busy = float(step.busy[part])
        waits = " and waits for others for the rest" if busy < 0.5 * step.seconds else ""
        first = (
            f"Device {part} is the bottleneck: it computes for {time_text(busy)} of a step of "
            f"{time_text(step.seconds)}{waits} (simulated)"
        )
        helps = "makes the step shorter"
    if relief is not None:
        return f"{first}. What relieves it most: {_relief(report, relief, unit)}"
    if not bottleneck.tried:
        return f"{first}. No other device has room within {limits} for any share of its layers"
    moves = "no single move away from it"
    if bottleneck.tried < bottleneck.possible:
        of = f"the {bottleneck.tried} most promising of {bottleneck.possible}"
        moves = f"none of {of} moves away from it"
    return f"{first}, and {moves} within {limits} {helps}"


def _relief(report: ExplanationReport, move: Move, unit: str) -> str:
    step, part = report.explanation.step, report.explanation.bottleneck.part
    moved = _moved(move)
    if step is not None and move.seconds is not None:
        gain = f"{time_text(move.seconds)} a step"
    else:
        before, after = (
            int(partition.evaluation.loads[part])
            for partition in (report.partition, move.partition)
        )
        gain = f"{100 * (1 - after / max(1, before)):.0f} % less work"
    return f"{moved}, for {gain} and {_more(move.more_bytes, unit)}"


def _moved(move: Move) -> str:
    if move.source is None:
        return f"{move.layer} whole on device {move.target}"
    return f"the share of {move.layer} on device {move.source} moved to device {move.target}"


def _more(nbytes: int, unit: str) -> str:
    """A change of bytes.

    >>> _more(25_690_112, "MB"), _more(-500_000, "MB"), _more(0, "MB")
    ('25.69 MB more', '0.5 MB fewer', 'as many bytes')
    """
    if not nbytes:
        return "as many bytes"
    return f"{size_text(abs(nbytes), unit)} {'more' if nbytes > 0 else 'fewer'}"


def time_text(seconds: float) -> str:
    """Seconds as text.

    >>> time_text(10.9384), time_text(0.000598)
    ('10.94 s', '0.598 ms')
    """
    return f"{seconds:.4g} s" if seconds >= 0.1 else f"{1000 * seconds:.4g} ms"


def size_text(nbytes: int, unit: str) -> str:
    """Bytes in one of `UNITS`, with four digits."""
    return f"{nbytes / UNITS[unit]:.4g} {unit}"


def explanation_notes(report: ExplanationReport, unit: str) -> Iterator[str]:
    """What is explained, and what the seconds are simulated with."""
    partition, explanation = report.partition, report.explanation
    modelling, evaluation, eps = partition.modelling, partition.evaluation, partition.problem.eps
    divided = f", {modelling.slices} slices of the batch" if modelling.slices > 1 else ""
    divided += f", {modelling.bands} bands of rows" if modelling.bands > 1 else ""
    allowed = "allowed" if evaluation.imbalance <= eps else "more than the allowed"
    yield (
        f"{report.model} on {counted(partition.k, 'device')}, {modelling.grain}-grain{divided}: "
        f"imbalance {beside(eps, evaluation.imbalance)} ({allowed} {eps:g}), "
        f"{size_text(evaluation.volume, unit)} {way_of(partition)}"
    )
    if explanation.step is not None:
        step = explanation.step
        yield f"Seconds are simulated, for {step.assumed}; schedule: {step.scheduling.text}"
    elif explanation.no_seconds:
        yield f"No seconds: {explanation.no_seconds}"
    needed = int(explanation.memory_bytes.argmax())
    most = size_text(int(explanation.memory_bytes[needed]), unit)
    copies = f"{explanation.copies:g} copies of its parameters, and its maps"
    yield f"Device {needed} needs most memory: {most} ({copies})"


def limits_text(partition: Partition) -> str:
    """The limits within which other places are allowed."""
    problem = partition.problem
    memory = " and memory" if problem.memory is not None else ""
    constraints = " and constraints" if problem.constraints else ""
    return f"eps {problem.eps:g}{memory}{constraints}"


def way_of(partition: Partition) -> str:
    """When the volume of a partition travels."""
    modelling = partition.modelling
    each_way = modelling.training and modelling.slices * modelling.bands > 1
    samples = counted(modelling.batch_size, "sample")
    what = "each way per training step" if each_way else "between devices per forward pass"
    return f"{what} of {samples}"


# ------------------------------------------------------------------ tables


def layer_columns(report: ExplanationReport) -> list[Column[LayerExplanation]]:
    """Where each layer is, what it costs there, its best other place, and what holds it."""
    step = report.explanation.step

    def more_seconds(layer: LayerExplanation) -> float | None:
        if step is None or layer.best is None or layer.best.seconds is None:
            return None
        return layer.best.seconds / step.seconds - 1

    columns: list[Column[LayerExplanation]] = [
        Column("name", "layer", value=lambda layer: _name(layer)),
        Column("", "on", "The devices that compute it.", value=lambda row: ranges(row.parts)),
        Column("work", "work", "Its share of the model's work.", "%", decimals=1, detail=True),
        Column(
            "sent_bytes",
            "sends",
            "What travels of its own: maps, partial sums, gradients, statistics.",
            BYTES,
        ),
        Column(
            "received_bytes",
            "gets",
            "What comes for it from other layers; two that read the same both count it.",
            BYTES,
            detail=True,
        ),
        Column("", "best other", "The cheapest other place that is allowed.", value=_instead),
        Column(
            "",
            "more",
            "Bytes that it would add there; below 0 where it saves.",
            BYTES,
            lambda layer: None if layer.best is None else layer.best.more_bytes,
        ),
    ]
    if step is not None:
        meaning = "How much longer a step would be, simulated."
        columns.append(Column("", "more time", meaning, "%", more_seconds, decimals=1, detail=True))
    columns.append(Column("", "held by", "What keeps it where it is.", value=held_by))
    return columns


def _name(layer: LayerExplanation) -> str:
    return f"{layer.name} (+{len(layer.tied)})" if layer.tied else layer.name


def _instead(layer: LayerExplanation) -> str | None:
    move = layer.best
    if move is None:
        return None
    if move.source is None:
        return f"{'all ' if len(layer.parts) > 1 else ''}on {move.target}"
    return f"{move.source} to {move.target}"


def held_by(layer: LayerExplanation) -> str:
    """What holds a layer, in a word or two."""
    why = layer.hold.why
    if layer.hold.move is None:
        return "-"
    words = {BALANCE: "eps"}  # the others are said as they are
    if why == NEIGHBOURS and layer.best is None:
        limit = limit_of(layer.hold.move)
        return f"{why}, {words.get(limit, limit)}"
    return words.get(why, why)


def payment_columns(report: ExplanationReport) -> list[Column[Paid]]:
    """What travels from where to where, and how much."""
    volume = max(1, report.partition.evaluation.volume)
    named = report.partition.model.views

    def route(paid: Paid) -> str:
        others = ranges(paid.others)
        is_sent = paid.what == "maps"
        return f"{paid.root} to {others}" if is_sent else f"{others} to {paid.root}"

    return [
        Column("", "of", value=lambda paid: named[paid.layer].layer.name),
        Column("", "what", value=lambda paid: paid.what),
        Column("", "devices", value=route),
        Column("", "bytes", "", BYTES, lambda paid: paid.nbytes),
        Column("", "of all", "", "%", lambda paid: paid.nbytes / volume, decimals=1),
        Column(
            "", "read by", value=lambda paid: ", ".join(_names(report, paid.readers)) or "itself"
        ),
    ]


def print_explanation(report: ExplanationReport, console: Console, unit: str) -> None:
    """Print the bottleneck, the nets that pay most, and the layers; or all about one layer.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    explanation = report.explanation
    if report.named and len(explanation.layers) == 1:
        print_layer(report, explanation.layers[0], console, unit)
        return
    console.print(bottleneck_answer(report, unit), style="bold")
    for line in explanation_notes(report, unit):
        console.print(line)
    if report.partition.k == 1:
        return
    paid = explanation.payments
    if report.named:
        own = {item[:4] for layer in explanation.layers for item in layer.payments}
        paid = tuple(item for item in paid if item[:4] in own)
    if paid:
        console.print()
        shown = paid[:MOST_PAYMENTS]
        title = f"Most bytes, {first_of(len(shown), len(paid))} ({way_of(report.partition)})"
        print_columns(console, title, payment_columns(report), shown, unit, texts_left=True)
    console.print()
    print_columns(
        console,
        layers_title(report),
        layer_columns(report),
        explanation.layers,
        unit,
        texts_left=True,
    )
    console.print(legend(report))
    console.print("More, and in sentences: hgpart explain PLAN LAYER")


def first_of(shown: int, count: int) -> str:
    """How many of the rows that there are a table shows."""
    return f"the first {shown} of {count}" if shown < count else f"all {count}"


def layers_title(report: ExplanationReport) -> str:
    """Title of the table of layers."""
    return f"Layers (best other: the cheapest other place within {limits_text(report.partition)})"


def legend(report: ExplanationReport) -> str:
    """What the words of the last column mean."""
    layers = report.explanation.layers
    words = {word for layer in layers for word in held_by(layer).split(", ")}
    is_volume = report.partition.problem.objective.is_volume
    worse = "sends more" if is_volume else "is worse by the objective"
    meanings = {
        "neighbours": f"any other place {worse}",
        "constraints": "the cheapest other place breaks some",
        "eps": "the cheapest other place has no room within eps",
        "memory": "the cheapest other place has not the memory",
        "nothing": "another place costs no more",
    }
    known = (f"{word}, {text}" for word, text in meanings.items() if word in words)
    adds = "bytes that the best other place adds"
    if report.explanation.step is not None:
        adds = "bytes and simulated seconds that the best other place adds"
    return f"More: {adds}. Held by: {'; '.join(known)}"


# ------------------------------------------------------------------ one layer


def print_layer(
    report: ExplanationReport, layer: LayerExplanation, console: Console, unit: str
) -> None:
    """Print all about one layer, in sentences, and the nets that it pays for."""
    first, *others = layer_sentences(report, layer, unit)
    console.print(first, style="bold")
    for line in others:
        console.print(line)
    if layer.payments:
        console.print()
        title = f"What travels of it and for it ({way_of(report.partition)})"
        print_columns(
            console, title, payment_columns(report), layer.payments, unit, texts_left=True
        )


def layer_sentences(report: ExplanationReport, layer: LayerExplanation, unit: str) -> Iterator[str]:
    """Where a layer is, what it costs there, what another place would cost, and what holds it."""
    yield f"{_name(layer)} is {_where(layer)}. {_hold_words(report, layer, unit)}"
    if layer.tied:
        yield f"{', '.join(layer.tied)} shares its weight, and so its place"
    yield (
        f"Here it sends {size_text(layer.sent_bytes, unit)} and gets "
        f"{size_text(layer.received_bytes, unit)}, {way_of(report.partition)}; it is "
        f"{100 * layer.work:.1f} % of the model's work"
    )
    for share in layer.shares:
        yield (
            f"  device {share.part}: {100 * share.of_load:.1f} % of the device's work, "
            f"{size_text(share.parameter_bytes, unit)} of weights, "
            f"{size_text(share.map_bytes, unit)} of maps"
        )
    if layer.best is not None:
        yield f"Best other place: {_consequences(report, layer.best, unit)}"
    cheapest = layer.hold.move
    if layer.hold.why == NEIGHBOURS and cheapest is not None and not cheapest.is_allowed:
        yield f"Cheapest of all, and not allowed: {_consequences(report, cheapest, unit)}"
    yield from _on_growth(report, layer.hold.growth, unit)


def _names(report: ExplanationReport, layers: Sequence[int]) -> list[str]:
    """Names of layers, of many the first and how many more there are."""
    views = report.partition.model.views
    names = [views[at].layer.name for at in layers]
    if len(names) > MOST_NAMES + 1:
        names[MOST_NAMES:] = [f"{len(names) - MOST_NAMES} more"]
    return names


def _where(layer: LayerExplanation) -> str:
    if len(layer.shares) == 1:
        return f"whole on device {layer.shares[0].part}"
    named = [f"{share.part} ({100 * share.work:.0f} %)" for share in layer.shares]
    if len({round(share.work, 3) for share in layer.shares}) == 1:
        named = [f"{ranges(layer.parts)} ({100 * layer.shares[0].work:.3g} % each)"]
    return f"on devices {', '.join(named)}"


def _hold_words(report: ExplanationReport, layer: LayerExplanation, unit: str) -> str:
    move, why, objective = layer.hold.move, layer.hold.why, report.partition.problem.objective
    if move is None:
        return "There is no other device"
    more = _more(move.more_bytes, unit)
    if why == NEIGHBOURS:
        costs = f"sends at least {more}"
        if not objective.is_volume:
            costs = f"is worse by the objective {objective.name}"
        if layer.best is None and move.broken:
            broken = "; ".join(move.broken)
            return f"Constraints hold it: {broken}. Besides, any other place {costs}"
        also = ", and no other place has room" if layer.best is None else ""
        return f"Its neighbours hold it: any other place {costs}{also}"
    saves = f"{_moved(move)} would send {more}"
    if not objective.is_volume:
        saves = f"{_moved(move)} would be no worse by the objective {objective.name}"
    if why == CONSTRAINTS:
        return f"Constraints hold it: {saves}, but break {'; '.join(move.broken)}"
    if why == BALANCE:
        return f"The balance holds it: {saves}, but {_no_room(report, move)}"
    if why == MEMORY:
        over = size_text(move.over_memory, unit)
        return f"Memory holds it: {saves}, but needs {over} more than a device has"
    return f"Nothing holds it: {saves}"


def _no_room(report: ExplanationReport, move: Move) -> str:
    """How far a device would be above what it may have."""
    rates = np.array(report.partition.problem.rates, dtype=float)
    loads = move.partition.evaluation.loads
    share = loads.sum() * rates[move.target] / rates.sum()
    allowed = 1 + report.partition.problem.eps
    return (
        f"device {move.target} would have {beside(allowed, loads[move.target] / share)} times its "
        f"share of the work (allowed {allowed:g})"
    )


def _consequences(report: ExplanationReport, move: Move, unit: str) -> str:
    imbalance = beside(report.partition.problem.eps, move.imbalance)
    words = [_more(move.more_bytes, unit), f"imbalance {imbalance}"]
    if move.over_load:
        words[1] = _no_room(report, move)
    if move.broken:
        words.append(f"it breaks {'; '.join(move.broken)}")
    before = report.explanation.memory_bytes[move.target]
    words.append(
        f"{size_text(int(move.memory_bytes[move.target]), unit)} of memory on device {move.target} "
        f"(now {size_text(int(before), unit)})"
    )
    step = report.explanation.step
    if step is not None and move.seconds is not None:
        words.append(f"{time_text(move.seconds)} a step (now {time_text(step.seconds)}, simulated)")
    return f"{_moved(move)}: {', '.join(words)}"


def _on_growth(report: ExplanationReport, growth: Sequence[Grown], unit: str) -> Iterator[str]:
    """The neighbours that the bytes of the cheapest other place are for."""
    if not growth:
        return
    said = []
    for grown in growth[:MOST_GROWTH]:
        listed = " and ".join(_names(report, grown.layers))
        what = f"its {grown.what}" if grown.is_own else f"the {grown.what} of {listed}"
        if grown.is_own and listed:
            what += f" to {listed}"
        said.append(f"{size_text(grown.nbytes, unit)} for {what}")
    more = len(growth) - MOST_GROWTH
    rest = f", and {more} more" if more > 0 else ""
    yield f"The cheapest other place pays {', '.join(said)}{rest}"


# ------------------------------------------------------------------ JSON


def explanation_json(report: ExplanationReport) -> str:
    """All figures as a JSON object, a line for each key and layer; bytes, seconds, work."""
    explanation, partition = report.explanation, report.partition
    bottleneck, step = explanation.bottleneck, explanation.step
    return report_json(
        {
            "model": report.model,
            "k": partition.k,
            "eps": partition.problem.eps,
            "imbalance": partition.evaluation.imbalance,
            "volume_bytes": partition.evaluation.volume,
            "loads": partition.evaluation.loads.tolist(),
            "memory_bytes": explanation.memory_bytes.tolist(),
            "copies": explanation.copies,
            "simulated_seconds": None if step is None else step.seconds,
            "simulated_busy_seconds": None if step is None else step.busy.tolist(),
            "simulated_for": None if step is None else step.assumed,
            "schedule": None if step is None else step.scheduling.text,
            "no_seconds": explanation.no_seconds or None,
            "bottleneck": {
                "device": bottleneck.part,
                "load": bottleneck.load,
                "relief": _move_fields(bottleneck.relief),
                "moves_tried": bottleneck.tried,
                "moves_allowed": bottleneck.possible,
            },
            "payments": [_paid_fields(report, paid) for paid in explanation.payments],
            "layers": [_layer_fields(report, layer) for layer in explanation.layers],
        }
    )


def _layer_fields(report: ExplanationReport, layer: LayerExplanation) -> dict[str, Any]:
    named = report.partition.model.views
    return {
        "name": layer.name,
        "tied": layer.tied,
        "work": layer.work,
        "sent_bytes": layer.sent_bytes,
        "received_bytes": layer.received_bytes,
        "shares": [vars(share) for share in layer.shares],
        "best": _move_fields(layer.best),
        "held_by": layer.hold.why,
        "cheapest": _move_fields(layer.hold.move),
        "growth": [
            {
                "layers": [named[at].layer.name for at in grown.layers],
                "what": grown.what,
                "own": grown.is_own,
                "bytes": grown.nbytes,
            }
            for grown in layer.hold.growth
        ],
        "payments": [_paid_fields(report, paid) for paid in layer.payments],
    }


def _move_fields(move: Move | None) -> dict[str, Any] | None:
    if move is None:
        return None
    return {
        "layer": move.layer,
        "from": move.source,
        "to": move.target,
        "volume_bytes": move.volume,
        "more_bytes": move.more_bytes,
        "imbalance": move.imbalance,
        "loads": move.partition.evaluation.loads.tolist(),
        "memory_bytes": move.memory_bytes.tolist(),
        "allowed": move.is_allowed,
        "breaks": list(move.broken),
        "simulated_seconds": move.seconds,
    }


def _paid_fields(report: ExplanationReport, paid: Paid) -> dict[str, Any]:
    named = report.partition.model.views
    return {
        "layer": named[paid.layer].layer.name,
        "what": paid.what,
        "root": paid.root,
        "others": paid.others,
        "readers": [named[at].layer.name for at in paid.readers],
        "bytes": paid.nbytes,
    }
