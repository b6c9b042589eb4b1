"""Rows and comparisons with the figures that a test is about; the others are some."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hgpart.compare.comparison import Comparison
from hgpart.compare.comparison_files import FORMAT, WHAT, _row
from hgpart.compare.outcomes import Outcome
from hgpart.files.json_files import read_json
from hgpart.files.row_files import rows_of


def outcome(strategy: str, k: int, load: float, step: int, eps=None, **figures) -> Outcome:
    return Outcome(
        **{
            "strategy": strategy,
            "k": k,
            "eps": eps,
            "batch_size": 32,
            "max_over_average": load,
            "imbalance": load - 1,
            "forward_bytes": step // 2,
            "bytes_per_sample": step / 32,
            "bytes_per_step": 0,
            "largest_device_bytes": step,
            "messages": 4,
            "largest_parameters": 100,
            "largest_activation_bytes": 1000,
            "seconds": 0.5,
            **figures,
        }
    )


def comparison(*rows, **settings) -> Comparison:
    return Comparison(
        **{
            "model": "any",
            "input_shape": (3, 8, 8),
            "fingerprint": "f",
            "batch_size": 32,
            "bytes_per_element": None,
            "work_source": "flops",
            "seed": 0,
            "dataset_size": 100,
            "rows": rows,
            **settings,
        }
    )


def load_comparison(path: Path) -> Comparison:
    """The comparison of a file of --json, with rows as they are read where it is resumed."""
    fields = json.loads(path.read_text())
    asked = fields.pop("asked_count")
    for name in ("format", "verdict", "row_count", "rows"):
        del fields[name]
    fields |= {name: tuple(fields[name]) for name in ("input_shape", "epss")}
    found = Comparison(**fields, rows=())
    rows = tuple(rows_of(read_json(path, WHAT, FORMAT), _row))
    return replace(found, rows=rows[:asked], besides=rows[asked:])
