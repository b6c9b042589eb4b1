"""A training loop with Hugging Face's accelerate, for a CNN that hgpart has placed on two devices.

In one process; accelerate_parts.py is the same loop in several. The placed model is on its devices
already, so `prepare` gets only the optimizer and the loader, and autocast is asked for by name.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hgpart


def made_up_data(samples: int) -> TensorDataset:
    """Make images: noise added to one image for each class."""
    labels = torch.randint(10, (samples,))
    images = torch.randn(10, 3, 32, 32)[labels] + torch.randn(samples, 3, 32, 32)
    return TensorDataset(images, labels)


def main() -> None:
    """Divide, place, train, save."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Flatten(), nn.Linear(16 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    placed = hgpart.place(net, k=2, example=torch.zeros(2, 3, 32, 32), devices=["cpu", "cpu"])

    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    optimizer, loader = accelerator.prepare(
        torch.optim.AdamW(hgpart.param_groups(placed, weight_decay=0.01), lr=0.001),
        DataLoader(made_up_data(512), batch_size=32, shuffle=True),
    )
    for epoch in range(3):
        for images, labels in loader:
            with accelerator.accumulate(placed):
                with accelerator.autocast():
                    loss = cross_entropy(placed(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(placed.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.3f}")

    net.load_state_dict(placed.state_dict())  # the plain model, trained
    accelerator.save(net.state_dict(), "net.pt")


if __name__ == "__main__":
    main()
