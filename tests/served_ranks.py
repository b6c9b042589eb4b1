"""A program for the processes of a test: trainings by parameter servers, beside one process.

    python served_ranks.py FILE

Rank 0 writes to FILE, for each case, how far losses and state are from those of one process, and
the bytes that travelled beside those that the definition has.
"""

from __future__ import annotations

import copy
import json
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from hgpart.run.learner import Learner
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.servers.served_model import ServedModel
from hgpart.run.servers.serving import Serving
from hgpart.run.training.data import Data, Synthetic
from hgpart.run.training.loop import TrainingResult, train
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.resuming import Checkpointing

SECONDS = 200  # that all may take
PROCESSES, STEPS, BATCH = 3, 9, 8  # shares of 3 workers differ
DATA = Data("synthetic", Synthetic((3, 6, 6), 4, seed=2), None, 4, seed=2)
# Workers, settings, optimizer, momentum: where one process learns the same.
CASES = {
    "one server": (2, Serving("ps-sync"), "sgd", 0.9),
    "one server, Adam": (2, Serving("ps-sync"), "adam", None),
    "distributed": (3, Serving("ps-sync", "distributed"), "sgd", 0.9),
    "in turn": (3, Serving("ps-sync", "distributed", "round-robin"), "adam", None),
    "two servers": (1, Serving("ps-async", "2", "round-robin"), "adam", None),
    "Downpour": (1, Serving("ps-async", "2", push=4, fetch=4), "sgd", 0.0),
    "never waits": (
        3,
        Serving("ps-async", "distributed", push=2, fetch=3, staleness=1),
        "sgd",
        0.0,
    ),
}


def net(dropout: float = 0.0) -> nn.Module:
    """A model with the same weights each time, in float64."""
    torch.manual_seed(0)
    body = nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout)
    return nn.Sequential(*body, nn.Linear(80, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def trained(
    learner: Learner,
    optimizer: str,
    momentum: float | None = None,
    steps: int = STEPS,
    checkpointing: Checkpointing | None = None,
) -> TrainingResult:
    """Train, with a learning rate that changes, but where pushes add up steps."""
    decay, warmup = (0.0, 0) if momentum == 0 else (1e-3, 8)
    options = TrainingOptions(steps, BATCH, optimizer, 0.01, momentum, decay, warmup=warmup)
    return train(learner, DATA, options, checkpointing)


def plainly(optimizer: str, momentum: float | None = None, dropout: float = 0.0):
    """The same in one process."""
    model = net(dropout)
    return trained(Learner(model), optimizer, momentum), model.state_dict()


def statistics(connection: Connection) -> dict[str, float]:
    """How far running statistics in evaluation are, on any rank, from those of the first worker."""
    norm = nn.Sequential(nn.BatchNorm2d(3, dtype=torch.float64), nn.Flatten(), nn.Linear(108, 4))
    alone = copy.deepcopy(norm[0])
    model = ServedModel(norm.double(), Serving("ps-async"), 2, connection)
    train(model, DATA, TrainingOptions(STEPS, BATCH, lr=0.0))
    model.train(False)
    for step in range(STEPS):
        alone(DATA.train.images(DATA.training_indices(step, BATCH)[: BATCH // 2]).double())
    pairs = zip(norm[0].buffers(), alone.buffers(), strict=True)
    apart = max((own - other).abs().max().item() for own, other in pairs)
    return {"losses": 0.0, "state": max(connection.gather(apart)), "bytes": 0, "defined": 0}


def resumed(connection: Connection, folder: Path) -> dict[str, float]:
    """How far a training is from one without a stop that other shards go on with."""
    for steps, shards in ((STEPS // 2, "greedy"), (STEPS, "round-robin")):
        model = ServedModel(net(), Serving("ps-sync", "distributed", shards), 3, connection)
        checkpointing = Checkpointing(folder, steps, resume=steps == STEPS)
        result = trained(model, "adam", None, steps, checkpointing)
    wanted, whole = plainly("adam")
    state = model.whole_state() or whole
    apart = zip(result.losses, wanted.losses, strict=True)
    return {
        "losses": max(abs(own - other) for own, other in apart),
        "state": max((state[key] - whole[key]).abs().max().item() for key in whole),
        **{"bytes": result.steps, "defined": STEPS - STEPS // 2},
    }


def main(connection: Connection, file: str) -> None:
    checkpoints = Path(file).with_suffix("")
    found = {
        "running statistics": statistics(connection),
        "resumed": resumed(connection, checkpoints),
    }
    for name, (workers, serving, *of_step) in CASES.items():
        model = ServedModel(net(), serving, workers, connection)
        result = trained(model, *of_step)
        state = model.whole_state()
        traffic = result.totals.traffic
        pushes = sum(serving.pushes(step, step == STEPS - 1) for step in range(STEPS))
        fetches = sum(serving.fetches(step, step == STEPS - 1) for step in range(STEPS))
        wanted, whole = plainly(*of_step)
        is_same = serving.waits_for_all or workers == 1
        apart = zip(result.losses, wanted.losses, strict=True)
        if state is not None:
            differs = max((state[key] - whole[key]).abs().max().item() for key in whole)
            found[name] = {
                "losses": max(abs(own - other) for own, other in apart) if is_same else 0.0,
                "state": differs if is_same else 0.0,
                "bytes": [int(traffic.forward_bytes.sum()), int(traffic.backward_bytes.sum())],
                "defined": [model.volume_bytes() * count for count in (pushes, fetches)],
            }
    if connection.rank == 0:
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    signal.alarm(SECONDS)
    with connect(PROCESSES, timeout=60) as joined:
        main(joined, sys.argv[1])
