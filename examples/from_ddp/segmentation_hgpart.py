"""Train a U-Net in two parts by hgpart."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hgpart

BATCH = 32


def block(channels: int, filters: int) -> nn.Sequential:
    """Make two convolutions with norms."""
    first = nn.Conv2d(channels, filters, 3, padding=1), nn.GroupNorm(4, filters), nn.ReLU()
    second = nn.Conv2d(filters, filters, 3, padding=1), nn.GroupNorm(4, filters), nn.ReLU()
    return nn.Sequential(*first, *second)


class UNet(nn.Module):
    """A small U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom, self.up = block(1, 8), block(8, 16), block(16, 8)
        self.larger, self.mask = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a logit for each pixel."""
        skip = self.down(x)
        low = self.larger(self.bottom(nn.functional.max_pool2d(skip, 2)))
        mask: torch.Tensor = self.mask(self.up(torch.cat([skip, low], 1)))
        return mask


def dice(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Return one minus the mean overlap of predictions and masks."""
    chances = logits.sigmoid()
    both, all_pixels = (chances * masks).sum((1, 2, 3)), (chances + masks).sum((1, 2, 3))
    return 1 - ((2 * both + 1) / (all_pixels + 1)).mean()


def main() -> None:
    """Train, and save the weights."""
    torch.manual_seed(0)
    net = UNet()
    masks = (nn.functional.avg_pool2d(torch.randn(128, 1, 32, 32), 7, 1, 3) > 0).float()
    images = masks + 0.5 * torch.randn(128, 1, 32, 32)

    connection = hgpart.connect(k=2)
    shard, shards = 0, 1  # each process reads whole batches
    data = TensorDataset(images, masks)
    sampler = DistributedSampler(data, shards, shard)
    loader = DataLoader(data, BATCH // shards, sampler=sampler)
    model = hgpart.DistributedModel(net, connection, example=images[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=3 * len(loader))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            logits = model(x)
            loss = binary_cross_entropy_with_logits(logits, y) + dice(logits, y)
            loss.backward()
            optimizer.step()
            rates.step()
        value = model.value(loss)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {value:.3f}")
    state = model.gathered_state_dict()
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
