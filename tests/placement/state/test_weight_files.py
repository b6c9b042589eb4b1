"""Weights from safetensors and torch files; what is no such file is refused in one line."""

from __future__ import annotations

import sys
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from safetensors.torch import save_file

from hgpart.errors import CheckpointError, MissingPackageError
from hgpart.placement.state.weight_files import opened_weights

SUFFIXES = [".pt", ".safetensors"]


def state():
    return {
        "head.weight": torch.arange(12.0).reshape(3, 4),
        "head.bias": torch.tensor([0.5, -1, 2], dtype=torch.bfloat16),
        "norm.num_batches_tracked": torch.tensor(7),
    }


def save(tensors, path):
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["path", "text"])
def test_has_the_tensors_that_were_saved(tmp_path, suffix, kind):
    path = save(state(), tmp_path / f"weights{suffix}")
    with opened_weights(path if kind == "path" else str(path)) as found:
        assert sorted(found) == sorted(state())
        assert len(found) == 3
        assert "head.bias" in found
        assert "head" not in found
        for name, tensor in state().items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kept", [0.0, 0.05, 0.5, 0.99])
def test_a_truncated_file(tmp_path, suffix, kept):
    path = save(state(), tmp_path / f"weights{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_foreign_file(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    path.write_text("epoch,loss\n" * 40)
    refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_file_and_a_folder(tmp_path, suffix):
    refused(tmp_path / f"weights{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    refused(tmp_path / f"folder{suffix}")


class Foreign:
    """Not one of the types that torch loads unasked."""


@pytest.mark.parametrize(
    "saved", [[torch.zeros(2)], torch.zeros(2), {"epoch": 3}, {"model": {}}, Foreign()]
)
def test_a_torch_file_of_something_else(tmp_path, saved):
    path = tmp_path / "weights.pt"
    torch.save(saved, path)
    refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_no_regular_file_has_no_end(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    path.symlink_to("/dev/zero")
    refused(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["n" * 300, "a\0b"])
def test_what_no_file_can_be_called(tmp_path, suffix, name):
    refused(tmp_path / f"{name}{suffix}")


class Called:
    """What torch.load calls unasked, with any number: a few hundred bytes that take gigabytes."""

    def __init__(self, function):
        self.function = function

    def __reduce__(self):
        return self.function, (2**28,)


@pytest.mark.parametrize("function", [bytearray, torch.Tensor, torch.ByteTensor])
def test_a_file_takes_no_more_memory_than_it_has_bytes(tmp_path, function):
    path = tmp_path / "weights.pt"
    torch.save({"weight": Called(function)}, path)
    assert "which no tensor needs" in refused(path)


def test_a_compressed_file_may_be_any_size(tmp_path):
    path = save(state(), tmp_path / "weights.pt")
    with ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    with ZipFile(path, "w", ZIP_DEFLATED) as file:
        for name, data in content.items():
            file.writestr(name, data)
    assert "is compressed" in refused(path)


def test_a_record_is_no_larger_than_its_file(tmp_path):
    """zipfile makes room for what the file's directory says, before it reads."""
    path = save(state(), tmp_path / "weights.pt")
    content = path.read_bytes()
    entry = content.index(b"PK\x01\x02")  # the directory's first: data.pkl
    sizes = (2**31 - 1).to_bytes(4, "little") * 2
    path.write_bytes(content[: entry + 20] + sizes + content[entry + 28 :])
    assert "data.pkl is larger than the file" in refused(path)


def test_every_type_of_tensor_and_parameter_is_read(tmp_path):
    types = (torch.float8_e4m3fn, torch.float16, torch.complex64, torch.bool, torch.uint16)
    tensors = {str(dtype): torch.zeros(3, dtype=dtype) for dtype in types}
    tensors["shared"] = tensors["torch.bool"]
    tensors["parameter"] = torch.nn.Parameter(torch.zeros(1, 2, 3, 3).mT)
    with opened_weights(save(tensors, tmp_path / "weights.pt")) as found:
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.module."])
def test_a_prefix_of_all_names_is_left_out(tmp_path, suffix, prefix):
    """DataParallel, Lightning and torch.compile put one there: no name was the model's."""
    path = save({prefix + name: one for name, one in state().items()}, tmp_path / f"w{suffix}")
    with opened_weights(path, [*state()]) as found:
        assert [*sorted(found)] == [*sorted(state())]
        assert len(found) == 3
        assert "head.bias" in found
        assert all(torch.equal(found[name], tensor) for name, tensor in state().items())
    with opened_weights(path) as found:
        assert f"{prefix}head.bias" in found


def test_names_that_are_the_models_or_no_ones_stay_as_they_are(tmp_path):
    own = {"module.weight": torch.zeros(2), "weight": torch.ones(2)}
    for names in (own, ["module.weight", "module.bias"]):
        with opened_weights(save(own, tmp_path / "weights.pt"), [*names]) as found:
            assert [*found] == [*own]


def test_what_stands_beside_names_with_a_prefix_is_refused(tmp_path):
    saved = {f"model.{name}": tensor for name, tensor in state().items()}
    path = save({**saved, "loss.weight": torch.ones(2)}, tmp_path / "weights.pt")
    said = refused(path, [*state()])
    assert "the model's names have 'model.' in front, loss.weight does not (1 names)" in said


@pytest.mark.parametrize("key", ["state_dict", "model", "net"])
def test_the_one_state_in_a_dict_is_taken(tmp_path, key):
    """As trainings write it, with counts and the optimizer beside it."""
    optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]}
    wrapped = {"epoch": 3, key: state(), "optimizer": optimizer, "scheduler": {}}
    with opened_weights(save(wrapped, tmp_path / "weights.pt")) as found:
        assert all(torch.equal(found[name], tensor) for name, tensor in state().items())


def test_of_several_states_the_one_with_the_models_names_is_taken(tmp_path):
    several = {"generator": {"module.weight": torch.ones(2)}, "critic": {"bias": torch.zeros(2)}}
    path = save(several, tmp_path / "weights.pt")
    with opened_weights(path, ["weight"]) as found:
        assert torch.equal(found["weight"], torch.ones(2))
    alike = save({"model": state(), "ema": state()}, tmp_path / "alike.pt")
    assert "each of 'model', 'ema' is a state_dict: accepted is" in refused(alike, [*state()])


def test_torchs_old_format_is_named(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(state(), path, _use_new_zipfile_serialization=False)
    assert "it is in torch's old format, which torch.save(torch.load(FILE), " in refused(path)


def test_without_safetensors(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with (
        pytest.raises(MissingPackageError, match=r"needs safetensors, not installed"),
        opened_weights(tmp_path / "weights.safetensors"),
    ):
        raise AssertionError("it was opened")


def refused(path, names=()):
    with pytest.raises(CheckpointError) as caught, opened_weights(path, names):
        raise AssertionError("it was opened")
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)
