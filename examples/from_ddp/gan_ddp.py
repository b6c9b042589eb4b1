"""Train a generator against a critic with torch's DDP."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import relu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 32


def main() -> None:
    """Train, and save the generator's weights."""
    torch.manual_seed(0)
    maker = nn.Sequential(
        *(nn.ConvTranspose2d(8, 32, 4), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()),
    )
    judge = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1)),
        *(nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4), nn.Flatten()),
    )
    images, noise = torch.randn(256, 1, 16, 16).cumsum(3).tanh(), torch.randn(256, 8, 1, 1)

    dist.init_process_group("gloo")
    shard, shards = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(images, noise)
    loader = DataLoader(data, BATCH // shards, sampler=DistributedSampler(data, shards, shard))
    generator = DistributedDataParallel(maker)
    critic = DistributedDataParallel(judge)
    slow = torch.optim.Adam(generator.parameters(), lr=0.001, betas=(0.5, 0.9))
    fast = torch.optim.Adam(critic.parameters(), lr=0.002, betas=(0.5, 0.9))
    for _ in range(3):
        for real, z in loader:
            fake = generator(z)
            fast.zero_grad()
            scores = critic(torch.cat([real, fake.detach()]))
            (relu(1 - scores[: len(real)]).mean() + relu(1 + scores[len(real) :]).mean()).backward()
            fast.step()
            slow.zero_grad()
            (-critic(fake).mean()).backward()
            slow.step()
    state = maker.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, "trained.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
