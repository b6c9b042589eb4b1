"""Commands -> the same, whose help has its options in groups, and flags without a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer import Context

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
        *("data", "optimizer", "lr", "momentum", "weight_decay", "decay"),
        *("checkpoint", "every", "until", "epochs"),
    ),
    "Results": (
        *("unit", "json", "csv", "html", "graphml", "dot", "timeline", "partition_file"),
        *("save_work", "output", "measure"),
    ),
}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


def in_panels(group: Any) -> Any:
    """Say of each option which panel it is in; those of none come first, with the arguments.

    An option that names its panel is in that one. A flag takes no value, not a ``<bool>``.
    """
    for command in (group, *group.commands.values()):
        required = {option.name for option in command.params if option.required}
        shown = (*command.params, command.get_help_option(Context(command)))
        for option in shown:
            if option.name not in required and option.rich_help_panel is None:
                option.rich_help_panel = _PANEL_OF.get(option.name)
            if getattr(option, "is_flag", False):
                option.metavar = ""
    return group
