"""The model zoo against published counts, torchvision, timm, and user code of every kind."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from builtin_graphs import each_model
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hgpart.errors import ArgumentError, MissingPackageError, ModelError
from hgpart.zoo import BUILTIN, builtin_models, load_model, packages
from hgpart.zoo.architectures.efficientnet import StochasticDepth
from hgpart.zoo.architectures.initialise import initialise

# From torchvision's and timm's documentation, at 1000 classes; googlenet and inception_v3 less
# their auxiliary classifiers (inception_v3 with it: 27,161,264). LeNet-5 and U-Net by hand below.
PUBLISHED_PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vgg11_bn": 132_868_840,
    "vgg13_bn": 133_053_736,
    "vgg16_bn": 138_365_992,
    "vgg19_bn": 143_678_248,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "squeezenet1_1": 1_235_496,
    "googlenet": 6_624_904,
    "inception_v3": 27_161_264 - 3_326_696,
    "inception_resnet_v2": 55_843_464,
    "densenet121": 7_978_856,
    "mobilenet_v2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "shufflenet_v2_x1_0": 2_278_604,
}

# Image, classes, and pixels a side behind each convolution with its pooling.
ALEXNETS_OF_LEON = {
    "alexnet_tiny_imagenet": ((3, 56, 56), 200, [5, 2, 2, 2, 2]),
    "alexnet_dogs_vs_cats": ((3, 128, 128), 2, [14, 6, 6, 6, 6]),
}
# Those whose parameters are counted by the tables of their papers, below.
BY_TABLES = ("lenet5", "unet", "crnn", "alexnet_2012", "resnet1001", "densenet1000")

SMALL = ("resnet18", "squeezenet1_1", "googlenet", "densenet121")
SMALL += ("mobilenet_v2", "efficientnet_b0", "shufflenet_v2_x1_0")


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def layout(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def peer(name: str) -> nn.Module:
    """The same architecture as another package builds it, on the meta device."""
    try:
        if name == "inception_resnet_v2":
            return load_model(f"timm:{name}", device="meta")[0]
        if name in ("googlenet", "inception_v3"):  # by default they have auxiliary classifiers
            models = packages._import("torchvision", "torchvision.models")
            with torch.device("meta"):
                return getattr(models, name)(weights=None, aux_logits=False, init_weights=False)
        return load_model(f"torchvision:{name}", device="meta")[0]
    except MissingPackageError as error:  # an optional package; `.[test]` brings timm
        pytest.skip(str(error))


# --- built-in models -----------------------------------------------------------------------------


def test_all_models_are_there_in_order() -> None:
    names = builtin_models()
    assert set(names) == {*PUBLISHED_PARAMETERS, *BY_TABLES, *ALEXNETS_OF_LEON}
    assert names[:3] == ("lenet5", "alexnet", "alexnet_2012")
    assert all(name == spec.name for name, spec in BUILTIN.items())


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert parameters(load_model(name, device="meta")[0]) == PUBLISHED_PARAMETERS[name]


def test_lenet5_has_the_classic_parameter_count() -> None:
    convolutions = 6 * (25 + 1) + 16 * (6 * 25 + 1) + 120 * (16 * 25 + 1)
    linear = 84 * (120 + 1) + 10 * (84 + 1)
    assert convolutions + linear == 61_706
    assert parameters(load_model("lenet5", device="meta")[0]) == 61_706


def test_unet_has_the_parameters_of_the_paper_with_batch_norm() -> None:
    def double(inputs: int, outputs: int) -> int:  # convolutions without bias, two batch norms
        return 9 * inputs * outputs + 9 * outputs**2 + 4 * outputs

    widths = (64, 128, 256, 512, 1024)
    expected = double(3, 64) + 2 * (64 + 1)
    for upper, lower in pairwise(widths):
        expected += double(upper, lower) + (4 * lower * upper + upper) + double(2 * upper, upper)
    assert parameters(load_model("unet", device="meta")[0]) == expected == 31_037_698


def test_alexnet_of_2012_has_the_parameters_of_its_table() -> None:
    widths = [(3, 96, 121), (96, 256, 25), (256, 384, 9), (384, 384, 9), (384, 256, 9)]
    convolutions = sum((before * size + 1) * own for before, own, size in widths)
    linear = (9216 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    assert parameters(load_model("alexnet_2012", device="meta")[0]) == convolutions + linear
    assert convolutions + linear == 62_378_344


@pytest.mark.parametrize("name", ALEXNETS_OF_LEON)
def test_alexnet_of_leon_keeps_the_pixels_of_his_programs(name: str) -> None:
    shape, classes, sides = ALEXNETS_OF_LEON[name]
    model, input_shape = load_model(name, device="meta")
    assert input_shape == shape
    result, found = torch.empty(2, *shape, device="meta"), []
    for layer in model.eval().get_submodule("features"):
        result = layer(result)
        if isinstance(layer, nn.BatchNorm2d):
            found.append(result.shape[-1])
    assert found == sides
    assert model(torch.empty(2, *shape, device="meta")).shape == (2, classes)
    widths = [(3, 96, 121), (96, 256, 25), (256, 384, 9), (384, 384, 9), (384, 256, 9)]
    widths += [(256 * sides[-1] ** 2, 4096, 1), (4096, 4096, 1), (4096, 1000, 1)]
    layers = sum((before * size + 1) * own + 2 * own for before, own, size in widths)  # and norms
    assert parameters(model) == layers + 1001 * classes


def test_crnn_has_the_parameters_of_its_tables() -> None:
    widths = [(1, 64, 9), (64, 128, 9), (128, 256, 9), (256, 256, 9), (256, 512, 9), (512, 512, 9)]
    convolutions = sum(size * before * own + own for before, own, size in (*widths, (512, 512, 4)))
    norms, units = 2 * 2 * 512, 256
    recurrent = 2 * 2 * 4 * units * (2 * units + units + 2)
    expected = convolutions + norms + recurrent + (2 * units + 1) * 37
    assert parameters(load_model("crnn", device="meta")[0]) == expected == 8_723_749


def test_resnet1001_has_the_parameters_of_its_paper() -> None:
    """10.2 million, and 10,327,706 as pytorchcv's preresnet1001_cifar10."""
    expected, inputs = 9 * 3 * 16, 16
    for width in (16, 32, 64):
        expected += inputs * 4 * width  # the shortcut
        for _ in range(111):
            expected += 2 * inputs + inputs * width + 2 * width + 9 * width**2
            expected += 2 * width + 4 * width**2
            inputs = 4 * width
    expected += 2 * inputs + 10 * (inputs + 1)
    assert parameters(load_model("resnet1001", device="meta")[0]) == expected == 10_327_706


