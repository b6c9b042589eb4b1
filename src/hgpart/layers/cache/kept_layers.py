"""ChannelGraph <-> plain values, of which JSON is made; they are read without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hgpart.layers.channel_graph import ChannelGraph, Layer, LayerRows, Mixing, OwnParameter, Read

if TYPE_CHECKING:
    import torch


def plain_layers(graph: ChannelGraph) -> dict[str, Any]:
    """The layers of a graph and the ids of its nodes, without its rows."""
    return {
        "layers": [*map(_plain, graph.layers)],
        "mixing": _plain(graph.mixing),
        "ids": {name: _plain_ids(ids) for name, ids in graph.ids.items()},
        "rows": {name: _plain_ids(rows) for name, rows in graph.rows.items()},
    }


def graph_of(
    facts: Mapping[str, Any], find_rows: Callable[[ChannelGraph], tuple[LayerRows, ...]]
) -> ChannelGraph:
    """The graph of such facts; `find_rows` is asked for its rows once these are wanted."""
    operator, norm, ignored = facts["mixing"]
    return ChannelGraph(
        layers=tuple(map(_layer, facts["layers"])),
        ids=_Tensors(facts["ids"]),
        rows=_Tensors(facts["rows"]),
        mixing=Mixing(operator, norm, tuple((name, target) for name, target in ignored)),
        find_rows=find_rows,
    )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _layer(listed: list[Any]) -> Layer:
    facts: dict[str, Any] = dict(zip((field.name for field in fields(Layer)), listed, strict=True))
    facts["own_parameters"] = [OwnParameter(*own) for own in facts["own_parameters"]]
    facts["reads"] = [
        Read(np.array(channels, np.int64), np.array(sizes, np.int64), *others)
        for channels, sizes, *others in facts["reads"]
    ]
    for name, fact in facts.items():
        facts[name] = tuple(fact) if isinstance(fact, list) else fact
    return Layer(**facts)


def _plain_ids(ids: torch.Tensor) -> list[Any]:
    """Type, shape, shape without what is expanded, and numbers."""
    from hgpart.operators.ids import core

    distinct = core(ids)
    kind = str(ids.dtype).removeprefix("torch.")
    return [kind, [*ids.shape], [*distinct.shape], distinct.flatten().tolist()]


class _Tensors(Mapping[str, "torch.Tensor"]):
    """Tensors that are made once they are asked for."""

    def __init__(self, facts: Mapping[str, list[Any]]) -> None:
        self._facts = facts
        self._made: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._made:
            import torch

            kind, shape, distinct, numbers = self._facts[name]
            flat = torch.tensor(numbers, dtype=getattr(torch, kind))
            self._made[name] = flat.reshape(distinct).expand(shape)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)
