"""A program for the processes of tests: training loops in processes, beside the model itself.

    python loop_ranks.py FOLDER STEPS PLANS LOOP ...

The same lines of each loop train the model, alone in this process, and a `DistributedModel` of it.
Each rank writes, for each plan and loop, how far the two are apart to a file of its own: for all
losses, and for the whole state at the end.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from placements import traced_model
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

import hgpart
from hgpart.errors import HgpartError
from hgpart.run.processes.connection import Connection

BATCH, CLASSES = 8, 4
STEPS = 4  # of each loop; set by `main`
SECONDS = 300  # that all may take


class Classifier(nn.Module):
    """Two results, of which the second reads what the first does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(12 * 16, 10), nn.Tanh(), nn.Linear(10, 4))
        self.side = nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.body(x)
        return {"classes": self.head(maps), "map": self.side(maps)}


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(5, 8, 4),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 6, 3),
            nn.ReLU(),
            nn.Conv2d(6, 3, 3, padding=2),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Any:
        return self.layers(z)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.2), nn.Conv2d(8, 6, 3), nn.LeakyReLU(0.2)
        )
        self.score = nn.Conv2d(6, 1, 4)

    def forward(self, x: Tensor) -> Any:
        return self.score(self.layers(x)).flatten(1)


class Alone:
    """How a loop trains models in one process: the lines of any script."""

    samples = range(BATCH)

    def placed(self, model: nn.Module, example: Tensor) -> nn.Module:
        return model

    def optimizer(self, kind: Any, model: nn.Module, **options: Any) -> Any:
        return kind(model.parameters(), **options)

    def call(self, model: nn.Module, x: Tensor) -> Any:
        return model(x)

    def value(self, model: nn.Module, loss: Tensor) -> float:
        return float(loss)

    def mean(self, loss: Tensor) -> Tensor:
        """A mean over the batch, of a mean over the samples here."""
        return loss

    def step(self, model: nn.Module, x: Tensor, wanted: Tensor, loss_fn: Any) -> float:
        loss = loss_fn(model(x), wanted)
        loss.backward()
        return float(loss)


class InProcesses(Alone):
    """The same in processes: what differs."""

    def __init__(self, connection: Connection, plan: str) -> None:
        self._connection, self._plan = connection, plan

    def placed(self, model: nn.Module, example: Tensor) -> nn.Module:
        k, rank = self._connection.k, self._connection.rank
        modelling = hgpart.Modelling(batch_size=BATCH, norms="batch")
        traced, graph = traced_model(model, [example])
        found = hgpart.partition_by(
            self._plan, graph, hgpart.flops(graph), k, 0.5, modelling=modelling
        )
        plan = hgpart.PartitionedModel(traced, found, found.evaluation, {})
        placed = hgpart.DistributedModel(hgpart.place(model, plan, parts=[rank]), self._connection)
        self.samples = placed.placement.programs.samples_of_result(rank, BATCH) or range(BATCH)
        return placed

    def optimizer(self, kind: Any, model: nn.Module, **options: Any) -> Any:
        return kind([{"params": [*model.parameters()]}], **options)

    def call(self, model: nn.Module, x: Tensor) -> Any:
        return model(x, batch_size=BATCH)

    def value(self, model: Any, loss: Tensor) -> float:
        return float(model.value(loss))

    def mean(self, loss: Tensor) -> Tensor:
        return loss * (len(self.samples) / BATCH)

    def step(self, model: Any, x: Tensor, wanted: Tensor, loss_fn: Any) -> float:
        order = hgpart.schedule(model, "1f1b", 2, batch_size=BATCH)
        loss = model.step([x], wanted, loss_fn, order, batch_size=BATCH)
        return sum(self._connection.gather(0.0 if loss is None else loss.item()))


Loop = Callable[[Any], tuple[list[float], list[nn.Module]]]
LOOPS: dict[str, Loop] = {}
DTYPE = torch.float64


def loop(train: Loop) -> Loop:
    """Register a loop, under the name of its function."""
    LOOPS[train.__name__] = train
    return train


def batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, 3, 8, 8, dtype=DTYPE, generator=drawn)
    maps = torch.randn(BATCH, 1, 4, 4, dtype=DTYPE, generator=drawn)
    return x, torch.randint(CLASSES, (BATCH,), generator=drawn), maps


