"""What `explain` and `diff` know of a plan: its model, and a simulator of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hgpart.cli.grouping import Options
from hgpart.cli.named_model import NamedModel
from hgpart.cli.stages import Stages, trusted_model
from hgpart.cli.timing import times_of
from hgpart.errors import ArgumentError, TraceError

if TYPE_CHECKING:
    from hgpart.explanation.steps import Steps
    from hgpart.partition import Partition
    from hgpart.plan import PlanFile
    from hgpart.schedule_wanted import Scheduling

CODE_ACCEPTED = "--model MODEL, which names the code to call, or --trust, if the plan is yours"


@dataclass(frozen=True, kw_only=True)
class Simulator(Options):
    """What steps are simulated with.

    Attributes
    ----------
    machine : NAME|FILE
        Devices and links: a named machine such as 10gbe, or a file of 'hgpart calibrate'. Default:
        links of 10 Gb/s that are assumed.
    times : FILE
        Layer times, a file of 'hgpart profile', or KIND=FILE,KIND=FILE for each kind of device.
        Default: in proportion to the plan's work.
    """

    panel: ClassVar[str] = "A step"
    machine: str | None = None
    times: str | None = None

    def steps(
        self, stage: Stages, known: NamedModel, partition: Partition, scheduling: Scheduling | None
    ) -> Steps | None:
        """A simulator of steps of a plan's model; None for one device."""
        from hgpart.explanation.steps import Steps

        if partition.k == 1:
            return None
        times = None if self.times is None else times_of(self.times, known.graph)
        traced = known.traced
        trainable = frozenset(
            name for name, value in known.module.named_parameters() if value.requires_grad
        )
        with stage("simulate"):
            return Steps.of(traced, partition, trainable, self.machine, times, scheduling)


def known_model(
    stage: Stages, loaded: PlanFile, plan: Path, model: str | None, trust: bool
) -> tuple[str, NamedModel]:
    """The spec of a plan's model, and the model.

    Raises
    ------
    ArgumentError
        If the plan names code that nobody has asked to be called.
    PlanError
        If the model can't be traced with the plan's samples.
    """
    from hgpart.plan import another_model
    from hgpart.tracing.input_shape import shape_text

    if model is None and not trust:
        model = trusted_model(loaded, plan, CODE_ACCEPTED)
    named = model or loaded.model
    try:
        return named, NamedModel(stage, named, loaded.input_shape)
    except (ArgumentError, TraceError) as error:
        raise another_model(loaded.model, shape_text(loaded.input_shape), error) from error
