"""What is asked of parameter servers: what is refused, and who has what."""

from __future__ import annotations

import pytest

from hgpart.errors import ArgumentError
from hgpart.run.servers.serving import Serving


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "ps"}, "way 'ps': accepted are ps-sync and ps-async"),
        ({"servers": "0"}, "servers=0: accepted are a number, 1 or more, and distributed"),
        ({"shards": "random"}, "shards 'random': accepted are greedy and round-robin"),
        ({"fetch": 0}, "fetch 0: accepted is 1 or more"),
        ({"staleness": -1}, "staleness -1: accepted is 0 or more"),
        ({"name": "ps-sync", "push": 2}, "accepted are these with ps-async"),
        ({"name": "ps-sync", "staleness": 0}, "accepted are these with ps-async"),
    ],
)
def test_settings_out_of_range_are_refused(settings, said):
    with pytest.raises(ArgumentError) as error:
        Serving(**{"name": "ps-async", **settings})
    assert said in str(error.value)


@pytest.mark.parametrize("servers", ["1", "3", "distributed"])
@pytest.mark.parametrize("shards", ["greedy", "round-robin"])
def test_each_parameter_is_served_once(servers, shards):
    serving = Serving("ps-async", servers, shards)
    owned = serving.owned([7, 1, 5, 5], workers=6)
    assert sorted(number for own in owned.values() for number in own) == [0, 1, 2, 3]
    assert all(own for own in owned.values())
    assert {*owned} <= {*range(0 if serving.is_distributed else 6, serving.processes(6))}