def test_densenet1000_has_the_parameters_of_its_scheme() -> None:
    """As pytorchcv's DenseNet-BC of 1,000 layers and growth 12."""
    growth, channels = 12, 24
    expected = 9 * 3 * channels
    for block in range(3):
        if block:
            expected += 2 * channels + channels * (channels // 2)
            channels //= 2
        for _ in range(166):
            expected += 2 * channels + 4 * growth * (channels + 2 + 9 * growth)
            channels += growth
    expected += 2 * channels + 10 * (channels + 1)
    assert parameters(load_model("densenet1000", device="meta")[0]) == expected == 54_880_762


def test_inception_resnet_v2_has_blocks_as_asked() -> None:
    model, shape = load_model("inception_resnet_v2-4-8-4", device="meta")
    assert shape == (3, 299, 299)
    assert [len(model.get_submodule(f"repeat{end}")) for end in ("", "_1", "_2")] == [4, 8, 4]
    assert model.get_submodule("classif").out_features == 100
    whole = layout(load_model("inception_resnet_v2", device="meta")[0])
    own = layout(model)
    assert own.keys() < whole.keys()
    assert {name for name in own if own[name] != whole[name]} == {"classif.weight", "classif.bias"}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_state_dict_has_the_names_and_shapes_of_its_peer(name: str) -> None:
    ours, theirs = load_model(name, device="meta")[0], peer(name)
    assert layout(ours) == layout(theirs)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [*SMALL, "inception_v3", "inception_resnet_v2"])
