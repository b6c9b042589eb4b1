"""Learner + Data -> TrainingResult: one loop for a model, a placement and a process's part.

Every part's optimizer works on the slices that the part holds. Element by element these are what
the original's optimizer works on, so nothing but maps and their gradients is sent.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hgpart.errors import ArgumentError, CheckpointError
from hgpart.execution.records.events import Event, Timeline
from hgpart.execution.records.totals import Totals
from hgpart.run.learner import Learner, timeline_of
from hgpart.run.training.batches import batches_here, training_batches
from hgpart.run.training.checkpoints import Manifest, locked
from hgpart.run.training.data import Data
from hgpart.run.training.options import RATES, TrainingOptions
from hgpart.run.training.plateau import Plateau
from hgpart.run.training.resuming import Checkpointing, last, restore, save
from hgpart.run.training.scores import CROSS_ENTROPY, Loss, accuracy
from hgpart.schedules.rules import LONGEST

TIMELINE_STEPS = 100  # most steps in a timeline, which are the last ones
SHARES, STEPS = "samples of shares", "steps asked for"  # in manifests


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training.

    Attributes
    ----------
    losses : tuple of float
        The loss of each step, including those before a checkpoint.
    accuracy : float or None
        Fraction of the test samples that are given their class; None if there is no test set.
    steps : int
        Number of steps done now.
    samples_per_second : float or None
        Throughput of these steps, including checkpoints; None if there were none.
    totals : Totals
        Totals of these steps.
    options : TrainingOptions
        The options of the training, with all rates.
    timeline : Timeline
        Timeline of the last steps, at most `TIMELINE_STEPS`, if it was wanted; else empty. With
        batches in flight it has those since none was in flight, as one step.
    planned : tuple of Event
        What should have been done in the last step and when, by the schedule's own costs.
    staleness : tuple of tuple of int
        For each part, and each of these steps, the number of updates by earlier steps that its
        forward pass lacked; empty if no step lacked any.
    accuracies, learning_rates : tuple of float
        Accuracy after, and learning rate in, each epoch, if the rate decays.
    """

    losses: tuple[float, ...]
    accuracy: float | None
    steps: int
    samples_per_second: float | None
    totals: Totals
    options: TrainingOptions
    timeline: Timeline = ()
    planned: tuple[Event, ...] = ()
    staleness: tuple[tuple[int, ...], ...] = ()
    accuracies: tuple[float, ...] = ()
    learning_rates: tuple[float, ...] = ()


def train(
    learner: Learner,
    data: Data,
    options: TrainingOptions,
    checkpointing: Checkpointing | None = None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    *,
    loss: Loss = CROSS_ENTROPY,
    timeline: bool = False,
) -> TrainingResult:
    """Train, then validate.

    Called in every process, with its own part of the model and the same of everything else. If the
    result has pixels after (samples, classes), as in a segmentation, it is averaged over them; of
    several results the first counts.

    Parameters
    ----------
    on_step : callable
        Called with the number of steps done and the last loss.
    loss : Loss, optional
        Default: cross entropy.
    timeline : bool
        Whether to keep what each part did and when.

    Raises
    ------
    ArgumentError
        If the batch is larger than the data, the folder for checkpoints has some already, or the
        learning rate is to decay without test samples or with checkpoints.
    CheckpointError
        If none can be resumed, one can't be written, or another training writes to the folder.
    """
    check_training(data, options, checkpointing)
    with (
        locked(checkpointing.folder)
        if checkpointing is not None and learner.first
        else nullcontext()
    ):
        return _train(learner, data, options, checkpointing, on_step, loss, timeline)


def check_training(
    data: Data, options: TrainingOptions, checkpointing: Checkpointing | None
) -> None:
    """Refuse a training that such data, or checkpoints, do not allow; see `train`.

    Raises
    ------
    ArgumentError
        If they do not; see `train`.
    """
    data.check_batch(options.batch_size)
    if options.decay and data.validation is None:
        raise ArgumentError(f"decay needs the accuracy on test samples, and {data.spec} has none")
    if options.decay and checkpointing is not None:
        raise ArgumentError("decay, and checkpoints, which do not keep it: accepted is one of them")


