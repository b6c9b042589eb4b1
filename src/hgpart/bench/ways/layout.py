"""What the processes of a way must know of its cuts."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.plan import Plan, PlanFile


@dataclass(frozen=True)
class Head:
    """The first operator of a stage: a kind of operator, and its number in the order of calls.

    Attributes
    ----------
    target : str
        Name of the operator in torch.export.
    """

    target: str
    number: int


# A plan for parts, the heads of a pipeline's stages after the first, or None for other ways.
Layout = Plan | PlanFile | tuple[Head, ...] | None
