"""Train a classifier with torch's DDP."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 32


def main() -> None:
    """Train, and save the weights."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    labels = torch.randint(10, (256,))
    images = torch.randn(10, 3, 32, 32)[labels] + torch.randn(256, 3, 32, 32)

    dist.init_process_group("gloo")
    shard, shards = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data, shards, shard)
    loader = DataLoader(data, BATCH // shards, sampler=sampler)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        value = mean(loss)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {value:.3f}")
    state = net.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, "trained.pt")
    dist.destroy_process_group()


def mean(loss: torch.Tensor) -> float:
    """Average a loss over all processes."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


if __name__ == "__main__":
    main()
