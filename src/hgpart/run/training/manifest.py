"""What a checkpoint says of itself <-> its manifest, a JSON file, refused if it was changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hgpart.errors import CheckpointError, FormatError
from hgpart.files.json_files import JsonObject, read_json
from hgpart.run.training.epochs import Epoch

FORMAT = "hgpart checkpoint 1"
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 2**30  # bytes: the losses of 45 million steps


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint.

    Attributes
    ----------
    step : int
        Number of steps done.
    settings : mapping of str to text or number
        Settings that must be the same to go on: optimizer, data, batch size, micro-batches,
        schedule, seeds, dtype.
    about : mapping of str to text or number
        Further facts, for people.
    losses : tuple of float
        The loss of each step.
    epochs : tuple of Epoch
        Accuracies and rates of each epoch so far; older checkpoints have none.
    right : int or None
        Number of samples since the last epoch that were given their class in training, if these are
        counted.
    random_state : str
        State of torch's own generator, in hexadecimal digits.
    files : mapping
        Name of each part's file -> its size in bytes and its SHA-256.
    """

    step: int
    settings: Mapping[str, str | int | float]
    about: Mapping[str, str | int | float]
    losses: tuple[float, ...]
    random_state: str
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()
    right: int | None = None


def as_text(manifest: Manifest) -> str:
    """The manifest as it is written, with its own SHA-256."""
    content = {"format": FORMAT, **asdict(manifest)}
    return json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n"


def read_manifest(path: Path, settings: Collection[str]) -> Manifest:
    """Read the manifest of a checkpoint; its settings must include the names in `settings`.

    Raises
    ------
    CheckpointError
        If it was changed, or is none.
    """
    try:
        what = "the manifest of a checkpoint"
        check_regular(path / MANIFEST)
        head = read_json(path / MANIFEST, what, FORMAT, most=LARGEST_MANIFEST)
        content = {name: value for name, value in head.fields.items() if name != "sha256"}
        if head.string("sha256") != _digest(content):
            raise CheckpointError(
                f"{path / MANIFEST} was changed: its SHA-256 is not the one that it says"
            )
        return _manifest(head, step_of(path), settings)
    except FormatError as error:
        raise CheckpointError(str(error)) from error


def _manifest(head: JsonObject, step: int | None, settings: Collection[str]) -> Manifest:
    """The manifest in a file, if each field is as it should be."""
    if head.whole("step") != step:
        raise head.wrong("step", f"{step}, as the folder's name says")
    losses = head.items("losses", step)
    if not all(type(loss) is float for loss in losses):
        raise head.wrong("losses", "numbers")
    for name in ("settings", "about"):
        record = head.fields.get(name)
        if not isinstance(record, dict) or {*map(type, record.values())} - {str, int, float}:
            raise head.wrong(name, "an object of texts and numbers")
    if lacking := sorted({*settings} - head.fields["settings"].keys()):
        raise head.wrong("settings", f"an object that says {', '.join(lacking)}")
    random_state = head.string("random_state")
    if re.fullmatch("([0-9a-f]{2})+", random_state) is None:
        raise head.wrong("random_state", "bytes in hexadecimal digits")
    epochs, right = head.fields.get("epochs", []), head.fields.get("right")
    if not (isinstance(epochs, list) and all(map(_describes_epoch, epochs))):
        raise head.wrong("epochs", "a list as [[number, learning rate, score, accuracy]]")
    if right is not None and type(right) is not int:
        raise head.wrong("right", "a whole number, or null")
    files = head.fields.get("files")
    if not (isinstance(files, dict) and files and all(map(_describes_file, files.items()))):
        raise head.wrong("files", f'an object as {{"{part_file(0)}": [size, SHA-256]}}')
    return Manifest(
        step=len(losses),
        settings=head.fields["settings"],
        about=head.fields["about"],
        losses=tuple(losses),
        random_state=random_state,
        files={name: (size, digest) for name, (size, digest) in files.items()},
        epochs=tuple(Epoch(*epoch) for epoch in epochs),
        right=right,
    )


def _describes_epoch(epoch: Any) -> bool:
    if not isinstance(epoch, list) or len(epoch) != len(Epoch._fields):
        return False
    number, rate, *scores = map(type, epoch)
    return number is int and rate is float and {*scores} <= {float, type(None)}


def _describes_file(item: tuple[str, Any]) -> bool:
    name, facts = item
    if re.fullmatch(r"part-\d+\.pt", name) is None or not isinstance(facts, list):
        return False
    return [type(fact) for fact in facts] == [int, str]


def step_of(path: Path) -> int | None:
    """Number of steps done, by the name of a checkpoint's folder; None for any other name.

    >>> step_of(Path("checkpoints/step-000040"))
    40
    """
    match = re.fullmatch(r"step-(\d{6,})", path.name, re.ASCII)
    return int(match[1]) if match else None


def part_file(part: int) -> str:
    """Name of a part's file.

    >>> part_file(3)
    'part-3.pt'
    """
    return f"part-{part}.pt"


def check_regular(file: Path) -> None:
    """Refuse a pipe, which nobody may ever write to, and a device, which may have no end.

    Raises
    ------
    CheckpointError
        If it is one.
    """
    if file.exists() and not file.is_file():
        raise CheckpointError(f"{file} is not a regular file")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
