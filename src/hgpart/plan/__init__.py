"""Partition <-> plan file: all that is needed to place the same model the same way again."""

from hgpart.plan.plan import Plan
from hgpart.plan.plan_file import FORMAT, LARGEST_K, PlanFile, keep_schedule, load_plan, save_plan
from hgpart.plan.restoring import another_model, check_is_for, restore, untraceable

__all__ = [
    "FORMAT",
    "LARGEST_K",
    "Plan",
    "PlanFile",
    "another_model",
    "check_is_for",
    "keep_schedule",
    "load_plan",
    "restore",
    "save_plan",
    "untraceable",
]
