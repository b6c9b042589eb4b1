"""Partition + the model that it is of + a schedule of its steps -> Plan."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.errors import ArgumentError
from hgpart.partition import Partition
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.input_shape import InputShape


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
    """A partition with the model that it is of, as `save_plan` writes it and `place` takes it.

    Attributes
    ----------
    model : str
        The model spec, as `load_model` takes it.
    input_shape : InputShape
        The inputs that the model takes for each sample; sizes and texts as in `example_inputs` make
        one.
    scheduling : Scheduling or None
        The rule by which its steps are best run, where it was made for one.

    Raises
    ------
    ArgumentError
        If there is no such input shape, the schedule is that of a file or for another number of
        parts, or the batch is too small for its micro-batches.
    """

    partition: Partition
    model: str
    input_shape: InputShape
    scheduling: Scheduling | None = None

    def __post_init__(self) -> None:
        """Refuse a schedule that a plan file can't hold or the batch is too small for."""
        object.__setattr__(self, "input_shape", InputShape(self.input_shape))
        if self.scheduling is None:
            return
        if self.scheduling.file is not None:
            raise ArgumentError(
                f"a plan with the schedule of {self.scheduling.name}: accepted is one by a rule"
            )
        self.scheduling.sizes(self.partition.modelling.batch_size)
        self.scheduling.check_parts(self.partition.k)

    @property
    def words(self) -> str:
        """The plan in an error."""
        return "the plan"

    def __repr__(self) -> str:
        """Short, without arrays."""
        return f"Plan({self.model!r}, {self.partition!r})"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model's ChannelGraph."""
        return self.partition.problem.graph.fingerprint
