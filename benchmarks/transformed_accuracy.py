"""What a transformation costs in accuracy: networks as they are and changed.

    python benchmarks/transformed_accuracy.py --json results/transformed_accuracy.jsonl [--seeds 10]
    python benchmarks/transformed_accuracy.py --data shapes --json results/transformed_shapes.jsonl

The changed models are those of each kind of change with P = 2 and 4, all layers drawn anew
(`fresh=True`). They are trained by gradient descent with momentum. The learning rate decays by the
rule of F. Brakel's thesis (`hgpart train --optimizer sgd,decay=yes`) on validation samples, which
ends the training too. Test samples are classified once, after the last epoch. In a seed all have
the same batches; the intervals are Student's, of 95 %, beside the original: of the differences in
each seed.

--data digits: a network of two stages of five cells (16 and 32 channels; 8 x 8 pixels), trained on
four fifths of the training digits of scikit-learn; the last fifth is for validation.

--data shapes: Brakel's network of 4, 8 and 4 cells, with fewer channels (`cells_4_8_4`), on `hgpart
train --data shapes,fold=I/3`: a seed is also a fold of the thesis's three. At most 8 epochs.

Fine-tuning (digits): `split` and `grouped` of the trained original, with the blocks on the diagonal
of its weights: loss and accuracy of the test samples before, and after 1 and 5 epochs at a fifth of
the first rate; beside the same model drawn anew, after the same epochs.

A line is written when its model is trained, and what has a line is not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from hgpart.run.training.sources.samples import Samples
from hgpart.terminal import progress_bar
from hgpart.zoo.architectures.blocks import conv_bn_relu
from hgpart.zoo.architectures.inception_resnet_v2 import ScaledResidual
from hgpart.zoo.architectures.resnet import ResidualBlock

CHANGES = [(kind, parts) for kind in ("parallel", "grouped", "split") for parts in (2, 4)]
TUNED = [(kind, parts) for kind, parts in CHANGES if kind != "parallel"]
RATE, MOMENTUM = 0.05, 0.9
TUNING_RATE, TUNING_EPOCHS, SHOWN_EPOCHS = RATE / 5, 5, (0, 1, 5)
CONFIDENCE = 0.95
FOLDS = 3  # of the thesis, section 4.1
# Medians of three folds beside the baseline's 71.28, percent, on the first of two data sets of 100
# classes: F. Brakel's thesis (2024), sections 4.2.1 to 4.2.3 (figures 4.1 to 4.3).
BRAKEL = {
    "original": "(71.28)",
    "parallel:2": "-0.37",
    "parallel:4": "-0.51",
    "grouped:2": "0.55",
    "grouped:4": "0.37",
    "split:2": "-0.83",
    "split:4": "-0.14",
}


@dataclass(frozen=True)
class Task:
    """What is trained, on what: `data` as of --data, with {fold} in the place of a number."""

    network: Callable[[int], nn.Module]
    data: str
    example: Tensor
    batch: int
    most_epochs: int
    seeds: int
    tunes: bool = False
    theirs: Mapping[str, str] = field(default_factory=dict)


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


def cells_4_8_4(seed: int) -> nn.Module:
    """Brakel's 4, 8 and 4 cells on drawn shapes: the thesis's kinds, with few channels.

    About 188,000 parameters. Stem and reductions are few layers, as in the thesis's appendix,
    and a cell has a twentieth to a tenth of the thesis's channels.
    """
    torch.manual_seed(seed)

    def cell(channels: int, scale: float, kernels: Sequence[tuple[int, int]]) -> nn.Module:
        few = 8 if channels == 32 else 16
        first, second = (conv_bn_relu(few, few, kernel) for kernel in kernels)
        deep = nn.Sequential(conv_bn_relu(channels, few, 1), first, second)
        branches = [conv_bn_relu(channels, few, 1), deep]
        if channels == 32:  # as in the thesis's cells of the first kind
            shallow = nn.Sequential(conv_bn_relu(channels, few, 1), conv_bn_relu(few, few, 3))
            branches.insert(1, shallow)
        return ScaledResidual(channels, scale, *branches, width=few * len(branches))

    def cells(count: int, *about: Any) -> nn.Module:
        return nn.Sequential(*(cell(*about) for _ in range(count)))

    return nn.Sequential(
        conv_bn_relu(3, 16, 3),
        nn.MaxPool2d(2),
        conv_bn_relu(16, 32, 3),
        nn.MaxPool2d(2),
        cells(4, 32, 0.17, ((3, 3), (3, 3))),
        conv_bn_relu(32, 64, 3, stride=2),
        cells(8, 64, 0.10, ((1, 7), (7, 1))),
        conv_bn_relu(64, 96, 3, stride=2),
        cells(4, 96, 0.20, ((1, 3), (3, 1))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 10),
    )


class Images:
    """Images and labels to train on, to decide the rate by, and to test on."""

    def __init__(self, task: Task, seed: int) -> None:
        shape = (*task.example.shape[1:],)
        data = load_data(task.data.format(fold=seed % FOLDS), shape, 10, seed=0)
        assert data.validation is not None
        images, labels = whole(data.train)
        self.seed, self.batch = seed, task.batch
        if data.test is not None:
            self.images, self.labels = images, labels
            self.validation, self.test = whole(data.validation), whole(data.test)
            return
        held = len(images) // 5
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self.images, self.labels = images[order[held:]], labels[order[held:]]
        self.validation = images[order[:held]], labels[order[:held]]
        self.test = whole(data.validation)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All that is trained on, in an order of the seed and the epoch."""
        chance = torch.Generator().manual_seed(1000 * self.seed + epoch)
        for taken in torch.split(torch.randperm(len(self.images), generator=chance), self.batch):
            yield self.images[taken], self.labels[taken]


