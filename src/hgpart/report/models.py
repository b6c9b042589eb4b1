"""Summaries of models -> a line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from hgpart.report.model_sizes import ModelSummary


def print_models(summaries: Iterable[ModelSummary], names: Sequence[str], console: Console) -> None:
    """Print a line for each model as soon as it is counted; `names` says how wide they are."""
    width = max(map(len, ("model", *names)))
    console.print(f"{'model':<{width}}  {'input':>13}  {'parameters':>12}  {'MAC per sample':>15}")
    for summary in summaries:
        shape = " x ".join(map(str, summary.input_shape))
        console.print(
            f"{summary.name:<{width}}  {shape:>13}  {summary.parameters:>12,}  {summary.macs:>15,}"
        )
