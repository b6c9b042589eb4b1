"""Random pieces of images: torchvision's own pixels, whichever process reads them, and when."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from hgpart.errors import ArgumentError, MissingPackageError
from hgpart.run.training.batches import training_batches
from hgpart.run.training.data import load_data
from hgpart.run.training.sources.augmentation import middle, normalised, random_piece
from hgpart.run.training.sources.samples import generator_of
from hgpart.zoo import packages


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of noise, three images each for training and two for validation."""
    folder = tmp_path_factory.mktemp("photos, all")
    pixels = np.random.default_rng(0)
    for at in range(10):
        path = folder / ("train" if at < 6 else "val") / "ab"[at % 2] / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.integers(256, size=(40, 30 + at, 3), dtype="uint8")).save(path)
    return folder


def opened(photos, seed=3, channels=3, augment="yes"):
    return load_data(f"imagefolder:{photos},augment={augment}", (channels, 16, 24), 2, seed)


@pytest.fixture(scope="module")
def torchvision():
    """Its transforms, as hgpart imports it: beside a torch that its operators are not for, too."""
    try:
        return packages._import("torchvision", "torchvision.transforms")
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [(40, 30), (7, 90), (300, 11), (1, 1)])
def test_a_piece_is_the_one_that_torchvision_takes(size, torchvision):
    theirs = torchvision.Compose(
        [torchvision.RandomResizedCrop((16, 24)), torchvision.RandomHorizontalFlip()]
    )
    noise = np.random.default_rng(1).integers(256, size=(*size[::-1], 3), dtype="uint8")
    image = Image.fromarray(noise)
    for seed in range(20):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            expected = theirs(image)
        ours = random_piece(image, 24, 16, torch.Generator().manual_seed(seed))
        assert ours.tobytes() == expected.tobytes()


def test_an_image_depends_on_seed_epoch_and_number_alone(photos):
    samples, again = opened(photos).train, opened(photos).train
    torch.manual_seed(1)
    first, second = samples.images(range(6), 0), samples.images(range(6), 1)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    for at in (4, 0, 3):  # another order, as another process reads them
        assert torch.equal(again.images([at], 1)[0], second[at])
        assert torch.equal(again.images([at], 0)[0], first[at])
        assert not torch.equal(first[at], second[at])
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(opened(photos, seed=4).train.images([0]), first[:1])


def test_a_batch_is_read_as_of_its_epoch(photos):
    data = opened(photos)
    batches = training_batches(data, 2)
    assert data.steps_per_epoch(2) == 3
    for step in (0, 2, 3, 8):
        indices = data.training_indices(step, 2)
        expected = data.train.images([indices[1]], epoch=step // 3)
        assert torch.equal(batches.images(step, [1]), expected)


def test_validation_takes_the_middle_and_nothing_random(photos):
    data = opened(photos)
    assert torch.equal(data.validation.images([1], 0), data.validation.images([1], 7))
    with Image.open(data.validation.files[1][0]) as file:
        image = middle(file, 24, 16)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    assert torch.allclose(data.validation.images([1])[0], normalised(pixels))


def test_the_middle_is_about_what_torchvision_takes(torchvision):
    functional = torchvision.functional
    grey = np.add.outer(np.arange(120), np.arange(160)).astype("uint8")
    image = Image.fromarray(grey.clip(0, 255))
    theirs = functional.center_crop(functional.resize(image, 64), 56)
    ours = middle(image, 56, 56)
    assert np.abs(np.array(ours).astype(int) - np.array(theirs)).max() <= 2


def test_pixels_are_normalised_as_imagenets(torchvision):
    theirs = torchvision.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    pixels = torch.rand(3, 4, 5, generator=generator_of(0, "pixels"))
    assert torch.allclose(normalised(pixels), theirs(pixels))


def test_grey_images_and_plain_ones(photos):
    assert opened(photos, channels=1).train.images([0, 5]).shape == (2, 1, 16, 24)
    plain = opened(photos, augment="no")
    assert torch.equal(plain.train.images([0], 0), plain.train.images([0], 1))
    assert plain.train.images([0]).min() >= -1


def test_another_word_than_yes_or_no_is_refused(photos):
    with pytest.raises(ArgumentError, match="accepted are augment=yes and augment=no"):
        opened(photos, augment="maybe")
