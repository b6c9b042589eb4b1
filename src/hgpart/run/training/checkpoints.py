"""The state of a training <-> folders of files, one per part, that are complete or not there.

A checkpoint is a folder ``step-000040`` with a file for each part and ``manifest.json``, which has
the length and the SHA-256 of each file. The folder takes its name only when all of it is on the
disk, and is refused if anything in it has changed since. Tensors have the names of the model that
was placed, each with its slice, so that any other plan can read them.

torch.distributed.checkpoint is not used: its pieces are boxes of consecutive rows, where a part
has any rows; it keeps no digests; and a folder from others has a pickle, which can run code.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from hgpart.errors import CheckpointError, first_line
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.state.weight_files import load_tensors
from hgpart.run.training.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    as_text,
    check_regular,
    part_file,
    read_manifest,
    step_of,
)

LOCK = ".lock"
KEPT = 2  # checkpoints: the last one, and one before in case the last is damaged


@dataclass(frozen=True, eq=False)
class Held:
    """A part's slice of a parameter or buffer of the model.

    Attributes
    ----------
    tensors : mapping of str to Tensor
        ``value``, and the optimizer's state for it: of the same shape, or a single number.
    """

    slice: Slice
    tensors: Mapping[str, Tensor]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Reserve a folder for a training, until the block or the process ends; made if need be.

    Raises
    ------
    CheckpointError
        If another training has it, or it is not writable.
    """
    with _written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another training writes to {folder}: accepted is a folder for each, or going on "
                "from its checkpoints when it has ended"
            ) from None
        except OSError:  # not every file system of a network has locks
            pass
        yield


def unfinished_folder(folder: Path, step: int) -> Path:
    """The folder that the parts of a checkpoint are written into, until it is complete."""
    return folder / f".step-{step:06d}.unfinished"


def begin(folder: Path, step: int) -> Path:
    """Make the folder for the parts of a checkpoint; `publish` completes it.

    Raises
    ------
    CheckpointError
        If it can't be made.
    """
    unfinished = unfinished_folder(folder, step)
    with _written(folder):
        for left in folder.glob(".step-*"):  # by a training that ended while it wrote
            if _is_folder(left):
                shutil.rmtree(left)
            else:
                left.unlink()
        unfinished.mkdir(parents=True)
    return unfinished


def write_part(unfinished: Path, part: int, held: Sequence[Held]) -> tuple[int, str]:
    """Write what a part holds; returns the size and the SHA-256 of its file.

    Raises
    ------
    CheckpointError
        If it can't be written.
    """
    content = [
        {
            "name": item.slice.name,
            "shape": item.slice.shape,
            "positions": {
                dim: torch.from_numpy(kept) for dim, kept in item.slice.positions.items()
            },
            "elements": (
                None if item.slice.elements is None else torch.from_numpy(item.slice.elements)
            ),
            "tensors": {name: _alone(tensor) for name, tensor in item.tensors.items()},
        }
        for item in held
    ]
    path = unfinished / part_file(part)
    with _written(path), path.open("wb") as file:
        _save({"format": FORMAT, "part": part, "held": content}, file)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size, _sha256(path)


def publish(unfinished: Path, manifest: Manifest) -> Path:
    """Complete a checkpoint with the files of all parts; only then are old ones removed.

    The last two are kept.

    Raises
    ------
    CheckpointError
        If a part's file is missing, or the checkpoint can't be written.
    """
    folder = unfinished.parent
    for name in manifest.files:
        if not (unfinished / name).is_file():
            raise CheckpointError(
                f"{unfinished / name} is not here: the folder of the checkpoints must be one that "
                "all processes share"
            )
    final = folder / f"step-{manifest.step:06d}"
    with _written(final):
        with (unfinished / MANIFEST).open("w", encoding="utf-8") as file:
            file.write(as_text(manifest))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(unfinished)
        if final.exists():  # a checkpoint that was refused
            _remove(final)
        unfinished.replace(final)
        _sync_folder(folder)
        for path in checkpoints(folder, up_to=manifest.step)[KEPT:]:
            _remove(path)
    return final


def checkpoints(folder: Path, up_to: int | None = None) -> list[Path]:
    """Folders that have the name of a checkpoint, the newest first."""
    steps = {path: step_of(path) for path in folder.glob("step-*")}
    known = {
        step: path
        for path, step in steps.items()
        if step is not None and (up_to is None or step <= up_to)
    }
    return [known[step] for step in sorted(known, reverse=True)]


def check_names(folder: Path) -> None:
    """Refuse files and links with the name of a checkpoint, which could not be replaced.

    Raises
    ------
    CheckpointError
        If there is such a file or link.
    """
    for path in checkpoints(folder):
        if not _is_folder(path):
            raise CheckpointError(
                f"{path} is no folder, but has the name of a checkpoint: accepted is a folder with "
                "checkpoints only"
            )


def newest(folder: Path, settings: Collection[str] = ()) -> tuple[Path, Manifest, list[str]]:
    """Find the newest complete checkpoint, and say why newer ones were refused.

    Parameters
    ----------
    settings : collection of str, optional
        Names that its settings must include.

    Raises
    ------
    CheckpointError
        If there is no complete checkpoint.
    """
    refused: list[str] = []
    for path in checkpoints(folder):
        try:
            return path, check(path, settings), refused
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(f"no checkpoint in {folder} is whole: {'; '.join(refused)}")
    raise CheckpointError(
        f"there is no checkpoint in {folder}: accepted is a folder that --checkpoint wrote to"
    )


