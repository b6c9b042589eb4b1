"""Learner + Data -> TrainingResult: one loop for a model, a placement and a process's part.

Every part's optimizer works on the slices that the part holds. Element by element these are what
the original's optimizer works on, so nothing but maps and their gradients is sent.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hgpart.errors import ArgumentError, CheckpointError
from hgpart.execution.records.events import Event, Timeline
from hgpart.execution.records.totals import Totals
from hgpart.run.learner import Learner, timeline_of
from hgpart.run.training.batches import batches_here, training_batches
from hgpart.run.training.checkpoints import locked
from hgpart.run.training.data import Data
from hgpart.run.training.epochs import BestWeights, Epoch, Epochs, Progress, steps_between_epochs
from hgpart.run.training.log import Log
from hgpart.run.training.manifest import Manifest
from hgpart.run.training.options import RATES, TrainingOptions
from hgpart.run.training.resuming import Checkpointing, last, restore, save
from hgpart.run.training.scores import CROSS_ENTROPY, Loss, validated
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
        Fraction of the validation samples that are given their class by the last weights; None if
        there are none, or they have no classes.
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
    epochs : tuple of Epoch
        Accuracies and rates of each epoch, those before a checkpoint included.
    best : Epoch or None
        The epoch whose weights the model now has, as they were the best; None if it has those of
        the last step.
    validation_loss : float or None
        In place of the accuracy, the mean of a user's loss over the validation samples.
    test : float or None
        The accuracy, or the user's loss, of the final weights on test samples; None without them.
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
    epochs: tuple[Epoch, ...] = ()
    best: Epoch | None = None
    loss: Loss = CROSS_ENTROPY
    validation_loss: float | None = None
    test: float | None = None


def train(
    learner: Learner,
    data: Data,
    options: TrainingOptions,
    checkpointing: Checkpointing | None = None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    *,
    loss: Loss = CROSS_ENTROPY,
    timeline: bool = False,
    best: bool = False,
    log: Log | None = None,
) -> TrainingResult:
    """Train, and validate after each epoch and at the end.

    Called in every process, with its own part of the model and the same of everything else. By
    cross entropy, if the result has pixels after (samples, classes), as in a segmentation, it is
    averaged over them; of several results the first counts.

    Parameters
    ----------
    on_step : callable
        Called with the number of steps done and the last loss.
    loss : Loss, optional
        Default: cross entropy.
    timeline : bool
        Whether to keep what each part did and when.
    best : bool
        Whether the model shall have its best weights in the end, by the validation samples, rather
        than the last.
    log : Log, optional
        Log of the steps, which the first process writes.

    Raises
    ------
    ArgumentError
        If the batch is larger than the data, the folder for checkpoints has some already, or the
        training is to end, or its learning rate to decay, by validation samples that it lacks.
    CheckpointError
        If none can be resumed, one can't be written, or another training writes to the folder.
    """
    check_training(data, options, loss)
    with ExitStack() as stack:
        if checkpointing is not None and learner.first:
            stack.enter_context(locked(checkpointing.folder))
        if log is not None:
            stack.callback(log.close)
        own_log = log if learner.first else None
        run = learner, data, options, checkpointing, on_step, loss, timeline, best
        return _train(*run, own_log)


def check_training(data: Data, options: TrainingOptions, loss: Loss = CROSS_ENTROPY) -> None:
    """Refuse a training that such data do not allow; see `train`.

    Raises
    ------
    ArgumentError
        If they do not; see `train`.
    """
    data.check_batch(options.batch_size)
    if options.until and not loss.of_classes:
        raise ArgumentError(
            f"an accuracy to end at with the loss {loss.name}: accepted is one with cross-entropy"
        )
    asked = {"decay": options.decay, "until val-accuracy": "val_accuracy" in options.until}
    for name in (name for name, is_asked in asked.items() if is_asked):
        if data.validation is None:
            raise ArgumentError(
                f"{name} needs validation samples, and {data.spec} has none: accepted is data with "
                "labels to learn, as digits"
            )


def _train(
    learner: Learner,
    data: Data,
    options: TrainingOptions,
    checkpointing: Checkpointing | None,
    on_step: Callable[[int, float], None],
    loss: Loss,
    timeline: bool,
    wants_best: bool,
    log: Log | None,
) -> TrainingResult:
    learner.train(True)
    every = options.steps if checkpointing is None else checkpointing.every
    pauses = every, *steps_between_epochs(data, options)
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
        "autocast": str(learner.autocast).removeprefix("torch."),
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
            and _is_end(manifest.step, *pauses)
        ):
            say(
                f"{path} is the end of a training, with no batch in flight: losses from step "
                f"{manifest.step + 1} on differ from those of a training without a stop"
            )
    optimizers = _optimizers(learner, options)
    torch.manual_seed(options.seed)
    progress = Progress(BestWeights(learner))
    if checkpoint is not None:
        progress = restore(learner, optimizers, *checkpoint)
    keeps_best = wants_best or checkpointing is not None
    epochs = Epochs(learner, data, options, loss, progress, keeps_best)
    losses = progress.losses
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    start, before = time.perf_counter(), len(losses)
    stale: list[Sequence[Sequence[int]]] = []
    kept = 1 if learner.scheduling.is_stream else TIMELINE_STEPS
    events: deque[tuple[Event, ...]] = deque(maxlen=kept if timeline else 0)
    updates: dict[int | None, int] = dict.fromkeys(optimizers, before)

    def on_loss(value: float) -> None:
        losses.append(value)
        if log is not None:
            log.add(len(losses), value, epochs.rate(len(losses) - 1), size)
        on_step(len(losses), value)

    def keep_events() -> None:
        if not learner.scheduling.is_stream:
            events.append(tuple(learner.events))

    def update(part: int | None, step: int | None = None) -> float:
        """Update a part by the learning rate of a step, by default its next; returns the rate.

        Steps that are given are counted from the first one now.
        """
        rate = epochs.rate(updates.get(part, 0) if step is None else before + step)
        if part in optimizers:
            for group in optimizers[part].param_groups:
                group["lr"] = rate
            optimizers[part].step()
            updates[part] += 1
        return rate

    size, sizes = options.batch_size, learner.scheduling.sizes(options.batch_size)
    batches = training_batches(data, size)
    if log is not None:
        log.begin(before)
    learner.count_anew()
    totals = learner.totals()
    count = 0  # consecutive steps
    for end in _drains(before, options.steps, *pauses):
        if epochs.are_over:
            break
        count = end - len(losses)
        here = batches_here(learner, batches, range(len(losses), end), sizes)
        run = here, count, size, epochs.loss_function, update, on_loss, keep_events
        stale.append(learner.learn(*run))
        if learner.scheduling.is_stream:
            events.append(tuple(learner.events))
        epochs.count()
        score = None
        if end % pauses[-1] == 0 and len(pauses) > 1:
            pause, totals = time.perf_counter(), totals + learner.totals()
            score = epochs.end()
            learner.count_anew()  # validation does not count as steps
            start += time.perf_counter() - pause
        if log is not None:
            log.pause(score)
        is_last = end == options.steps or epochs.are_over
        if checkpointing is not None and (end % every == 0 or is_last):
            about: dict[str, str | float] = {
                **options.rates,
                STEPS: options.steps,
                SHARES: _shares(learner.shares(options.batch_size)),
            }
            save(learner, optimizers, settings, about, checkpointing, progress)
    seconds, steps = time.perf_counter() - start, len(losses) - before
    totals = totals + learner.totals()
    planned = learner.planned(count, options.batch_size) if timeline and count else ()
    score = epochs.last_score()
    best = epochs.take_best(score) if wants_best else None
    return TrainingResult(
        losses=tuple(losses),
        accuracy=score if loss.of_classes else None,
        steps=steps,
        samples_per_second=steps * options.batch_size / seconds if steps else None,
        totals=totals,
        options=options,
        timeline=timeline_of(learner, events),
        planned=planned,
        staleness=tuple(tuple(chain(*stale_of_part)) for stale_of_part in zip(*stale, strict=True)),
        epochs=tuple(progress.epochs),
        best=best,
        loss=loss,
        validation_loss=None if loss.of_classes else score,
        test=validated(learner, replace(data, validation=data.test), size, loss),
    )


def _drains(begin: int, end: int, *pauses: int) -> Iterator[int]:
    """Steps after which no batch is in flight, so that streams have an end.

    They are counted from the first step of the whole training, so a resumed one has the same.

    >>> [*_drains(90, 600, 100)]
    [100, 200, 256, 300, 400, 500, 512, 600]
    """
    while begin < end:
        begin = min(end, *((begin // apart + 1) * apart for apart in (*pauses, LONGEST)))
        yield begin


def _is_end(step: int, *pauses: int) -> bool:
    """Whether the pipeline is drained only because training ends.

    >>> [step for step in (100, 256, 300, 301, 512) if _is_end(step, 100)]
    [301]
    """
    return all(step % apart for apart in (*pauses, LONGEST))


def _order(learner: Learner, checkpointing: Checkpointing | None, batch_size: int) -> str:
    """The rule for the order of sums, on which losses depend.

    With batches in flight this includes which part has which weights, by the plan, and the steps
    after which none is in flight.
    """
    if checkpointing is None:
        return learner.scheduling.sums
    if learner.scheduling.most_in_flight == 1:
        return learner.sums(batch_size)
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
