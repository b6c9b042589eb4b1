"""A safetensors or torch file of a state_dict, written whole, and read tensor by tensor."""

from __future__ import annotations

import pickletools
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch

from hgpart.errors import CheckpointError, first_line, not_installed
from hgpart.files.writing import replacing

# Names that torch.save writes for tensors (lower-case names are types). torch.load would also
# call bytearray and torch.Tensor with a number from the file: gigabytes for a few bytes.
_NAMES = re.compile(
    r"collections OrderedDict|torch(\.storage)? \w+Storage|torch ([a-z]\w*|Size)|"
    r"torch\._utils _rebuild_(tensor_v[23]|parameter|parameter_with_state)"
)


# First bytes of files that torch wrote before its version 1.6.
_OLD_FORMAT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

State = Mapping[str, torch.Tensor]


@contextmanager
def opened_weights(path: Path | str, names: Collection[str] = ()) -> Iterator[State]:
    """A mapping of names to tensors, each read from the file when it is accessed.

    Parameters
    ----------
    names : collection of str, optional
        Names of the model's state. If the file has them with a prefix, such as ``module.``, the
        prefix is removed; if the file has several state_dicts, the one with these names is taken.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated, or not a mapping of names to tensors, if it has several
        state_dicts, or if it has tensors without the prefix that others have.
    MissingPackageError
        If it is a safetensors file, and safetensors is not installed.
    """
    path = Path(path)
    try:
        is_other = path.exists() and not path.is_file()
    except OSError as error:  # a name that is too long, a folder that is not to be looked into
        raise CheckpointError(f"{path}: no weights can be read: {error.strerror}") from None
    if is_other:
        raise CheckpointError(f"{path}: no weights can be read: it is not a regular file")
    if path.suffix == ".safetensors":
        with _safetensors(path) as file:
            yield _without_prefix(_LazyTensors(file), names, path)
        return
    try:
        state = load_tensors(path)
    except Exception as error:
        reason = getattr(error, "strerror", None) or first_line(error) or type(error).__name__
        raise CheckpointError(
            f"{path}: no weights can be read: {reason}; accepted is what "
            "torch.save(model.state_dict(), FILE) writes"
        ) from None
    yield _the_models(state, names, path)


def _the_models(content: Any, names: Collection[str], path: Path) -> State:
    """The state_dict of a file, which may be an entry of a dict, such as ``"state_dict"``."""
    if _is_state(content):
        return _without_prefix(content, names, path)
    entries = content if isinstance(content, dict) else {}
    states = {key: value for key, value in entries.items() if value and _is_state(value)}
    if not states:
        raise CheckpointError(f"{path}: accepted is a state_dict, tensors by name")
    if len(states) == 1:
        (state,) = states.values()
        return _without_prefix(state, names, path)
    of_model = [state for state in states.values() if _prefixes(state, names)]
    if len(of_model) != 1:
        keys = ", ".join(map(repr, states))
        raise CheckpointError(
            f"{path}: each of {keys} is a state_dict: accepted is a file of one, as "
            f"torch.save(torch.load(FILE)[{next(iter(states))!r}], OTHER) writes"
        )
    return _without_prefix(of_model[0], names, path)


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in value.items()
    )


def _prefixes(state: State, names: Collection[str]) -> list[str]:
    """Prefixes of a model's names in a state, as DataParallel and Lightning add them."""
    if not names:
        return []
    first = next(iter(names))
    prefixes = {name.removesuffix(first) for name in state if name.endswith(first)}
    return [
        prefix
        for prefix in sorted(prefixes, key=len)
        if prefix[-1:] in ("", ".") and all(prefix + name in state for name in names)
    ]


def _without_prefix(state: State, names: Collection[str], path: Path) -> State:
    """The state with the model's names, if they have a prefix in the file."""
    prefix = next(iter(_prefixes(state, names)), "")
    if not prefix:
        return state
    without = [name for name in state if not name.startswith(prefix)]
    if without:
        raise CheckpointError(
            f"{path}: the model's names have {prefix!r} in front, {without[0]} does "
            f"not ({len(without)} names): accepted is a file of the model's tensors alone"
        )
    return _Renamed(state, prefix)


def check_can_save(path: Path | str) -> None:
    """Raise a MissingPackageError if the file is to be a safetensors file, which needs its package.

    >>> check_can_save("trained.pt")
    """
    if Path(path).suffix == ".safetensors":
        try:
            import safetensors.torch  # noqa: F401
        except ImportError:
            raise not_installed(str(path), "safetensors", extra="train") from None


def save_weights(state: Mapping[str, torch.Tensor], path: Path | str) -> None:
    """Write a state_dict: as safetensors if the name ends so, else as torch.save does.

    Raises
    ------
    MissingPackageError
        If it is to be a safetensors file and safetensors is not installed.
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
    """Read what torch.save wrote, with its tensors mapped into memory: the data stays on the disk.

    Raises
    ------
    Exception
        Whatever torch raises; ValueError if the file could take more memory than it has bytes.
    """
    size = path.stat().st_size
    with path.open("rb") as start:
        if start.read(len(_OLD_FORMAT)) == _OLD_FORMAT:
            raise ValueError(
                "it is in torch's old format, which torch.save(torch.load(FILE), OTHER) renews"
            )
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
        raise not_installed(str(path), "safetensors", extra="train") from None
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: no weights can be read: {first_line(error) or type(error).__name__}"
        ) from None


class _Renamed(Mapping[str, torch.Tensor]):
    """A state whose names have a prefix, under the names without it."""

    def __init__(self, state: State, prefix: str) -> None:
        self.state, self.prefix = state, prefix

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.state[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.prefix + name in self.state


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
