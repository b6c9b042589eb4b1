"""The catalogue: each way by its one name."""

from __future__ import annotations

import pytest

from hgpart.errors import ArgumentError
from hgpart.partition.ways.built_in import BUILT_IN, FORMER
from hgpart.partition.ways.catalogue import way_named, ways


def test_every_way_has_one_name_and_a_line_of_words() -> None:
    for name, each in ways().items():
        assert each.name == name
        assert way_named(name) == each
        assert each.words
        assert "\n" not in each.words
    assert not FORMER.keys() & {*ways(), *BUILT_IN}
    assert set(FORMER.values()) <= {*ways(), *BUILT_IN}


@pytest.mark.parametrize(("former", "now"), FORMER.items())
def test_a_former_name_is_answered_with_the_present_one(former: str, now: str) -> None:
    with pytest.raises(ArgumentError, match=f"^way '{former}' is called {now} now$"):
        way_named(former)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("layerwize", r"accepted are coarse, .*, rows-then-filters-R; did you mean layerwise\?"),
        ("replicated", r"did you mean replicated-stages\?"),
        ("hybrid-0", r"^way 'hybrid-0': accepted is hybrid- and a number above 1"),
        ("spatial-1", r"^way 'spatial-1': accepted is spatial- and a number above 1"),
        ("hybrid-two", r"^way 'hybrid-two': accepted are"),
        ("", "did you mean"),
    ],
)
def test_what_is_no_way_is_refused(name: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as error:
        way_named(name)
    assert "\n" not in str(error.value)