def check(path: Path, settings: Collection[str] = ()) -> Manifest:
    """Read a checkpoint's manifest, and all of its files to see that they have not changed.

    Its settings must include the names in `settings`.

    Raises
    ------
    CheckpointError
        If it is truncated, changed or no checkpoint.
    """
    manifest = read_manifest(path, settings)
    for name, (size, digest) in manifest.files.items():
        file = path / name
        try:
            check_regular(file)
            if (size_now := file.stat().st_size) != size:
                raise CheckpointError(f"{file} has {size_now} bytes, the manifest says {size}")
            if _sha256(file) != digest:
                raise CheckpointError(f"{file} was changed: its SHA-256 is not the manifest's")
        except OSError as error:
            raise CheckpointError(f"can't read {file}: {error.strerror or error}") from error
    return manifest


class CheckpointReader:
    """Reads tensors of a checked checkpoint, sliced for any plan.

    Files are mapped into memory, so that a part only reads what it needs from the disk.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.pieces: dict[str, list[Held]] = {}
        for name in manifest.files:
            for item in _read_part(path / name):
                self.pieces.setdefault(item.slice.name, []).append(item)

    def read(self, wanted: Slice) -> dict[str, Tensor]:
        """Tensors of a slice of the model's parameters or buffers; see `Held`.

        Raises
        ------
        CheckpointError
            If the checkpoint is of a model without this tensor in this shape, or lacks some of it.
        """
        pieces = self.pieces.get(wanted.name, [])
        shapes = {piece.slice.shape for piece in pieces}
        if shapes != {wanted.shape}:
            present = f"with shape {shapes.pop()}" if shapes else "not there"
            raise CheckpointError(
                f"{self.path} is of another model: {wanted.name} is {present}, this model has it "
                f"with shape {wanted.shape}"
            )
        for piece in pieces:
            if piece.slice.key == wanted.key:
                return {kind: tensor.clone() for kind, tensor in piece.tensors.items()}
        held = torch.zeros(wanted.shape, dtype=torch.bool)
        for piece in pieces:
            piece.slice.put(held, torch.ones(piece.slice.local_shape, dtype=torch.bool))
        if not wanted.take(held).all():
            raise CheckpointError(f"{self.path} does not hold all of {wanted.name}")
        kinds = {kind: None for piece in pieces for kind in piece.tensors}
        return {kind: _sliced(pieces, kind, wanted) for kind in kinds}


def _sliced(pieces: Sequence[Held], kind: str, wanted: Slice) -> Tensor:
    """Put the pieces of all parts together, and cut out the slice."""
    having = [piece for piece in pieces if kind in piece.tensors]
    first = having[0].tensors[kind]
    if first.shape != having[0].slice.local_shape:
        return first.clone()  # the optimizer's count of its steps: the same in all parts
    full = torch.zeros(wanted.shape, dtype=first.dtype)
    for piece in having:
        piece.slice.put(full, piece.tensors[kind])
    return wanted.take(full)


def _alone(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, as no view: torch.save writes all that a view is a view of."""
    tensor = tensor.detach().cpu().contiguous()
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole else tensor.clone()


def _read_part(path: Path) -> Iterator[Held]:
    try:
        content = load_tensors(path)
        for item in content["held"]:
            positions = {dim: kept.numpy() for dim, kept in item["positions"].items()}
            elements = None if item["elements"] is None else item["elements"].numpy()
            held = Held(
                Slice(item["name"], tuple(item["shape"]), positions, elements), item["tensors"]
            )
            _check_held(held)
            yield held
    except Exception as error:  # broken files cause errors of many kinds
        reason = first_line(error) or type(error).__name__
        raise CheckpointError(f"can't read {path}: {reason}") from error


def _check_held(held: Held) -> None:
    """Refuse tensors that do not fit the slice, and a slice that does not fit the whole."""
    name, shape = held.slice.name, held.slice.shape
    cuts = [(kept, shape[dim]) for dim, kept in held.slice.positions.items()]
    if held.slice.elements is not None:
        cuts = [(held.slice.elements, math.prod(shape))]
    for kept, size in cuts:
        if kept.ndim != 1 or kept.dtype != np.int64 or ((kept < 0) | (kept >= size)).any():
            raise ValueError(f"{name} has positions that are not from 0 to {size - 1}")
    if "value" not in held.tensors:
        raise ValueError(f"{name} has no value")
    for kind, tensor in held.tensors.items():
        if tensor.shape != held.slice.local_shape and (kind == "value" or tensor.numel() != 1):
            raise ValueError(f"{kind} of {name} has shape {tuple(tensor.shape)}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    """Remove a checkpoint; its name goes first, so that there is never half of one."""
    hidden = path.with_name(f".{path.name}.removed")
    try:
        path.replace(hidden)
        shutil.rmtree(hidden)
    finally:  # even if it is interrupted
        shutil.rmtree(hidden, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _save(content: object, file: BinaryIO) -> None:
    """Write with torch, whose closing of the archive after an error may fail as well."""
    try:
        torch.save(content, file)
    except RuntimeError as error:
        if isinstance(error.__context__, (KeyboardInterrupt, OSError)):
            raise error.__context__ from None
        raise


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"can't write {path}: {error.strerror or error}; accepted is a folder that is writable "
            "and has room"
        ) from error
