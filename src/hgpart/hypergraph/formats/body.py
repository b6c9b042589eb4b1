"""What PaToH and hMETIS files have in common: after the header, nets, then vertex weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hgpart.arrays import Bool, Int32, Int64
from hgpart.errors import HypergraphError
from hgpart.files.reading import malformed
from hgpart.hypergraph.formats.integers import CHUNK, LARGEST, NEWLINE, SPACE, Numbers, text_of
from hgpart.hypergraph.hypergraph import Hypergraph

MOST_VERTICES = 2**31 - 1  # pins are int32
_UNSEEN = 1 << 20  # vertices that a header may declare without the rest of the file showing them


@dataclass(frozen=True)
class Header:
    """The declarations in the first line of a file.

    Attributes
    ----------
    line : int
        Number of that line.
    pins : int or None
        Number of pins of all nets together, if the format says it.
    base : int
        Number of the first vertex, 0 or 1.
    has_costs, has_weights : bool
        Whether each net starts with its cost; whether vertex weights follow the nets.
    weight_lines : bool
        Whether each weight has a line of its own; if not, lines don't matter.
    """

    line: int
    nets: int
    vertices: int
    pins: int | None
    base: int
    has_costs: bool
    has_weights: bool
    weight_lines: bool


def check_writable(hypergraph: Hypergraph) -> None:
    """Refuse a hypergraph that no file can hold.

    Raises
    ------
    HypergraphError
        If a net has no pins, or a cost or weight is negative.
    """
    empty = np.flatnonzero(np.diff(hypergraph.pointers) == 0)
    if len(empty):
        raise HypergraphError(f"net {empty[0]} has no pins; accepted: nets of one pin or more")
    for name, values in (("weight", hypergraph.weights), ("cost", hypergraph.costs)):
        if values.min(initial=0) < 0:
            raise HypergraphError(f"found {name} {values.min()}; accepted: {name}s from 0 on")


def body_text(hypergraph: Hypergraph, base: int, weight_lines: bool) -> Iterator[bytes]:
    """Write the nets, each as a line with its cost and its pins, and then the vertex weights.

    The text starts with the end of the header's line and ends with that of the last line.
    """
    starts, pins = hypergraph.pointers[:-1], hypergraph.pins
    for first in range(0, len(pins), CHUNK):
        chunk = pins[first : first + CHUNK].astype(np.int64) + base
        nets = slice(*np.searchsorted(starts, [first, first + len(chunk)]))
        places = starts[nets] - first
        yield text_of(
            np.insert(chunk, places, hypergraph.costs[nets]),
            np.insert(np.full(len(chunk), SPACE, dtype=np.uint8), places, NEWLINE),
        )
    for first in range(0, hypergraph.vertices, CHUNK):
        chunk = hypergraph.weights[first : first + CHUNK]
        separators = np.full(len(chunk), NEWLINE if weight_lines else SPACE, dtype=np.uint8)
        if first == 0:
            separators[0] = NEWLINE
        yield text_of(chunk, separators)
    yield b"\n"


def read_body(path: Path | str, header: Header, numbers: Iterator[Numbers]) -> Hypergraph:
    """Read the nets and weights after the header.

    Raises
    ------
    FormatError
        If they are not what the header declares, or not a hypergraph.
    """
    if header.vertices > MOST_VERTICES:
        received, accepted = f"{header.vertices} vertices", f"at most {MOST_VERTICES} vertices"
        raise malformed(path, header.line, received, accepted)
    nets, weights = _Nets(path, header), _Column(path, "vertex weights")
    row = line = 0
    for values, lines in numbers:
        opens_row = np.diff(lines, prepend=line) != 0
        rows = row + np.cumsum(opens_row)
        end = int(np.searchsorted(rows, header.nets, side="right"))
        nets.extend(values[:end], lines[:end], np.flatnonzero(opens_row[:end]))
        _check_weights(path, header, weights.count, values[end:], lines[end:], opens_row[end:])
        weights.extend(values[end:], lines[end:])
        if len(values):
            row, line = int(rows[-1]), int(lines[-1])

    line = max(line, header.line)
    costs, pointers, pins = nets.finish(line)
    if header.has_weights and weights.count < header.vertices:
        received = f"the end of the file after {weights.count} of {header.vertices} weights"
        raise malformed(path, line, received, f"{header.vertices} weights")
    if not header.has_weights and header.vertices > max(_UNSEEN, len(pins)):
        # Otherwise a line of text could ask for any amount of memory.
        received = f"{header.vertices} vertices without weights, {len(pins)} pins"
        accepted = f"at most {_UNSEEN} vertices, or as many as pins"
        raise malformed(path, header.line, received, accepted)
    return Hypergraph(
        weights=weights.array() if header.has_weights else np.ones(header.vertices, dtype=np.int64),
        costs=costs if header.has_costs else np.ones(header.nets, dtype=np.int64),
        pointers=pointers,
        pins=pins,
        gathers=np.zeros(header.nets, dtype=np.bool_),
        net_layers=np.zeros(header.nets, dtype=np.int32),
    )


def _check_weights(
    path: Path | str, header: Header, count: int, values: Int64, lines: Int64, opens_row: Bool
) -> None:
    """Check the numbers after the nets; `count` weights came before."""
    expected = header.vertices - count if header.has_weights else 0
    if len(values) > expected:
        last = f"{header.vertices} weights" if header.has_weights else f"{header.nets} nets"
        received = f"'{values[expected]}' after the last of {last}"
        raise malformed(path, int(lines[expected]), received, "the end of the file")
    if header.weight_lines and not opens_row.all():
        line = int(lines[np.argmin(opens_row)])
        raise malformed(path, line, "more than one vertex weight", "one weight on each line")


class _Column:
    """The costs or the weights of a file, as they are read; their sum fits 64 bits."""

    def __init__(self, path: Path | str, name: str) -> None:
        self.count = 0
        self._path, self._name = path, name
        self._chunks = [np.empty(0, dtype=np.int64)]
        self._sum = 0

    def extend(self, values: Int64, lines: Int64) -> None:
        if not len(values):
            return
        sums = self._sum + np.cumsum(values)
        wrapped = np.flatnonzero(sums < 0)
        if len(wrapped):
            received = f"{self._name} whose sum exceeds {LARGEST}"
            raise malformed(self._path, int(lines[wrapped[0]]), received, "a smaller sum")
        self.count += len(values)
        self._chunks.append(values)
        self._sum = int(sums[-1])

    def array(self) -> Int64:
        return np.concatenate(self._chunks)


class _Nets:
    """The nets of a file, as they are read."""

    def __init__(self, path: Path | str, header: Header) -> None:
        self._path, self._header = path, header
        self._costs = _Column(path, "net costs")
        self._pins = [np.empty(0, dtype=np.int32)]
        self._pin_count = 0
        self._pointers = [np.empty(0, dtype=np.int64)]
        self._lines = [np.empty(0, dtype=np.int64)]

    def extend(self, values: Int64, lines: Int64, first: Int64) -> None:
        """Add numbers with their lines; `first` are the places of those that start a net."""
        header, is_pin, pointers = self._header, np.ones(len(values), dtype=np.bool_), first
        if header.has_costs:
            is_pin[first] = False
            pointers = first - np.arange(len(first))
            self._costs.extend(values[first], lines[first])
        pins = values[is_pin]
        outside = (pins < header.base) | (pins >= header.base + header.vertices)
        if outside.any():
            pin, line = pins[outside][0], int(lines[is_pin][outside][0])
            accepted = f"vertices from {header.base} to {header.base + header.vertices - 1}"
            raise malformed(self._path, line, f"pin '{pin}'", accepted)
        self._pins.append((pins - header.base).astype(np.int32))
        self._pointers.append(pointers + self._pin_count)
        self._lines.append(lines[first])
        self._pin_count += len(pins)

    def finish(self, last_line: int) -> tuple[Int64, Int64, Int32]:
        """Check the nets as a whole; return their costs, pointers and pins."""
        path, header = self._path, self._header
        lines = np.concatenate(self._lines)
        if len(lines) < header.nets:
            received = f"the end of the file after {len(lines)} of {header.nets} nets"
            raise malformed(path, last_line, received, f"{header.nets} nets, each a line of pins")
        if header.pins not in (None, self._pin_count):
            received = f"{header.pins} pins declared, {self._pin_count} in the nets"
            raise malformed(path, header.line, received, "the number of pins of all nets")
        pointers = np.concatenate([*self._pointers, [self._pin_count]])
        empty = np.flatnonzero(np.diff(pointers) == 0)
        if len(empty):
            accepted = "a cost, then one pin or more"
            raise malformed(path, int(lines[empty[0]]), "a net without pins", accepted)
        pins = np.concatenate(self._pins)
        repeated = _find_twice(header.vertices, pointers, pins)
        if repeated is not None:
            net, pin = repeated
            received = f"pin '{pin + header.base}' twice"
            raise malformed(path, int(lines[net]), received, "each vertex once in a net")
        return self._costs.array(), pointers, pins


def _find_twice(vertices: int, pointers: Int64, pins: Int32) -> tuple[int, int] | None:
    """The first net that has a pin twice, and that pin."""
    first, nets = 0, len(pointers) - 1
    while first < nets:
        full = int(np.searchsorted(pointers, pointers[first] + CHUNK, side="right")) - 1
        last = max(first + 1, full)
        sizes = np.diff(pointers[first : last + 1])
        net_of_pin = np.repeat(np.arange(first, last), sizes)
        keys = np.sort(net_of_pin * vertices + pins[pointers[first] : pointers[last]])
        twice = keys[1:][keys[1:] == keys[:-1]]
        if len(twice):
            return divmod(int(twice[0]), vertices)
        first = last
    return None
