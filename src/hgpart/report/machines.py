"""Machine -> tables: how fast its links are, and what slows computing."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console

from hgpart.files.columns import Column
from hgpart.machines.machine import Link, Machine, Slowdown
from hgpart.report.tables import counted, print_columns, print_table

MOST_PAIRS = 28  # pairs of devices with a row each: those of 8 devices
MEGABYTE = 2**20


def print_machine(machine: Machine, console: Console) -> None:
    """Print links first, then all-reduces, slow-downs and devices."""
    if machine.caution:
        console.print(machine.caution, style="bold")
    _print_links(machine, console)
    if machine.all_reduce is not None:
        seconds = [machine.all_reduce.seconds_of(size) for size in (1024, MEGABYTE, 2**26)]
        short, middle, long = (f"{1000 * value:,.3g}" for value in seconds)
        console.print(
            f"All-reduce of {machine.k} devices: {short} ms of 1 KiB, {middle} ms of 1 MiB, "
            f"{long} ms of 64 MiB"
        )
    console.print()
    _print_slowdowns(machine, console)
    console.print()
    for device, same in groupby(machine.devices):
        memory = "" if device.memory is None else f", {device.memory / 1e9:.1f} GB"
        threads = counted(device.threads, "thread")
        speed = "" if device.speed == 1 else f", {device.speed:g} times as fast"
        console.print(f"{len([*same])} x {device.kind}, {threads}{memory}{speed}")
    if machine.note:
        console.print(machine.note)


def _print_links(machine: Machine, console: Console) -> None:
    links: list[tuple[str, Link]] = []
    if 0 < len(machine.pairs) <= MOST_PAIRS:
        links += [(f"{first} to {second}", link) for (first, second), link in machine.pairs.items()]
    else:
        if max(machine.nodes) > 1:
            links.append(("inside a node", machine.inside))
        if machine.between is not None:
            links.append(("between nodes", machine.between))
    columns: list[Column[tuple[str, Link]]] = [
        Column("", "devices", value=lambda row: row[0]),
        Column("", "GB/s", value=lambda row: row[1].bandwidth / 1e9),
        Column("", "both ways", value=lambda row: row[1].bandwidth_both_ways / 1e9),
        Column("", "latency", "", "us", lambda row: row[1].latency),
        Column("", "1 MiB", "", "ms", lambda row: row[1].seconds_of(MEGABYTE)),
        Column("", "both ways", "", "ms", lambda row: row[1].seconds_of(MEGABYTE, both_ways=True)),
    ]
    title = "Messages (both ways: while another one travels back)"
    print_columns(console, title, columns, links, "MB")


def _print_slowdowns(machine: Machine, console: Console) -> None:
    kinds = [("convolution", Slowdown(machine.together))]
    if machine.memory_bound is not None:
        kinds.append(("norm", machine.memory_bound))
    most = max(len(kind.together) for _, kind in kinds)
    if most > 1:
        rows = [
            (f"{count} devices of a node", *(f"{kind.of(count):.2f}" for _, kind in kinds))
            for count in range(2, most + 1)
        ]
        headings = ["computing at once", *(name for name, _ in kinds)]
        print_table(console, "Times as long as one device alone", headings, rows)
        console.print()
    console.print(
        f"Messages take {1e9 * machine.handling:.2f} s of computing a GB, and "
        f"{1e3 * machine.stall:.2f} ms each, of the device that sends and of the one that receives"
    )
