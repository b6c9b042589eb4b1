from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hgpart.errors import HgpartError, OutputError
from hgpart.files.writing import replacing


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_text_is_utf8_with_line_feeds(tmp_path: Path) -> None:
    with replacing(tmp_path / "result.txt") as file:
        file.write("größer\n")
    assert (tmp_path / "result.txt").read_bytes() == "größer\n".encode()
    assert names(tmp_path) == ["result.txt"]


def test_half_a_character_of_a_name_that_is_no_utf8_is_written_as_an_escape(tmp_path: Path) -> None:
    with replacing(tmp_path / "result.txt") as file:
        file.write("na\udcefve\n")
    assert (tmp_path / "result.txt").read_bytes() == b"na\\udcefve\n"


@pytest.mark.parametrize("name", ["a\0b", "n" * 300])
def test_what_no_file_can_be_called(tmp_path: Path, name: str) -> None:
    """A NUL was a ValueError."""
    with pytest.raises(OutputError, match="can't write"), replacing(tmp_path / name) as file:
        file.write("result")
    assert names(tmp_path) == []


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    with replacing(str(tmp_path / "result.bin"), "wb") as file:
        file.write(b"\x00\r\n\xff")
    assert (tmp_path / "result.bin").read_bytes() == b"\x00\r\n\xff"


def test_the_file_is_not_there_before_it_is_complete(tmp_path: Path) -> None:
    with replacing(tmp_path / "result.txt") as file:
        file.write("whole")
        file.flush()
        assert not (tmp_path / "result.txt").exists()
    assert (tmp_path / "result.txt").read_text() == "whole"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, HgpartError, ZeroDivisionError])
@pytest.mark.parametrize("before", [None, "what was there"])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, stop: type[BaseException], before: str | None
) -> None:
    path = tmp_path / "result.txt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(stop), replacing(path) as file:
        file.write("half")
        file.flush()
        raise stop
    assert names(tmp_path) == ([] if before is None else ["result.txt"])
    assert before is None or path.read_text() == before


def test_replaces_a_file_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(path) as file:
        file.write("new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "result"):
        pass
    assert (tmp_path / "result").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path, link = tmp_path / "folder" / "result", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    with replacing(link) as file:
        file.write("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert names(tmp_path) == ["folder", "link"]


def test_a_device_is_written_to_and_stays_a_device() -> None:
    with replacing("/dev/null") as file:
        file.write("nothing")
    assert Path("/dev/null").is_char_device()


def test_a_full_device_is_an_output_error() -> None:
    with (
        pytest.raises(OutputError, match="can't write /dev/full: No space left"),
        replacing("/dev/full", "wb") as file,
    ):
        file.write(b"lost")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/result", "No such file or directory"),
        ("file/result", "Not a directory"),
        ("folder", "Is a directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_an_unwritable_path_is_one_clear_line(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError) as raised, replacing(tmp_path / name) as file:
        file.write("lost")
    message = str(raised.value)
    assert message.startswith(f"can't write {tmp_path / name}: {reason}; accepted: ")
    assert "\n" not in message
    assert names(tmp_path) == ["file", "folder"]
