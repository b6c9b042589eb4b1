"""What a transformation costs in accuracy: a residual network on digits, as it is and changed.

    python benchmarks/transformed_accuracy.py --json results/transformed_accuracy.jsonl [--seeds 10]

A network of two stages of five cells (16 and 32 channels; 8 x 8 pixels) is trained on four fifths
of the training digits of scikit-learn, as it is and by each kind of change with P = 2 and 4, all
layers drawn anew (`fresh=True`), by plain gradient descent with momentum. The learning rate decays
by the rule of F. Brakel's thesis (`hgpart train --optimizer sgd,decay=yes`) on the last fifth,
which ends the training too. Test samples are classified once, behind the last epoch. In a seed all
have the same batches; the intervals are Student's, of 95 %, beside the original: of the differences
in each seed.

Fine-tuning: `split` and `grouped` of the trained original, with the blocks on the diagonal of its
weights: loss and accuracy of the test samples before, and after 1 and 5 epochs at a fifth of the
first rate; beside the same model drawn anew, after the same epochs.

Lines of a seed are written when all its models are trained; its seed is not trained again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

import hgpart
from hgpart.run.training.data import load_data
from hgpart.run.training.plateau import Plateau
from hgpart.terminal import progress_bar
from hgpart.zoo.architectures.resnet import ResidualBlock

CHANGES = [(kind, parts) for kind in ("parallel", "grouped", "split") for parts in (2, 4)]
TUNED = [(kind, parts) for kind, parts in CHANGES if kind != "parallel"]
SHAPE, BATCH, RATE, MOMENTUM, MOST_EPOCHS = (1, 8, 8), 32, 0.05, 0.9, 60
TUNING_RATE, TUNING_EPOCHS, SHOWN_EPOCHS = RATE / 5, 5, (0, 1, 5)
EXAMPLE = torch.zeros(2, *SHAPE)
CONFIDENCE = 0.95


def network(seed: int) -> nn.Module:
    """About 120,000 parameters, for digits."""
    torch.manual_seed(seed)

    def cell(channels: int) -> ResidualBlock:
        convs = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
        return ResidualBlock(convs, None)

    def widened(before: int, channels: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(channels), nn.ReLU()]

    return nn.Sequential(
        *widened(1, 16, 1),
        nn.Sequential(*(cell(16) for _ in range(5))),
        *widened(16, 32, 2),
        nn.Sequential(*(cell(32) for _ in range(5))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Digits:
    """Images and labels to train on, to decide the rate by, and to test on."""

    def __init__(self, seed: int) -> None:
        data = load_data("digits", SHAPE, 10, seed=0)
        assert data.validation is not None
        everything = range(len(data.train))
        images, labels = data.train.images(everything), data.train.labels(everything)
        self.seed, held = seed, len(images) // 5
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self.images, self.labels = images[order[held:]], labels[order[held:]]
        self.validation = images[order[:held]], labels[order[:held]]
        tested = range(len(data.validation))
        self.test = data.validation.images(tested), data.validation.labels(tested)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All that is trained on, in an order of the seed and the epoch."""
        chance = torch.Generator().manual_seed(1000 * self.seed + epoch)
        for taken in torch.split(torch.randperm(len(self.images), generator=chance), BATCH):
            yield self.images[taken], self.labels[taken]


