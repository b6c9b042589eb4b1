"""Data sets: their order, their split, and what they refuse."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hgpart.errors import ArgumentError, FormatError, MissingPackageError
from hgpart.run.training.data import load_data
from hgpart.run.training.sources.image_folder import ImageFiles
from hgpart.run.training.sources.samples import divided

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def fill(folder, count, size=(10, 8)):
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for at in range(count):
            Image.new("RGB", size, colour).save(folder / name / f"{at}.png")
    return folder


# ------------------------------------------------------------------ order


@pytest.mark.full
@given(seed=st.integers(0, 2**40), batch_size=st.integers(1, 400))
def test_an_epoch_has_every_sample_at_most_once(seed, batch_size):
    data = load_data("digits", (1, 8, 8), 10, seed)
    batches = len(data.train) // batch_size
    epochs = [
        [
            at
            for step in range(e * batches, (e + 1) * batches)
            for at in data.training_indices(step, batch_size)
        ]
        for e in range(2)
    ]
    for epoch in epochs:
        assert len(epoch) == len(set(epoch)) == batches * batch_size
        assert set(epoch) <= set(range(len(data.train)))
    assert epochs[0] != epochs[1]


def test_the_order_depends_on_the_seed_alone():
    first, again, other = (load_data("synthetic", (1, 4, 4), 10, seed) for seed in (1, 1, 2))
    torch.manual_seed(5)
    order = [first.training_indices(step, 16) for step in (0, 1, 5000)]
    torch.manual_seed(6)
    assert order == [again.training_indices(step, 16) for step in (0, 1, 5000)]
    assert order != [other.training_indices(step, 16) for step in (0, 1, 5000)]


def test_torchs_own_generator_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for spec in ("synthetic", "digits"):
        data = load_data(spec, (1, 8, 8), 10, seed=0)
        data.train.images(data.training_indices(7, 4))
        data.train.labels(data.training_indices(7, 4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch_size", [0, 1443])
def test_a_batch_that_samples_do_not_fill_is_refused(batch_size):
    data = load_data("digits", (1, 8, 8), 10, seed=0)
    with pytest.raises(ArgumentError, match=f"batch size {batch_size}: accepted is 1 to 1442"):
        data.training_indices(0, batch_size)


# ------------------------------------------------------------------ synthetic


def test_synthetic_samples_are_the_same_in_every_batch():
    data = load_data("synthetic", (3, 6, 5), 7, seed=4)
    images, labels = data.train.images([10, 20, 30]), data.train.labels([10, 20, 30])
    assert images.shape == (3, 3, 6, 5)
    assert torch.equal(data.train.images([30, 10]), images[[2, 0]])
    assert torch.equal(data.train.labels([30, 10]), labels[[2, 0]])
    many = data.train.labels(range(300))
    assert many.dtype == torch.int64
    assert set(many.tolist()) == set(range(7))
    assert data.validation is None


# ------------------------------------------------------------------ digits


def test_digits_are_divided_by_class_and_normalised():
    data = load_data("digits", (3, 32, 20), 10, seed=0)
    assert (len(data.train), len(data.validation), data.classes) == (1442, 355, 10)
    images = data.train.images(range(len(data.train)))
    assert images.shape == (1442, 3, 32, 20)
    assert torch.equal(images[:, 0], images[:, 2])
    plain = load_data("digits", (1, 8, 8), 10, seed=0)
    pixels = plain.train.images(range(1442))
    assert abs(pixels.mean()) < 1e-5
    assert abs(pixels.std() - 1) < 1e-5
    validated, trained = (
        Counter(samples.labels(range(len(samples))).tolist())
        for samples in (data.validation, data.train)
    )
    for digit in range(10):
        assert validated[digit] == (validated[digit] + trained[digit]) // 5


def test_digits_need_ten_classes():
    with pytest.raises(ArgumentError, match="digits has 10 classes, the model's output has 9"):
        load_data("digits", (1, 8, 8), 9, seed=0)


@pytest.mark.parametrize(
    ("spec", "package", "name"),
    [("digits", "sklearn", "scikit-learn"), ("imagefolder:x", "PIL", "Pillow")],
)
def test_a_missing_package_is_named_with_its_command(spec, package, name, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"{name}.*pip install .*'\.\[train\]'"):
        load_data(spec, (1, 8, 8), 10, seed=0)


# ------------------------------------------------------------------ folders of images


def test_a_folder_of_images_is_read_by_class(tmp_path):
    data = load_data(f"imagefolder:{fill(tmp_path, 6)}", (3, 4, 4), 10, seed=0)
    assert (len(data.train), len(data.validation), data.classes) == (15, 3, 3)
    images, labels = data.train.images(range(15)), data.train.labels(range(15))
    assert labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    for image, label in zip(images, labels, strict=True):
        colour = torch.tensor([*COLOURS.values()][label]) / 127.5 - 1
        assert torch.allclose(image, colour.view(3, 1, 1).expand(3, 4, 4), atol=1e-6)


def test_an_image_is_scaled_to_cover_and_cut_in_the_middle(tmp_path):
    wide = Image.new("L", (40, 10), 0)
    wide.paste(255, (15, 0, 25, 10))  # the middle square
    wide.save(tmp_path / "wide.png")
    image = ImageFiles(((tmp_path / "wide.png", 0),), 1, 5, 5).images([0])
    assert image.shape == (1, 1, 5, 5)
    assert torch.all(image[..., 1:-1] == 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("16.png", "<u2"), ("16.tiff", "<u2"), ("big.tiff", ">u2"), ("16.pgm", ">u2")],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_of_16_bits_is_the_same_as_in_8(name, kind, channels, tmp_path):
    """Pillow cuts pixels of 16 bits off at 255: nearly all of an image was white."""
    grey = np.arange(0, 256, 4, "uint8").reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "8.png")
    halves = (grey.astype("uint16") * 257).astype(kind)  # 255 -> 65535
    if name == "16.pgm":
        (tmp_path / name).write_bytes(b"P5 8 8 65535\n" + halves.tobytes())
    else:
        Image.fromarray(halves).save(tmp_path / name)
    eight, sixteen = (
        ImageFiles(((tmp_path / file, 0),), channels, 6, 6).images([0]) for file in ("8.png", name)
    )
    assert torch.equal(sixteen, eight)
    assert len(eight.unique()) > 20


@pytest.mark.parametrize(("kind", "mode"), [("int32", "I"), ("float32", "F")])
def test_pixels_whose_range_nothing_says_are_refused_by_mode(kind, mode, tmp_path):
    Image.fromarray(np.ones((4, 4), kind)).save(tmp_path / "x.tiff")
    with pytest.raises(FormatError, match=rf"\(mode {mode}\).* accepted is .* of 8 or 16 bits"):
        ImageFiles(((tmp_path / "x.tiff", 0),), 1, 4, 4).images([0])


@pytest.mark.parametrize("names", [("Train", "val"), ("training", "validation"), ("test", "val")])
def test_folders_that_divide_the_samples_are_not_taken_for_classes(names, tmp_path):
    for name in names:
        fill(tmp_path / name, 1)
    with pytest.raises(ArgumentError, match=f"has {names[0]}, {names[1]}, which do not count"):
        load_data(f"imagefolder:{tmp_path}", (3, 4, 4), 3, seed=0)


def test_a_class_of_trains_is_one(tmp_path):
    for name in ("bus", "train"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    assert load_data(f"imagefolder:{tmp_path}", (3, 4, 4), 3, seed=0).classes == 2


def test_a_folder_may_have_its_own_test_set_and_deeper_folders(tmp_path):
    fill(tmp_path / "train", 5)
    fill(tmp_path / "val", 2)
    (tmp_path / "train" / "red" / "more").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "train" / "red" / "more" / "x.JPG", "jpeg")
    (tmp_path / "train" / "red" / "notes.txt").write_text("no image")
    data = load_data(f"imagefolder:{tmp_path}", (1, 4, 4), 3, seed=0)
    assert (len(data.train), len(data.validation)) == (16, 6)


def cut_off(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_an_image_is_as_large_as_it_says_only_within_limits(tmp_path):
    """A file of 27 bytes took a gigabyte: pixels that it said it had, and the same converted."""
    path = tmp_path / "large.ppm"
    path.write_bytes(b"P6 9000 9000 255\n")
    with pytest.raises(FormatError, match="9000 x 9000 pixels, more than 67108864"):
        ImageFiles(((path, 0),), 3, 4, 4).images([0])


def no_image(path):
    path.write_text("hello")


@pytest.mark.parametrize("damage", [cut_off, no_image])
def test_a_damaged_image_is_named(damage, tmp_path):
    data = load_data(f"imagefolder:{fill(tmp_path, 6, (60, 60))}", (3, 4, 4), 3, seed=0)
    damage(tmp_path / "green" / "2.png")
    with pytest.raises(FormatError, match=r"can't read .*green/2\.png"):
        data.train.images(range(15))


def test_folders_that_are_no_data_are_refused(tmp_path):
    def refused(folder, message, classes=3, shape=(3, 4, 4)):
        with pytest.raises(ArgumentError, match=message):
            load_data(f"imagefolder:{folder}", shape, classes, seed=0)

    images = fill(tmp_path / "images", 1)
    refused(tmp_path / "none", "there is no such folder")
    refused(images, "has 3 classes, the model's output has 2", classes=2)
    refused(images, "has 2 channels", shape=(2, 4, 4))
    refused(images, "accepted is channels, height, width", shape=(48,))
    refused(images / "red", "has no folders")
    (images / "white").mkdir()
    refused(images, "there are no images in .*white")
    fill(tmp_path / "split" / "train", 1)
    (tmp_path / "split" / "test" / "red").mkdir(parents=True)
    refused(tmp_path / "split", "folders of the same names")


@pytest.mark.parametrize("spec", ["mnist", "imagefolder:", "imagefolder", ""])
def test_unknown_data_is_refused(spec):
    with pytest.raises(ArgumentError, match="accepted are synthetic, digits, shapes, imagefolder:"):
        load_data(spec, (1, 8, 8), 10, seed=0)


# ------------------------------------------------------------------ folds


def test_folds_divide_the_samples_class_by_class():
    labels = [7] * 11 + [3, 9] * 8
    validated = [divided(labels, fold=(number, 3))[1] for number in range(3)]
    assert sorted(chain(*validated)) == [*range(len(labels))]
    for number in range(3):
        train, validation = divided(labels, fold=(number, 3))
        assert sorted(train + validation) == [*range(len(labels))]
        for label, count in Counter(labels).items():
            of_fold = [labels[at] for at in validation].count(label)
            assert of_fold in (count // 3, count // 3 + 1)


def test_a_fold_leaves_the_data_sets_own_samples_to_test_on(tmp_path):
    fill(tmp_path / "train", 4)
    fill(tmp_path / "val", 2)
    spec = f"imagefolder:{tmp_path},augment=yes,fold=1/2"
    data = load_data(spec, (3, 4, 4), 3, seed=0)
    assert [len(samples) for samples in (data.train, data.validation, data.test)] == [6, 6, 6]
    validated = data.validation
    assert torch.equal(validated.images([0], 0), validated.images([0], 1))  # nothing is random
    assert validated.labels(range(6)).tolist() == [0, 0, 1, 1, 2, 2]
    digits = load_data("digits,fold=0/3", (1, 8, 8), 10, seed=0)
    assert digits.test is None
    assert len(digits.train) + len(digits.validation) == 1797


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digits,fold=3/3", "accepted is fold=NUMBER/FOLDS"),
        ("digits,fold=0", "accepted is fold=NUMBER/FOLDS"),
        ("digits,fold=0/1", "2 folds or more"),
        ("digits,augment=yes", "accepted with augment= are imagefolder and tiny-imagenet"),
        ("synthetic,fold=0/2", "accepted with fold= are data with labels to learn"),
        ("digits,fold=999/1000", "0 samples to validate on and 1797 to train on"),
    ],
)
def test_folds_that_are_none_are_refused(spec, message):
    with pytest.raises(ArgumentError, match=message):
        load_data(spec, (1, 8, 8), 10, seed=0)
