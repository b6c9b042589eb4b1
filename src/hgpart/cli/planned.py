"""PLAN, and MODEL where it is given -> the plan, and the model whose code is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hgpart.errors import ArgumentError

if TYPE_CHECKING:
    from hgpart.plan import Plan

AS_ARGUMENT = "MODEL, which names the code to call"


def plan_and_model(path: Path, model: str | None) -> tuple[Plan, str]:
    """Read a plan; the model is the given one, or else the plan's."""
    from hgpart.plan import load_plan

    plan = load_plan(path)
    return plan, model or trusted_model(plan, path, AS_ARGUMENT)


def trusted_model(plan: Plan, path: Path, accepted: str) -> str:
    """The model that a plan names, unless that is code which nobody has asked to be called."""
    from hgpart.files.json_files import quoted
    from hgpart.zoo import is_user_code

    if is_user_code(plan.model):
        raise ArgumentError(
            f"{path} is a plan of {quoted(plan.model)}, code that is called only where you name "
            f"it: accepted with {accepted}"
        )
    return plan.model