def train_epoch(model: nn.Module, digits: Digits, epoch: int, optimizer: torch.optim.SGD) -> None:
    model.train()
    for images, labels in digits.batches(epoch):
        optimizer.zero_grad()
        loss: Tensor = functional.cross_entropy(model(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()


@torch.no_grad()
def tested(model: nn.Module, samples: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Mean loss, and the share of the samples that are given their class."""
    images, labels = samples
    result = model.eval()(images)
    right = (result.argmax(1) == labels).float().mean()
    return functional.cross_entropy(result, labels).item(), right.item()


def trained(model: nn.Module, digits: Digits) -> dict[str, Any]:
    """Train until the rule ends it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    rule, goes_on = Plateau(RATE), True
    while goes_on and len(rule.rates) < MOST_EPOCHS:
        optimizer.param_groups[0]["lr"] = rule.rate
        train_epoch(model, digits, len(rule.rates), optimizer)
        goes_on = rule.goes_on(tested(model, digits.validation)[1])
    loss, accuracy = tested(model, digits.validation)
    return {"loss": loss, "accuracy": accuracy, "epochs": len(rule.rates)}


def tuned(model: nn.Module, digits: Digits) -> dict[str, Any]:
    """Loss and accuracy of the test samples before and after each of few epochs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=TUNING_RATE, momentum=MOMENTUM)
    found = [tested(model, digits.validation)]
    for epoch in range(TUNING_EPOCHS):
        train_epoch(model, digits, epoch, optimizer)
        found.append(tested(model, digits.validation))
    return {"losses": [loss for loss, _ in found], "accuracies": [share for _, share in found]}


def changed(model: nn.Module, kind: str, parts: int, seed: int, fresh: bool) -> nn.Module:
    torch.manual_seed(seed)
    return hgpart.transform(model, kind, parts, EXAMPLE, fresh=fresh)


def rows_of_seed(seed: int, advance: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """All models of a seed, trained, and those that go on from the trained original."""
    digits, original = Digits(seed), network(seed)
    yield {"what": "trained", "model": "original", **trained(original, digits)}
    advance("original")
    for kind, parts in CHANGES:
        model = changed(network(seed), kind, parts, seed, fresh=True)
        yield {"what": "trained", "model": f"{kind}:{parts}", **trained(model, digits)}
        advance(f"{kind}:{parts}")
    for kind, parts in TUNED:
        for what, fresh in (("tuned", False), ("drawn anew", True)):
            model = changed(original, kind, parts, seed, fresh)
            yield {"what": what, "model": f"{kind}:{parts}", **tuned(model, digits)}
        advance(f"{kind}:{parts}, tuned")


# ------------------------------------------------------------------ tables


def interval(values: Sequence[float]) -> str:
    """Mean and half of Student's interval, in percent."""
    mean, error = float(np.mean(values)), stats.sem(values)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * error
    return f"{100 * mean:.2f} ± {100 * half:.2f}"


def show(rows: Sequence[dict[str, Any]]) -> None:
    def of(what: str, model: str) -> list[dict[str, Any]]:
        found = [row for row in rows if (row["what"], row["model"]) == (what, model)]
        return sorted(found, key=lambda row: int(row["seed"]))

    whole = of("trained", "original")
    print("| model | parameters | epochs | accuracy, % | beside |")
    print("|---|---:|---:|---:|---:|")
    models = {"original": network(0)}
    models |= {
        f"{kind}:{parts}": changed(network(0), kind, parts, 0, True) for kind, parts in CHANGES
    }
    for name, model in models.items():
        several = of("trained", name)
        pairs = zip(several, whole, strict=True)
        beside = [row["accuracy"] - one["accuracy"] for row, one in pairs]
        print(
            f"| {name} | {sum(one.numel() for one in model.parameters()):,} "
            f"| {np.mean([row['epochs'] for row in several]):.0f} "
            f"| {interval([row['accuracy'] for row in several])} "
            f"| {interval(beside) if any(beside) else ''} |"
        )
    print("\n| start | epochs | " + " | ".join(f"{kind}:{parts}" for kind, parts in TUNED) + " |")
    print("|---|---:|" + "---:|" * len(TUNED))
    for what, after in (*(("tuned", epoch) for epoch in SHOWN_EPOCHS), ("drawn anew", 5)):
        cells = []
        for kind, parts in TUNED:
            several = of(what, f"{kind}:{parts}")
            loss = np.mean([row["losses"][after] for row in several])
            cells.append(f"{loss:.3f}, {interval([row['accuracies'][after] for row in several])}")
        start = "trained original" if what == "tuned" else what
        print(f"| {start} | {after} |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10, help="two or more")
    asked = parser.parse_args()
    if asked.seeds < 2:
        parser.error(f"--seeds {asked.seeds}: an interval needs 2 or more")
    lines = asked.json.read_text().splitlines() if asked.json.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {row["seed"] for row in rows}
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=asked.seeds * (1 + len(CHANGES) + len(TUNED)))
        for seed in range(asked.seeds):
            if seed in done:
                bar.advance(task, 1 + len(CHANGES) + len(TUNED))
                continue

            def advance(model: str, seed: int = seed) -> None:
                bar.update(task, advance=1, description=f"seed {seed}, {model}")

            found = [{"seed": seed, **row} for row in rows_of_seed(seed, advance)]
            with asked.json.open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in found))
            rows += found
    show([row for row in rows if row["seed"] < asked.seeds])


if __name__ == "__main__":
    main()
