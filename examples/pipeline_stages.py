r"""Parts as the stages of torch's own pipelining, which sends what travels and orders the steps.

One stage follows another, so the plan has to be one of cuts between layers. On one machine::

    hgpart partition pipeline_stages.py:Net --input-shape 3,32,32 --k 2 \
        --way layerwise -o stages.json
    torchrun --nproc-per-node 2 pipeline_stages.py stages.json
"""

import sys

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy

import hgpart

BATCH_SIZE, MICRO_BATCHES = 16, 4


class Net(nn.Sequential):
    """A small CNN for images of 32 x 32."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 8 * 8, 10)),
        )


def main(plan: str) -> None:
    """Train one stage."""
    distributed.init_process_group("gloo")
    rank, stages = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)  # all processes have the same weights and data
    images, labels = torch.randn(BATCH_SIZE, 3, 32, 32), torch.randint(10, (BATCH_SIZE,))
    net = Net()
    module = hgpart.to_pipeline_stages(hgpart.place(net, hgpart.files.load_plan(plan)))[rank]

    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    for step in range(3):
        losses: list[Tensor] = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels, losses=losses)
        optimizer.step()
        if rank == stages - 1:
            print(f"step {step}: loss {torch.stack(losses).mean().item():.3f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
