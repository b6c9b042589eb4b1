"""A program for the processes of a test: stages of a placement in torch's own pipelines.

    python pipeline_ranks.py FOLDER

Each process has a stage and writes, for each of torch's rules to a file of its own in FOLDER, how
far gradients and losses are from those of the model in micro-batches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from placed_models import placed
from torch import distributed, nn
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from hgpart.placement.pipeline_stages import to_pipeline_stages

MICRO_BATCHES = 4
RULES: dict[str, Callable[..., PipelineScheduleSingle]] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
}


class Past(nn.Module):
    """Its stem's maps are read far behind: they travel past a stage, where there are three."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.tail = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 4, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.norm(self.stem(image)).relu()
        maps = self.tail(self.body(maps)) + maps
        return self.head(nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1))


def differences(rule: str, rank: int, k: int) -> dict[str, float]:
    """How far what a stage has is from what the model has, by name."""
    torch.manual_seed(7)
    model = Past().double()
    images, labels = torch.randn(8, 3, 6, 6).double(), torch.arange(8) % 5
    placement = placed(model, (images,), "layers", k)
    module = to_pipeline_stages(placement)[rank]
    stage = pipelining.PipelineStage(module, rank, k, torch.device("cpu"))
    order = RULES[rule](stage, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
    told: list[torch.Tensor] = []
    given = (images,) if rank == 0 else ()
    order.step(*given, target=labels if rank == k - 1 else None, losses=told)
    losses = []
    for batch, wanted in zip(images.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True):
        losses.append(nn.functional.cross_entropy(model(batch), wanted))
        (losses[-1] / MICRO_BATCHES).backward()
    whole = {name: one.grad for name, one in model.named_parameters()}
    found: dict[str, float] = {}
    ours = {id(one) for one in module.parameters()}
    for part in range(k):
        for name, parameter in placement.original_parameters(part):
            if id(parameter) in ours:
                mine, expected = parameter.grad, whole[name]
                assert mine is not None and expected is not None, name
                found[name] = float((mine - expected).abs().max())
    for one, other in zip(told, losses, strict=bool(told)):
        found["loss"] = max(found.get("loss", 0.0), float((one - other).abs().max()))
    return found


def main(folder: Path) -> None:
    """All rules, one after the other."""
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo")
    for rule in RULES:
        found = differences(rule, rank, k)
        (folder / f"{rule}-{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
