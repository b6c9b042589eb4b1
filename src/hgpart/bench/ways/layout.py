"""What the processes of a way must know of its cuts."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.plan import Plan, PlanFile


@dataclass(frozen=True)
class Head:
    """The first operator of a stage: the one of its kind with this number, in the order of calls.

    Attributes
    ----------
    target : str
        As torch.export has it.
    number : int
    """

    target: str
    number: int


Layout = (
    Plan | PlanFile | tuple[Head, ...] | None
)  # of parts, of a pipeline's stages but the first; of others
