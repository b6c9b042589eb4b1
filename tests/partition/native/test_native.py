"""What the native border refuses, in one line each, and what it does with sums above 64 bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from corrupted_records import corrupted

from hgpart import _native
from hgpart.errors import HypergraphError
from hgpart.hypergraph.hypergraph import Hypergraph


def refine(hypergraph: Hypergraph, parts: np.ndarray, k: int) -> np.ndarray:
    """With what all functions take."""
    return _native.refine(hypergraph, parts, np.full(max(0, k), 4), 0)


METRICS = [
    _native.communication_volume,
    _native.cut_net,
    _native.part_loads,
    _native.traffic,
    _native.messages,
]
MOST = 2**63 - 1
PARTS = np.array([0, 1, 2], dtype=np.int32)
HYPERGRAPH = Hypergraph(
    weights=np.array([1, 2, 3], dtype=np.int64),
    costs=np.array([5, 6], dtype=np.int64),
    pointers=np.array([0, 3, 5], dtype=np.int64),
    pins=np.array([0, 1, 2, 2, 0], dtype=np.int32),
    gathers=np.array([False, True]),
    net_layers=np.array([0, 1], dtype=np.int32),
)


def int64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def int32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


BAD_ARRAYS = [
    ({"weights": int64(1, -2, 3)}, "weights[1] is -2, expected 0 or more"),
    ({"costs": int64(-5, 6)}, "costs[0] is -5, expected 0 or more"),
    ({"costs": int64(5)}, "pointers has length 3, expected 2, one more than costs"),
    ({"pointers": int64()}, "pointers has length 0, expected 3, one more than costs"),
    ({"pointers": int64(1, 3, 5)}, "pointers[0] is 1, expected 0"),
    (
        {"pointers": int64(0, 3, 2)},
        "pointers[2] is 2, expected more than 3: each net has at least a root",
    ),
    (
        {"pointers": int64(0, 0, 5)},
        "pointers[1] is 0, expected more than 0: each net has at least a root",
    ),
    ({"pointers": int64(0, 3, 6)}, "pointers[2] is 6, expected 5, the number of pins"),
    ({"pointers": int64(0, 3, 4)}, "pointers[2] is 4, expected 5, the number of pins"),
    ({"pins": int32(0, 1, 3, 2, 0)}, "pins[2] is 3, expected 0 or more and less than 3"),
    ({"pins": int32(0, 1, 2, -1, 0)}, "pins[3] is -1, expected 0 or more and less than 3"),
    ({"gathers": np.array([True])}, "gathers has length 1, expected 2, one per net"),
    ({"net_layers": int32(0, 1, 2)}, "net_layers has length 3, expected 2, one per net"),
    ({"net_layers": int32(0, -7)}, "net_layers[1] is -7, expected 0 or more"),
    (
        {"weights": np.array([1.0, 2.0, np.nan])},
        "weights is float64 of shape (3,), expected a contiguous one-dimensional array of int64",
    ),
    (
        {"pins": int64(0, 1, 2, 2, 0)},
        "pins is int64 of shape (5,), expected a contiguous one-dimensional array of int32",
    ),
    (
        {"pins": int32(0, 9, 1, 9, 2, 9, 2, 9, 0)[::2]},
        "pins is int32 of shape (5,), expected a contiguous one-dimensional array of int32",
    ),
    (
        {"pins": int32(0, 1, 2, 2, 0).astype(">i4")},
        "pins is >i4 of shape (5,), expected a contiguous one-dimensional array of int32",
    ),
    (
        {"costs": np.array([[5, 6]])},
        "costs is int64 of shape (1, 2), expected a contiguous one-dimensional array of int64",
    ),
    (
        {"gathers": np.array([0, 1], dtype=np.uint8)},
        "gathers is uint8 of shape (2,), expected a contiguous one-dimensional array of bool",
    ),
    (
        {"costs": [5, 6]},
        "costs is list, expected a contiguous one-dimensional array of int64",
    ),
]


@pytest.mark.parametrize("metric", [*METRICS, refine])
@pytest.mark.parametrize(("arrays", "message"), BAD_ARRAYS)
def test_the_entry_that_is_not_of_a_hypergraph_is_named(metric, arrays, message):
    with pytest.raises(HypergraphError) as raised:
        metric(replace(HYPERGRAPH, **arrays), PARTS, 3)
    assert str(raised.value) == message


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("parts", "k", "message"),
    [
        (PARTS, 2, "parts[2] is 2, expected 0 or more and less than 2"),
        (int32(0, -1, 0), 2, "parts[1] is -1, expected 0 or more and less than 2"),
        (int32(0, 1), 2, "parts has length 2, expected 3, one per vertex"),
        (PARTS, 0, "k is 0, expected 1 to 16777216"),
        (PARTS, -3, "k is -3, expected 1 to 16777216"),
        (
            np.array([0.0, 1.0, 1.0]),
            2,
            "parts is float64 of shape (3,), expected a contiguous one-dimensional array of int32",
        ),
    ],
)
def test_metrics_name_the_entry_that_is_not_a_partition(metric, parts, k, message):
    with pytest.raises(HypergraphError) as raised:
        metric(HYPERGRAPH, parts, k)
    assert str(raised.value) == message


@pytest.mark.parametrize("metric", METRICS)
def test_a_mistaken_k_allocates_nothing(metric):
    with pytest.raises(HypergraphError, match="k is 2147483647, expected"):
        metric(HYPERGRAPH, PARTS, 2**31 - 1)


@pytest.mark.parametrize("table", [_native.traffic, _native.messages])
def test_a_table_of_all_pairs_has_a_largest_k(table):
    with pytest.raises(HypergraphError) as raised:
        table(HYPERGRAPH, PARTS, 2**20)
    assert str(raised.value) == "k is 1048576, expected at most 16384 for a k x k table"


def test_a_million_parts_are_counted():
    parts = int32(0, 2**20 - 1, 7)
    assert _native.communication_volume(HYPERGRAPH, parts, 2**20) == 5 * 2 + 6
    assert _native.part_loads(HYPERGRAPH, parts, 2**20)[2**20 - 1] == 2


OVERFLOW = " is more than 9223372036854775807, the most that 64 bits hold"


@pytest.mark.parametrize(
    ("metric", "arrays", "what"),
    [
        (_native.part_loads, {"weights": int64(MOST, 0, 1)}, "total weight"),
        (_native.communication_volume, {"costs": int64(MOST // 2 + 1, 0)}, "communication volume"),
        (_native.communication_volume, {"costs": int64(1, MOST)}, "communication volume"),
        (_native.traffic, {"costs": int64(1, MOST)}, "communication volume"),
        (_native.cut_net, {"costs": int64(1, MOST)}, "cost of the cut nets"),
        (refine, {"weights": int64(MOST, 0, 1)}, "total weight"),
        (refine, {"costs": int64(1, MOST)}, "total cost"),
    ],
)
def test_a_sum_above_64_bits_is_an_error(metric, arrays, what):
    with pytest.raises(HypergraphError) as raised:
        metric(replace(HYPERGRAPH, **arrays), PARTS, 3)
    assert str(raised.value) == what + OVERFLOW


def test_sums_of_exactly_64_bits_are_exact():
    largest = replace(HYPERGRAPH, weights=int64(MOST - 3, 1, 2), costs=int64((MOST - 1) // 2, 1))
    assert _native.part_loads(largest, PARTS * 0, 1).tolist() == [MOST]
    assert _native.communication_volume(largest, PARTS, 3) == MOST
    assert sum(_native.traffic(largest, PARTS, 3).ravel().tolist()) == MOST


@dataclass(frozen=True)
class Partitioned:
    """What refinement takes beside the hypergraph."""

    parts: np.ndarray
    capacities: np.ndarray
    seed: int


def test_corrupted_records_are_refused_or_computed_with():
    """Sums of nearly 64 bits wrapped in refinement: weights, costs and capacities below 0."""
    random, refused, trials = np.random.default_rng(0), 0, 1000
    for _ in range(trials):
        hypergraph, given = HYPERGRAPH, Partitioned(PARTS, int64(2, 4, 9), 0)
        for _ in range(random.integers(1, 4)):
            if random.random() < 0.7:
                hypergraph = corrupted(hypergraph, random)
            else:
                given = corrupted(given, random)
        k = len(given.capacities)
        for function in METRICS:
            try:
                function(hypergraph, given.parts, k)
            except HypergraphError:
                refused += 1
        try:
            _native.refine(hypergraph, given.parts, given.capacities, max(0, given.seed))
        except HypergraphError:
            refused += 1
    assert trials < refused < 6 * trials


def test_arrays_that_are_not_aligned_are_refused():
    """Their entries lie across words, which compilers count on not to be."""
    unaligned = np.frombuffer(b"-" + PARTS.tobytes(), dtype=np.int32, offset=1)
    with pytest.raises(HypergraphError, match="parts is int32 of shape"):
        _native.cut_net(HYPERGRAPH, unaligned, 3)


def test_nothing_to_do():
    empty = Hypergraph(
        weights=int64(),
        costs=int64(),
        pointers=int64(0),
        pins=int32(),
        gathers=np.array([], dtype=np.bool_),
        net_layers=int32(),
    )
    assert _native.cut_net(empty, int32(), 2) == 0
    assert _native.part_loads(empty, int32(), 2).tolist() == [0, 0]
    assert _native.traffic(empty, int32(), 2).tolist() == [[0, 0], [0, 0]]


def test_read_only_arrays_are_read():
    parts = PARTS.copy()
    parts.flags.writeable = False
    assert _native.communication_volume(HYPERGRAPH, parts, 3) == 5 * 2 + 6