def test_computes_what_its_peer_computes(name: str) -> None:
    ours = load_model(name)[0].eval()
    state = ours.state_dict()
    # Statistics and scales as after training: as built, batch norm is the identity in eval mode.
    generator = torch.Generator().manual_seed(1)
    for key, tensor in state.items():
        if key.endswith(("running_var", "bn.weight")):
            tensor.uniform_(0.5, 1.5, generator=generator)
        elif key.endswith(("running_mean", "bias")):
            tensor.normal_(0, 0.1, generator=generator)
    theirs = peer(name).to_empty(device="cpu").eval()
    theirs.load_state_dict(state)
    # Sizes that divide with a remainder show how padding and pooling round.
    height, width = (139, 172) if "inception_" in name else (60, 77)
    images = torch.randn(2, 3, height, width, generator=generator)
    with torch.no_grad():
        actual, expected = ours(images), theirs(images)
    assert expected.std() > 0
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.std().item())


@pytest.mark.parametrize("name", each_model(names=builtin_models()))
def test_trains_on_images_of_its_default_shape(name: str) -> None:
    model, shape = load_model(name, device="meta")
    assert model.training
    assert shape == BUILTIN[name].input_shape
    output = model(torch.empty(2, *shape, device="meta"))
    others = {"unet": (2, 256, 256), "crnn": (37, 24)}
    others |= {name: (classes,) for name, (_, classes, _) in ALEXNETS_OF_LEON.items()}
    # LeNet's digits and CIFAR-10 have 32 pixels a side.
    assert output.shape == (2, *others.get(name, (10,) if shape[-1] == 32 else (1000,)))
    output.sum().backward()  # fails if an in-place operator overwrites what backward needs
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- weights, seeds, devices ---------------------------------------------------------------------


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_norms_start_as_the_identity(norm: type[nn.Module]) -> None:
    layer = norm(3, device="meta").to_empty(device="cpu")
    for tensor in layer.state_dict().values():
        tensor.fill_(7)
    initialise(layer)
    values = {name: tensor.tolist() for name, tensor in layer.state_dict().items()}
    assert values.pop("num_batches_tracked") == 0
    zero, one = [0.0] * 3, [1.0] * 3
    assert values == {"weight": one, "bias": zero, "running_mean": zero, "running_var": one}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["lenet5", "shufflenet_v2_x1_0", "unet", "crnn"])
def test_same_seed_same_weights(name: str) -> None:
    first = load_model(name, seed=7)[0].state_dict()
    torch.rand(3)  # the caller's draws don't matter
    again = load_model(name, seed=7)[0].state_dict()
    other = load_model(name, seed=8)[0].state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [key for key in first if first[key].dim() > 1]
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("spec", ["lenet5", "timm:resnet18"])
def test_the_callers_random_state_is_left_alone(spec: str, device: str) -> None:
    before = torch.get_rng_state()
    load_model(spec, seed=3, device=device)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.full
def test_random_weights_keep_the_scale_of_signals() -> None:
    model, _ = load_model("vgg11")
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = model.get_submodule("features")(images)
    assert 0.1 < maps.std() < 10
    assert all(bias.ne(0).all() for name, bias in model.named_parameters() if "bias" in name)


def test_batch_norm_starts_as_the_identity() -> None:
    state = load_model("mobilenet_v2")[0].state_dict()
    assert all(v.eq(0).all() for k, v in state.items() if k.endswith("running_mean"))
    assert all(v.eq(1).all() for k, v in state.items() if k.endswith("running_var"))
    assert all(v == 0 for k, v in state.items() if k.endswith("num_batches_tracked"))


