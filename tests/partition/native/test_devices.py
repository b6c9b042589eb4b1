"""Which device each part goes to."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hgpart.partition.native.devices import cheapest_devices


def cost(traffic: np.ndarray, links: np.ndarray, device: np.ndarray) -> int:
    k = len(device)
    return sum(
        int(traffic[s, r] * links[device[s], device[r]])
        for s in range(k)
        for r in range(k)
        if s != r
    )


@given(st.integers(1, 5), st.integers(0, 999), st.booleans())
def test_no_exchange_of_equal_devices_is_cheaper(k: int, seed: int, equal: bool) -> None:
    random = np.random.default_rng(seed)
    traffic, links = random.integers(0, 9, (2, k, k))
    np.fill_diagonal(links, 0)
    room = np.ones((k, 1)) if equal else np.arange(k)[:, None]
    device = cheapest_devices(traffic, links.astype(float), room)
    assert sorted(device.tolist()) == list(range(k))
    if not equal:
        assert device.tolist() == list(range(k))
        return
    best = cost(traffic, links, device)
    assert best <= cost(traffic, links, np.arange(k))
    for one in range(k):
        for other in range(one):
            exchanged = device.copy()
            exchanged[[one, other]] = device[[other, one]]
            assert cost(traffic, links, exchanged) >= best


def test_two_pairs_go_to_the_two_fast_links() -> None:
    traffic = np.zeros((4, 4), dtype=np.int64)
    traffic[0, 3] = traffic[1, 2] = 100
    links = np.where(np.arange(4)[:, None] // 2 == np.arange(4)[None] // 2, 1.0, 10.0)
    device = cheapest_devices(traffic, links, np.ones((4, 1)))
    cheapest = min(cost(traffic, links, np.array(order)) for order in permutations(range(4)))
    assert cost(traffic, links, device) == cheapest == 200
