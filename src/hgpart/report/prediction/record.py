"""Prediction, Measurement -> PredictionReport: a prediction beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.execution.records.events import Timeline, planned_events
from hgpart.machines.machine import Machine
from hgpart.prediction.predict import Prediction
from hgpart.run.measuring import Measurement
from hgpart.schedule_wanted import Scheduling


@dataclass(frozen=True, eq=False)
class PredictionReport:
    """A prediction of a step, and what it is for.

    Attributes
    ----------
    times : str
        Where the times of layers come from.
    measurement : Measurement or None
        Steps on this machine, if they were run.
    """

    model: str
    machine: Machine
    times: str
    prediction: Prediction
    scheduling: Scheduling
    measurement: Measurement | None = None

    @property
    def seconds(self) -> float:
        """Simulated seconds of a batch, where one follows another."""
        return self.prediction.period / self.prediction.batches

    @property
    def measured_seconds(self) -> float | None:
        """Measured seconds of a batch."""
        measured = self.measurement
        return None if measured is None else measured.seconds / measured.steps

    @property
    def error(self) -> float | None:
        """The difference of simulated and measured seconds, relative to the measured ones."""
        measured = self.measured_seconds
        return None if measured is None else self.seconds / measured - 1

    @property
    def timeline(self) -> Timeline:
        """The simulated step, in the form of a measured one."""
        return (planned_events(self.prediction.schedule.order, self.prediction.spans),)
