"""A CNN of your own, divided between two processes and trained in them.

Start it on one machine with::

    torchrun --nproc-per-node 2 own_model.py
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import hgpart

BATCH_SIZE = 32


class Net(nn.Module):
    """Two blocks of convolutions, one with a shortcut past it, for images of 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.classes = nn.Sequential(
            nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32 * 8 * 8, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of ten classes."""
        maps = self.first(images)
        scores: Tensor = self.classes(maps + self.block(maps))
        return scores


def made_up_data(samples: int) -> TensorDataset:
    """Make images: noise added to one image for each class."""
    labels = torch.randint(10, (samples,))
    return TensorDataset(
        torch.randn(10, 3, 32, 32)[labels] + torch.randn(samples, 3, 32, 32), labels
    )


def main() -> None:
    """Train one process's part."""
    torch.manual_seed(0)  # all processes have the same weights and data
    net, data = Net(), made_up_data(512)

    # Who computes what: early layers by slices of the batch, late ones by filters, or any mixture.
    # The search has a seed, so all processes find the same plan.
    example = torch.zeros(2, 3, 32, 32)
    batches_of = hgpart.Modelling(batch_size=BATCH_SIZE)
    plan = hgpart.partition_model(net, example, k=2, slices="auto", modelling=batches_of)

    with hgpart.connect(k=2) as connection:
        # This process has only the weights of its part, and loads only the samples that it needs.
        model = hgpart.DistributedModel(net, connection, plan)
        order = hgpart.schedule(model, "greedy", micro_batches=2, batch_size=BATCH_SIZE)
        shuffled = RandomSampler(data, generator=torch.Generator().manual_seed(0))
        batches = BatchSampler(shuffled, BATCH_SIZE, drop_last=True)
        loader = DataLoader(data, batch_sampler=hgpart.PartSampler(batches, model, order))
        # A list of groups, as a process may have no parameters: torch accepts an empty group.
        optimizer = torch.optim.SGD([{"params": [*model.parameters()]}], lr=0.005, momentum=0.9)

        for epoch in range(3):
            for images, labels in loader:
                optimizer.zero_grad()
                loss = model.step([images], labels, cross_entropy, order, batch_size=BATCH_SIZE)
                optimizer.step()
            # A process that has results has the loss of its samples, the others None.
            losses = connection.gather(None if loss is None else loss.item())
            if connection.rank == 0:
                print(f"epoch {epoch}: loss {sum(filter(None, losses)):.3f}")
        sent = connection.gather(int(model.runtime.last.traffic.forward_bytes.sum()))
        if connection.rank == 0:
            print(plan.summary())
            print(f"sent in a forward pass: {sum(sent) / 1e6:.3f} MB")


if __name__ == "__main__":
    main()
