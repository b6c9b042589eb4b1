"""How hard `hgpart train --data shapes` is: test accuracies of VGG-like nets by their filters.

    python benchmarks/shapes_accuracy.py --json results/shapes_accuracy.jsonl [--filters 4 8 16]

Four times convolution (3 x 3), batch norm, ReLU and max pooling, with w, 2 w, 4 w and 4 w filters,
and a linear layer. All 20,000 samples, batches of 64, gradient descent with momentum and torch's
OneCycleLR up to 0.1; the test samples are classified after each epoch. A line is written when a net
is trained, and what has a line is not trained again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.nn import functional

from hgpart.run.training.data import load_data
from hgpart.terminal import progress_bar

BATCH, RATE, MOMENTUM = 64, 0.1, 0.9
MULTIPLES = (1, 2, 4, 4)


def network(filters: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, multiple in zip((0, *MULTIPLES), MULTIPLES, strict=False):
        conv = nn.Conv2d(before * filters or 3, multiple * filters, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(multiple * filters), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))


def trained(filters: int, epochs: int) -> dict[str, Any]:
    begin = time.process_time()
    data = load_data("shapes", (3, 32, 32), 10, seed=0)
    assert data.validation is not None
    (images, labels), tested = (
        (samples.images(range(len(samples))), samples.labels(range(len(samples))))
        for samples in (data.train, data.validation)
    )
    model, steps = network(filters), data.steps_per_epoch(BATCH)
    model(images[:2])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    course = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps)
    accuracies = []
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        for step in bar.track(range(epochs * steps), description=f"{filters} filters"):
            batch = data.training_indices(step, BATCH)
            optimizer.zero_grad()
            loss: Tensor = functional.cross_entropy(model(images[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
            course.step()
            if (step + 1) % steps == 0:
                model.eval()
                with torch.no_grad():
                    results = torch.cat([model(some) for some in torch.split(tested[0], 1000)])
                accuracies.append((results.argmax(1) == tested[1]).float().mean().item())
                model.train()
    return {
        "filters": filters,
        "parameters": sum(one.numel() for one in model.parameters()),
        "accuracies": [round(share, 4) for share in accuracies],
        "cpu_s": round(time.process_time() - begin, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--filters", type=int, nargs="+", default=(4, 8, 16))
    parser.add_argument("--epochs", type=int, default=5)
    asked = parser.parse_args()
    lines = asked.json.read_text().splitlines() if asked.json.exists() else []
    rows = {row["filters"]: row for row in map(json.loads, lines)}
    for filters in asked.filters:
        if filters not in rows:
            rows[filters] = trained(filters, asked.epochs)
            with asked.json.open("a") as file:
                file.write(json.dumps(rows[filters]) + "\n")
    print("| filters | parameters | test accuracy after each epoch, % | CPU s |")
    print("|---|---:|---|---:|")
    for row in rows.values():
        shares = ", ".join(f"{100 * share:.1f}" for share in row["accuracies"])
        filters = ", ".join(f"{multiple * row['filters']}" for multiple in MULTIPLES)
        print(f"| {filters} | {row['parameters']:,} | {shares} | {row['cpu_s']:.0f} |")


if __name__ == "__main__":
    main()
