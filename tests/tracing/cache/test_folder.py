"""Files of traces are whole, bounded, and the user's own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hgpart.tracing.cache import folder


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    assert folder.load("key") is None
    folder.save("key", b"a trace")
    assert folder.load("key") == b"a trace"
    assert folder.load("another") is None
    assert stat.S_IMODE((tmp_path / "hgpart" / "traces").stat().st_mode) == 0o700


@pytest.mark.parametrize("length", [0, 3, 16, 20])
def test_a_file_that_ends_early_is_said_and_removed(
    length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.save("key", b"a trace")
    (file,) = folder.folder().iterdir()
    file.write_bytes(file.read_bytes()[:length])
    assert folder.load("key") is None
    assert "key.trace is damaged: the model is traced anew" in capsys.readouterr().err
    assert not file.exists()


def test_another_models_file_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    folder.save("key", b"a trace")
    (file,) = folder.folder().iterdir()
    file.rename(file.with_name("other.trace"))
    assert folder.load("other") is None
    assert "is damaged" in capsys.readouterr().err


def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.save("key", b"a trace")
    folder.folder().chmod(0o770)
    assert folder.load("key") is None
    folder.save("other", b"a trace")
    assert "accepted is a folder of your own with mode 700" in capsys.readouterr().err
    assert [file.name for file in folder.folder().iterdir()] == ["key.trace"]
    folder.folder().rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o700)
    folder.folder().symlink_to(tmp_path / "elsewhere")
    assert folder.load("key") is None


def test_a_folder_that_cannot_be_made_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hgpart").write_text("a file")
    folder.save("key", b"a trace")
    assert "the trace of the model can't be kept" in capsys.readouterr().err


def test_what_was_not_read_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for at, key in enumerate(("first", "second", "third")):
        folder.save(key, bytes(20))
        os.utime(folder.folder() / f"{key}.trace", (at, at))
    assert folder.load("first") is not None  # which makes it the last that was read
    left = folder.folder() / ".hgpart-0.tmp"  # of a process that was ended
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    monkeypatch.setattr(folder, "LARGEST", 100)
    folder.save("fourth", bytes(20))
    kept = {file.name for file in folder.folder().iterdir()}
    assert kept == {"first.trace", "fourth.trace"}


def test_processes_that_write_at_once_leave_a_whole_file() -> None:
    code = (
        "from hgpart.tracing.cache import folder\n"
        "for _ in range(200):\n"
        "    folder.save('key', bytes(10**5))\n"
        "    assert folder.load('key') == bytes(10**5)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [file.name for file in folder.folder().iterdir()] == ["key.trace"]


def test_users_without_a_home_have_no_traces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading ended with Python's RuntimeError, as in containers whose user has no entry."""

    def fail(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", fail)
    assert folder.load("a" * 32) is None
    folder.save("a" * 32, b"kept")
    assert "can't be kept: Could not determine home" in capsys.readouterr().err
