"""Parts that constraints know nothing of -> the nearest that meet them.

All filters of a layer that a device has, and must not, go together to the device with most room
among those that may have them; a group of layers goes to the device that has most of it. Where two
sets of layers that are to be apart meet on a device, the lighter one leaves. Should that not end,
both go where a search for any devices puts them (`some_devices`). The searches after it balance and
improve the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.project import project
from hgpart.partition.steering.feasible import some_devices
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.symmetry import Symmetry

Masks = NDArray[np.bool_]
MOST_MOVES = 1000  # of sets of layers that meet and are to be apart


@dataclass(frozen=True, eq=False)
class _Shares:
    """Vertices, or bundles of vertices of one type that lie in one part, and where each may lie.

    Attributes
    ----------
    layers, weights : int64 arrays, shape (shares,)
    allowed : bool array, shape (shares, k)
    groups : int32 array, shape (shares,)
        Shares of a number lie together; -1 for others.
    sides : bool array, shape (sides, shares)
        No part has shares of both the sides 2 i and 2 i + 1.
    """

    layers: Int64
    weights: Int64
    allowed: Masks
    groups: Int32
    sides: Masks


class Obeying:
    """Makes partitions of a problem meet its constraints."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._rules = problem, problem.layer_constraints

    def division(self, symmetry: Symmetry, division: Division) -> Division:
        """The nearest division that meets the constraints."""
        rules, limits = self._rules, symmetry.limits
        if rules is None or not limits.any:
            return division
        types = np.repeat(np.arange(len(division.parts)), [own.size for own in division.parts])
        units = [
            np.outer(division.sizes[first], [1] if second < 0 else division.sizes[second]).ravel()
            for first, second in symmetry.type_classes.tolist()
        ]
        anywhere = np.ones((len(division.parts), rules.k), dtype=np.bool_)
        allowed = limits.parts if limits.parts.size else anywhere
        alone = np.full(len(division.parts), -1, dtype=np.int32)
        groups = limits.groups if limits.groups.size else alone
        sides = limits.sides if limits.sides.size else np.zeros((0, len(alone)), np.bool_)
        shares = _Shares(
            layers=symmetry.type_layers.astype(np.int64)[types],
            weights=symmetry.type_weights[types] * np.concatenate(units),
            allowed=allowed[types],
            groups=groups[types],
            sides=sides[:, types],
        )
        before = np.concatenate([own.ravel() for own in division.parts])
        parts = self._obeying(shares, before)
        if parts is before:
            return division
        ends = np.cumsum([own.size for own in division.parts])[:-1]
        shaped = [
            own.reshape(old.shape)
            for own, old in zip(np.split(parts, ends), division.parts, strict=True)
        ]
        return Division(division.sizes, shaped)

    def parts(self, model: CnnHypergraph, parts: Int32) -> Int32:
        """The nearest parts that meet the constraints, of blocks that are cut where runs end."""
        rules = self._rules
        if rules is None:
            return parts
        layers = model.vertex_layers
        members = [sorted(side) for pair in rules.sides for side in pair]
        sides = np.array([np.isin(layers, own) for own in members], np.bool_)
        sides = sides.reshape(-1, model.vertices)
        allowed, groups = rules.of_vertices(model), rules.groups[layers]
        shares = _Shares(layers.astype(np.int64), model.weights, allowed, groups, sides)
        return self._obeying(shares, parts)

    def blocks(self, model: CnnHypergraph, parts: Int32) -> tuple[CnnHypergraph, Int32]:
        """The nearest partition that meets the constraints, of blocks cut where runs end."""
        if self._rules is None:
            return model, parts
        cut = self._problem.hypergraph(cut_at_runs(self._problem, model.blocks))
        return cut, self.parts(cut, project(parts, model, cut))

    def may_lie(self, model: CnnHypergraph, parts: Int32) -> Masks | None:
        """Where each vertex may move to by itself, while others do, shape (vertices, k).

        From parts that meet the constraints. Groups stay, and of two sets that are to be apart the
        second keeps to the devices that it has. None without constraints.
        """
        rules = self._rules
        if rules is None:
            return None
        allowed, layers = rules.of_vertices(model), model.vertex_layers
        for side, other in rules.sides:
            held = np.zeros(rules.k, dtype=np.bool_)
            own = np.isin(layers, sorted(other))
            held[parts[own]] = True
            allowed[own] &= held
            allowed[np.isin(layers, sorted(side))] &= ~held
        fixed = np.flatnonzero(rules.groups[layers] >= 0)
        allowed[fixed] = False
        allowed[fixed, parts[fixed]] = True
        return allowed

    def _known(self, shares: _Shares) -> Int32:
        """Parts with which shares in groups or on sides are as they must be; -1 for others."""
        rules = self._rules
        assert rules is not None
        by_mask = {
            (at, b"" if at not in rules.parts else rules.parts[at][run].tobytes()): part
            for (at, run), part in some_devices(self._problem).items()
        }
        known = np.full(len(shares.layers), -1, dtype=np.int32)
        for index in np.flatnonzero((shares.groups >= 0) | shares.sides.any(axis=0)).tolist():
            at = int(shares.layers[index])
            mask = shares.allowed[index].tobytes() if at in rules.parts else b""
            known[index] = by_mask.get((at, mask), -1)
        return known

    def _obeying(self, shares: _Shares, before: Int32) -> Int32:
        indices = np.arange(len(before))
        is_met = bool(shares.allowed[indices, before].all())
        if is_met and not (shares.groups >= 0).any() and not len(shares.sides):
            return before
        parts: Int32 = before.copy()
        room = self._problem.capacities.astype(np.float64)
        np.subtract.at(room, parts, shares.weights)
        moving = _Moving(shares, parts, room)
        moving.join_groups()
        moving.leave_forbidden()
        if not moving.part_sides():
            known = self._known(shares)
            parts[known >= 0] = known[known >= 0]
        return parts


