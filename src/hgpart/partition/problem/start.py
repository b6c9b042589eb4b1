"""A partition that exists -> Start: who has the weights, and what it costs to move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Float64, Int32
from hgpart.errors import ArgumentError
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices, by_vertices


@dataclass(frozen=True, eq=False)
class Start:
    """Devices that have the weights of each filter before a partition is made.

    Attributes
    ----------
    homes : dict of int to bool array, shape (filters, k)
        For each layer (the first of those that share weights), the devices that have the weights of
        each filter.
    price : float
        Bytes of the volume that a search gives up to move a byte of weights less.
    """

    homes: dict[int, NDArray[np.bool_]]
    price: float = 0.0

    def at_price(self, price: float) -> Start:
        """The same at another price."""
        return replace(self, price=price)


def holders(model: CnnHypergraph, parts: Int32, k: int) -> dict[int, NDArray[np.bool_]]:
    """Find the devices that compute any of each filter, in any slice and band, by layer.

    Returns
    -------
    dict of int to bool array, shape (filters, k)
    """
    held: dict[int, NDArray[np.bool_]] = {}
    for view in model.views:
        if not view.is_own:
            continue
        cuts = model.blocks.rows[view.at]
        own = np.flatnonzero(model.vertex_layers == view.at)
        of_rows = np.zeros((len(cuts) - 1, k), dtype=np.bool_)
        of_rows[model.vertex_rows[own], parts[own]] = True
        held[view.at] = np.repeat(of_rows, np.diff(cuts), axis=0)
    return held


def devices_left(before: int, k: int | None = None, without: Sequence[int] = ()) -> list[int]:
    """Devices of a partition that remain, in the order in which they are numbered anew.

    Parameters
    ----------
    before : int
        Number of devices of the partition.
    k : int, optional
        Number of devices that there are now. Default: as many as remain.
    without : sequence of int
        Devices that have left. Default: the last ones, if there are fewer now.

    Raises
    ------
    ArgumentError
        If there is no such device, all have left, or more remain than k.

    >>> devices_left(4, without=[1]), devices_left(4, k=3), devices_left(4, k=5)
    ([0, 2, 3], [0, 1, 2], [0, 1, 2, 3])
    """
    if not without:
        return list(range(before if k is None else min(k, before)))
    gone = sorted(set(without))
    if gone[0] < 0 or gone[-1] >= before:
        raise ArgumentError(f"devices {gone} leave: the plan has devices 0 to {before - 1}")
    left = [device for device in range(before) if device not in gone]
    if not left:
        raise ArgumentError(f"devices {gone} leave: these are all devices of the plan")
    if k is not None and len(left) > k:
        raise ArgumentError(
            f"{len(left)} devices are left of the plan for k={k}: accepted is k={len(left)} or more"
        )
    return left


def start_of(
    model: CnnHypergraph, parts: Int32, before: int, k: int, without: Sequence[int] = ()
) -> Start:
    """The start of a partition on k devices from one on other devices.

    Devices are numbered as `devices_left` has them; those after them are new, and have no weights.
    """
    left, homes = devices_left(before, k, without), {}
    for at, held in holders(model, parts, before).items():
        homes[at] = np.zeros((len(held), k), dtype=np.bool_)
        homes[at][:, : len(left)] = held[:, left]
    return Start(homes)


def kept_bytes(start: Start, model: CnnHypergraph, parts: Int32, k: int) -> Float64:
    """Bytes of weights that each device has already of those that each part needs, (k, k)."""
    sizes, kept = weight_bytes(model.views), np.zeros((k, k))
    for at, held in holders(model, parts, k).items():
        kept += sizes[at] * (held.T.astype(np.float64) @ start.homes[at])
    return kept


def weight_bytes(views: Sequence[LayerVertices]) -> dict[int, float]:
    """Bytes of the weights of a filter of each layer, with those of layers that share them."""
    return {
        first: sum(view.parameter_bytes for view in tied) / max(1, tied[0].layer.tasks)
        for first, tied in by_vertices(views).items()
    }


def lost_bytes(start: Start, views: Sequence[LayerVertices]) -> int:
    """Bytes of the weights that no device has any more: they move wherever they go."""
    sizes = weight_bytes(views)
    lost = sum(sizes[at] * int((~homes.any(axis=1)).sum()) for at, homes in start.homes.items())
    return round(lost)


def moved_bytes(start: Start, model: CnnHypergraph, parts: Int32, k: int) -> int:
    """Bytes of weights that devices of a partition need and did not have at the start.

    Filter by filter: each device that computes any of it, and had none of it, is sent its weights.
    """
    sizes, moved = weight_bytes(model.views), 0.0
    for at, held in holders(model, parts, k).items():
        moved += sizes[at] * int((held & ~start.homes[at]).sum())
    return round(moved)
