"""The training loop of accelerate_loop.py in two processes, each with its part of the CNN.

    torchrun --nproc-per-node 2 accelerate_parts.py

accelerate takes processes for copies of the model, so it gets less to do: the model is left out of
`prepare`, the loader is told that one process reads it, clipping and saving are hgpart's.
"""

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
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
    torch.manual_seed(0)  # all processes have the same weights and the same data
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Flatten(), nn.Linear(16 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    with hgpart.connect(k=2) as connection:  # before accelerate would connect the processes
        model = hgpart.DistributedModel(net, connection, example=torch.zeros(2, 3, 32, 32))

        accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
        optimizer = accelerator.prepare(
            torch.optim.AdamW(hgpart.param_groups(model, weight_decay=0.01), lr=0.001)
        )
        loader = prepare_data_loader(  # `prepare` would give each process other samples
            DataLoader(made_up_data(512), batch_size=32, shuffle=True),
            accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
        )
        for epoch in range(3):
            for images, labels in loader:
                with accelerator.accumulate(model):
                    with accelerator.autocast():
                        loss = cross_entropy(model(images), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        hgpart.clip_grad_norm_(model, 1.0)  # by the norm over all parts
                    optimizer.step()
                    optimizer.zero_grad()
            value = model.value(loss)
            accelerator.print(f"epoch {epoch}: loss {value:.3f}")

        accelerator.save(model.gathered_state_dict(), "net.pt")  # whole on rank 0, which saves
        learned = hgpart.gathered_optimizer_state(model, optimizer)
        accelerator.save(learned, "optimizer.pt")


if __name__ == "__main__":
    main()
