"""Commands -> the same, whose help has its options in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PANELS: Mapping[str, tuple[str, ...]] = {
    "What is counted": (
        *("grain", "linear", "slices", "norms", "inference", "bytes_per_element", "input_shape"),
        *("no_input_vertex", "no_output_vertex", "work", "profile_device", "dataset_size"),
    ),
    "The search": (
        *("backend", "strategy", "strategies", "seed", "objective", "time_limit", "effort"),
        *("best_effort", "partition", "goal", "jobs", "resume"),
    ),
    "The devices": (
        *("devices", "speeds", "topology", "machine", "times", "memory", "memory_copies"),
        *("transport", "one_process", "timeout", "threads", "processes"),
    ),
    "A step": (
        *("schedule", "micro_batches", "in_flight", "no_stash", "recompute"),
        *("backward", "weights", "dtype", "evaluation"),
    ),
    "Training": (
        *("data", "optimizer", "lr", "momentum", "weight_decay", "checkpoint", "every"),
        *("until", "epochs"),
    ),
    "Results": (
        *("unit", "json", "csv", "html", "graphml", "dot", "timeline", "partition_file"),
        *("save_work", "output", "measure"),
    ),
}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


def in_panels(group: Any) -> Any:
    """Say of each option which panel it is in; those of none come first, with the arguments."""
    for command in group.commands.values():
        required = {option.name for option in command.params if option.required}
        for option in command.params:
            if option.name not in required:
                option.rich_help_panel = _PANEL_OF.get(option.name)
    return group
