"""Device -> the type that torch's autocast casts to there, as this thread has it now."""

from __future__ import annotations

import torch


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type of autocast for a device, None without it.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_type(torch.device("cpu"))
    torch.bfloat16
    """
    enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if enabled else None
