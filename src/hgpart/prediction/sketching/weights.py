"""LayerFacts, Partition -> Weights: what parts send each other of weights that several have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hgpart.arrays import Bool, Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph, of_blocks
from hgpart.partition import Partition
from hgpart.partition.problem.project import containing
from hgpart.placement.shares.messages import buckets_of, is_large, with_parameters
from hgpart.placement.shares.owners import owners_of, parts_in_bands
from hgpart.prediction.sketching.layer_facts import LayerFacts
from hgpart.prediction.sketching.sketch import ShareSketch, WorkPiece
from hgpart.sequences import starts_of_runs

NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights that travel in a step of a batch in tiles, and whose gradients come back.

    Attributes
    ----------
    model : CnnHypergraph
        A model of one slice, in which each vertex has one owner.
    owners : int32 array, shape (vertices,)
        The part that owns each vertex's parameters.
    parts : int64 array, shape (shares, bands, vertices)
        The part that computes with them, for each share and band of rows.
    groups : tuple of tuple of int
        For each layer, the groups of its parameters.
    group_names : tuple of frozenset of str
        The parameters of each group, which travel together.
    group, owner, holder, nbytes : int64 arrays, shape (weights,)
        Each message's group, sender and receiver; messages have numbers in the order of sending.
    packed : bool array, shape (weights,)
        Whether it consists of several tensors.
    backward : int64 array, shape (weights,)
        Numbers in the order in which gradients are added up.
    """

    model: CnnHypergraph
    owners: Int32
    parts: Int64
    groups: tuple[tuple[int, ...], ...]
    group_names: tuple[frozenset[str], ...]
    group: Int64
    owner: Int64
    holder: Int64
    nbytes: Int64
    packed: Bool
    backward: Int64

    def owner_of_tasks(self, layer: int) -> Int32:
        """The part that owns the parameters of each task of a layer."""
        return np.repeat(self.owners[self._span(layer)], np.diff(self.model.blocks.rows[layer]))

    def _span(self, layer: int) -> slice:
        layout = self.model.layouts[layer]
        assert layout is not None
        return slice(layout.finish, layout.finish + len(self.model.blocks.rows[layer]) - 1)

    def groups_of(self, piece: WorkPiece) -> Sequence[int]:
        """The groups of the parameters that a piece computes with."""
        groups = self.groups[piece.layer]
        if piece.parameters is None:
            return groups
        return [at for at in groups if not self.group_names[at].isdisjoint(piece.parameters)]

    def owners_in(self, piece: WorkPiece) -> Int64:
        """Parts that own parameters that a piece computes with."""
        here = self._holds(piece).any(axis=0)
        return np.unique(self.owners[self._span(piece.layer)][here])

    def has_all_owned(self, piece: WorkPiece) -> bool:
        """Whether a piece has all tasks of its layer that its part owns."""
        here = self._holds(piece)[0]
        return bool(here[self.owners[self._span(piece.layer)] == piece.part].all())

    def _holds(self, piece: WorkPiece) -> Bool:
        """Whether a piece has each vertex of its layer, in each of its tiles."""
        tiles = self.parts[list(piece.shares), piece.bands.start : piece.bands.stop]
        here: Bool = tiles[..., self._span(piece.layer)] == piece.part
        return here.reshape(-1, here.shape[-1])


