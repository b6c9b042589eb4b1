"""Have hgpart recommend a way to train a CNN on two devices, and train it that way."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hgpart

BATCH_SIZE = 32


def main() -> None:
    """Measure, simulate, choose, train."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 8 * 8, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
    images, labels = torch.randn(BATCH_SIZE, 3, 32, 32), torch.randint(10, (BATCH_SIZE,))

    # Layers are measured here. Without a machine, messages would be measured too; a file that
    # `hgpart calibrate` has written is read by `hgpart.files.load_machine`.
    link = hgpart.Link.of(latency=20e-6, bandwidth=10e9)
    machine = hgpart.Machine("two devices", (hgpart.Device("CPU"),) * 2, (2,), link)
    result = hgpart.recommend(
        net, images[:2], batch_size=BATCH_SIZE, machine=machine, time_limit=10
    )
    print(result.summary())
    for way in result.dropped:
        print(f"dropped: {way.what}: {way.why}")

    # The best way is a plan with a schedule. Here both parts are in this process.
    best = result.best
    placed = hgpart.place(net, best.plan)
    order = hgpart.schedule(
        placed,
        best.scheduling.rule,
        best.scheduling.micro_batches,
        recompute=best.scheduling.recompute,
        batch_size=BATCH_SIZE,
    )
    optimizer = torch.optim.SGD(placed.parameters(), lr=0.01, momentum=0.9)
    print(f"training by {best.trial.text}, {best.scheduling.text}")
    for step in range(5):
        optimizer.zero_grad()
        loss = placed.step([images], labels, cross_entropy, order)  # and backward
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
