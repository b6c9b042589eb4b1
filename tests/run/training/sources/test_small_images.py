"""MNIST, CIFAR-10 and Tiny ImageNet: what files as published become, and what damage is named."""

from __future__ import annotations

import gzip
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from hgpart.errors import ArgumentError, FormatError
from hgpart.run.training.data import load_data
from hgpart.run.training.sources.small_images import CIFAR10, MNIST

PIXELS = np.random.default_rng(0)


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """Seven images for training, four for testing, of which the labels are compressed."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images = {}
    for (subset, (pixels, labels)), count in zip(MNIST.items(), (7, 4), strict=True):
        images[subset] = PIXELS.integers(256, size=(count, 28, 28), dtype="uint8")
        (folder / pixels).write_bytes(idx(images[subset]))
        numbers = np.arange(count, dtype="uint8")
        (folder / f"{labels}.gz").write_bytes(gzip.compress(idx(numbers)))
    return tmp_path, images


def test_mnist_is_read_as_torchvision_leaves_it(mnist):
    folder, images = mnist
    data = load_data(f"mnist:{folder}", (3, 28, 28), 10, seed=0)
    assert (len(data.train), len(data.validation), data.classes) == (7, 4, 10)
    read = data.train.images(range(7))
    assert read.shape == (7, 3, 28, 28)
    restored = read * images["train"].std() + images["train"].mean()
    assert torch.allclose(restored[:, 1], torch.from_numpy(images["train"]).float(), atol=1e-3)
    assert data.validation.labels([3, 0]).tolist() == [3, 0]
    assert load_data(f"mnist:{folder}", (1, 32, 32), 10, 0).train.images([2]).shape[2:] == (32, 32)


@pytest.mark.parametrize("content", [b"hello", idx(np.zeros((7, 28, 27), "uint8"))[:-1], b""])
def test_a_damaged_file_of_mnist_is_named(content, mnist):
    folder, _ = mnist
    (folder / "MNIST" / "raw" / MNIST["train"][0]).write_bytes(content)
    with pytest.raises(FormatError, match=r"can't read .*train-images-idx3-ubyte"):
        load_data(f"mnist:{folder}", (1, 28, 28), 10, seed=0)


def write_cifar10(folder, binary):
    for subset, names in CIFAR10.items():
        for name in names:
            labels = np.arange(4 if subset == "train" else 2)
            pixels = PIXELS.integers(256, size=(len(labels), 3072), dtype="uint8")
            if binary:
                rows = np.concatenate([labels[:, None].astype("uint8"), pixels], 1)
                (folder / f"{name}.bin").write_bytes(rows.tobytes())
            else:
                batch = {b"data": pixels, b"labels": labels.tolist()}
                (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return pixels


@pytest.mark.parametrize("binary", [True, False])
def test_cifar10_is_read_from_either_kind_of_files(binary, tmp_path):
    inside = tmp_path / f"cifar-10-batches-{'bin' if binary else 'py'}"
    inside.mkdir()
    pixels = write_cifar10(inside, binary)
    data = load_data(f"cifar10:{tmp_path}", (3, 32, 32), 10, seed=0)
    assert (len(data.train), len(data.validation)) == (20, 2)
    assert data.train.labels(range(5)).tolist() == [0, 1, 2, 3, 0]
    tested = data.validation
    restored = tested.images([1])[0] * tested.deviation + tested.mean
    expected = torch.from_numpy(pixels[1].reshape(3, 32, 32)).float()
    assert torch.allclose(restored, expected, atol=1e-3)
    with pytest.raises(ArgumentError, match="has 1 channels, accepted is 3"):
        load_data(f"cifar10:{tmp_path}", (1, 32, 32), 10, seed=0)


class Command:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_a_pickled_batch_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path, binary=False)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Command()}))
    with pytest.raises(FormatError, match=r"can't read .*test_batch: it names posix.system"):
        load_data(f"cifar10:{tmp_path}", (3, 32, 32), 10, seed=0)
    assert not (tmp_path / "ran").exists()


def test_files_that_are_missing_are_named(tmp_path):
    for kind, missing in (
        ("mnist", "train-images-idx3-ubyte or train-images-idx3-ubyte.gz"),
        ("cifar10", "data_batch_1 or data_batch_1.bin"),
        ("tiny-imagenet", ".*train; accepted"),
    ):
        with pytest.raises(ArgumentError, match=f"there is no {missing}"):
            load_data(f"{kind}:{tmp_path}", (3, 32, 32), 200, seed=0)


def test_tiny_imagenet_has_the_labels_of_its_list(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    for at, name in enumerate(("n02", "n01")):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        Image.new("RGB", (8, 8), (255 * at, 0, 0)).save(images / "0.JPEG")
    images = folder / "val" / "images"
    images.mkdir(parents=True)
    Image.new("RGB", (8, 8), (0, 0, 255)).save(images / "val_0.JPEG")
    listed = folder / "val" / "val_annotations.txt"
    listed.write_text("val_0.JPEG\tn02\t0\t0\t7\t7\n")
    data = load_data(f"tiny-imagenet:{tmp_path}", (3, 8, 8), 200, seed=0)
    assert (len(data.train), len(data.validation), data.classes) == (2, 1, 2)
    assert data.train.images([0])[0, 0].mean() > 0.9  # n01 is red
    assert data.validation.labels([0]).tolist() == [1]
    listed.write_text("val_1.JPEG\tn02\n")
    with pytest.raises(FormatError, match=r"val_annotations\.txt, line 1"):
        load_data(f"tiny-imagenet:{tmp_path}", (3, 8, 8), 200, seed=0)
