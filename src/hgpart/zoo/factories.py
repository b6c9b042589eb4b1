"""``path/file.py:factory`` or ``package.module:factory`` -> the model that user code builds."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from hgpart.errors import ModelError
from hgpart.zoo.nearest import unknown_name

# The shape of a sample may be None. It is `Any` for the type checker, so that code that knows the
# shape to be there need not ask before each use.
Model = tuple[nn.Module, tuple[int, ...] | Any]


_loaded: dict[Path, tuple[int, ModuleType]] = {}  # when each file was written


def user_factory(spec: str) -> Callable[[], Model]:
    """Import the code that ``spec`` names and return a function that builds its model.

    The factory is called without arguments. It returns an ``nn.Module``, or a tuple of a module and
    the shape of its input without the batch dimension: ``(module, (3, 224, 224))``.

    Raises
    ------
    ModelError
        If the file, module or factory does not exist, raises anything, or returns something else.
        The message names the file and the line.
    """
    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise ModelError(
            f"{spec!r} names no factory; write path/file.py:factory or package.module:factory"
        )
    if source.endswith(".py") or "/" in source:
        path = _python_file(source)
        folder, load = path.parent, partial(_load_file, path)
    else:
        folder, load = Path.cwd(), partial(_load_module, source)
    with _importable_from(folder), _blaming(source):
        module = load()
    factory = getattr(module, name, None)
    if isinstance(factory, nn.Module):
        kind = type(factory).__name__
        raise ModelError(
            f"{spec} is a module, {kind}: accepted is a function that makes it, as def make(): "
            f"return {kind}(...)"
        )
    if not callable(factory):
        public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise unknown_name("factory", name, public, f"{source} has no such function")

    def build() -> Model:
        with _importable_from(folder), _blaming(f"{source}:{name}"):
            built = factory()
        return _checked(built, spec)

    return build


def _python_file(source: str) -> Path:
    is_there = False
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no such user, a null byte, ...
        path = Path(source).expanduser().resolve()
        is_there = path.exists()
        if path.suffix == ".py" and path.is_file():
            return path
    what = f"{source!r} is no Python file" if is_there else f"there is no file {source!r}"
    raise ModelError(f"{what}; write path/file.py:factory")


def _load_file(path: Path) -> ModuleType:
    """Run a file, unless it was run already and has not been written since."""
    written = path.stat().st_mtime_ns
    known = _loaded.get(path)
    if known is not None and known[0] == written:
        return known[1]
    # A unique name for each path: two files called model.py must not replace each other.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    module_name = f"_hgpart_{path.stem}_{digest}"
    import_spec = importlib.util.spec_from_file_location(module_name, path)
    assert import_spec is not None and import_spec.loader is not None  # the suffix is .py
    module = importlib.util.module_from_spec(import_spec)
    sys.modules[module_name] = module  # dataclasses and pickle look modules up there
    try:
        import_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    _loaded[path] = written, module
    return module


def _load_module(source: str) -> ModuleType:
    try:
        if all(part.isidentifier() for part in source.split(".")):
            return importlib.import_module(source)
    except ModuleNotFoundError as error:
        # Only if source or a parent of it is missing; otherwise its own code is to blame.
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise
    raise ModelError(
        f"no module named {source!r} here or in the installed packages; "
        "write path/file.py:factory or package.module:factory"
    )


@contextlib.contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    """Let the user's code import its neighbours, as if it were run from ``folder``."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        # The user's code may have changed the path too.
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)


@contextlib.contextmanager
def _blaming(source: str) -> Iterator[None]:
    """Turn anything that the user's code raises, even sys.exit(), into one line that says where."""
    try:
        yield
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        raise ModelError(
            f"{_where(error) or source}: {type(error).__name__}: {message}".rstrip(": ")
        ) from error


def _where(error: BaseException) -> str | None:
    """``file:line`` of the last line of the user's file that ran, None if none did."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__)
        and not frame.filename.startswith("<frozen importlib")
    ]
    # The first frame is the user's; the ones that follow may be deep inside torch.
    lines = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    return f"{frames[0].filename}:{lines[-1]}" if frames else None


def _checked(built: Any, spec: str) -> Model:
    match built:
        case nn.Module():
            return built, None
        case (nn.Module() as module, Sequence() as shape) if shape and all(
            type(size) is int and size > 0 for size in shape
        ):
            return module, tuple(shape)
    raise ModelError(
        f"{spec} returned {' '.join(repr(built).split())[:80]}; a factory returns an nn.Module, "
        "or (nn.Module, input shape without the batch, such as (3, 224, 224))"
    )
