"""What devices need: of a placement that is counted by hand, against limits."""

from __future__ import annotations

from recommended import LINK, machine, network, recommended

from hgpart.machines.machine import Device, Machine
from hgpart.recommendation.memory import limits_of, what_is_over

FLOAT = 4


def test_one_device_needs_weights_gradients_momentum_and_what_it_keeps() -> None:
    found = recommended(machine(1)).best
    parameters = sum(one.numel() for one in network().parameters()) * FLOAT
    assert found.needed_bytes == (3 * parameters + found.prediction.step_bytes[0],)
    assert found.prediction.step_bytes > found.prediction.peak_bytes  # with what operators drop
    # A batch of 8: the input and what the first convolution, the ReLU and the second one return.
    maps = 8 * (3 * 64 + 8 * 36 + 8 * 36 + 8 * 16)
    assert found.prediction.peak_bytes[0] >= maps * FLOAT - 8 * 8 * 36 * FLOAT


def test_limits_are_those_given_or_those_of_the_devices() -> None:
    devices = (Device("a", 5), Device("b", None))
    unequal = Machine("two", devices, (2,), LINK)
    assert limits_of(unequal, None) == (5, None)
    assert limits_of(unequal, 7) == (7, 7)


def test_the_device_that_is_short_of_most_is_named() -> None:
    assert what_is_over((10, 20), (10, 20)) is None
    assert what_is_over((None, 20), (1, None)) is None
    assert what_is_over((11, 25), (10, 20)) == "device 1 needs 25 bytes of 20 bytes"