@pytest.mark.parametrize("spec", ["vgg16", "timm:resnet18", "pytorchcv:resnet10"])
def test_meta_allocates_nothing(spec: str) -> None:
    model, _ = load_model(spec, device="meta")
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@pytest.mark.parametrize("device", ["cuda:99", "nowhere", ""])
def test_a_device_that_does_not_exist_is_named(device: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^device '{device}' can't be used .*'meta'"):
        load_model("lenet5", device=device)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_named(seed: int) -> None:
    with pytest.raises(ArgumentError, match=f"^seed is {seed}; it must be"):
        load_model("lenet5", seed=seed)


# --- stochastic depth ----------------------------------------------------------------------------


@given(probability=st.sampled_from([0.1, 0.5, 0.9]), seed=st.integers(0, 99))
def test_stochastic_depth_drops_whole_samples(probability: float, seed: int) -> None:
    maps = torch.ones(16, 3, 2, 2)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        kept = StochasticDepth(probability)(maps)
    per_sample = kept.flatten(1)
    assert torch.equal(per_sample, per_sample[:, :1].expand_as(per_sample))
    survival = torch.tensor(1 - probability)
    assert all(value == 0 or torch.isclose(value, 1 / survival) for value in per_sample[:, 0])


def test_stochastic_depth_keeps_the_mean_and_is_off_in_evaluation() -> None:
    maps = torch.ones(20_000, 1, 1, 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        assert StochasticDepth(0.2)(maps).mean().item() == pytest.approx(1, abs=0.02)
    assert StochasticDepth(0.2).eval()(maps) is maps


def test_stochastic_depth_has_the_probabilities_of_its_peer() -> None:
    def probabilities(model: nn.Module, attribute: str) -> list[float]:
        layers = (m for m in model.modules() if type(m).__name__ == "StochasticDepth")
        return [getattr(layer, attribute) for layer in layers]

    ours = probabilities(load_model("efficientnet_b0", device="meta")[0], "probability")
    assert ours == pytest.approx(probabilities(peer("efficientnet_b0"), "p"))
    assert len(ours) == 16


# --- models of packages --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The default weight initialization:FutureWarning")
@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("timm:resnet18", (3, 224, 224)),
        ("timm:inception_resnet_v2.tf_in1k", (3, 299, 299)),
        ("pytorchcv:resnet18", (3, 224, 224)),
        ("pytorchcv:inceptionv3", (3, 299, 299)),
        ("torchvision:resnet18", (3, 224, 224)),
        ("torchvision:inception_v3", (3, 299, 299)),
        ("torchvision:fcn_resnet50", None),
    ],
)
def test_package_models_come_in_training_mode_with_their_input_shape(
    spec: str, shape: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(url: str, *_: object, **__: object) -> None:
        raise AssertionError(f"downloads {url}")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    try:
        model, found = load_model(spec, device="meta")
    except MissingPackageError as error:  # an optional package; `.[test]` brings timm
        pytest.skip(str(error))
    assert found == shape
    assert model.training


def test_a_package_model_is_the_one_that_was_asked_for() -> None:
    # timm and torchvision agree on the names and shapes of ResNet-18.
    ours = layout(load_model("resnet18", device="meta")[0])
    assert layout(load_model("timm:resnet18", device="meta")[0]) == ours
    count = parameters(load_model("pytorchcv:resnet18", device="meta")[0])
    assert count == PUBLISHED_PARAMETERS["resnet18"]


@pytest.mark.parametrize("package", ["timm", "torchvision", "pytorchcv"])
def test_a_missing_package_is_named_with_its_install_command(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingPackageError) as caught:
        load_model(f"{package}:resnet18")
    assert str(caught.value) == (
        f"{package}:NAME needs the package {package}, which is not installed; "
        f"install it with: pip install {package}"
    )


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ModuleNotFoundError("No module named 'x'", name="x"), "is installed, but .* 'x'"),
        (RuntimeError("undefined\nsymbol"), "can't be imported: undefined symbol"),
        (SystemExit(0), "can't be imported: 0"),
    ],
)
def test_a_broken_package_is_not_called_missing(
    failure: BaseException, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise failure

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModelError, match=f"^timm {words}$"):
        load_model("timm:resnet18")


