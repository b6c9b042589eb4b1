"""Traffic, work -> StepSeconds: about what a step would take, on devices that are assumed.

Nothing is measured or simulated: it is what the objective "time" says of the partition. `hgpart
recommend` simulates, by what a machine was measured to do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from hgpart.arrays import Int64
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.named import ASSUMED as ASSUMED_MACHINE
from hgpart.machines.named import ASSUMED_LINKS, named_machine
from hgpart.partition.problem.objectives import MICRO_BATCHES
from hgpart.partition.problem.topology import WAYS_THERE_AND_BACK, time_objective
from hgpart.work.estimated_times import RATE
from hgpart.work.figures import Work, whole_work

ASSUMED = f"{ASSUMED_LINKS} and {RATE / 1e9:g} GMAC/s a device"  # where work is not in seconds
TRAINING = 3  # times the work of a forward pass: gradients of maps and of weights are as much each


@dataclass(frozen=True)
class StepSeconds:
    """An estimate.

    Attributes
    ----------
    seconds : float
        Seconds of a step.
    micro_batches : int
        In as many as are best.
    one_device : float
        Seconds of the same on one device.
    """

    seconds: float
    micro_batches: int
    one_device: float
    assumed: str

    def record(self) -> dict[str, object]:
        """Its figures, for JSON."""
        return asdict(self)


def step_seconds(
    graph: ChannelGraph, work: Work, modelling: Modelling, traffic: Int64, layer_work: Int64
) -> StepSeconds | None:
    """Estimate it.

    None for one device, or more than machines have.

    Parameters
    ----------
    graph, work, modelling
        What was partitioned.
    traffic : int64 array, shape (k, k)
        Bytes each way of a step, from part to part.
    layer_work : int64 array, shape (layers, k)
        Work of each layer in each part.
    """
    k = len(traffic)
    machine = named_machine(ASSUMED_MACHINE, k)
    if k == 1 or machine is None:
        return None
    whole = whole_work(work, graph)
    assumed = ASSUMED_LINKS
    if work.unit == "MAC":
        passes = TRAINING if modelling.training else 1
        whole *= passes * modelling.batch_size / RATE
        assumed = ASSUMED
    most = modelling.batch_size // modelling.slices  # each has a sample of each slice
    counts = [count for count in MICRO_BATCHES if count <= max(1, most)]
    objective = time_objective(machine, k, whole, 1)
    if not modelling.training:  # no gradients come back
        objective = replace(objective, links=objective.links / WAYS_THERE_AND_BACK)
    seconds, best_count = min(
        (replace(objective, micro_batches=count).value(traffic, layer_work), count)
        for count in counts
    )
    return StepSeconds(seconds, best_count, whole, assumed)
