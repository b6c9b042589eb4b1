"""The state of a training <-> folders of files, one for each part, that are whole or not there.

A checkpoint is a folder ``step-000040`` with a file for each part and ``manifest.json``, which
says how long each file is and its SHA-256. The folder takes its name only when all of it is on the
disk, and is refused when anything in it has changed since. It holds the tensors under the names of
the model that was placed, with the slice that each is, so that it can be read on any other plan.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hgpart.errors import CheckpointError
from hgpart.placement.slices import Slice

FORMAT = "hgpart checkpoint 1"
MANIFEST = "manifest.json"
KEPT = 2  # the last one, and one before it in case the last is damaged


@dataclass(frozen=True, eq=False)
class Held:
    """What a part holds of one parameter or buffer of the model.

    Attributes
    ----------
    slice : Slice
    tensors : mapping of str to Tensor
        ``value``, and what the optimizer keeps beside it: of the same shape, or a single number.
    """

    slice: Slice
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes
    ----------
    step : int
        Steps done.
    settings : mapping of str to text or number
        What must be the same to go on: optimizer, data, batch size, seed, dtype.
    about : mapping of str to text or number
        What else is to be known, for people.
    losses : tuple of float
        One for each step.
    random_state : str
        torch's own generator, in hexadecimal digits.
    files : mapping
        Name of each part's file -> its size in bytes and its SHA-256.
    """

    step: int
    settings: Mapping[str, str | int | float]
    about: Mapping[str, str | int | float]
    losses: tuple[float, ...]
    random_state: str
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)


def begin(folder: Path, step: int) -> Path:
    """Make the folder that the parts of a checkpoint are written into, for `publish`.

    Raises
    ------
    CheckpointError
        If it can't be made.
    """
    unfinished = folder / f".step-{step:06d}.unfinished"
    with _written(folder):
        for left in folder.glob(".step-*"):  # by a training that was ended while it wrote
            shutil.rmtree(left)
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
        torch.save({"format": FORMAT, "part": part, "held": content}, file)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size, _sha256(path)


def publish(unfinished: Path, manifest: Manifest) -> Path:
    """Complete a checkpoint that has the files of all parts; only then are old ones removed.

    The last two are kept.

    Raises
    ------
    CheckpointError
        If a part's file is not there, or the checkpoint can't be written.
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
            file.write(_as_text(manifest))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(unfinished)
        if final.exists():  # one that was refused
            _remove(final)
        unfinished.replace(final)
        _sync_folder(folder)
        for path in checkpoints(folder, up_to=manifest.step)[KEPT:]:
            _remove(path)
    return final


def checkpoints(folder: Path, up_to: int | None = None) -> list[Path]:
    """Folders that have the name of a checkpoint, the newest first."""
    found = {}
    for path in folder.glob("step-*"):
        digits = path.name.removeprefix("step-")
        if digits.isdecimal() and (up_to is None or int(digits) <= up_to):
            found[int(digits)] = path
    return [found[step] for step in sorted(found, reverse=True)]


def newest(folder: Path) -> tuple[Path, Manifest, list[str]]:
    """Find the newest checkpoint that is whole, and say why newer ones were refused.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    refused: list[str] = []
    for path in checkpoints(folder):
        try:
            return path, check(path), refused
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(f"no checkpoint in {folder} is whole: {'; '.join(refused)}")
    raise CheckpointError(
        f"there is no checkpoint in {folder}: accepted is a folder that --checkpoint wrote to"
    )


def check(path: Path) -> Manifest:
    """Read a checkpoint's manifest, and all of its files to see that they have not changed.

    Raises
    ------
    CheckpointError
        If it is truncated, changed or not a checkpoint.
    """
    manifest = _read_manifest(path)
    for name, (size, digest) in manifest.files.items():
        file = path / name
        try:
            found = file.stat().st_size
            if found != size:
                raise CheckpointError(f"{file} has {found} bytes, the manifest says {size}")
            if _sha256(file) != digest:
                raise CheckpointError(f"{file} was changed: its SHA-256 is not the manifest's")
        except OSError as error:
            raise CheckpointError(f"can't read {file}: {error.strerror or error}") from error
    return manifest


class CheckpointReader:
    """Reads tensors of a checkpoint that was checked, sliced as on any plan.

    Files are mapped into memory, so that a part reads from the disk what it needs only.
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
            If the checkpoint is not of a model that has it in this shape.
        """
        pieces = self.pieces.get(wanted.name, [])
        shapes = {piece.slice.shape for piece in pieces}
        if shapes != {wanted.shape}:
            found = f"with shape {shapes.pop()}" if shapes else "not there"
            raise CheckpointError(
                f"{self.path} is of another model: {wanted.name} is {found}, this model has it "
                f"with shape {wanted.shape}"
            )
        for piece in pieces:
            if piece.slice.key == wanted.key:
                return {kind: tensor.clone() for kind, tensor in piece.tensors.items()}
        kinds = {kind: None for piece in pieces for kind in piece.tensors}
        return {kind: _sliced(pieces, kind, wanted) for kind in kinds}


def part_file(part: int) -> str:
    """Name of a part's file.

    >>> part_file(3)
    'part-3.pt'
    """
    return f"part-{part}.pt"


def _sliced(pieces: Sequence[Held], kind: str, wanted: Slice) -> Tensor:
    """Put the pieces of all parts together and cut the slice out."""
    having = [piece for piece in pieces if kind in piece.tensors]
    first = having[0].tensors[kind]
    if first.shape != having[0].slice.local_shape:
        return first.clone()  # the optimizer's count of its steps: the same in all parts
    full = torch.zeros(wanted.shape, dtype=first.dtype)
    for piece in having:
        piece.slice.put(full, piece.tensors[kind])
    return wanted.take(full)


def _alone(tensor: Tensor) -> Tensor:
    """The tensor on the CPU; torch.save writes all of what it is a view of, so it must be none."""
    tensor = tensor.detach().cpu().contiguous()
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole else tensor.clone()


def _read_part(path: Path) -> Iterator[Held]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        for item in content["held"]:
            positions = {dim: kept.numpy() for dim, kept in item["positions"].items()}
            elements = None if item["elements"] is None else item["elements"].numpy()
            part = Slice(item["name"], tuple(item["shape"]), positions, elements)
            yield Held(part, item["tensors"])
    except Exception as error:  # what torch.load raises is as varied as what files hold
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"can't read {path}: {reason}") from error


def _as_text(manifest: Manifest) -> str:
    content = {"format": FORMAT, **asdict(manifest)}
    return json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n"


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"can't read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: it was truncated or changed") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f'{file} is not a manifest with "format": {json.dumps(FORMAT)}')
    digest = content.pop("sha256", None)
    if digest != _digest(content):
        raise CheckpointError(f"{file} was changed: its SHA-256 is not the one that it says")
    names = [item.name for item in fields(Manifest)]
    values = {name: content[name] for name in names}
    values["losses"] = tuple(values["losses"])
    values["files"] = {name: (size, digest) for name, (size, digest) in values["files"].items()}
    return Manifest(**values)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    """Take a checkpoint's name away first, so that there is never half of one."""
    hidden = path.with_name(f".{path.name}.removed")
    path.replace(hidden)
    shutil.rmtree(hidden)


def _sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"can't write {path}: {error.strerror or error}; accepted is a folder that is writable "
            "and has room"
        ) from error