@pytest.mark.parametrize(
    ("failure", "words"),
    [(ValueError("two\nlines"), "ValueError: two lines"), (SystemExit(0), "SystemExit: 0")],
)
def test_a_package_that_fails_to_build_is_quoted(
    failure: BaseException, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = packages._import("timm", "timm")

    def fail(name: str, pretrained: bool) -> None:
        raise failure

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(ModelError, match=f"^timm:resnet18 can't be built: {words}$"):
        load_model("timm:resnet18")


# --- models of the user --------------------------------------------------------------------------

FACTORIES = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Width:
    value: "int" = 4


def plain():
    return nn.Conv2d(1, Width().value, 3).eval()


def shaped():
    return plain(), [1, 8, 8]


def reads_values():
    width = int(torch.full((), 5.0).item())
    return nn.Linear(width, width)


def tied():
    width = int(torch.full((), 5.0).item())
    first, second = nn.Linear(width, width), nn.Linear(width, width)
    second.weight = first.weight
    return nn.Sequential(first, second, nn.BatchNorm1d(width))


def fails():
    width = 3
    return nn.Conv2d(width, "many",
                     3)


def leaves():
    raise SystemExit(3)


def nothing():
    pass


def bad_shape():
    return plain(), (1, 0, 8)


factory = 3
instance = nn.ReLU()
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.py"
    file.write_text(FACTORIES)
    return file


def test_a_factory_in_a_file(user_file: Path) -> None:
    model, shape = load_model(f"{user_file}:plain")
    assert isinstance(model, nn.Conv2d)
    assert model.out_channels == 4
    assert model.training
    assert shape is None
    assert load_model(f"{user_file}:shaped")[1] == (1, 8, 8)


def test_a_factory_in_a_module_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "users_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    search_path = list(sys.path)
    assert load_model("users_package.nets:shaped")[1] == (1, 8, 8)
    assert sys.path == search_path


def test_a_factory_may_be_a_class_of_an_installed_package() -> None:
    model, shape = load_model("torch.nn:Identity")
    assert isinstance(model, nn.Identity)
    assert shape is None


def test_files_of_one_name_are_kept_apart_and_import_their_neighbours(tmp_path: Path) -> None:
    for width in (2, 3):
        folder = tmp_path / str(width)
        folder.mkdir()
        (folder / f"width{width}.py").write_text(f"WIDTH = {width}")
        (folder / "model.py").write_text(
            f"from torch import nn\nfrom width{width} import WIDTH\n"
            "def net():\n    return nn.Conv2d(1, WIDTH, 1)\n"
        )
    models = [load_model(f"{tmp_path}/{width}/model.py:net")[0] for width in (2, 3)]
    assert [layout(model)["bias"] for model in models] == [(2,), (3,)]
    assert type(models[0]) is type(models[1])


def test_an_edited_file_is_read_again(user_file: Path) -> None:
    load_model(f"{user_file}:plain")
    user_file.write_text("from torch import nn\ndef plain():\n    return nn.Identity()\n")
    assert isinstance(load_model(f"{user_file}:plain")[0], nn.Identity)


def test_seeds_hold_for_factories(user_file: Path) -> None:
    def weight(seed: int) -> Tensor:
        return load_model(f"{user_file}:plain", seed=seed)[0].state_dict()["weight"]

    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))


@pytest.mark.parametrize("factory", ["plain", "reads_values", "tied"])
def test_factories_build_on_meta(user_file: Path, factory: str) -> None:
    model, _ = load_model(f"{user_file}:{factory}", device="meta")
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert layout(model) == layout(load_model(f"{user_file}:{factory}")[0])


