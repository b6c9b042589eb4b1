"""A training under way <-> its last checkpoint: every part writes and reads what it holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

import torch
from torch import Tensor, nn

from hgpart.errors import ArgumentError, CheckpointError
from hgpart.run.learner import Learner
from hgpart.run.training.checkpoints import (
    CheckpointReader,
    Held,
    begin,
    check_names,
    checkpoints,
    newest,
    publish,
    unfinished_folder,
    write_part,
)
from hgpart.run.training.epochs import BestWeights, Progress
from hgpart.run.training.manifest import Manifest, part_file

Settings = Mapping[str, str | int]
FINGERPRINT = "model fingerprint"
BEST = "best"  # beside the value and the optimizer's state of a tensor
# Settings of older checkpoints, which do not say them.
UNSAID: Settings = {
    **{"micro-batches": 1, "schedule": "sequential", "norms": "micro-batch"},
    **{"loss": "cross-entropy", "learning rate": "constant", "autocast": "None"},
}


@dataclass(frozen=True)
class Checkpointing:
    """Where to write checkpoints, and whether to go on from the last one there.

    Attributes
    ----------
    folder : Path
        A folder that all processes share.
    every : int
        Number of steps between two checkpoints; the last step is always followed by one.
    warn : callable
        Called in the first process with warnings: a checkpoint was refused, there is none to go on
        from, or a setting differs from the resumed one's.
    fingerprint : str, optional
        Fingerprint of the model, as in plans: a checkpoint of another model is refused.
    about : mapping
        Further facts for the manifests, for people.
    """

    folder: Path
    every: int
    resume: bool = False
    warn: Callable[[str], None] = print
    fingerprint: str | None = None
    about: Mapping[str, str | int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise an ArgumentError if a field is not accepted."""
        if self.every < 1:
            raise ArgumentError(f"a checkpoint every {self.every} steps: accepted is 1 or more")
        if "\0" in str(self.folder):
            raise ArgumentError(
                f"checkpoints in {str(self.folder)!r}: accepted is a name without NUL"
            )


def save(
    learner: Learner,
    optimizers: Mapping[int, torch.optim.Optimizer],
    settings: Settings,
    about: Mapping[str, str | float],
    checkpointing: Checkpointing,
    progress: Progress,
) -> None:
    """Write a checkpoint: every part its own file, and the first process the manifest.

    `about` is what the manifest says besides the settings.

    Raises
    ------
    CheckpointError
        If it can't be written; existing ones stay.
    """
    step = len(progress.losses)
    unfinished = unfinished_folder(checkpointing.folder, step)
    try:
        made = begin(checkpointing.folder, step) if learner.first else None
        unfinished = learner.gather(made)[0]  # so that it exists before anyone writes
        parts: dict[int, list[Held]] = {}
        for (part, held, tensor), best in zip_longest(learner.held(), progress.best.tensors):
            state = optimizers[part].state.get(tensor, {}) if part in optimizers else {}
            state = {"value": tensor, BEST: best, **state}
            kept = {kind: value for kind, value in state.items() if isinstance(value, Tensor)}
            parts.setdefault(part, []).append(Held(held, kept))
        own = {part_file(part): write_part(unfinished, part, parts[part]) for part in parts}
        files = {name: facts for written in learner.gather(own) for name, facts in written.items()}
        if learner.first:
            facts_for_people = {**checkpointing.about, **about}
            if checkpointing.fingerprint is not None:
                facts_for_people[FINGERPRINT] = checkpointing.fingerprint
            manifest = Manifest(
                step=step,
                settings=settings,
                about=facts_for_people,
                losses=tuple(progress.losses),
                random_state=torch.get_rng_state().numpy().tobytes().hex(),
                files=files,
                epochs=tuple(progress.epochs),
                right=progress.right,
            )
            publish(unfinished, manifest)
    except BaseException:
        if learner.processes == 1:  # others may still be writing; the next checkpoint removes it
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def last(
    learner: Learner, settings: Settings, checkpointing: Checkpointing, steps: int
) -> tuple[Path, Manifest] | None:
    """Find the newest complete checkpoint, if there is one to go on from.

    If there is none, training begins: a supervisor can restart the same command again and again,
    and it works the first time as well.

    Raises
    ------
    ArgumentError
        If there are checkpoints that are not to be resumed.
    CheckpointError
        If there are some, but none is complete, or the newest is of another model or training.
    """
    folder = checkpointing.folder
    if learner.first:
        check_names(folder)
    if not checkpointing.resume:
        if checkpoints(folder):
            raise ArgumentError(
                f"{folder} has checkpoints already: --resume goes on from them, and a new "
                "training takes another folder"
            )
        return None
    newest_here = (
        newest(folder, settings.keys() - UNSAID.keys())
        if learner.first and checkpoints(folder)
        else None
    )
    shared: tuple[Path, Manifest, list[str]] | None = learner.gather(newest_here)[0]
    if shared is None:
        if learner.first:
            checkpointing.warn(f"there is no checkpoint in {folder}: the training begins at step 1")
        return None
    path, manifest, refused = shared
    if learner.first:
        for reason in refused:
            checkpointing.warn(f"{reason}; going on from {path}, the last that is whole")
    written = manifest.about.get(FINGERPRINT)
    if None not in (written, checkpointing.fingerprint) and written != checkpointing.fingerprint:
        raise CheckpointError(
            f"{path} is of another model: its fingerprint is {written}, this one's "
            f"{checkpointing.fingerprint}"
        )
    settings_then = {**UNSAID, **manifest.settings}
    for name, value in settings.items():
        if settings_then.get(name) != value:
            raise CheckpointError(
                f"{path} was written with {name} {settings_then.get(name)}, not {value}: "
                "only the same value leads to the same losses"
            )
    if manifest.step > steps:
        raise CheckpointError(
            f"{path} has already done {manifest.step} steps, and {steps} are asked for"
        )
    return path, manifest


def restore(
    learner: Learner,
    optimizers: Mapping[int, torch.optim.Optimizer],
    path: Path,
    manifest: Manifest,
) -> Progress:
    """Take over the state of a checkpoint; returns how far the training is.

    Raises
    ------
    CheckpointError
        If it is of another model, or not what its manifest says.
    """
    reader, best = CheckpointReader(path, manifest), list[Tensor]()
    pieces = chain.from_iterable(reader.pieces.values())
    has_best = any(BEST in piece.tensors for piece in pieces)
    with torch.no_grad():
        for part, held, tensor in learner.held():
            if held.name not in reader.pieces and not isinstance(tensor, nn.Parameter):
                best.append(tensor.cpu())
                continue  # a constant, or a buffer outside the state_dict
            state = reader.read(held)
            tensor.copy_(value := state.pop("value"))
            best.append(state.pop(BEST, value))
            optimizer = optimizers.get(part)
            if optimizer is None:
                continue
            if optimizer.defaults.get("momentum") == 0:  # it would keep none either
                state.pop("momentum_buffer", None)
            if state:
                optimizer.state[tensor] = {
                    kind: value.to(tensor.device) if value.shape == tensor.shape else value
                    for kind, value in state.items()
                }
    random_state = torch.tensor([*bytes.fromhex(manifest.random_state)], dtype=torch.uint8)
    try:
        torch.set_rng_state(random_state)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not hold a state of torch's generator") from error
    weights = BestWeights(learner, best if has_best else None)
    return Progress(weights, [*manifest.losses], [*manifest.epochs], manifest.right)
