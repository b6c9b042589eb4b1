"""A safetensors or torch file of a state_dict, written whole, and read tensor by tensor."""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch

from hgpart.errors import CheckpointError, MissingPackageError, first_line
from hgpart.files.writing import replacing

# What torch.save writes of tensors by name (those of types are in lower case). torch.load would
# also call bytearray and torch.Tensor with a number from the file: gigabytes for some bytes.
_NAMES = re.compile(
    r"collections OrderedDict|torch(\.storage)? \w+Storage|torch ([a-z]\w*|Size)|"
    r"torch\._utils _rebuild_(tensor_v[23]|parameter|parameter_with_state)"
)


@contextmanager
def opened_weights(path: Path | str) -> Iterator[Mapping[str, torch.Tensor]]:
    """A mapping of names to tensors, each read from the file when it is asked for.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated, or something else than tensors by name.
    MissingPackageError
        If it is a safetensors file, and safetensors is not installed.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: no weights can be read: it is not a regular file")
    if path.suffix == ".safetensors":
        with _safetensors(path) as file:
            yield _LazyTensors(file)
        return
    try:
        state = load_tensors(path)
    except Exception as error:
        raise CheckpointError(
            f"{path}: no weights can be read: {first_line(error) or type(error).__name__}"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: accepted is a state_dict, tensors by name")
    yield state


def check_can_save(path: Path | str) -> None:
    """Raise a MissingPackageError if the file is to be a safetensors file, which needs its package.

    >>> check_can_save("trained.pt")
    """
    if Path(path).suffix == ".safetensors":
        try:
            import safetensors.torch  # noqa: F401
        except ImportError:
            raise MissingPackageError(
                f"{path}: safetensors is not installed: pip install safetensors"
            ) from None


def save_weights(state: Mapping[str, torch.Tensor], path: Path | str) -> None:
    """Write a state_dict: as safetensors by that ending of the name, else as torch.save does.

    Raises
    ------
    MissingPackageError
        If it is to be a safetensors file, and safetensors is not installed.
    OutputError
        If the file can't be written.
    """
    check_can_save(path)
    with replacing(path, "wb") as file:
        if Path(path).suffix == ".safetensors":
            from safetensors.torch import save

            file.write(save({name: tensor.clone() for name, tensor in state.items()}))
        else:
            torch.save(dict(state), file)


def load_tensors(path: Path) -> Any:
    """What torch.save wrote to a file, with its tensors mapped into memory: all is on the disk.

    Raises
    ------
    Exception
        Any; ValueError if the file could take more memory than it has bytes.
    """
    size = path.stat().st_size
    with ZipFile(path) as file:
        for item in file.infolist():
            if item.compress_type != ZIP_STORED:
                raise ValueError(f"{item.filename} is compressed")
            if max(item.file_size, item.compress_size) > size:
                raise ValueError(f"{item.filename} is larger than the file")
            if item.filename.endswith(".pkl"):
                for operation, named, _ in pickletools.genops(file.read(item)):
                    if operation.name == "GLOBAL" and not _NAMES.fullmatch(str(named)):
                        raise ValueError(f"it holds {named}, which no tensor needs")
    return torch.load(path, map_location="cpu", mmap=True, weights_only=True)


def _safetensors(path: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingPackageError(
            f"{path}: safetensors is not installed: pip install safetensors"
        ) from None
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: no weights can be read: {first_line(error) or type(error).__name__}"
        ) from None


class _LazyTensors(Mapping[str, torch.Tensor]):
    """The tensors of an open safetensors file."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.names = list(file.keys())

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self.file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names
