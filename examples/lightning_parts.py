"""The LightningModule of lightning_module.py in two processes, each with its part of the CNN.

    torchrun --nproc-per-node 2 lightning_parts.py

A Trainer in each process trains, tests and saves; `LightningStrategy` does together what
needs all parts. Where the result of the CNN is not, a loss is computed without numbers, and
`net.value` says them.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MulticlassAccuracy

import hgpart
from hgpart.run.loops.lightning_strategy import LightningStrategy


class Classifier(lightning.LightningModule):
    """Trains a model of which each process has a part."""

    def __init__(self, net: hgpart.DistributedModel) -> None:
        super().__init__()
        self.net = net
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", self.net.value(loss))
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Count right answers in the process that has them; torchmetrics adds up all processes."""
        images, labels = batch
        scores = self.net(images)
        if self.net.makes_result:
            self.accuracy.update(scores, labels)
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
    """Divide, place and train; go on from a checkpoint."""
    torch.manual_seed(0)  # all processes have the same weights and the same data
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

    with hgpart.connect(k=2) as connection:
        model = hgpart.DistributedModel(net, connection, example=torch.zeros(2, 3, 32, 32))

        def trainer(epochs: int) -> lightning.Trainer:
            return lightning.Trainer(
                accelerator="cpu",
                devices=1,
                strategy=LightningStrategy(connection),
                max_epochs=epochs,
                gradient_clip_val=1.0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )

        first = trainer(epochs=2)
        first.fit(Classifier(model), *loaders)
        first.save_checkpoint("half.ckpt")  # whole: of the model, and of its optimizer

        # Another run goes on, in as many processes as it likes.
        again = hgpart.DistributedModel(net, connection, example=torch.zeros(2, 3, 32, 32))
        second = trainer(epochs=3)
        second.fit(Classifier(again), *loaders, ckpt_path="half.ckpt")
        second.save_checkpoint("net.ckpt")
        if connection.rank == 0:
            told = second.callback_metrics
            print(f"loss {told['loss'].item():.3f}, accuracy {told['accuracy'].item():.2f}")


if __name__ == "__main__":
    main()
