"""Machines by name."""

from __future__ import annotations

import pytest

from hgpart.errors import ArgumentError
from hgpart.machines.named import NAMES, named_machine


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 8, 19])
def test_a_name_has_as_many_devices_as_wanted(name: str, k: int) -> None:
    machine = named_machine(name, k)
    assert machine is not None
    assert machine.k == k
    assert named_machine(f"{name}:{k}", 3) == machine
    assert machine.name == f"{name}:{k}"


def test_nodes_are_filled_in_turn() -> None:
    assert named_machine("nvlink-8:16").nodes == (8, 8)
    assert named_machine("nvlink-8", 3).nodes == (3,)
    assert named_machine("10gbe:3").nodes == (1, 1, 1)


def test_links_are_those_of_their_data_sheets() -> None:
    """Bits per second, less what packets need."""
    nvlink = named_machine("nvlink-8:16")
    assert nvlink.link(0, 7).bandwidth == pytest.approx(300e9)
    assert 8 * nvlink.link(0, 8).bandwidth == pytest.approx(100e9, rel=0.01)
    assert 8 * named_machine("10gbe:2").link(0, 1).bandwidth == pytest.approx(10e9, rel=0.06)
    wifi = named_machine("edge-wifi:2").link(0, 1)
    assert 8 * wifi.bandwidth < 433.3e6 / 2
    assert wifi.bandwidth_both_ways == pytest.approx(wifi.bandwidth / 2)


@pytest.mark.parametrize("name", ["10gb", "machine.json", "", "10gbe.json", ":3"])
def test_other_names_are_none(name: str) -> None:
    assert named_machine(name, 3) is None


@pytest.mark.parametrize("name", ["10gbe:", "10gbe:x", "10gbe:-1", "10gbe:²"])
def test_a_number_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="accepted is a number of devices, as in 10gbe:16"):
        named_machine(name)


@pytest.mark.parametrize(("name", "k"), [("10gbe:0", 2), ("10gbe:" + "9" * 5000, 2), ("10gbe", 0)])
def test_too_few_or_too_many_devices_are_refused(name: str, k: int) -> None:
    with pytest.raises(ArgumentError, match="devices: accepted are 1 to 65536, as in 10gbe:16"):
        named_machine(name, k)
