"""Operators -> the losses among them that are no means over samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import fx

MEAN, SUM = 1, 2  # as operators take a reduction
NOTHING = -100  # what is ignored where nothing is said


def uneven_losses(nodes: Iterable[fx.Node]) -> Iterator[str]:
    """Names of those that add up, or in whose mean targets count unequally."""
    for node in nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        names = [one.name for one in node.target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        adds_up = "reduction" in names and given.get("reduction", MEAN) == SUM
        weighs = "ignore_index" in names and given.get("weight") is not None
        ignores = "ignore_index" in names and given.get("ignore_index", NOTHING) != NOTHING
        if adds_up or weighs or ignores:
            yield node.name
