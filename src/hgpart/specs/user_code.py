"""``path/file.py:name`` or ``package.module:name`` -> a function of the user's code."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hgpart.errors import HgpartError
from hgpart.specs.nearest import unknown_name

_loaded: dict[Path, tuple[int, ModuleType]] = {}  # and when each file was written
HGPART = f"{Path(__file__).parent.parent}{os.sep}"


@dataclass(frozen=True)
class UserCode:
    """A name in the user's code.

    Attributes
    ----------
    spec : str
        ``path/file.py:name`` or ``package.module:name``.
    what : str
        What the name stands for, in messages: "factory", "backend".
    refused : class of error
        The error to raise; its message names the file and the line in it.
    """

    spec: str
    what: str
    refused: type[HgpartError]

    def load(self) -> Any:
        """Import the code and return the function of that name.

        Raises
        ------
        HgpartError
            If file, module or name do not exist, or the code raises anything.
        """
        source, _, name = self.spec.rpartition(":")
        if not source or not name:
            raise self.refused(f"{self.spec!r} names no {self.what}; write {self._forms}")
        with self._importable(), self._blamed(source):
            module = _load_file(self._file()) if self._is_file else self._load_module(source)
        named = getattr(module, name, None)
        if callable(named):
            return named
        public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        otherwise = f"{source} has no such function"
        raise self.refused(str(unknown_name(self.what, name, public, otherwise)))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While its code runs: it can import its neighbours, and what it raises is one line."""
        with self._importable(), self._blamed(self.spec):
            yield

    @property
    def _forms(self) -> str:
        return f"path/file.py:{self.what} or package.module:{self.what}"

    @property
    def _source(self) -> str:
        return self.spec.rpartition(":")[0]

    @property
    def _is_file(self) -> bool:
        return self._source.endswith(".py") or "/" in self._source

    def _file(self) -> Path:
        source, is_there = self._source, False
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # no such user, a null byte
            path = Path(source).expanduser().resolve()
            is_there = path.exists()
            if path.suffix == ".py" and path.is_file():
                return path
        what = f"{source!r} is no Python file" if is_there else f"there is no file {source!r}"
        raise self.refused(f"{what}; write path/file.py:{self.what}")

    def _load_module(self, source: str) -> ModuleType:
        try:
            if all(part.isidentifier() for part in source.split(".")):
                return importlib.import_module(source)
        except ModuleNotFoundError as error:
            # Only if source or a parent of it is what is missing; else its own code is to blame.
            if error.name is None or not f"{source}.".startswith(f"{error.name}."):
                raise
        raise self.refused(
            f"no module named {source!r} here or in the installed packages; write {self._forms}"
        )

    @contextlib.contextmanager
    def _importable(self) -> Iterator[None]:
        """Let the user's code import its neighbours, as if it were run from its folder."""
        entry = str(self._file().parent if self._is_file else Path.cwd())
        sys.path.insert(0, entry)
        try:
            yield
        finally:
            # The user's code may have changed the path too.
            with contextlib.suppress(ValueError):
                sys.path.remove(entry)

    @contextlib.contextmanager
    def _blamed(self, name: str) -> Iterator[None]:
        """Turn whatever the user's code raises, sys.exit() too, into one line that says where."""
        try:
            yield
        except self.refused:
            raise
        except (Exception, SystemExit) as error:
            message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
            where = _line_that_raised(error) or name
            raise self.refused(
                f"{where}: {type(error).__name__}: {message}".rstrip(": ")
            ) from error


def _line_that_raised(error: BaseException) -> str | None:
    """``file:line`` of the last line of the user's file that ran; None if none did."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((HGPART, importlib.__file__, "<frozen importlib"))
    ]
    # The first frame is the user's; the ones that follow may be deep inside torch.
    lines = [frame.lineno for frame in frames if frame.filename == frames[0].filename]
    return f"{frames[0].filename}:{lines[-1]}" if frames else None


def _load_file(path: Path) -> ModuleType:
    """Run a file, unless it was run already and has not been written since."""
    written = path.stat().st_mtime_ns
    known = _loaded.get(path)
    if known is not None and known[0] == written:
        return known[1]
    # A name of its own for each path: two files called model.py must not replace each other.
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
