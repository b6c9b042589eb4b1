"""Hypergraph <-> PaToH, hMETIS; partition files."""

from __future__ import annotations

from hgpart.hypergraph.formats.hmetis import read_hmetis, write_hmetis
from hgpart.hypergraph.formats.parts import read_partition, write_partition
from hgpart.hypergraph.formats.patoh import read_patoh, write_patoh

__all__ = [
    "read_hmetis",
    "read_partition",
    "read_patoh",
    "write_hmetis",
    "write_partition",
    "write_patoh",
]
