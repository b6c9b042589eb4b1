"""PlacementReport -> tables: what each part of a placement holds, computes, keeps and sends."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hgpart.placement.accounting import PlacementReport
from hgpart.report.tables import UNITS, even_decimals, print_table, ruled_table

OPTIMIZER = "sgd with momentum"  # whose states the memory has, if no other is named


def print_placement(
    report: PlacementReport,
    disagreements: Sequence[str],
    console: Console,
    unit: str,
    optimizer: str = OPTIMIZER,
) -> None:
    """Print the largest memory and the traffic first, then the figures of each part.

    Parameters
    ----------
    report : PlacementReport
    disagreements : sequence of str
        Where its figures are not those of the partition.
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    optimizer : str
        Whose states the memory has, one of `OPTIMIZER_STATES`.
    """
    memory = [figures.memory_bytes(optimizer) for figures in report.parts]
    largest = report.parts[memory.index(max(memory))]
    volume, messages = int(report.sent_bytes.sum()), int(report.sent_messages.sum())
    console.print(
        f"{_sizes([max(memory)], unit)[0]} {unit} on part {largest.part}, which needs the most; "
        f"{_sizes([volume], unit)[0]} {unit} in {messages:,} messages between parts",
        style="bold",
    )
    passes = "a training step" if report.training else "a forward pass in evaluation"
    parts = f"{report.k} part{'s' * (report.k > 1)}"
    if len(report.parts) < report.k:
        parts += f", {len(report.parts)} of them here"
    console.print(f"{parts}, {report.batch_size} samples in {passes}, states of {optimizer}")
    agree = "all figures are the partition's" if not disagreements else "not as the partition says:"
    console.print(f"Counted in the submodules; {agree}")
    for line in disagreements:
        console.print(f"  {line}")
    console.print()
    _print_memory(report, memory, console, unit, optimizer)
    console.print()
    _print_work(report, console, unit)
    if report.k > 1:
        console.print()
        _print_pairs(report, console, unit)


def _print_memory(
    report: PlacementReport, memory: Sequence[int], console: Console, unit: str, optimizer: str
) -> None:
    columns = {
        "all": memory,
        "parameters": [figures.parameter_bytes for figures in report.parts],
        "gradients": [figures.gradient_bytes for figures in report.parts],
        "optimizer": [figures.optimizer_bytes(optimizer) for figures in report.parts],
        "activations": [figures.activation_bytes for figures in report.parts],
        "buffers": [
            figures.buffer_bytes + figures.exchange_bytes + figures.index_bytes
            for figures in report.parts
        ],
    }
    table = ruled_table(["part", *columns])
    texts = [_sizes(column, unit) for column in columns.values()]
    for figures, *row in zip(report.parts, *texts, strict=True):
        table.add_row(f"{figures.part} ({figures.device})", *row)
    print_table(console, f"Memory, {unit}", table)


def _print_work(report: PlacementReport, console: Console, unit: str) -> None:
    work = sum(figures.macs for figures in report.parts)
    table = ruled_table(
        [
            "part",
            "parameters",
            "MAC",
            "MAC %",
            *(f"sends {unit}", "messages"),
            *(f"receives {unit}", "messages"),
        ]
    )
    parts = [figures.part for figures in report.parts]
    sent = _sizes(report.sent_bytes.sum(axis=1)[parts].tolist(), unit)
    received = _sizes(report.received_bytes.sum(axis=0)[parts].tolist(), unit)
    for at, figures in enumerate(report.parts):
        table.add_row(
            f"{figures.part} ({figures.device})",
            f"{figures.parameters:,}",
            f"{figures.macs:,}",
            f"{100 * figures.macs / work:.1f}" if work else "-",
            *(sent[at], f"{report.sent_messages[figures.part].sum():,}"),
            *(received[at], f"{report.received_messages[:, figures.part].sum():,}"),
        )
    print_table(console, "Work and traffic of a forward pass", table)
    unused = sum(figures.unused_parameters for figures in report.parts)
    if unused:
        console.print(f"Also held: {unused:,} parameters that the model makes no use of")


def _print_pairs(report: PlacementReport, console: Console, unit: str) -> None:
    texts = _sizes(report.sent_bytes.ravel().tolist(), unit)
    table = ruled_table([f"{unit} from", *(f"to {part}" for part in range(report.k))])
    for figures in report.parts:
        first = figures.part * report.k
        row = texts[first : first + report.k]
        row[figures.part] = ""
        table.add_row(str(figures.part), *row)
    print_table(console, "Between parts in a forward pass", table)


def _sizes(sizes: Sequence[int], unit: str) -> list[str]:
    return even_decimals([size / UNITS[unit] for size in sizes])