def whole(samples: Samples) -> tuple[Tensor, Tensor]:
    everything = range(len(samples))
    return samples.images(everything), samples.labels(everything)


def train_epoch(model: nn.Module, images: Images, epoch: int, optimizer: torch.optim.SGD) -> None:
    model.train()
    for batch, labels in images.batches(epoch):
        optimizer.zero_grad()
        loss: Tensor = functional.cross_entropy(model(batch), labels)
        torch.autograd.backward(loss)
        optimizer.step()


@torch.no_grad()
def tested(model: nn.Module, samples: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Mean loss, and the share of the samples that are given their class."""
    images, labels = samples
    model.eval()
    result = torch.cat([model(some) for some in torch.split(images, 1000)])
    right = (result.argmax(1) == labels).float().mean()
    return functional.cross_entropy(result, labels).item(), right.item()


def trained(model: nn.Module, images: Images, most_epochs: int) -> dict[str, Any]:
    """Train until the rule ends it, or the epochs are over."""
    begin = time.process_time()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    rule, goes_on = Plateau(RATE), True
    while goes_on and len(rule.rates) < most_epochs:
        optimizer.param_groups[0]["lr"] = rule.rate
        train_epoch(model, images, len(rule.rates), optimizer)
        goes_on = rule.goes_on(tested(model, images.validation)[1])
    loss, accuracy = tested(model, images.test)
    epochs, seconds = len(rule.rates), round(time.process_time() - begin, 1)
    validated = {"validation": rule.accuracies, "rates": rule.rates}
    return {"loss": loss, "accuracy": accuracy, "epochs": epochs, "cpu_s": seconds} | validated


def tuned(model: nn.Module, images: Images) -> dict[str, Any]:
    """Loss and accuracy of the test samples before and after each of few epochs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=TUNING_RATE, momentum=MOMENTUM)
    found = [tested(model, images.test)]
    for epoch in range(TUNING_EPOCHS):
        train_epoch(model, images, epoch, optimizer)
        found.append(tested(model, images.test))
    return {"losses": [loss for loss, _ in found], "accuracies": [share for _, share in found]}


def changed(
    task: Task, model: nn.Module, kind: str, parts: int, seed: int, fresh: bool
) -> nn.Module:
    torch.manual_seed(seed)
    return hgpart.transform(model, kind, parts, task.example, fresh=fresh)


