"""All that is said about a prediction, and what it comes to beside a measurement."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.execution.records.events import Timeline, planned_events
from hgpart.machines.machine import Machine
from hgpart.prediction.predict import Prediction
from hgpart.run.measuring import Measurement
from hgpart.schedule_wanted import Scheduling


@dataclass(frozen=True, eq=False)
class PredictionReport:
    """A prediction, of what and for what.

    Attributes
    ----------
    model : str
    machine : Machine
    times : str
        Where the times of layers come from.
    prediction : Prediction
    scheduling : Scheduling
    measurement : Measurement or None
        Of steps on this machine, if they were run.
    """

    model: str
    machine: Machine
    times: str
    prediction: Prediction
    scheduling: Scheduling
    measurement: Measurement | None = None

    @property
    def seconds(self) -> float:
        """Of a batch, simulated, where one follows another."""
        return self.prediction.period / self.prediction.batches

    @property
    def measured_seconds(self) -> float | None:
        """Of a batch, measured."""
        measured = self.measurement
        return None if measured is None else measured.seconds / measured.steps

    @property
    def error(self) -> float | None:
        """What the simulated seconds are more than the measured ones, relative to these."""
        measured = self.measured_seconds
        return None if measured is None else self.seconds / measured - 1

    @property
    def timeline(self) -> Timeline:
        """Of the step, as of one that was measured."""
        return (planned_events(self.prediction.schedule.order, self.prediction.spans),)
