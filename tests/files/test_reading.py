"""No file is read without an end: each format has a limit, or takes regular files only."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from hgpart.errors import CheckpointError, FormatError
from hgpart.files import reading
from hgpart.files.json_files import read_json
from hgpart.hypergraph.formats import read_hmetis, read_partition, read_patoh
from hgpart.run.training import checkpoints, manifest

LIMIT = 2_000_000
ENDLESS = {
    "zeros": b"\0" * 2**16,
    "blanks": b" " * 2**16,
    "comments": b"%" * 2**16,
    "numbers": b"1 " * 2**15,
    "lines": b"1\n" * 2**15,
    "brackets": b"[" * 2**16,
}
READERS: dict[str, Callable[[Path], object]] = {
    "json": lambda path: read_json(path, "a test", "test 1"),
    "patoh": read_patoh,
    "hmetis": read_hmetis,
    "partition": read_partition,
}


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGEST", LIMIT)
    monkeypatch.setattr(manifest, "LARGEST_MANIFEST", LIMIT)


class Pipe:
    """What ``| hgpart COMMAND /dev/stdin`` opens: somebody writes as long as it is read."""

    def __init__(self, head: bytes, more: bytes = b"") -> None:
        self.reader, self.writer = os.pipe()
        self.path = Path(f"/dev/fd/{self.reader}")
        self.read = 0
        self.thread = threading.Thread(target=self._write, args=(head, more))
        self.thread.start()

    def _write(self, head: bytes, more: bytes) -> None:
        try:
            self.read += os.write(self.writer, head)
            while more:
                self.read += os.write(self.writer, more)
        except BrokenPipeError:
            pass
        finally:
            os.close(self.writer)

    def close(self) -> None:
        with suppress(OSError):  # it is closed already
            os.close(self.reader)
        self.thread.join()


@pytest.fixture
def pipe() -> Iterator[Callable[..., Pipe]]:
    made: list[Pipe] = []

    def make(head: bytes, more: bytes = b"") -> Pipe:
        made.append(Pipe(head, more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refusal(read: Callable[[Path], object], path: Path) -> str:
    """What is said; nothing of the error is kept, which would keep the file open."""
    try:
        read(path)
    except FormatError as error:
        return str(error)
    raise AssertionError("it was read")


@pytest.mark.parametrize("text", ENDLESS)
@pytest.mark.parametrize("name", READERS)
def test_what_has_no_end_is_refused(name: str, text: str, pipe: Callable[..., Pipe]) -> None:
    head = b"999999999 999999999\n" if name == "hmetis" else b""
    endless = pipe(head, ENDLESS[text])
    assert "\n" not in refusal(READERS[name], endless.path)
    endless.close()
    assert endless.read < LIMIT + 2**20 + 2**18  # a block, and what a pipe holds


def test_a_device_is_refused() -> None:
    for read in READERS.values():
        assert refusal(read, Path("/dev/zero"))


def test_what_comes_through_a_pipe_is_read(pipe: Callable[..., Pipe]) -> None:
    head = read_json(pipe(b'{"format": "test 1", "count": 7}').path, "a test", "test 1")
    assert head.whole("count") == 7
    assert read_partition(pipe(b"0 2\n1\n").path).tolist() == [0, 2, 1]


def test_a_whole_checkpoint_of_devices_is_refused(tmp_path: Path) -> None:
    """The digest of a device was computed without an end, and its manifest read without one."""
    path = tmp_path / "step-000001"
    path.mkdir()
    (path / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"manifest\.json is not a regular file"):
        checkpoints.check(path)
    (path / "manifest.json").unlink()
    (path / "part-0.pt").symlink_to("/dev/zero")
    content = {
        "format": manifest.FORMAT,
        **asdict(manifest.Manifest(1, {}, {}, (1.0,), "00", {"part-0.pt": (0, "")})),
    }
    digest = manifest._digest(content)
    (path / "manifest.json").write_text(json.dumps({**content, "sha256": digest}))
    with pytest.raises(CheckpointError, match=r"part-0\.pt is not a regular file"):
        checkpoints.check(path)


def test_a_file_larger_than_the_limit_is_refused_or_proof_that_it_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f'{{"format": "test 1", "name": "{"x" * LIMIT}"}}')
    with pytest.raises(FormatError, match=f"more than {LIMIT} bytes; accepted: a test"):
        read_json(path, "a test", "test 1")
    path.write_text("3\n" * LIMIT)
    assert len(read_partition(path)) == LIMIT
