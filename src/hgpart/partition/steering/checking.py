"""Parts + constraints -> the constraints that they break, task by task, by their definition.

It knows nothing of what the solvers make of constraints: neither runs nor masks nor groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.cnn_vertices import CnnVertices
from hgpart.partition.problem.constraints import Constraints, Pin
from hgpart.partition.problem.layer_constraints import layers_named


def broken(model: CnnVertices, parts: Int32, constraints: Constraints) -> tuple[str, ...]:
    """Names of the constraints that a partition of blocks breaks.

    Parameters
    ----------
    parts : int32 array, shape (model.vertices,)

    Raises
    ------
    ArgumentError
        If a constraint names a layer that there is not.
    """
    devices = _Devices(model, parts)
    names: list[str] = []
    for name, single in constraints.each():
        layers = {
            word: layers_named(model.views, word, name)
            for word in (
                *(pin.layers for pin in single.pins),
                *(word for several in (*single.together, *single.apart) for word in several),
                *single.no_split,
            )
        }
        pins = all(
            devices.of_pin(pin, layers[pin.layers]) <= set(pin.devices) for pin in single.pins
        )
        together = all(
            len(devices.of([at for word in several for at in layers[word]])) == 1
            for several in single.together
        )
        whole = all(len(devices.of([at])) == 1 for word in single.no_split for at in layers[word])
        apart = all(
            _share_none([devices.of(layers[word]) for word in several]) for several in single.apart
        )
        if not (pins and together and whole and apart):
            names.append(name)
    return tuple(names)


def devices_of_pins(
    model: CnnVertices, parts: Int32, constraints: Constraints
) -> list[tuple[set[int], tuple[int, ...]]]:
    """For each pin the devices that compute any of its filters, and those that it allows."""
    devices = _Devices(model, parts)
    return [
        (devices.of_pin(pin, layers_named(model.views, pin.layers, str(pin))), pin.devices)
        for pin in constraints.pins
    ]


def _share_none(sets: Sequence[set[int]]) -> bool:
    return sum(map(len, sets)) == len(set().union(*sets))


class _Devices:
    """The devices that compute tasks of each layer."""

    def __init__(self, model: CnnVertices, parts: Int32) -> None:
        self._model, self._parts = model, parts
        order = np.argsort(model.vertex_layers, kind="stable")
        ends = np.searchsorted(model.vertex_layers[order], np.arange(len(model.views) + 1))
        self._vertices = [order[ends[at] : ends[at + 1]] for at in range(len(model.views))]

    def of(self, layers: Sequence[int]) -> set[int]:
        """Those of some layers."""
        return {part for at in layers for part in self._parts[self._vertices[at]].tolist()}

    def of_pin(self, pin: Pin, layers: Sequence[int]) -> set[int]:
        """Those of the blocks of its layers that have any filter of a pin."""
        devices: set[int] = set()
        for at in layers:
            cuts, vertices = self._model.blocks.rows[at], self._vertices[at]
            rows = self._model.vertex_rows[vertices]
            end = self._model.views[at].layer.tasks if pin.end is None else pin.end
            own = vertices[(cuts[rows] < end) & (cuts[rows + 1] > pin.first)]
            devices |= set(self._parts[own].tolist())
        return devices
