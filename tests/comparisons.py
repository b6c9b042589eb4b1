"""Rows and comparisons with the figures that a test is about; the others are some."""

from __future__ import annotations

from hgpart.compare.comparison import Comparison
from hgpart.compare.outcomes import Outcome


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