def rows_of_seed(
    task: Task, seed: int, done: set[tuple[str, str]], advance: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """All models of a seed, trained, and those that go on from the trained original."""
    images, original = Images(task, seed), task.network(seed)
    tuned_ones = [
        (what, f"{kind}:{parts}") for kind, parts in TUNED for what in ("tuned", "drawn anew")
    ]
    is_tuned = task.tunes and not done.issuperset(tuned_ones)
    if is_tuned or ("trained", "original") not in done:
        row = trained(original, images, task.most_epochs)
        if ("trained", "original") not in done:
            yield {"what": "trained", "model": "original", **row}
    advance("original")
    for kind, parts in CHANGES:
        if ("trained", f"{kind}:{parts}") not in done:
            model = changed(task, task.network(seed), kind, parts, seed, fresh=True)
            row = trained(model, images, task.most_epochs)
            yield {"what": "trained", "model": f"{kind}:{parts}", **row}
        advance(f"{kind}:{parts}")
    for what, name in tuned_ones if is_tuned else ():
        if (what, name) not in done:
            kind, _, parts_text = name.partition(":")
            fresh = what == "drawn anew"
            model = changed(task, original, kind, int(parts_text), seed, fresh)
            yield {"what": what, "model": name, **tuned(model, images)}


TASKS = {
    "digits": Task(network, "digits", torch.zeros(2, 1, 8, 8), 32, 60, 10, tunes=True),
    "shapes": Task(
        cells_4_8_4,
        f"shapes,fold={{fold}}/{FOLDS}",
        torch.zeros(2, 3, 32, 32),
        batch=64,
        most_epochs=8,
        seeds=FOLDS,
        theirs=BRAKEL,
    ),
}

# ------------------------------------------------------------------ tables


def interval(values: Sequence[float]) -> str:
    """Mean and half of Student's interval, in percent."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{100 * mean:.2f}"
    error = stats.sem(values)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * error
    return f"{100 * mean:.2f} ± {100 * half:.2f}"


def show(task: Task, rows: Sequence[dict[str, Any]]) -> None:
    def of(what: str, model: str) -> list[dict[str, Any]]:
        found = [row for row in rows if (row["what"], row["model"]) == (what, model)]
        return sorted(found, key=lambda row: int(row["seed"]))

    originals = {row["seed"]: row["accuracy"] for row in of("trained", "original")}
    last = " Brakel, beside |" if task.theirs else ""
    print(f"| model | parameters | trainings | epochs | accuracy, % | beside |{last}")
    print("|---|---:|---:|---:|---:|---:|" + "---:|" * bool(task.theirs))
    models = {"original": task.network(0)}
    for kind, parts in CHANGES:
        models[f"{kind}:{parts}"] = changed(task, task.network(0), kind, parts, 0, True)
    for name, model in models.items():
        several = of("trained", name)
        if not several:
            continue
        beside = [
            row["accuracy"] - originals[row["seed"]] for row in several if row["seed"] in originals
        ]
        print(
            f"| {name} | {sum(one.numel() for one in model.parameters()):,} | {len(several)} "
            f"| {np.mean([row['epochs'] for row in several]):.0f} "
            f"| {interval([row['accuracy'] for row in several])} "
            f"| {interval(beside) if any(beside) else ''} |"
            + (f" {task.theirs[name]} |" if task.theirs else "")
        )
    if not task.tunes:
        return
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
    parser.add_argument("--data", choices=TASKS, default="digits")
    parser.add_argument("--seeds", type=int, help="two or more; default: 10, or 3 for shapes")
    parser.add_argument("--table", action="store_true", help="train nothing, print Markdown")
    asked = parser.parse_args()
    task = TASKS[asked.data]
    seeds = task.seeds if asked.seeds is None else asked.seeds
    if seeds < 2:
        parser.error(f"--seeds {seeds}: an interval needs 2 or more")
    lines = asked.json.read_text().splitlines() if asked.json.exists() else []
    rows = [json.loads(line) for line in lines]
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        models = 1 + len(CHANGES)
        progress = bar.add_task("", total=0 if asked.table else seeds * models)
        for seed in () if asked.table else range(seeds):

            def advance(model: str, seed: int = seed) -> None:
                bar.update(progress, advance=1, description=f"seed {seed}, {model}")

            done = {(row["what"], row["model"]) for row in rows if row["seed"] == seed}
            for row in rows_of_seed(task, seed, done, advance):
                rows.append({"seed": seed, **row})
                with asked.json.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    show(task, [row for row in rows if row["seed"] < seeds])


if __name__ == "__main__":
    main()
