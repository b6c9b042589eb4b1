"""torch.distributed.pipelining with its tracer, used as its documentation says."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, pipeline
from torch.nn.modules.batchnorm import _NormBase

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import Head, TrainingWay
from hgpart.bench.ways.worker import Tick, Worker
from hgpart.errors import PlacementError, first_line, is_out_of_memory
from hgpart.run.processes.connection import connect
from hgpart.run.training.scores import cross_entropy

CHANGED = "a leaf Variable that requires grad is being used in an in-place operation"
RULES = {"pipeline-gpipe": ScheduleGPipe, "pipeline-1f1b": Schedule1F1B}


@contextmanager
def pipelined(way: TrainingWay, job: Job, layout: Sequence[Head], rank: int) -> Iterator[Worker]:
    """The worker of a stage."""
    with connect(job.workers, timeout=job.timeout):
        yield StageWorker(way, job, *_stage(way, job, layout, rank), rank)


def _stage(way: TrainingWay, job: Job, layout: Sequence[Head], rank: int) -> tuple[Any, set[str]]:
    """What torch makes of a stage, and the names in earlier stages, which are then dropped."""
    example = job.batches().images(0, range(job.batch_size // way.scheduling.micro_batches))
    model = job.new_model()
    try:
        pipe = pipeline(model, mb_args=(example,), split_policy=partial(_split, heads=layout))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise PlacementError(f"torch's pipelining can't trace it: {first_line(error)}") from error
    if pipe.num_stages != job.workers:
        raise PlacementError(
            f"torch's pipelining makes {pipe.num_stages} stages of it, for {job.workers} processes"
        )
    if not job.inference:
        check_readers(pipe.split_gm, model)
    earlier = [*pipe.split_gm.children()][:rank]
    known = {name for stage in earlier for name in stage.state_dict()}
    return pipe.build_stage(rank, torch.device("cpu")), known


def _split(traced: fx.GraphModule, heads: Sequence[Head]) -> fx.GraphModule:
    """Mark where stages begin."""
    for head in heads:
        alike = [node for node in traced.graph.nodes if str(node.target) == head.target]
        if len(alike) <= head.number:
            raise PlacementError(f"torch's pipelining traces no {head.target} {head.number}")
        with traced.graph.inserting_before(alike[head.number]):
            traced.graph.call_function(torch.ops.pippy._pipe_split.default)
    traced.recompile()
    return traced


def check_readers(stages: fx.GraphModule, model: nn.Module) -> None:
    """Refuse models that pipelining can't train: gradients would come from several stages."""
    alike: dict[Tensor, set[str]] = {}
    for key, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            alike.setdefault(parameter, set()).add(key)
    for name, norm in model.named_modules():
        if isinstance(norm, _NormBase) and norm.running_mean is not None:
            alike[norm.running_mean] = {f"{name}.running_mean"}
    held = {stage: {*module.state_dict()} for stage, module in stages.named_children()}
    for own in alike.values():
        several = [stage for stage, theirs in held.items() if own & theirs]
        if several[1:]:
            raise PlacementError(
                f"{len(several)} stages ({', '.join(several)}) have {min(own)}: torch's pipelining "
                "gives each a copy that learns by itself"
            )
    for node in stages.graph.nodes:
        readers = [user for user in node.users if user.op == "call_module"]
        if node.op == "placeholder" and readers[1:]:
            raise PlacementError(
                f"{len(readers)} stages read the model's input: torch's pipelining gives it to the "
                "first one only"
            )
        if (node.op == "call_module" or node.target is operator.getitem) and readers[1:]:
            names = ", ".join(user.name for user in readers)
            raise PlacementError(
                f"{len(readers)} stages ({names}) read one value: torch's pipelining can train "
                "what one stage reads"
            )


class StageWorker:
    """A Worker and Runner that has one stage."""

    def __init__(self, way: TrainingWay, job: Job, stage: Any, known: set[str], rank: int) -> None:
        self._first, self._last = rank == 0, rank == job.workers - 1
        self._module: nn.Module = stage.submod
        self._known = known  # in the state of earlier stages
        self._batches, self._size = job.batches(), job.batch_size
        self.reads = range(self._size if self._first else 0)
        self.makes = range(self._size if self._last else 0)
        count = way.scheduling.micro_batches
        loss_fn = None if job.inference else cross_entropy
        self._schedule: Any = RULES[way.name](stage, count, loss_fn=loss_fn)
        self._optimizer = job.new_optimizer(stage.submod)

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Run steps of the schedule, each with an update."""
        step_losses = []
        for step in range(first, first + count):
            self._optimizer.zero_grad()
            images = [self._batches.images(step, range(self._size))] if self._first else []
            if self._last:
                losses: list[Tensor] = []
                labels = self._batches.labels(step, range(self._size))
                self._run(target=labels, losses=losses, images=images)
                step_losses.append(torch.stack(losses).mean().item())
            else:
                self._run(images=images)
            self._optimizer.step()
            tick()
        return step_losses

    def forward(self, images: Tensor | None) -> Any:
        """Run a pass in micro-batches."""
        return self._schedule.eval(*([] if images is None else [images]))

    def _run(self, images: Sequence[Tensor], **options: Any) -> None:
        try:
            self._schedule.step(*images, **options)
        except RuntimeError as error:
            if CHANGED not in str(error.__cause__):
                raise
            raise PlacementError(
                "torch's pipelining can't train a stage that changes in place what it has received"
            ) from error

    def state(self) -> Mapping[str, Tensor]:
        """The stage's state_dict, without what an earlier stage shows."""
        own = self._module.state_dict().items()
        return {name: value for name, value in own if name not in self._known}

    def sent_bytes(self) -> int | None:
        """None: the system counts what libraries send."""
        return None
