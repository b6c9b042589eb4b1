"""A program for the processes of a test: Lightning's Trainer with parts, beside one without.

    python lightning_ranks.py FOLDER NAME ...

Each rank writes to a file of its own what it found by each name: how far the weights that are
trained in processes are from those of a Trainer in one process, or an error.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hgpart
from hgpart.errors import HgpartError
from hgpart.zoo.packages import _import

_import("torchvision", "torchvision")  # lightning does, and it may not fit the torch there is
import lightning  # noqa: E402
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from hgpart.run.loops.lightning_strategy import LightningStrategy  # noqa: E402

BATCH, SAMPLES = 8, 32
SECONDS = 300  # that all may take
SILENT = {
    **{"logger": False, "enable_progress_bar": False, "enable_model_summary": False},
    **{"accelerator": "cpu", "devices": 1, "max_epochs": 2},
}


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(96, 4)),
    )


def data() -> TensorDataset:
    drawn = torch.Generator().manual_seed(1)
    images = torch.randn(SAMPLES, 3, 8, 8, generator=drawn)
    return TensorDataset(images, torch.randint(4, (SAMPLES,), generator=drawn))


class Module(lightning.LightningModule):
    def __init__(self, net: nn.Module, share: float = 1.0) -> None:
        super().__init__()
        self.net, self.share = net, share

    def call(self, images: torch.Tensor) -> Any:
        if isinstance(self.net, hgpart.DistributedModel):
            return self.net(images, batch_size=BATCH)
        return self.net(images)

    def training_step(self, batch: Any, number: int) -> Any:
        images, labels = batch
        loss = cross_entropy(self.call(images), labels) * self.share
        self.log("loss", loss / self.share, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        images, labels = batch
        loss = cross_entropy(self.call(images), labels)
        self.log("validation", loss, sync_dist=True)

    def configure_optimizers(self) -> Any:
        groups = hgpart.param_groups(self.net, 0.01)
        return torch.optim.AdamW(groups, lr=0.01)


class Adversaries(lightning.LightningModule):
    """Two models, and two optimizers that the module steps itself."""

    def __init__(self, net: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.net, self.critic = net, critic
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        slow, fast = self.optimizers()
        made = self.net(batch[0])
        self.toggle_optimizer(fast)
        loss = self.critic(made.detach()).square().mean()
        fast.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(fast, 0.1, "norm")
        fast.step()
        self.untoggle_optimizer(fast)
        slow.zero_grad()
        self.manual_backward((self.critic(made) - 1).square().mean())
        self.clip_gradients(slow, 0.01, "norm")
        slow.step()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD([{"params": [*one.parameters()]}], lr=0.1, momentum=0.9)
            for one in (self.net, self.critic)
        ]


class BesideParts(Module):
    """Something that learns and is in no part."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.scale = nn.Parameter(torch.ones(()))


class QuasiNewton(Module):
    def configure_optimizers(self) -> Any:
        return hgpart.LBFGS(self.net, lr=0.1, max_iter=3)


class TorchsQuasiNewton(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS([{"params": [*self.net.parameters()]}])


class Half(Module):
    """An optimizer of some parameters, whose gradients alone are clipped."""

    def configure_optimizers(self) -> Any:
        head = [*self.net.parameters()][:1]
        return torch.optim.SGD([{"params": head}], lr=0.1)


class Unlogged(Module):
    """A loss that is logged without its values."""

    def training_step(self, batch: Any, number: int) -> Any:
        loss = cross_entropy(self.call(batch[0]), batch[1])
        self.log("loss", loss)
        return loss


class Failing(Module):
    def training_step(self, batch: Any, number: int) -> Any:
        if number == 1 and self.global_rank == 1:
            raise ValueError("no such batch")
        return super().training_step(batch, number)


def critic() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))


