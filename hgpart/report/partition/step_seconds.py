"""Report -> StepSeconds: about what a step of a partition would take, on devices that are assumed.

Nothing is measured or simulated: it is what the objective "time" says of the partition. `hgpart
recommend` simulates, by what a machine was measured to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hgpart.machines.named import named_machine
from hgpart.partition.problem.objectives import MICRO_BATCHES
from hgpart.partition.problem.topology import time_objective
from hgpart.report.partition.record import Report
from hgpart.work.figures import whole_work

MACHINE = "10gbe"
RATE = 5e10  # multiply-accumulates a second: some cores of a CPU
TRAINING = 3  # times the work of a forward pass: gradients of maps and of weights are as much each


@dataclass(frozen=True)
class StepSeconds:
    """An estimate.

    Attributes
    ----------
    seconds : float
        Of a step.
    micro_batches : int
        In as many as are best.
    one_device : float
        Seconds of the same on one device.
    assumed : str
    """

    seconds: float
    micro_batches: int
    one_device: float
    assumed: str


def step_seconds(report: Report) -> StepSeconds | None:
    """Estimate it; None for one device, or where devices differ."""
    machine = named_machine(MACHINE, report.k)
    if report.k == 1 or report.speeds is not None or machine is None:
        return None
    whole = whole_work(report.work, report.graph)
    assumed = "10 Gb Ethernet"
    if report.work.unit == "MAC":
        passes = TRAINING if report.modelling.training else 1
        whole *= passes * report.modelling.batch_size / RATE
        assumed += f" and {RATE / 1e9:g} GMAC/s a device"
    counts = [one for one in MICRO_BATCHES if one <= report.modelling.batch_size]
    traffic, work = report.evaluation.traffic, report.shares.layer_work
    objective = time_objective(machine, report.k, whole, 1)
    seconds, many = min(
        (replace(objective, micro_batches=one).value(traffic, work), one) for one in counts
    )
    return StepSeconds(seconds, many, whole, assumed)
