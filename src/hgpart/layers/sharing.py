"""Layers that use one parameter in conflicting ways -> exceptions from how layers are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hgpart.layers.channel_graph import PARAMETER
from hgpart.layers.elements.holdings import agree
from hgpart.layers.open_layers import OpenLayer, OpenLayers


@dataclass(frozen=True)
class Exceptions:
    """Exceptions for layers that use one parameter in conflicting ways."""

    unfused: frozenset[str] = frozenset()  # operators that join no layer
    undivided: frozenset[str] = frozenset()  # operators whose tasks fine-grain does not split
    data: frozenset[str] = frozenset()  # parameters that one task holds and sends
    whole: frozenset[str] = frozenset()  # operators that are one task


def exceptions_for_sharers(open_layers: OpenLayers, now: Exceptions) -> Exceptions:
    """The exceptions needed where different tasks need one element of a parameter.

    A convolution is not kept from being divided by what is fused into it: a shared batch norm then
    becomes a layer of its own wherever it stands. Weights whose rows agree but whose columns don't,
    or of which a layer needs rows as well, are not divided. All other parameters are data that one
    task sends. For buffers, and where even that does not help, the last resort is whole tasks.
    """
    unfused, undivided = set(now.unfused), set(now.undivided)
    data, whole = set(now.data), set(now.whole)
    for name, layers in open_layers.users().items():
        rows_fit = _rows_fit(open_layers, name, layers)
        if rows_fit and _columns_fit(name, layers):
            continue
        fused = {layer.fused[name] for layer in layers if name in layer.fused}
        shared = len(layers) > 1 and not any(layer.kind == PARAMETER for layer in layers)
        if shared and fused - now.unfused:
            unfused |= fused
        elif rows_fit:
            undivided |= {layer.operators[0] for layer in layers}
        elif name in open_layers.traced.parameters and name not in now.data:
            data.add(name)
        else:
            whole |= {layer.operators[0] for layer in layers if layer.operators}
    return Exceptions(frozenset(unfused), frozenset(undivided), frozenset(data), frozenset(whole))


def _rows_fit(open_layers: OpenLayers, name: str, layers: Sequence[OpenLayer]) -> bool:
    """Whether each element of a parameter is needed only by tasks of one number."""
    if any(layer.single for layer in layers):
        return all(layer.single for layer in layers)
    uses = [use for layer in layers for use in layer.uses[name]]
    return len({layer.tasks for layer in layers}) == 1 and agree(uses, *open_layers.origin(name))


def _columns_fit(name: str, layers: Sequence[OpenLayer]) -> bool:
    """Whether channel i of task j needs the same elements of a parameter in all layers."""

    def columns(layer: OpenLayer) -> object:
        return [read.groups for read in layer.reads if read.partial], layer.columns

    if any(columns(layer) != columns(layers[0]) for layer in layers):
        return False
    manners = {use.manner for layer in layers for use in layer.uses[name]}
    return len(manners) == 1 or all(name not in layer.weight_names for layer in layers)