class Run:
    """The Trainers of a test, in processes and without."""

    def __init__(self, connection: Any, folder: str) -> None:
        self.connection, self.folder = connection, folder

    def parts(self, net: nn.Module | None = None, inputs: Any = None) -> hgpart.DistributedModel:
        net = network() if net is None else net
        inputs = torch.zeros(2, 3, 8, 8) if inputs is None else inputs
        return hgpart.DistributedModel(net, self.connection, example=inputs)

    def fit(self, module: Any, loader: Any = None, path: str | None = None, **options: Any) -> Any:
        found = any(isinstance(one, hgpart.DistributedModel) for one in module.modules())
        strategy = LightningStrategy(self.connection) if found else "auto"
        kept = options.pop("callbacks", [])
        trainer = lightning.Trainer(
            **{**SILENT, "gradient_clip_val": 0.5, "enable_checkpointing": bool(kept), **options},
            strategy=strategy,
            callbacks=kept,
        )
        loader = loader or DataLoader(data(), BATCH)
        held_out = DataLoader(data(), BATCH)
        trainer.fit(module, loader, held_out, ckpt_path=path)
        return trainer

    def apart(self, module: Any, other: Any, trainer: Any, beside: Any) -> float:
        """How far states and logged values are from those without parts."""
        state = trainer.strategy.lightning_module_state_dict()
        expected = other.state_dict() if self.connection.rank == 0 else {}
        assert state.keys() == expected.keys()
        told, told_beside = trainer.callback_metrics, beside.callback_metrics
        assert told.keys() == told_beside.keys()
        of_metrics = [abs(float(told[name]) - float(told_beside[name])) for name in told]
        of_state = [float((state[name] - expected[name]).abs().max()) for name in state]
        return max([0.0, *of_metrics, *of_state])

    def compared(self, **options: Any) -> float:
        module, other = Module(self.parts()), Module(network())
        return self.apart(module, other, self.fit(module, **options), self.fit(other, **options))

    def plain(self) -> float:
        return self.compared(accumulate_grad_batches=2)

    def mixed(self) -> float:
        return self.compared(precision="bf16-mixed")

    def scaled(self) -> float:
        module, other = Module(self.parts()), Module(network())
        trainer = self.fit(module, plugins=[scaling()])
        assert isinstance(trainer.precision_plugin.scaler, hgpart.GradScaler)
        assert trainer.precision_plugin.scaler._growth_interval == 3
        return self.apart(module, other, trainer, self.fit(other, plugins=[scaling()]))

    def slices(self) -> float:
        """Each process its own samples."""
        rank, k = self.connection.rank, self.connection.k
        images = torch.zeros(BATCH, 3, 8, 8)
        traced = hgpart.trace(network(), images)
        graph = hgpart.channel_graph(traced)
        modelling = hgpart.Modelling(batch_size=BATCH, norms="batch")
        parts = hgpart.partition_by(
            "data-parallel", graph, hgpart.flops(graph), k, 0.5, modelling=modelling
        )
        plan = hgpart.PartitionedModel(traced, parts, parts.evaluation, {})
        model = hgpart.DistributedModel(network(), self.connection, plan)
        samples = DistributedSampler(data(), k, rank, shuffle=False)
        loader = DataLoader(data(), BATCH // k, sampler=samples)
        trainer = lightning.Trainer(
            **SILENT, enable_checkpointing=False, strategy=LightningStrategy(self.connection)
        )
        module, other = Module(model, share=1 / k), Module(network())
        trainer.fit(module, loader)
        beside = lightning.Trainer(**SILENT, enable_checkpointing=False)
        beside.fit(other, DataLoader(data(), BATCH))
        return self.apart(module, other, trainer, beside)

    def adversaries(self) -> float:
        module = Adversaries(self.parts(), self.parts(critic(), torch.zeros(2, 4)))
        torch.manual_seed(2)
        other = Adversaries(network(), critic())
        options: dict[str, Any] = {"gradient_clip_val": None, "limit_val_batches": 0}
        return self.apart(module, other, self.fit(module, **options), self.fit(other, **options))

    def resumed(self) -> float:
        """From the best checkpoint of parts, in one with another partition."""
        best: Any = ModelCheckpoint(self.folder, "best", monitor="validation", mode="max")
        stop = EarlyStopping("validation", mode="max", patience=5)
        self.fit(Module(self.parts()), callbacks=[best, stop], max_epochs=1)
        module, other = Module(self.parts()), Module(network())
        path = best.best_model_path
        trainer = self.fit(module, path=path, max_epochs=2)
        return self.apart(module, other, trainer, self.fit(other, max_epochs=2))

    def beside_parts(self) -> Any:
        return self.fit(BesideParts(self.parts()))

    def quasi_newton(self) -> float:
        """A few steps: from batch to batch, rounding grows by some hundred times in each."""
        module, other = QuasiNewton(self.parts()), QuasiNewton(network())
        few = {"max_epochs": 1, "limit_train_batches": 3}
        return self.apart(module, other, self.fit(module, **few), self.fit(other, **few))

    def torchs_quasi_newton(self) -> Any:
        return self.fit(TorchsQuasiNewton(self.parts()))

    def half(self) -> Any:
        return self.fit(Half(self.parts()))

    def unlogged(self) -> Any:
        return self.fit(Unlogged(self.parts()), callbacks=[EarlyStopping("loss")])

    def failing(self) -> Any:
        return self.fit(Failing(self.parts()))

    def copied(self) -> Any:
        return nn.parallel.DistributedDataParallel(self.parts())


def scaling() -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    return MixedPrecision("16-mixed", "cpu", scaler)


def main(folder: str, *names: str) -> None:
    signal.alarm(SECONDS)  # ends this process, and the launcher the others
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_default_dtype(torch.float32 if {"mixed", "scaled"} & {*names} else torch.float64)
    found: dict[str, Any] = {}
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    connection = hgpart.connect(k, timeout=60)  # which ends with the process
    for name in names:
        try:
            found[name] = getattr(Run(connection, folder), name)()
        except (HgpartError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(folder, f"{rank}.json").write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
