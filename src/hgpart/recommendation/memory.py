"""Placement, what its steps take -> bytes that each device needs for a training step."""

from __future__ import annotations

from collections.abc import Sequence

from hgpart.errors import PlacementError
from hgpart.machines.machine import Machine
from hgpart.placement import Placement
from hgpart.placement.accounting import account
from hgpart.schedule_wanted import Scheduling

OPTIMIZER = "sgd with momentum"  # what `hgpart train` takes where nothing is said


def lasting_bytes(
    placement: Placement, batch_size: int, optimizer: str | None = OPTIMIZER
) -> tuple[int | None, ...]:
    """What each part has from step to step: parameters and, with an optimizer, what that needs.

    And its other tensors, with what arrives of the weights of others; None where an operator can't
    be run without memory, so that nothing is known.
    """
    try:
        parts = account(placement, batch_size).parts
    except PlacementError:
        return (None,) * placement.k
    return tuple(
        part.memory_bytes(optimizer or OPTIMIZER)
        - part.activation_bytes
        - (0 if optimizer else part.gradient_bytes + part.optimizer_bytes(OPTIMIZER))
        for part in parts
    )


def needed_bytes(
    lasting: Sequence[int | None],
    versions: Sequence[int],
    step_bytes: Sequence[int | None],
    scheduling: Scheduling,
) -> tuple[int | None, ...]:
    """The same and the most that the part takes in a step.

    Parameters
    ----------
    lasting : sequence of int or None
        What `lasting_bytes` returns.
    versions : sequence of int
        Bytes of each part's parameters, which batches in flight have versions of.
    step_bytes : sequence of int or None
        The most that each part takes in a step; see `StepBytes.taken`.
    """
    more = (scheduling.most_in_flight - 1) * scheduling.stash
    return tuple(
        None if kept is None or step is None else kept + step + more * version
        for kept, step, version in zip(lasting, step_bytes, versions, strict=True)
    )


def limits_of(machine: Machine, memory: int | None) -> tuple[int | None, ...]:
    """Bytes of each device: what is given for all, or what the machine says."""
    return tuple(device.memory if memory is None else memory for device in machine.devices)


def what_is_over(needed: Sequence[int | None], limits: Sequence[int | None]) -> str | None:
    """Say which device is short of most, if one is.

    >>> what_is_over((5_000_000, 2_000_000), (1_000_000, None))
    'device 0 needs 5.0 MB of 1.0 MB'
    """
    over = [
        (size - limit, at)
        for at, (size, limit) in enumerate(zip(needed, limits, strict=False))
        if size is not None and limit is not None and size > limit
    ]
    if not over:
        return None
    _, at = max(over, key=lambda excess: (excess[0], -excess[1]))
    return f"device {at} needs {_size(needed[at])} of {_size(limits[at])}"


def _size(size: int | None) -> str:
    known = size or 0
    return f"{known / 1e6:,.1f} MB" if known >= 100_000 else f"{known:,} bytes"
