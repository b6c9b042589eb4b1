"""A partition file of another tool -> the part of each vertex, or what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import hgpart
from hgpart.errors import FormatError

if TYPE_CHECKING:
    from hgpart.arrays import Int32

MOST_OF_A_HEAD = 200  # characters, in which a plan says that it is one


def parts_of_file(
    path: Path, graph: hgpart.ChannelGraph, modelling: hgpart.Modelling, k: int | None
) -> Int32:
    """Read the part of each vertex of each slice; say what another file is, if that shows."""
    from hgpart.hypergraph.blocks import full_vertices
    from hgpart.hypergraph.formats import read_partition
    from hgpart.plan import FORMAT, LARGEST_K

    vertices = full_vertices(modelling.views(graph))
    expected = modelling.slices * vertices
    most = k or min(expected, LARGEST_K)
    try:
        return read_partition(path, expected, most)
    except FormatError:
        if not path.is_file() or not os.access(path, os.R_OK):
            raise
        with path.open(errors="replace") as file:
            if FORMAT in file.read(MOST_OF_A_HEAD):
                raise FormatError(
                    f"{path} is a plan, expected a partition file: hgpart show prints plans"
                ) from None
        count = len(read_partition(path, k=most))
        slices, others = divmod(count, vertices)
        if others or not 1 <= slices <= modelling.batch_size:
            raise
        raise FormatError(
            f"{path} has {count} parts, expected {expected}: accepted with --slices {slices}"
        ) from None
