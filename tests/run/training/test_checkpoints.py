"""Checkpoints: read back on any plan, whole or refused, the last two kept."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hgpart.errors import CheckpointError
from hgpart.placement.cutting.slices import Slice
from hgpart.run.training import checkpoints
from hgpart.run.training import manifest as manifests
from hgpart.run.training.checkpoints import (
    LOCK,
    CheckpointReader,
    Held,
    begin,
    check,
    check_names,
    locked,
    newest,
    publish,
    write_part,
)
from hgpart.run.training.epochs import Epoch
from hgpart.run.training.manifest import Manifest, part_file


def manifest(step, files):
    return Manifest(
        step=step,
        settings={"optimizer": "sgd", "seed": 3},
        about={"lr": 0.1},
        losses=(0.1 + 0.2, float("inf"), 1e-300, *[0.5] * step)[:step],
        random_state="00ff",
        files=files,
        epochs=(Epoch(1, 0.1, 0.25), Epoch(2, 0.05, 1.0, 0.5)),
        right=7,
    )


def write(folder, step, parts):
    unfinished = begin(folder, step)
    files = {part_file(part): write_part(unfinished, part, held) for part, held in parts.items()}
    return publish(unfinished, manifest(step, files))


def simple(folder, step):
    return write(folder, step, {0: [Held(Slice("weight", (40,)), {"value": torch.rand(40)})]})


# ------------------------------------------------------------------ contents


def rows_of(full, name, assignment, part):
    return Slice(name, full.shape, {0: np.flatnonzero(assignment == part)})


@given(data=st.data(), rows=st.integers(1, 6), columns=st.integers(1, 5))
def test_any_plan_reads_what_any_other_wrote(data, rows, columns, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    full = {kind: torch.rand(rows, columns, dtype=torch.float64) for kind in ("value", "exp_avg")}
    before, after = (
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
        for _ in range(2)
    )
    single = np.array(data.draw(st.permutations(range(rows * columns))))
    cut = data.draw(st.integers(0, rows * columns))

    def held(piece):
        tensors = {kind: piece.take(tensor) for kind, tensor in full.items()}
        return Held(piece, {**tensors, "step": torch.tensor(7.0)})

    parts = {
        part: [
            held(rows_of(full["value"], "weight", before, part)),
            held(Slice("again", (rows, columns), elements=np.sort(half))),
            held(Slice("buffer", (rows, columns))),  # every part has all of it
        ]
        for part, half in enumerate((single[:cut], single[cut:], single[:0]))
    }
    path = write(folder, 12, parts)
    assert path.name == "step-000012"
    reader = CheckpointReader(path, check(path))
    wanted = [
        *(
            rows_of(full["value"], name, after, part)
            for name in ("weight", "again")
            for part in range(3)
        ),
        *(item.slice for part in parts.values() for item in part),
        Slice("again", (rows, columns)),
        Slice("weight", (rows, columns), {0: np.arange(rows)[::2], 1: np.arange(columns)[1:]}),
    ]
    for piece in wanted:
        found = reader.read(piece)
        assert found.keys() == {"value", "exp_avg", "step"}
        assert found["step"] == 7
        for kind, tensor in full.items():
            assert torch.equal(found[kind], piece.take(tensor))


def test_the_manifest_comes_back_as_it_was(tmp_path):
    path = simple(tmp_path, 40)
    found = check(path)
    assert found == manifest(40, found.files)
    (size, _) = found.files["part-0.pt"]
    assert (path / "part-0.pt").stat().st_size == size


def test_a_view_is_written_without_what_it_is_a_view_of(tmp_path):
    view = torch.zeros(10**6)[:10]
    path = write(tmp_path, 1, {0: [Held(Slice("weight", (10,)), {"value": view})]})
    assert (path / "part-0.pt").stat().st_size < 10_000


def test_another_model_is_refused(tmp_path):
    path = simple(tmp_path, 1)
    reader = CheckpointReader(path, check(path))
    with pytest.raises(CheckpointError, match=r"another model: bias is not there"):
        reader.read(Slice("bias", (40,)))
    with pytest.raises(CheckpointError, match=r"weight is with shape \(40,\).*\(41,\)"):
        reader.read(Slice("weight", (41,)))


# ------------------------------------------------------------------ damage


def files_of(path):
    return sorted(file for file in path.iterdir())


@given(data=st.data())
def test_any_flipped_bit_and_any_truncation_is_noticed(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    older, newer = simple(folder, 1), simple(folder, 2)
    (folder / "unchanged").write_bytes((newer / "manifest.json").read_bytes())
    file = data.draw(st.sampled_from(files_of(newer)))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    file.write_bytes(content)
    if said(content) == said((folder / "unchanged").read_bytes()):
        return  # the end of the last line, or 1E-300 for 1e-300
    path, found, refused = newest(folder)
    assert (path, found.step) == (older, 1)
    assert len(refused) == 1
    assert str(newer) in refused[0]
    assert "\n" not in refused[0]


def said(content):
    try:
        return json.loads(content)
    except ValueError:
        return content


def test_foreign_folders_are_refused(tmp_path):
    older = simple(tmp_path, 1)
    for step, text in enumerate(
        ("", "[]", "{}", '{"format": "other"}', '{"format": "hgpart checkpoint 1"}')
    ):
        folder = tmp_path / f"step-{step + 2:06d}"
        folder.mkdir()
        (folder / "manifest.json").write_text(text)
    (tmp_path / "step-000090").mkdir()
    (tmp_path / "step-last").mkdir()
    path, _, refused = newest(tmp_path)
    assert path == older
    assert len(refused) == 6


WRONG = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=50)
@given(data=st.data())
def test_a_field_that_is_missing_or_wrong_is_refused(data, tmp_path_factory):
    """With a digest that is right, it was a KeyError, and the older checkpoint was not tried."""
    folder = tmp_path_factory.mktemp("checkpoints")
    older, newer = simple(folder, 3), simple(folder, 4)
    content = json.loads((newer / "manifest.json").read_text())
    del content["sha256"]
    name = data.draw(st.sampled_from(sorted(content.keys() - {"epochs", "right"})))  # new ones
    if data.draw(st.booleans()):
        wrong = data.draw(WRONG)
        assume(name != "about" or type(wrong) is not dict)
        content[name] = wrong
    else:
        del content[name]
    content["sha256"] = manifests._digest(content)
    (newer / "manifest.json").write_text(json.dumps(content))
    path, found, refused = newest(folder, {"optimizer", "seed"})
    assert (path, found.step, len(refused)) == (older, 3, 1)
    assert str(newer) in refused[0]
    assert name in refused[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"losses": [1.0, 2.0, 3]},
        {"losses": [1.0, 2.0]},
        {"step": 2},
        {"step": True},
        {"settings": {"seed": None}},
        {"about": {"lr": [0.1]}},
        {"about": {"lr": True}},
        {"random_state": "0"},
        {"random_state": "0g"},
        {"epochs": None},
        {"epochs": [[1, 0.1, 0.5]]},
        {"epochs": [[1, 0.1, "best", None]]},
        {"right": 0.5},
        {"files": {"part-0.pt": [1, 2]}},
        {"files": {"part-0.pt": ["1", "2"]}},
        {"files": {"../part-0.pt": [1, "2"]}},
        {"files": {}},
        {"settings": {"seed": 3}},
    ],
)
def test_a_field_that_is_nearly_right_is_refused(tmp_path, wrong):
    path = simple(tmp_path, 3)
    content = {**json.loads((path / "manifest.json").read_text()), **wrong}
    del content["sha256"]
    content["sha256"] = manifests._digest(content)
    (path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"manifest.json.*{next(iter(wrong))}"):
        check(path, {"optimizer", "seed"})


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ({"positions": {0: torch.tensor([0, 4])}}, "weight has positions that are not from 0 to 3"),
        ({"positions": {0: torch.tensor([-1])}}, "weight has positions that are not from 0 to 3"),
        ({"positions": {0: torch.tensor([0.5])}}, "weight has positions that are not from 0 to 3"),
        ({"positions": {2: torch.tensor([0])}}, "index out of range"),
        ({"elements": torch.tensor([8])}, "weight has positions that are not from 0 to 7"),
        ({"tensors": {}}, "weight has no value"),
        ({"tensors": {"value": torch.zeros(4)}}, r"value of weight has shape \(4,\)"),
        ({"positions": {0: torch.tensor([0, 2])}, "tensors": {"value": torch.zeros(2, 2)}}, None),
    ],
)
def test_what_a_part_can_not_hold_is_refused(tmp_path, piece, said):
    unfinished = begin(tmp_path, 3)
    item = {"name": "weight", "shape": (4, 2), "positions": {}, "elements": None}
    content = {"held": [{**item, "tensors": {"value": torch.zeros(4, 2)}, **piece}]}
    torch.save(content, unfinished / "part-0.pt")
    size = (unfinished / "part-0.pt").stat().st_size
    files = {"part-0.pt": (size, checkpoints._sha256(unfinished / "part-0.pt"))}
    path = publish(unfinished, manifest(3, files))
    with pytest.raises(CheckpointError, match=said or "does not hold all of weight"):
        CheckpointReader(path, check(path)).read(Slice("weight", (4, 2)))


def test_a_lock_ends_with_the_process_that_has_it(tmp_path):
    program = (
        "import fcntl, sys, time; lock = open(sys.argv[1], 'a'); fcntl.flock(lock, 2); print()"
    )
    command = [sys.executable, "-c", f"{program}; time.sleep(60)", str(tmp_path / LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as other:
        assert other.stdout.read(1) == b"\n"  # else it ended before it had the lock
        with pytest.raises(CheckpointError, match="another training"), locked(tmp_path):
            pass
        other.kill()
        other.wait()
        with locked(tmp_path):
            assert other.returncode < 0


def test_a_file_that_is_gone_is_named(tmp_path):
    path = simple(tmp_path, 1)
    (path / "part-0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole: can't read .*part-0"):
        newest(tmp_path)


class Foreign:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_code_in_a_checkpoint_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unfinished = begin(tmp_path, 1)
    torch.save({"held": [Foreign()]}, unfinished / "part-0.pt")
    content = unfinished / "part-0.pt"
    files = {"part-0.pt": (content.stat().st_size, checkpoints._sha256(content))}
    path = publish(unfinished, manifest(1, files))
    with pytest.raises(CheckpointError, match=r"can't read .*part-0\.pt"):
        CheckpointReader(path, check(path))
    assert not (tmp_path / "ran").exists()


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path):
    """Nobody ever wrote to it."""
    path = simple(tmp_path, 10)
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    with pytest.raises(CheckpointError, match=r"manifest\.json is not a regular file"):
        check(path)


def test_names_of_checkpoints_are_of_folders(tmp_path):
    """A file was found where the checkpoint of its name was written, hours later."""
    simple(tmp_path, 10)
    for name in ("step-12", "step-00001\u0663", "notes"):  # none has such a name
        (tmp_path / name).write_text("")
    check_names(tmp_path)
    for make in (Path.touch, lambda path: path.symlink_to(tmp_path / "step-000010")):
        make(tmp_path / "step-000020")
        with pytest.raises(CheckpointError, match=r"step-000020 is no folder, but has the name"):
            check_names(tmp_path)
        (tmp_path / "step-000020").unlink()


def test_what_was_left_unfinished_gives_way_whatever_it_is(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / ".step-000010.unfinished").symlink_to(tmp_path / "precious")
    (tmp_path / ".step-000020.unfinished").touch()
    simple(tmp_path, 10)
    assert (tmp_path / "precious" / "file").exists()
    assert not [*tmp_path.glob(".step-*")]


def test_an_empty_folder_has_none(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        newest(tmp_path)


# ------------------------------------------------------------------ writing


def test_the_last_two_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        simple(tmp_path, step)
    assert [path.name for path in files_of(tmp_path)] == ["step-000030", "step-000040"]


def test_nothing_is_removed_before_the_new_one_is_there(tmp_path, monkeypatch):
    kept = [simple(tmp_path, step) for step in (10, 20)]
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(CheckpointError, match=r"can't write .*part-0\.pt: full"):
        simple(tmp_path, 30)
    monkeypatch.undo()
    assert [path for path in files_of(tmp_path) if path.name[0] != "."] == kept
    again = simple(tmp_path, 30)
    assert files_of(tmp_path) == [kept[1], again]  # and what was left behind is gone


def test_an_interrupt_while_an_old_one_is_removed_leaves_nothing_of_it(tmp_path, monkeypatch):
    kept = [simple(tmp_path, step) for step in (10, 20)]
    remove = shutil.rmtree

    def interrupted(path, ignore_errors=False):
        if not ignore_errors:
            raise KeyboardInterrupt
        remove(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simple(tmp_path, 30)
    assert files_of(tmp_path) == [kept[1], tmp_path / "step-000030"]


def test_one_that_was_refused_gives_way(tmp_path):
    simple(tmp_path, 10)
    broken = simple(tmp_path, 20)
    (broken / "part-0.pt").write_bytes(b"")
    assert newest(tmp_path)[1].step == 10
    simple(tmp_path, 15)
    assert newest(tmp_path)[1].step == 15
    simple(tmp_path, 20)
    assert newest(tmp_path)[1:] == (check(broken), [])
    assert [path.name for path in files_of(tmp_path)] == ["step-000015", "step-000020"]


def test_a_part_that_wrote_elsewhere_is_missed(tmp_path):
    unfinished = begin(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"part-1\.pt is not here.*all processes share"):
        publish(unfinished, manifest(1, {"part-1.pt": (1, "")}))
    assert checkpoints.checkpoints(tmp_path) == []


def test_a_folder_that_can_not_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="can't write"):
        begin(tmp_path / "file", 1)


@pytest.mark.parametrize(
    ("stopped", "seen"), [(KeyboardInterrupt, KeyboardInterrupt), (OSError, CheckpointError)]
)
def test_what_ends_the_writing_is_what_is_raised(tmp_path, monkeypatch, stopped, seen):
    """torch closes its archive after a Ctrl-C, and raised that it can't in place of it."""

    class Stopped(io.FileIO):
        def write(self, data):
            if self.tell():
                raise stopped
            return super().write(data)

    unfinished = begin(tmp_path, 1)
    monkeypatch.setattr(Path, "open", lambda path, mode: Stopped(path, mode))
    with pytest.raises(seen):
        write_part(unfinished, 0, [Held(Slice("weight", (40,)), {"value": torch.rand(40)})])
