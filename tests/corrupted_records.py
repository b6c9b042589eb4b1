"""Records of arrays with one thing wrong: what native code has to refuse, or to stand."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

Record = TypeVar("Record")

NUMBERS = [-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 9, 2**16, 2**31 - 1, 2**31, 2**62, 2**63 - 1]


def corrupted(record: Record, random: np.random.Generator) -> Record:
    """Change one entry of one field, or the length of an array."""
    name = str(random.choice([item.name for item in fields(record)]))
    return replace(record, **{name: _changed(getattr(record, name), random)})


def _changed(value: Any, random: np.random.Generator) -> Any:
    if isinstance(value, np.ndarray):
        return _changed_array(value, random)
    if isinstance(value, list):
        if not value or random.random() < 0.1:
            return value[:-1]
        at = int(random.integers(len(value)))
        return [*value[:at], _changed(value[at], random), *value[at + 1 :]]
    if isinstance(value, float):
        return float(random.choice([-1.0, 0.0, 1e-300, 1e300, np.inf, np.nan]))
    if isinstance(value, int):
        return int(random.choice(NUMBERS))
    return value


def _changed_array(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if values.size == 0 or random.random() < 0.2:
        changed = np.append(values, values[-1:]) if random.random() < 0.5 else values[:-1]
        return changed.astype(values.dtype)
    changed = values.copy()
    at = int(random.integers(values.size))
    number = int(changed.flat[at]) + int(random.choice([-1, 1]))
    if random.random() < 0.5:
        number = int(random.choice(NUMBERS))
    changed.flat[at] = np.array(number % 2**64, dtype=np.uint64).astype(values.dtype)
    return changed