def test_tied_weights_stay_tied_on_meta(user_file: Path) -> None:
    model, _ = load_model(f"{user_file}:tied", device="meta")
    assert model.get_parameter("0.weight") is model.get_parameter("1.weight")


# --- bad specs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("fails", "{file}:35: TypeError: "),
        ("leaves", "{file}:40: SystemExit: 3"),
        ("nothing", "{file}:nothing returned None; a factory returns an nn.Module, or (nn.Module,"),
        ("bad_shape", "{file}:bad_shape returned (Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1))"),
        ("shape", "unknown factory 'shape'; nearest: shaped, bad_shape; {file} has no such"),
        ("factory", "unknown factory 'factory'; "),
        (
            "instance",
            "{file}:instance is a module, ReLU: accepted is a function that makes it, as def ",
        ),
        ("", "'{file}:' names no factory; write path/file.py:factory or package.module:factory"),
    ],
)
def test_a_failing_factory_is_one_line_with_file_and_line(
    user_file: Path, factory: str, message: str, device: str
) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(f"{user_file}:{factory}", device=device)
    assert str(caught.value).startswith(message.format(file=user_file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "{file}:1: SyntaxError: invalid syntax"),
        ("\nimport no_such_package\n", "{file}:2: ModuleNotFoundError: No module named 'no_such_"),
        ("x = 1\ny = x / 0\n", "{file}:2: ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\n  lines')", "{file}:1: ValueError: two lines"),
        ("raise ValueError", "{file}:1: ValueError"),
    ],
)
@pytest.mark.parametrize("as_module", [False, True])
def test_a_file_that_fails_is_one_line_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str, as_module: bool
) -> None:
    file = tmp_path / "users_broken_module.py"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    before = set(sys.modules)
    with pytest.raises(ModelError) as caught:
        load_model("users_broken_module:net" if as_module else f"{file}:net")
    assert str(caught.value).startswith(message.format(file=file))
    assert "\n" not in str(caught.value)
    assert not {name for name in set(sys.modules) - before if "users_broken" in name}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vgg15", "unknown model 'vgg15'; nearest: vgg1"),
        ("resnet", "unknown model 'resnet'; nearest: resnet"),
        ("", "unknown model ''; 'hgpart models' lists all; also: timm:NAME, torchvision:NAME,"),
        ("timm", "unknown model 'timm'; "),
        ("timm:resnet19", "unknown timm model 'resnet19'; nearest: resnet1"),
        ("timm:", "unknown timm model ''; timm.list_models() has all"),
        ("torchvision:resnet19", "unknown torchvision model 'resnet19'; nearest: resnet1"),
        ("pytorchcv:resnet19", "unknown pytorchcv model 'resnet19'; nearest: resnet1"),
        ("pytorchcv:get_model", "unknown pytorchcv model 'get_model'; "),
        ("no/such/file.py:net", "there is no file 'no/such/file.py'; write path/file.py:factory"),
        ("no/such/file.py", "'no/such/file.py' names no factory; write path/file.py:factory"),
        ("/etc/passwd:net", "'/etc/passwd' is no Python file"),
        ("~nobody-of-this-name/net.py:net", "there is no file '~nobody-of-this-name/net.py'"),
        ("no.such.module:net", "no module named 'no.such.module' here or in the installed"),
        ("torch.no_such_module:net", "no module named 'torch.no_such_module'"),
        ("torch.nn:Conv3", "unknown factory 'Conv3'; nearest: Conv3d"),
        ("torch.nn:Conv2d", "torch.nn:Conv2d: TypeError: "),
        ("torch:float32", "unknown factory 'float32'; "),
        (":net", "':net' names no factory"),
    ],
)
def test_a_bad_spec_is_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(spec)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet=st.sampled_from(":./~\0 \n_-ü9ab"), max_size=12), st.booleans())
def test_any_other_text_is_a_model_error_of_one_line(text: str, in_file: bool) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(text + (".py:ab" if in_file else ""))
    assert "\n" not in str(caught.value)
