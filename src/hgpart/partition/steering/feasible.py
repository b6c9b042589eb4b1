"""Problem -> devices for what is constrained, or the least set of constraints that must give way.

Without the balance it is a list colouring: each run of filters and each group of layers gets one of
the devices that it may lie on, and layers that are apart get different ones. With the balance,
layers that lie whole must also fit beside each other, and all other work must fit where it may lie,
as if it could be divided at will: a flow. So must the parameters and maps of all filters within
limits of memory. Where this fails, no partition meets the constraints. Where it does not, single
filters may still be too heavy, and what is received too much; the search finds that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import InfeasibleError
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.partition.problem.balance import capacities, round_up
from hgpart.partition.problem.layer_constraints import (
    Effect,
    LayerConstraints,
    Masks,
    combined,
    effects,
)
from hgpart.partition.problem.problem import Problem

MOST_STEPS = 20_000  # of a search for devices; without an answer by then it does not refuse
WIDEST_EPS = 1e6


@dataclass(frozen=True)
class _Piece:
    """Filters of a layer that may lie on the same devices, or a group of layers.

    Attributes
    ----------
    layers : frozenset of int
        One layer, or those of a group.
    run : int
        Number of the run of filters; 0 for a group.
    parts : frozenset of int
        Devices that it may lie on.
    work, held : int
        Work of all of it, in all slices and bands, and bytes that it needs where memory is limited.
    is_whole : bool
        Whether it lies on one device.
    """

    layers: frozenset[int]
    run: int
    parts: frozenset[int]
    work: int
    held: int
    is_whole: bool


def some_devices(problem: Problem) -> dict[tuple[int, int], int]:
    """A device for each run of filters of the layers that are constrained, balanced or not.

    Keys are a layer and the number of its run (0 where it has no pin).

    Raises
    ------
    InfeasibleError
        If the constraints contradict each other.
    """
    rules = problem.layer_constraints
    if rules is None:
        return {}
    chosen = _devices(_pieces(problem, rules), rules, None, problem.total)
    if chosen is None:
        raise InfeasibleError(f"the constraints contradict each other: {problem.constraints}")
    return {(at, piece.run): part for piece, part in chosen.items() for at in sorted(piece.layers)}


def check_constraints(problem: Problem, best_effort: bool = False) -> None:
    """Raise an InfeasibleError if no partition meets the constraints and, with them, eps or memory.

    It names the fewest of them of which one must give way, and the smallest eps that they leave
    room for, where there is one. At best effort only contradictions are refused.
    """
    if not problem.constraints:
        return
    every = effects(problem.constraints, problem.views, problem.k)
    whole = range(len(every))

    def of(chosen: Sequence[int]) -> list[Effect]:
        return [effect for at in chosen for effect in every[at][1]]

    def conflict(fails: Callable[[Sequence[Effect]], bool]) -> tuple[str, str] | None:
        """The fewest constraints that fail, and which must give way; None if none is to blame."""
        if not fails(of(whole)) or fails(()):
            return None
        least = _least_of(whole, lambda chosen: fails(of(chosen)))
        said = "; ".join(every[at][0] for at in least)
        return said, f"{'it' if len(least) == 1 else 'one of these'} must give way"

    if wrong := conflict(lambda own: _fails(problem, own, None)):
        raise InfeasibleError(f"the constraints contradict each other: {'; '.join(wrong)}")
    if best_effort:
        return
    if wrong := conflict(lambda own: _overflows(problem, own)):
        said, way_out = wrong
        counted = "" if problem.memory is None else problem.memory.counted
        raise InfeasibleError(
            f"the memory limits can't be met for k={problem.k} with {said}: parameters and maps "
            f"alone need more, with {counted}; {way_out}"
        )
    eps = max(problem.eps, problem.least_eps)
    if wrong := conflict(lambda own: _fails(problem, own, eps)):
        said, way_out = wrong
        smallest = _smallest_eps(eps, lambda allowed: _fails(problem, of(whole), allowed))
        raise InfeasibleError(
            f"eps {problem.eps:g} can't be met for k={problem.k} with {said}; the smallest eps "
            f"that all constraints leave room for is {round_up(smallest)}, or {way_out}"
        )


def least_eps(problem: Problem) -> float:
    """The problem's eps or, where constraints leave no room for it, the smallest that they do.

    Raises
    ------
    ArgumentError
        If a constraint names what there is not.
    InfeasibleError
        If the constraints contradict each other.
    """
    check_constraints(problem, best_effort=True)
    every = effects(problem.constraints, problem.views, problem.k)
    own = [effect for _, of_one in every for effect in of_one]
    eps = max(problem.eps, problem.least_eps)
    if not _fails(problem, own, eps) or _fails(problem, (), eps):
        return problem.eps
    return round_up(_smallest_eps(eps, lambda allowed: _fails(problem, own, allowed)))


def _least_of(whole: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """A least set that fails: without any of its members it does not.

    Halves first (QuickXplain, Junker 2004, without its preferences): few of many are needed.
    """

    def needed(base: list[int], candidates: list[int], has_grown: bool) -> list[int]:
        if has_grown and fails(base):
            return []
        if len(candidates) == 1:
            return candidates
        half = len(candidates) // 2
        left, right = candidates[:half], candidates[half:]
        of_right = needed(base + left, right, True)
        of_left = needed(base + of_right, left, bool(of_right))
        return of_left + of_right

    return sorted(needed([], list(whole), False))


def _smallest_eps(low: float, fails: Callable[[float], bool]) -> float:
    """The smallest eps that does not fail, to a thousandth of it; `low` fails."""
    high = max(1.0, 2 * low)
    while fails(high) and high < WIDEST_EPS:
        low, high = high, 2 * high
    while high - low > 1e-4 * max(high, 0.01):
        middle = (low + high) / 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high


def _fails(problem: Problem, chosen: Sequence[Effect], eps: float | None) -> bool:
    rules = combined(chosen, problem.views, problem.k)
    room = None if eps is None else capacities(problem.total, problem.rates, eps)
    return _devices(_pieces(problem, rules), rules, room, problem.total) is None


def _held(problem: Problem, tied: Sequence[LayerVertices], begin: int, end: int) -> int:
    """Bytes of some filters of layers that share vertices: parameters, and the maps they make."""
    if problem.memory is None:
        return 0
    parameters = maps = 0
    for view in tied:
        tasks = view.layer.tasks
        for count, size in view.parameters:
            parameters += (count * end // tasks - count * begin // tasks) * size
        maps += (end - begin) * view.map_bytes
    return problem.memory.least(parameters, maps)


def _overflows(problem: Problem, chosen: Sequence[Effect]) -> bool:
    memory = problem.memory
    if memory is None:
        return False
    pieces = _pieces(problem, combined(chosen, problem.views, problem.k))
    total = sum(
        _held(problem, tied, 0, tied[0].layer.tasks) for tied in by_vertices(problem.views).values()
    )
    return not _flows(pieces, [piece.held for piece in pieces], np.array(memory.bytes), total)


def _pieces(problem: Problem, rules: LayerConstraints) -> list[_Piece]:
    """What is constrained: groups whole, other layers run by run; then all the rest as one."""
    anywhere = frozenset(range(problem.k))
    samples = sum(problem.modelling.slice_work)
    tied = by_vertices(problem.views)
    per_task = {
        first: samples * sum(int(problem.work.per_task[view.at]) for view in views)
        for first, views in tied.items()
    }
    tasks = {at: problem.views[at].layer.tasks for at in per_task}

    def allowed(mask: Masks) -> frozenset[int]:
        return frozenset(np.flatnonzero(mask).tolist())

    pieces: list[_Piece] = []
    taken: set[int] = set()
    for layers in rules.of_group.values():
        pinned = next((at for at in layers if at in rules.parts), None)
        parts = anywhere if pinned is None else allowed(rules.parts[pinned][0])
        work = sum(per_task[at] * tasks[at] for at in layers)
        held = sum(_held(problem, tied[at], 0, tasks[at]) for at in layers)
        pieces.append(_Piece(frozenset(layers), 0, parts, work, held, True))
        taken |= set(layers)
    apart = {at for pair in rules.sides for side in pair for at in side}
    for at in sorted((set(rules.parts) | apart) - taken):
        cuts, masks = rules.cuts.get(at), rules.parts.get(at)
        if cuts is None or masks is None:
            work, held = per_task[at] * tasks[at], _held(problem, tied[at], 0, tasks[at])
            pieces.append(_Piece(frozenset([at]), 0, anywhere, work, held, False))
            continue
        for run, ((begin, end), mask) in enumerate(
            zip(pairwise(cuts.tolist()), masks, strict=True)
        ):
            work, held = per_task[at] * (end - begin), _held(problem, tied[at], begin, end)
            pieces.append(_Piece(frozenset([at]), run, allowed(mask), work, held, False))
    return pieces


def _devices(
    pieces: Sequence[_Piece], rules: LayerConstraints, room: Int64 | None, total: int
) -> dict[_Piece, int] | None:
    """A device for each piece, within the rooms where there are any; None if there is none."""
    near = _near(pieces, rules)
    is_nowhere = not all(piece.parts for piece in pieces)
    if is_nowhere or any(at in others for at, others in enumerate(near)):
        return None
    if room is not None and not _flows(pieces, [piece.work for piece in pieces], room, total):
        return None
    # The hardest first: whole ones, by their work if that counts, else those with few devices.
    must = [at for at, piece in enumerate(pieces) if piece.is_whole or near[at]]
    must.sort(key=lambda at: (len(pieces[at].parts), -pieces[at].work))
    if room is not None:
        must.sort(key=lambda at: (not pieces[at].is_whole, -pieces[at].work * pieces[at].is_whole))
    chosen: dict[int, int] = {}
    loads = [0] * rules.k
    is_like_others = not rules.parts and not rules.sides  # each device is like each other

    def on_each_device(at: int) -> Iterator[bool]:
        """Put a piece on each device in turn, between which the caller places those after it."""
        piece, taken = pieces[at], {chosen[other] for other in near[at] if other in chosen}
        counts = piece.work if piece.is_whole and room is not None else 0
        tried: set[tuple[int, int]] = set()
        for part in sorted(piece.parts - taken, key=lambda part: (loads[part], part)):
            most = 0 if room is None else int(room[part])
            if room is not None and loads[part] + counts > most:
                continue
            if is_like_others and (loads[part], most) in tried:
                continue
            tried.add((loads[part], most))
            chosen[at] = part
            loads[part] += counts
            yield True
            loads[part] -= counts
            del chosen[at]

    placed: list[Iterator[bool]] = []  # of the first pieces, each on a device now
    for _ in range(MOST_STEPS):
        if len(placed) == len(must):
            break
        placed.append(on_each_device(must[len(placed)]))
        while placed and not next(placed[-1], False):
            placed.pop()
        if not placed:
            return None
    return {piece: chosen.get(at, min(piece.parts)) for at, piece in enumerate(pieces)}


def _near(pieces: Sequence[_Piece], rules: LayerConstraints) -> list[set[int]]:
    """For each piece those that must be apart from it."""
    near: list[set[int]] = [set() for _ in pieces]
    of_layer: dict[int, list[int]] = {}
    for at, piece in enumerate(pieces):
        for layer in piece.layers:
            of_layer.setdefault(layer, []).append(at)
    for side, other in rules.sides:
        for left in side:
            for right in other:
                for at in of_layer[left]:
                    near[at].update(of_layer[right])
                for at in of_layer[right]:
                    near[at].update(of_layer[left])
    return near


def _flows(pieces: Sequence[_Piece], amounts: Sequence[int], room: Int64, total: int) -> bool:
    """Whether all fits where it may lie, if all but what lies whole could be divided at will."""
    by_parts = {frozenset(range(len(room))): total - sum(amounts)}
    for piece, amount in zip(pieces, amounts, strict=True):
        parts = piece.parts
        if piece.is_whole:
            parts = frozenset(part for part in parts if amount <= room[part])
        by_parts[parts] = by_parts.get(parts, 0) + amount
    graph = nx.DiGraph()
    for number, (parts, amount) in enumerate(by_parts.items()):
        graph.add_edge("all", ("load", number), capacity=amount)
        for part in parts:
            graph.add_edge(("load", number), part)
    for part, most in enumerate(room.tolist()):
        graph.add_edge(part, "end", capacity=most)
    if not total:
        return True
    flow: int = nx.maximum_flow_value(graph, "all", "end")
    return flow >= total
