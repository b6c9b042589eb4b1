"""A program for the processes of a test: ranks that call different things.

    python hang_ranks.py FOLDER TIMEOUT CASE

Each rank writes what it was told, and after how many seconds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hgpart
from hgpart.errors import HgpartError

X = torch.zeros(4, 3, 6, 6)


def evaluate(model: Any) -> None:
    model.eval()
    with torch.no_grad():
        model(X)
    model.train()


def train(model: Any) -> None:
    model(X).sum().backward()


def step(model: Any) -> None:
    model.step([X], torch.zeros(4, dtype=torch.int64), nn.functional.cross_entropy)


def save(model: Any) -> None:
    model.gathered_state_dict()


def clip(model: Any) -> None:
    hgpart.clip_grad_norm_(model, 1.0)


def gather(model: Any) -> None:
    model.connection.gather(1)


# What rank 0 does, and what rank 1 does meanwhile.
CASES = {
    "evaluation": (evaluate, train),
    "saving": (save, train),
    "clipping": (clip, train),
    "gathering": (gather, step),
    "one batch more": (train, lambda model: None),
    "one step more": (step, lambda model: None),
    "stepping": (step, save),
}


def main(folder: str, timeout: str, case: str) -> None:
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    plan = hgpart.partition_model(net, X, k=2, eps=0.9, best_effort=True)
    begin = time.monotonic()
    try:
        with hgpart.connect(2, timeout=float(timeout)) as connection:
            model = hgpart.DistributedModel(hgpart.place(net, plan, parts=[rank]), connection)
            train(model)
            begin = time.monotonic()
            CASES[case][rank](model)
    except HgpartError as error:
        Path(folder, str(rank)).write_text(f"{time.monotonic() - begin:.1f} {error}")
    time.sleep(0.1)  # so that the other is told before this one is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
