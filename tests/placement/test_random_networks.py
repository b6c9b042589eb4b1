"""Networks of many kinds of layers, in random parts: results, gradients, states and bytes."""

from __future__ import annotations

import pytest
from random_networks import attempt

from hgpart.errors import PlacementError

EACH = 5  # networks a test; `digests.py` runs hundreds


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 3 * EACH, EACH))
def test_random_networks_in_parts_are_the_original(first: int) -> None:
    refused = 0
    for seed in range(first, first + EACH):
        try:
            how, wrong = attempt(seed)
        except PlacementError:
            refused += 1
            continue
        assert not wrong, (seed, how)
    assert refused <= EACH // 3
