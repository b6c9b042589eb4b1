"""Tiles + what is sent of them -> tiles in which the rows for other parts are computed first.

So borders travel while the inside is computed. What a border is computed from, back to what the
part has received, is computed first as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hgpart.arrays import Int64
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.placement.building.channel_transfers import ChannelTransfer, TransferPiece
from hgpart.placement.shares.ownership import Ownership, Tile


@dataclass(frozen=True, eq=False)
class BordersFirst:
    """Tiles whose borders are tiles of their own, and the transfers of these.

    Attributes
    ----------
    transfers : tuple of ChannelTransfer
        All transfers; their pieces are of these tiles.
    tiles : dict of (int, int) to list of Tile
        Tiles by layer and part, borders first, where they are not those of the `Ownership`.
    """

    transfers: tuple[ChannelTransfer, ...]
    tiles: dict[tuple[int, int], list[Tile]] = field(default_factory=dict)


def borders_first(
    graph: ChannelGraph,
    owners: Ownership,
    transfers: Sequence[ChannelTransfer],
    pays: Callable[[int, Tile], bool],
) -> BordersFirst:
    """Divide tiles into the rows that other parts wait for, and the inside.

    Parameters
    ----------
    transfers : sequence of ChannelTransfer
        The transfers of whole tiles.
    pays : callable
        Whether the inside of a tile, a layer's, takes long enough to compute borders by themselves.
    """
    awaited = {(item.layer, item.receiver) for item in transfers if not item.partial}
    early: dict[tuple[int, int], list[Int64]] = {}  # rows by layer and part
    for item in transfers:
        for piece in () if item.partial else item.pieces:
            if piece.rows is not None:
                early.setdefault((item.layer, item.sender), []).append(piece.rows)
    tiles: dict[tuple[int, int], list[Tile]] = {}
    places: dict[tuple[int, int], list[list[int]]] = {}  # of what each whole tile is divided into
    for at in reversed(range(len(graph.layers))):
        sources = graph.sources(graph.layers[at])
        for part in range(owners.k) if owners.height(at) > 1 else ():
            if (at, part) not in early:
                continue
            rows = np.unique(np.concatenate(early[at, part]))
            divided = [_divided(tile, rows) for tile in owners.tiles(at, part)]
            if not (divided and all(insides for _, insides in divided)):
                continue
            if not all(pays(at, tile) for _, insides in divided for tile in insides):
                continue
            numbered = [(n, tile) for n, (borders, _) in enumerate(divided) for tile in borders]
            numbered += [(n, tile) for n, (_, insides) in enumerate(divided) for tile in insides]
            tiles[at, part] = [tile for _, tile in numbered]
            places[at, part] = [[] for _ in divided]
            for place, (number, _) in enumerate(numbered):
                places[at, part][number].append(place)
            if not any((source, part) in awaited for source in sources):
                for read in graph.layer_rows[at].reads:
                    reads = read.windows.reads
                    needed = [
                        reads.values[reads.pointers[row] : reads.pointers[row + 1]] for row in rows
                    ]
                    early.setdefault((read.source, part), []).extend(needed)

    def pieces(item: ChannelTransfer) -> Iterator[TransferPiece]:
        of_part = tiles[item.layer, item.sender]
        for piece in item.pieces:
            for place in places[item.layer, item.sender][piece.tile]:
                there = of_part[place].rows
                assert piece.rows is not None and there is not None
                rows = piece.rows[np.isin(piece.rows, there)]
                if len(rows):
                    yield TransferPiece(piece.members, rows, place)

    return BordersFirst(
        tuple(
            replace(item, pieces=tuple(pieces(item)))
            if not item.partial and (item.layer, item.sender) in tiles
            else item
            for item in transfers
        ),
        tiles,
    )


def _divided(tile: Tile, early: Int64) -> tuple[list[Tile], list[Tile]]:
    """The runs of a tile's rows that are computed first, and the others."""
    assert tile.rows is not None
    is_early = np.isin(tile.rows, early)
    changes = np.flatnonzero(is_early[1:] != is_early[:-1]) + 1
    borders, insides = list[Tile](), list[Tile]()
    for run in np.split(np.arange(len(is_early)), changes):
        (borders if is_early[run[0]] else insides).append(replace(tile, rows=tile.rows[run]))
    return borders, insides