def _train(
    learner: Learner,
    data: Data,
    options: TrainingOptions,
    checkpointing: Checkpointing | None,
    on_step: Callable[[int, float], None],
    loss: Loss,
    timeline: bool,
) -> TrainingResult:
    learner.train(True)
    settings: dict[str, str | int] = {
        "optimizer": options.optimizer,
        "learning rate": options.course,
        "loss": loss.name,
        "data": data.spec,
        "batch size": options.batch_size,
        "micro-batches": learner.scheduling.micro_batches,
        "schedule": _order(learner, checkpointing, options.batch_size),
        "norms": learner.norms,
        "seed": options.seed,
        "data seed": data.seed,
        "dtype": str(learner.dtype).removeprefix("torch."),
    }
    checkpoint = None
    if checkpointing is not None:
        checkpoint = last(learner, settings, checkpointing, options.steps)
    if checkpointing is None or checkpoint is None:
        options = options.completed({})
    else:
        say = checkpointing.warn if learner.first else lambda message: None
        options = _resumed(options, *checkpoint, say)
        path, manifest = checkpoint
        _compare_shares(learner, options.batch_size, *checkpoint, say)
        if (
            learner.scheduling.most_in_flight > 1
            and manifest.step < options.steps
            and _is_end(manifest.step, checkpointing.every)
        ):
            say(
                f"{path} is the end of a training, with no batch in flight: losses from step "
                f"{manifest.step + 1} on differ from those of a training without a stop"
            )
    optimizers = _optimizers(learner, options)
    torch.manual_seed(options.seed)
    losses = [] if checkpoint is None else [*restore(learner, optimizers, *checkpoint)]
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    start, before = time.perf_counter(), len(losses)
    stale: list[Sequence[Sequence[int]]] = []
    kept = 1 if learner.scheduling.is_stream else TIMELINE_STEPS
    events: deque[tuple[Event, ...]] = deque(maxlen=kept if timeline else 0)

    def on_loss(value: float) -> None:
        losses.append(value)
        on_step(len(losses), value)

    def keep_events() -> None:
        if not learner.scheduling.is_stream:
            events.append(tuple(learner.events))

    updates = dict.fromkeys(optimizers, before)
    plateau = Plateau(options.rates["lr"])

    def update(part: int) -> None:
        if part in optimizers:
            for group in optimizers[part].param_groups:
                group["lr"] = plateau.rate * options.factor(updates[part])
            optimizers[part].step()
            updates[part] += 1

    every = options.steps if checkpointing is None else checkpointing.every
    if options.decay:
        every = len(data.train) // options.batch_size  # an epoch
    size, sizes = options.batch_size, learner.scheduling.sizes(options.batch_size)
    batches = training_batches(data, size)
    learner.count_anew()
    totals = learner.totals()
    count = 0  # consecutive steps
    for end in _drains(before, options.steps, every):
        count = end - len(losses)
        here = batches_here(learner, batches, range(len(losses), end), sizes)
        run = here, count, size, loss.function, update, on_loss, keep_events
        stale.append(learner.learn(*run))
        if learner.scheduling.is_stream:
            events.append(tuple(learner.events))
        if checkpointing is not None and (end % every == 0 or end == options.steps):
            about: dict[str, str | float] = {
                **options.rates,
                STEPS: options.steps,
                SHARES: _shares(learner.shares(options.batch_size)),
            }
            save(learner, optimizers, settings, about, checkpointing, losses)
        if options.decay and end % every == 0:
            pause, totals = time.perf_counter(), totals + learner.totals()
            accuracy_now = accuracy(learner, data, options.batch_size)
            learner.count_anew()  # tests do not count as steps
            start += time.perf_counter() - pause
            if accuracy_now is None or not plateau.goes_on(accuracy_now):
                break
    seconds, steps = time.perf_counter() - start, len(losses) - before
    totals = totals + learner.totals()
    planned = learner.planned(count, options.batch_size) if timeline and count else ()
    tested = len(plateau.accuracies) * every == steps > 0
    return TrainingResult(
        losses=tuple(losses),
        accuracy=plateau.accuracies[-1] if tested else accuracy(learner, data, options.batch_size),
        steps=steps,
        samples_per_second=steps * options.batch_size / seconds if steps else None,
        totals=totals,
        options=options,
        timeline=timeline_of(learner, events),
        planned=planned,
        staleness=tuple(tuple(chain(*stale_of_part)) for stale_of_part in zip(*stale, strict=True)),
        accuracies=tuple(plateau.accuracies),
        learning_rates=tuple(plateau.rates),
    )