def weights_of(facts: LayerFacts, partition: Partition, shares: Sequence[ShareSketch]) -> Weights:
    """Find the owners of all parameters, and what travels from them."""
    model, work = partition.model, partition.problem.work
    whole = replace(partition.modelling, slices=1, bands=1)
    single = of_blocks(model.graph, work, model.blocks, whole, whole.views(model.graph))
    by_slice = partition.parts.reshape(partition.modelling.slices, -1)
    within = containing(model, single)
    of_tiles = [
        parts[within]
        for share in shares
        for parts in parts_in_bands(model, by_slice[share.share.slices[0]])
    ]
    learning = with_parameters(facts.graph, facts.trainable)
    owned, owners = owners_of(single, of_tiles, partition.k, learning, work)
    within = containing(single, owned)
    parts = np.stack([own[within] for own in of_tiles]).astype(np.int64)
    groups: list[list[int]] = [[] for _ in facts.layers]
    names = list[frozenset[str]]()
    rows: list[Int64] = [np.zeros((0, 5), dtype=np.int64)]
    backward: list[Int64] = []
    count = 0
    for bucket in _groups(facts):
        travelling = []
        for own in bucket:
            group = len(names)
            names.append(own)
            for at, fact in enumerate(facts.layers):
                if not own.isdisjoint(fact.layer.parameter_names):
                    groups[at].append(group)
            nbytes, tensors = _between(facts, owned, own, owners, parts, partition.k)
            owner, holder = np.nonzero(nbytes)
            ends = np.full(len(owner), group), owner, holder
            travelling.append(
                np.stack([*ends, nbytes[owner, holder], tensors[owner, holder]], axis=1)
            )
        together = np.concatenate(travelling)
        rows.append(together[np.lexsort(together.T[[0, 2, 1]])])
        backward.append(np.arange(count, count + len(together)))
        count += len(together)
    group, owner, holder, nbytes, tensors = np.concatenate(rows).T
    return Weights(
        owned,
        owners,
        parts.reshape(len(shares), -1, parts.shape[1]),
        tuple(map(tuple, groups)),
        tuple(names),
        group,
        owner,
        holder,
        nbytes,
        tensors > 1,
        np.concatenate([np.zeros(0, np.int64), *reversed(backward)]),
    )


def _groups(facts: LayerFacts) -> Iterator[list[frozenset[str]]]:
    """Names of parameters that travel together, by the layer that they travel with."""
    shapes = facts.blueprint.parameter_shapes
    by_layer: dict[str, dict[str, list[str]]] = {}
    for name, layer in buckets_of(facts.graph, shapes, facts.trainable).items():
        alone = name if is_large(shapes[name]) else ""
        by_layer.setdefault(layer, {}).setdefault(alone, []).append(name)
    for together in by_layer.values():
        yield [frozenset(names) for names in together.values()]


def _between(
    facts: LayerFacts,
    model: CnnHypergraph,
    names: frozenset[str],
    owners: Int32,
    parts: Int64,
    k: int,
) -> tuple[Int64, Int64]:
    """Bytes of parameters from each owner to each holder, and the number of their tensors."""
    vertices, sizes, layers, tensors_of = [NOTHING], [NOTHING], [NOTHING], dict[int, int]()
    for at, fact in enumerate(facts.layers):
        own = [parameter for parameter in fact.layer.own_parameters if parameter.name in names]
        layout, rows = model.layouts[at], model.blocks.rows[at]
        if own and layout is not None:
            nbytes = [
                np.diff(parameter.elements * rows // fact.layer.tasks) * parameter.element_bytes
                for parameter in own
            ]
            vertices.append(layout.finish + np.arange(len(rows) - 1))
            sizes.append(np.sum(nbytes, axis=0))
            layers.append(np.full(len(rows) - 1, at))
            tensors_of[at] = len(own)
    some, size, layer = map(np.concatenate, (vertices, sizes, layers))
    order = np.argsort(owners[some] * np.int64(len(facts.layers)) + layer, kind="stable")
    some, size, layer = some[order], size[order], layer[order]
    held = np.zeros((len(some), k), dtype=np.bool_)
    held[np.arange(len(some)), parts[:, some]] = True
    held[np.arange(len(some)), owners[some]] = False
    between, tensors = np.zeros((k, k), dtype=np.int64), np.zeros((k, k), dtype=np.int64)
    if len(some):
        starts = starts_of_runs(owners[some] * np.int64(len(facts.layers)) + layer)[:-1]
        sent = np.add.reduceat(held * size[:, None], starts, axis=0)
        counts = np.array([tensors_of[at] for at in layer[starts].tolist()])
        np.add.at(between, owners[some[starts]], sent)
        np.add.at(tensors, owners[some[starts]], (sent > 0) * counts[:, None])
    return between, tensors