def classifier(how: Alone) -> nn.Module:
    torch.manual_seed(1)
    return how.placed(Classifier().to(DTYPE), batch(0)[0])


def losses_of(how: Alone, model: nn.Module, seed: int) -> tuple[Tensor, Tensor]:
    """Two losses, of the two results of a batch."""
    x, classes, maps = batch(seed)
    out = how.call(model, x)
    return (
        how.mean(functional.cross_entropy(out["classes"], classes[how.samples])),
        how.mean(functional.mse_loss(out["map"], maps[how.samples])),
    )


@loop
def plain(how: Alone) -> tuple[list[float], list[nn.Module]]:
    return plainly_trained(how, classifier(how))


@loop
def compiled(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """Parts, or the model, whose steps torch.compile has compiled."""
    model = classifier(how)
    model.compile(backend="aot_eager")
    return plainly_trained(how, model)


def plainly_trained(how: Alone, model: nn.Module) -> tuple[list[float], list[nn.Module]]:
    told = []
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.1, momentum=0.9)
    for seed in range(STEPS):
        optimizer.zero_grad()
        loss = sum(losses_of(how, model, seed))
        loss.backward()
        optimizer.step()
        told.append(how.value(model, loss))
    return told, [model]


@loop
def two_losses(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """Two forward passes before two backward passes, of one loss each, in the other order."""
    model, told = classifier(how), []
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.1)
    for seed in range(STEPS):
        optimizer.zero_grad()
        first, _ = losses_of(how, model, seed)
        _, second = losses_of(how, model, seed + 10)
        (2 * second).backward()
        (first / 3).backward()
        optimizer.step()
        told += [how.value(model, first), how.value(model, second)]
    return told, [model]


@loop
def accumulated(how: Alone) -> tuple[list[float], list[nn.Module]]:
    model, told = classifier(how), []
    optimizer = how.optimizer(torch.optim.Adam, model, lr=0.01)
    for seed in range(STEPS):
        few = model.no_sync() if hasattr(model, "no_sync") else nullcontext()
        with few:
            (sum(losses_of(how, model, seed)) / 2).backward()
        loss = sum(losses_of(how, model, seed + 10)) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(how.value(model, loss))
    return told, [model]


@loop
def clipped(how: Alone) -> tuple[list[float], list[nn.Module]]:
    model, told = classifier(how), []
    optimizer = torch.optim.AdamW(hgpart.param_groups(model, weight_decay=0.1), lr=0.01)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=2 * STEPS)
    for seed in range(STEPS):
        optimizer.zero_grad()
        sum(losses_of(how, model, seed)).backward()
        told.append(float(hgpart.clip_grad_norm_(model, 0.05, [2.0, float("inf")][seed % 2])))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        rates.step()
    return told, [model]


@loop
def averaged(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """A moving average of the weights, which is evaluated between forward and backward."""
    model, told = classifier(how), []
    average = AveragedModel(model, use_buffers=True)
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.1)
    for seed in range(STEPS):
        optimizer.zero_grad()
        loss = sum(losses_of(how, model, seed))
        for tested in (average.module, model):
            tested.eval()
            with torch.no_grad():
                out = how.call(tested, batch(seed)[0])
                told.append(how.value(tested, out["map"].square().sum()))
            tested.train()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
    return told, [model, average.module]


