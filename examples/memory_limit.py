"""Divide a CNN that needs more memory than a device has, so that each part fits in its device."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hgpart

LIMIT = "60MB"  # of each device
DEVICES = 2


def main() -> None:
    """Show that one device is too small, and train on two."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128 * 8 * 8, 1024), nn.ReLU(), nn.Linear(1024, 10)),
    )
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

    # Three copies of each parameter: itself, its gradient and the momentum of SGD.
    batches_of = hgpart.Modelling(batch_size=len(images))
    try:
        alone = hgpart.memory_limits([LIMIT], 1, copies=3)
        hgpart.partition_model(net, images, k=1, modelling=batches_of, memory=alone)
    except hgpart.HgpartError as error:
        print(f"one device: {error}")

    # Where memory is short, devices may have unequal work.
    limits = hgpart.memory_limits([LIMIT], DEVICES, copies=3)
    result = hgpart.partition_model(
        net, images, k=DEVICES, eps=0.5, modelling=batches_of, memory=limits
    )
    print(result.summary())
    needed = result.partition.memory_bytes
    assert needed is not None  # as there is a limit
    for part, (needs, limit) in enumerate(zip(needed.tolist(), limits.bytes, strict=True)):
        print(f"part {part} needs {needs / 1e6:.1f} MB of {limit / 1e6:.1f} MB")

    placed = hgpart.place(net, result)
    order = hgpart.schedule(placed, "1f1b", micro_batches=2)  # keeps less than the whole batch
    held = hgpart.peak_bytes(placed, order)
    print(f"a step holds at most {max(held) / 1e6:.1f} MB of maps in a part")
    optimizer = torch.optim.SGD(placed.parameters(), lr=0.01, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        loss = placed.step([images], labels, cross_entropy, order)  # and backward
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