class _Moving:
    """Shares on their way, and the room of each part."""

    def __init__(self, shares: _Shares, parts: Int32, room: NDArray[np.float64]) -> None:
        self.shares, self.parts, self.room = shares, parts, room
        self.k = len(room)

    def move(self, chosen: Int64, to: int) -> None:
        """Move some shares to a part."""
        weights = self.shares.weights[chosen]
        np.add.at(self.room, self.parts[chosen], weights)
        self.parts[chosen] = to
        self.room[to] -= weights.sum()

    def join_groups(self) -> None:
        """Put each group where most of it lies already, or else where there is most room."""
        for group in range(int(self.shares.groups.max(initial=-1)) + 1):
            own = np.flatnonzero(self.shares.groups == group)
            if not len(own):
                continue
            held = np.bincount(self.parts[own], self.shares.weights[own] + 1e-9, self.k)
            allowed = self.shares.allowed[own].all(axis=0)
            by_room = self.room - self.room.min() + 1
            score = np.where(allowed, held + 1e-12 * by_room / by_room.max(), -1.0)
            self.move(own, int(score.argmax()))

    def leave_forbidden(self) -> None:
        """Move each layer's shares from parts that must not have them to those with most room."""
        indices = np.arange(len(self.parts))
        wrong = np.flatnonzero(~self.shares.allowed[indices, self.parts])
        if not len(wrong):
            return
        keys = np.concatenate(
            [
                np.stack([self.shares.layers[wrong], self.parts[wrong]], axis=1),
                self.shares.allowed[wrong].astype(np.int64),
            ],
            axis=1,
        )
        _, owners = np.unique(keys, axis=0, return_inverse=True)
        owners = owners.ravel()
        weights = np.bincount(owners, self.shares.weights[wrong])
        for owner in np.argsort(-weights, kind="stable").tolist():
            own = wrong[owners == owner]
            allowed = self.shares.allowed[own[0]]
            self.move(own, int(np.where(allowed, self.room, -np.inf).argmax()))

    def part_sides(self) -> bool:
        """Part what is to be apart; whether that could be done."""
        sides = self.shares.sides
        if not len(sides):
            return True
        for _ in range(MOST_MOVES):
            held = np.array([np.bincount(self.parts[own], minlength=self.k) > 0 for own in sides])
            meets = held[0::2] & held[1::2]
            if not meets.any():
                return True
            pair, part = (int(at) for at in np.argwhere(meets)[0])
            both = [
                self._with_groups(np.flatnonzero(sides[2 * pair + at] & (self.parts == part)))
                for at in (0, 1)
            ]
            both.sort(key=lambda own: float(self.shares.weights[own].sum()))
            if not any(self._leave(own, held) for own in both):
                return False
        return False

    def _with_groups(self, own: Int64) -> Int64:
        groups = np.unique(self.shares.groups[own])
        return np.union1d(own, np.flatnonzero(np.isin(self.shares.groups, groups[groups >= 0])))

    def _leave(self, own: Int64, held: Masks) -> bool:
        """Move shares of a side to a part without what they are apart from, if there is one."""
        allowed = self.shares.allowed[own].all(axis=0)
        for side in np.flatnonzero(self.shares.sides[:, own].any(axis=1)).tolist():
            allowed &= ~held[side ^ 1]
        if not allowed.any():
            return False
        self.move(own, int(np.where(allowed, self.room, -np.inf).argmax()))
        return True


def cut_at_runs(problem: Problem, blocks: Blocks) -> Blocks:
    """Cut blocks where filters begin that may lie elsewhere."""
    rules = problem.layer_constraints
    if rules is None or not rules.cuts:
        return blocks
    return Blocks.cut(
        problem.views,
        lambda view: (
            np.union1d(blocks.rows[view.at], rules.cuts.get(view.at, blocks.rows[view.at][:1])),
            blocks.columns[view.at],
        ),
    )
