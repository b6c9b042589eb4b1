"""Hypergraph <-> hMETIS file.

The first line is ``nets vertices [fmt]``: fmt 1 means that nets have costs, 10 that vertices
have weights, 11 both. Then comes one line for each net, with its cost (fmt 1 and 11) and its
pins, the first vertex being 1, and then one line for the weight of each vertex (fmt 10 and 11).
Source: Karypis and Kumar, "hMETIS: A Hypergraph Partitioning Package", the manual (where nets
are hyperedges).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hgpart.files.reading import malformed
from hgpart.hypergraph.formats.body import Header, body_text, check_writable, read_body
from hgpart.hypergraph.formats.integers import read_numbers, shortened, split_header, write_text
from hgpart.hypergraph.hypergraph import Hypergraph

_HEADER = "a header 'nets vertices [fmt]' with fmt 1, 10 or 11"


def write_hmetis(hypergraph: Hypergraph, file: Path | str | TextIO) -> None:
    """Write a hypergraph as an hMETIS file with net costs and vertex weights (fmt 11).

    Pins are in the order of the hypergraph, each net's root first. Fields that an hMETIS file has
    no place for (`gathers`, `net_layers`) are not written.

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
    >>> write_hmetis(pair, sys.stdout)
    1 2 11
    3 1 2
    5
    7
    """
    check_writable(hypergraph)
    write_text(file, _text(hypergraph))


def _text(hypergraph: Hypergraph) -> Iterator[bytes]:
    yield b"%d %d 11" % (hypergraph.nets, hypergraph.vertices)
    yield from body_text(hypergraph, base=1, weight_lines=True)


def read_hmetis(path: Path | str) -> Hypergraph:
    """Read an hMETIS file of any fmt; a ``%`` starts a comment.

    Weights and costs that the file lacks are 1. The first pin of a net is its root. No net gathers
    and all belong to layer 0, because the file does not tell.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; the message names the line.
    """
    header, line, numbers = split_header(path, read_numbers(path), _HEADER)
    if len(header) not in (2, 3) or header[2:] not in ([], [0], [1], [10], [11]):
        raise malformed(path, line, shortened(header), _HEADER)
    nets, vertices = header[:2]
    fmt = header[2] if len(header) == 3 else 0
    return read_body(
        path,
        Header(
            line=line,
            nets=nets,
            vertices=vertices,
            pins=None,
            base=1,
            has_costs=fmt in (1, 11),
            has_weights=fmt in (10, 11),
            weight_lines=True,
        ),
        numbers,
    )