@loop
def unfrozen(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """A frozen body with its norms in evaluation; then all is trained."""
    model, told = classifier(how), []
    body = getattr(model, "placement", model).get_submodule("body")
    for parameter in body.parameters():
        parameter.requires_grad_(False)
    others = {id(one): one for one in model.parameters() if one.requires_grad}
    optimizer = torch.optim.SGD([{"params": [*others.values()]}], lr=0.1)
    for seed in range(STEPS):
        if seed == STEPS // 2:
            body.requires_grad_(True)
            optimizer.add_param_group({"params": [*body.parameters()], "lr": 0.01})
        optimizer.zero_grad()
        loss = sum(losses_of(how, model, seed))
        loss.backward()
        optimizer.step()
        told.append(how.value(model, loss))
    return told, [model]


@loop
def attacked(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """Gradients of inputs: trained on images that make the loss larger."""
    model, told = classifier(how), []
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.1)
    for seed in range(STEPS):
        x, classes, _ = batch(seed)
        x.requires_grad_()
        loss = how.mean(
            functional.cross_entropy(how.call(model, x)["classes"], classes[how.samples])
        )
        (gradient,) = torch.autograd.grad(loss, x)
        told.append(float(gradient.abs().sum()))
        optimizer.zero_grad()
        out = how.call(model, (x + 0.1 * gradient.sign()).detach())
        how.mean(functional.cross_entropy(out["classes"], classes[how.samples])).backward()
        optimizer.step()
    return told, [model]


@loop
def sharpness_aware(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """Two forward passes a step, the second with weights that were moved along the gradient."""
    model, told = classifier(how), []
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.1)
    for seed in range(STEPS):
        optimizer.zero_grad()
        loss = sum(losses_of(how, model, seed))
        loss.backward()
        norm = hgpart.clip_grad_norm_(model, float("inf"))
        moved = [
            (one, 0.05 * one.grad / norm) for one in model.parameters() if one.grad is not None
        ]
        with torch.no_grad():
            for parameter, step in moved:
                parameter.add_(step)
        optimizer.zero_grad()
        sum(losses_of(how, model, seed)).backward()
        with torch.no_grad():
            for parameter, step in moved:
                parameter.sub_(step)
        optimizer.step()
        told.append(how.value(model, loss))
    return told, [model]


@loop
def adversaries(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """A generator and a critic, whose input is the other's result."""
    torch.manual_seed(1)
    noise = torch.randn(BATCH, 5, 1, 1, dtype=DTYPE)
    generator = how.placed(Generator().to(DTYPE), noise)
    critic, told = how.placed(Critic().to(DTYPE), batch(0)[0]), []
    slow = how.optimizer(torch.optim.Adam, generator, lr=0.01)
    fast = how.optimizer(torch.optim.Adam, critic, lr=0.02)
    for seed in range(STEPS):
        drawn = torch.Generator().manual_seed(seed)
        noise = torch.randn(BATCH, 5, 1, 1, dtype=DTYPE, generator=drawn)
        fake = how.call(generator, noise)
        fast.zero_grad()
        real, made = how.call(critic, batch(seed)[0]), how.call(critic, fake.detach())
        loss = how.mean(torch.relu(1 - real).mean() + torch.relu(1 + made).mean())
        loss.backward()
        fast.step()
        slow.zero_grad()
        (-how.mean(how.call(critic, fake).mean())).backward()
        slow.step()
        told.append(how.value(critic, loss))
    return told, [generator, critic]


@loop
def scaled(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """A scaler of the loss; an infinite gradient in one process lets all of them skip a step."""
    model, told = classifier(how), []
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.1)
    scaler = hgpart.GradScaler(model, "cpu", init_scale=64.0, growth_interval=2)
    for seed in range(STEPS):
        optimizer.zero_grad()
        loss = sum(losses_of(how, model, seed))
        scaler.scale(loss * (float("inf") if seed == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        told += [how.value(model, loss), scaler.get_scale()]
    return told, [model]


@loop
def resumed(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """Model and optimizer go on after two steps, which the plain model has done."""
    alone, told = Alone(), []
    model = classifier(alone)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for seed in range(2):
        optimizer.zero_grad()
        sum(losses_of(alone, model, seed)).backward()
        optimizer.step()
    state, learned = model.state_dict(), hgpart.gathered_optimizer_state(model, optimizer)
    model = classifier(how)
    optimizer = how.optimizer(torch.optim.AdamW, model, lr=0.5)
    model.load_state_dict(state)
    hgpart.load_optimizer_state(model, optimizer, learned)
    for seed in range(2, STEPS):
        optimizer.zero_grad()
        loss = sum(losses_of(how, model, seed))
        loss.backward()
        optimizer.step()
        told.append(how.value(model, loss))
    gathered = hgpart.gathered_optimizer_state(model, optimizer)
    if gathered is not None:
        assert gathered["param_groups"][0]["lr"] == 0.01
        told += [
            float(gathered["state"][name][kind].sum())
            for name, _ in Classifier().named_parameters()
            for kind in ("step", "exp_avg", "exp_avg_sq")
        ]
    return told, [model]


class OfBatch(nn.Module):
    """Calls a model with whole batches, as torch's `update_bn` does."""

    def __init__(self, how: Alone, model: nn.Module) -> None:
        super().__init__()
        self.how, self.model = how, model

    def forward(self, x: Tensor) -> Any:
        return self.how.call(self.model, x)


@loop
def updated_norms(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """Running statistics anew, as the mean over batches, and then a step as before."""
    model = classifier(how)
    sum(losses_of(how, model, 0)).backward()
    update_bn([batch(seed)[0] for seed in range(3)], OfBatch(how, model))
    loss = sum(losses_of(how, model, 1))
    loss.backward()
    return [how.value(model, loss)], [model]


@loop
def quasi_newton(how: Alone) -> tuple[list[float], list[nn.Module]]:
    model, told = classifier(how), []
    optimizer = hgpart.LBFGS(model, lr=0.3, max_iter=3, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(losses_of(how, model, 0))
        loss.backward()
        return loss

    for _ in range(STEPS):
        told.append(float(optimizer.step(closure)))
    return told, [model]


def mixed(how: Alone, dtype: torch.dtype) -> tuple[list[float], list[nn.Module]]:
    """Mixed precision: in 16 bits the order of additions shows."""
    torch.manual_seed(1)
    model, told = how.placed(Critic(), batch(0)[0].float()), []
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.01)
    scaler = hgpart.GradScaler(model, "cpu", init_scale=16.0)
    for seed in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            out = how.call(model, batch(seed)[0].float())
            loss = how.mean((out.float() - 1).square().mean())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        told.append(float(hgpart.clip_grad_norm_(model, 1.0)))
        scaler.step(optimizer)
        scaler.update()
        told.append(how.value(model, loss))
    return told, [model]


@loop
def mixed_bfloat16(how: Alone) -> tuple[list[float], list[nn.Module]]:
    return mixed(how, torch.bfloat16)


@loop
def mixed_float16(how: Alone) -> tuple[list[float], list[nn.Module]]:
    return mixed(how, torch.float16)


def apart_in_float32(out: Tensor, wanted: Tensor) -> Tensor:
    return functional.mse_loss(out.float(), wanted)


@loop
def stepped_mixed(how: Alone) -> tuple[list[float], list[nn.Module]]:
    """Steps by a schedule under autocast, whose messages say their types in the first."""
    torch.manual_seed(1)
    model, told = how.placed(Critic(), batch(0)[0].float()), []
    optimizer = how.optimizer(torch.optim.SGD, model, lr=0.01)
    for seed in range(STEPS):
        optimizer.zero_grad()
        images, wanted = batch(seed)[0].float(), torch.ones(BATCH, 1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = how.step(
                model, images, wanted, lambda out, ones: (out.float() - ones).square().mean()
            )
        optimizer.step()
        told.append(loss)
    return told, [model]


def state_of(model: Any) -> dict[str, Tensor] | None:
    if isinstance(model, hgpart.DistributedModel):
        return model.gathered_state_dict()
    return copy.deepcopy(model.state_dict())


def compared(connection: Connection, plan: str, train: Loop) -> str:
    """How far a loop in processes is from the model alone: of losses and of states."""
    told, models = train(Alone())
    expected = [state_of(model) for model in models]
    try:
        told_here, placed = train(InProcesses(connection, plan))
    except HgpartError as error:
        return f"{type(error).__name__}: {error}"
    states = [state_of(model) for model in placed]
    apart = [abs(one - other) for one, other in zip(told, told_here, strict=False)]
    if states[0] is not None:
        pairs = zip(expected, states, strict=True)
        apart += [
            float((whole[name] - state[name]).abs().max())
            for whole, state in pairs
            for name in whole
        ]
    return f"{max(apart):.1e}"


def main(folder: str, steps: str, plans: str, *names: str) -> None:
    global STEPS
    STEPS = int(steps)
    signal.alarm(SECONDS)  # ends this process, and the launcher the others
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found: dict[str, str] = {}
    with hgpart.connect(k, timeout=60) as connection:
        for plan in plans.split(","):
            for name in names or LOOPS:
                found[f"{plan} {name}"] = compared(connection, plan, LOOPS[name])
    Path(folder, str(rank)).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
