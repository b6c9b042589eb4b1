"""A LightningModule whose model is a CNN that hgpart has placed on two devices.

In one process, with `devices=1`; lightning_parts.py is the same in several. A Trainer moves its
module, and all parts with it, to the one device that it knows: on GPUs start a process for each.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

import hgpart


class Classifier(lightning.LightningModule):
    """Trains whatever is called like a model, divided or whole."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Count right answers."""
        images, labels = batch
        self.accuracy.update(self.net(images), labels)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make AdamW without weight decay on norms and biases."""
        return torch.optim.AdamW(hgpart.param_groups(self.net, weight_decay=0.01), lr=0.001)


def made_up_data(samples: int) -> TensorDataset:
    """Make images: noise added to one image for each class."""
    labels = torch.randint(10, (samples,))
    images = torch.randn(10, 3, 32, 32)[labels] + torch.randn(samples, 3, 32, 32)
    return TensorDataset(images, labels)


def main() -> None:
    """Divide, place and train; then load the trained weights into the plain model."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Flatten(), nn.Linear(16 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    learned, held_out = random_split(made_up_data(640), [512, 128])
    seeded = torch.Generator().manual_seed(0)
    loaders = (
        DataLoader(learned, batch_size=32, shuffle=True, generator=seeded),
        DataLoader(held_out, batch_size=32),
    )
    placed = hgpart.place(net, k=2, example=torch.zeros(2, 3, 32, 32))

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(placed), *loaders)
    told = trainer.callback_metrics
    print(f"loss {told['loss'].item():.3f}, accuracy {told['accuracy'].item():.2f}")

    # Its checkpoints have the model's own names and shapes.
    trainer.save_checkpoint("net.ckpt")
    state = torch.load("net.ckpt", weights_only=True)["state_dict"]
    Classifier(net).load_state_dict(state)
    images = torch.randn(4, 3, 32, 32)
    print("the same:", torch.allclose(net.eval()(images), placed.eval()(images), atol=1e-5))


if __name__ == "__main__":
    main()
