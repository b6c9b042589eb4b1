"""Hypergraph <-> PaToH file.

The first line is ``base cells nets pins [scheme [constraints]]``: base 0 or 1 is the number of
the first cell (vertex); scheme 0 means no weights, 1 cell weights, 2 net costs, 3 both. Then
comes one line for each net, with its cost (schemes 2 and 3) and its pins, and then all cell
weights (schemes 1 and 3). Source: Catalyurek and Aykanat, "PaToH: Partitioning Tool for
Hypergraphs", the user's manual.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hgpart.files.reading import malformed
from hgpart.hypergraph.formats.body import Header, body_text, check_writable, read_body
from hgpart.hypergraph.formats.integers import read_numbers, shortened, split_header, write_text
from hgpart.hypergraph.hypergraph import Hypergraph

_HEADER = (
    "a header 'base cells nets pins [scheme [1]]' with base 0 or 1, scheme 0 to 3, one constraint"
)


def write_patoh(hypergraph: Hypergraph, file: Path | str | TextIO) -> None:
    """Write a hypergraph as a PaToH file, with base 0, net costs and cell weights (scheme 3).

    Pins are in the order of the hypergraph, each net's root first. Fields that a PaToH file has no
    place for (`gathers`, `net_layers`) are not written.

    Parameters
    ----------
    hypergraph : Hypergraph
        Every net has a pin.
    file : Path, str or open text file
        A path is replaced only once the file is complete.

    Raises
    ------
    HypergraphError
        If a net has no pins, or a cost or weight is negative.
    OutputError
        If the path can't be written.

    Examples
    --------
    >>> import sys
    >>> import numpy as np
    >>> pair = Hypergraph(
    ...     weights=np.array([5, 7]),
    ...     costs=np.array([3]),
    ...     pointers=np.array([0, 2]),
    ...     pins=np.array([0, 1], dtype=np.int32),
    ...     gathers=np.array([False]),
    ...     net_layers=np.array([0], dtype=np.int32),
    ... )
    >>> write_patoh(pair, sys.stdout)
    0 2 1 2 3
    3 0 1
    5 7
    """
    check_writable(hypergraph)
    write_text(file, _text(hypergraph))


def _text(hypergraph: Hypergraph) -> Iterator[bytes]:
    yield b"0 %d %d %d 3" % (hypergraph.vertices, hypergraph.nets, len(hypergraph.pins))
    yield from body_text(hypergraph, base=0, weight_lines=False)


def read_patoh(path: Path | str) -> Hypergraph:
    """Read a PaToH file of any scheme; a ``%`` starts a comment.

    Weights and costs that the file lacks are 1. The first pin of a net is its root. No net gathers
    and all belong to layer 0, because the file does not tell.

    Raises
    ------
    FormatError
        If the file can't be read, is malformed or has several constraints; the message names the
        line.
    """
    header, line, numbers = split_header(path, read_numbers(path), _HEADER)
    if len(header) not in (4, 5, 6):
        raise malformed(path, line, shortened(header), _HEADER)
    base, cells, nets, pins = header[:4]
    scheme = header[4] if len(header) > 4 else 0
    if base > 1 or scheme > 3 or header[5:] not in ([], [1]):
        raise malformed(path, line, shortened(header), _HEADER)
    return read_body(
        path,
        Header(
            line=line,
            nets=nets,
            vertices=cells,
            pins=pins,
            base=base,
            has_costs=scheme in (2, 3),
            has_weights=scheme in (1, 3),
            weight_lines=False,
        ),
        numbers,
    )
