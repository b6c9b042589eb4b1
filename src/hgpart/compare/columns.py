"""Comparison -> the figures of each strategy, the most telling first."""

from __future__ import annotations

from collections.abc import Callable

from hgpart.compare.comparison import EPOCHS, Comparison
from hgpart.compare.outcomes import Outcome
from hgpart.files.columns import BYTES, MANY_BYTES, Column
from hgpart.machines.named import ASSUMED_LINKS


def comparison_columns(comparison: Comparison) -> tuple[Column[Outcome], ...]:
    """The columns of a comparison; a strategy's figures are those of an `Outcome`."""
    samples = f"{comparison.batch_size} samples"
    eps = "Imbalance allowed: 0.1 is 10 % above the average. Empty for what does not take one."
    sent = f"Bytes that all devices send in a training step of {samples}: forward, backward and, "
    sent += "where parameters are replicated, their synchronisation."
    about = f"An estimate, for {ASSUMED_LINKS}: the busiest device computes, sends and receives, "
    about += "in micro-batches. hgpart predict and recommend simulate."
    load = "Work of the busiest device over the average; 1 is a perfect balance."
    busiest = "The most bytes that one device sends and receives in a step."
    parameters = "The most parameters, in millions, that one device holds."
    maps = f"The most feature maps of {samples}, made or received, that one device holds."
    forward = f"Bytes that all devices send in a forward pass of {samples}."
    epoch = f"Bytes that all devices send in an epoch of {comparison.dataset_size:,} samples."

    def of_epoch(batch: int) -> Callable[[Outcome], int | None]:
        return lambda row: row.epoch_bytes(comparison.dataset_size, batch)

    return (
        Column("strategy", "strategy"),
        Column("k", "k", "Number of devices."),
        Column("eps", "eps", eps),
        Column("step_bytes", "sent a step", sent, BYTES),
        Column("step_seconds", "est. step", about, "ms"),
        Column("max_over_average", "max/avg", load, decimals=3),
        Column("imbalance", "imbalance", "Max/avg less 1.", decimals=3, detail=True),
        Column("largest_device_bytes", "busiest device", busiest, BYTES),
        Column("largest_parameters", "most parameters", parameters, "M"),
        Column("messages", "messages", "Number of messages in a step."),
        Column("largest_activation_bytes", "most maps", maps, BYTES),
        Column("forward_bytes", "sent forward", forward, BYTES),
        *(
            Column(key, f"epoch (batch {batch})", epoch, MANY_BYTES, of_epoch(batch))
            for key, batch in EPOCHS.items()
        ),
        Column("seconds", "time to find", "Seconds of the search.", "s"),
    )