def _drains(begin: int, end: int, every: int) -> Iterator[int]:
    """Steps after which no batch is in flight, so that streams have an end.

    They are counted from the first step of the whole training, so a resumed one has the same.

    >>> [*_drains(90, 600, every=100)]
    [100, 200, 256, 300, 400, 500, 512, 600]
    """
    while begin < end:
        begin = min(end, *((begin // apart + 1) * apart for apart in (every, LONGEST)))
        yield begin


def _is_end(step: int, every: int) -> bool:
    """Whether the pipeline is drained only because training ends.

    >>> [step for step in (100, 256, 300, 301, 512) if _is_end(step, every=100)]
    [301]
    """
    return bool(step % every and step % LONGEST)


def _order(learner: Learner, checkpointing: Checkpointing | None, batch_size: int) -> str:
    """The rule for the order of sums, on which losses depend.

    With batches in flight this includes which part has which weights, by the plan, and the steps
    after which none is in flight.
    """
    if learner.scheduling.most_in_flight == 1 or checkpointing is None:
        return learner.scheduling.sums
    plan = checkpointing.about.get("plan", "unnamed")
    return f"{learner.sums(batch_size)}, none every {checkpointing.every} steps, plan {plan}"


def _resumed(
    options: TrainingOptions, path: Path, manifest: Manifest, say: Callable[[str], None]
) -> TrainingOptions:
    """The options with the checkpoint's rates where none are asked for; warns of other rates."""
    written: dict[str, float] = {}
    for name in RATES[options.optimizer]:
        rate = manifest.about.get(name)
        if isinstance(rate, str):
            raise CheckpointError(f"{path} was written with {name} {rate!r}, which is no number")
        if rate is not None:
            written[name] = rate
    for name, rate in options.rates.items():
        if rate != written.get(name, rate):
            was = f"{path} was written with {written[name]:g}"
            say(f"{name.replace('_', ' ')} {rate:g} from step {manifest.step + 1} on; {was}")
    then = manifest.about.get(STEPS, options.steps)
    if options.lr_schedule == "cosine" and then != options.steps:
        say(
            f"the learning rate falls until step {options.steps} now, from step "
            f"{manifest.step + 1} on; {path} was written with {then}"
        )
    return options.completed(written)


def _compare_shares(
    learner: Learner, batch_size: int, path: Path, manifest: Manifest, say: Callable[[str], None]
) -> None:
    """Warn if norms take statistics from other samples now, so that losses differ as well."""
    whole = [(size,) for size in learner.scheduling.sizes(batch_size)]
    then = manifest.about.get(SHARES, _shares(whole))  # older checkpoints had no shares
    now = _shares(learner.shares(batch_size))
    if learner.has_norms and now != then:
        say(
            f"norms take their statistics of {now} samples from step {manifest.step + 1} on; "
            f"{path} was written with {then}"
        )


def _shares(sizes: Sequence[Sequence[int]]) -> str:
    """Numbers of samples in the shares of each micro-batch, equal ones once.

    >>> _shares([(2, 4), (2, 4), (1, 4)])
    '2+4, 1+4'
    """
    return ", ".join(dict.fromkeys("+".join(map(str, shares)) for shares in sizes))


def _optimizers(learner: Learner, options: TrainingOptions) -> dict[int, torch.optim.Optimizer]:
    """The optimizer of each part with something to learn; optimizers work element by element."""
    rates: Mapping[str, Any] = options.rates
    kind = torch.optim.Adam if options.optimizer == "adam" else torch.optim.SGD
    return {part: kind(learned, **rates) for part, learned in learner.learned().items()}
