"""Model spec -> nn.Module: built-in CNNs, timm:NAME, hf:CONFIG, model.pt2, file.py:factory.

A spec may end with transformations: resnet50+split:2.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from hgpart.errors import ArgumentError, ModelError
from hgpart.specs.models import PACKAGES, PROGRAM, TRANSFORMED, is_user_code, taken_apart
from hgpart.specs.nearest import unknown_name
from hgpart.tracing.cache import folder
from hgpart.tracing.cache.origins import origin_of, set_origin
from hgpart.tracing.input_shape import InputShape
from hgpart.zoo.architectures.alexnet import alexnet, alexnet_2012, alexnet_of_leon
from hgpart.zoo.architectures.crnn import crnn
from hgpart.zoo.architectures.densenet import densenet121, densenet1000
from hgpart.zoo.architectures.efficientnet import efficientnet_b0
from hgpart.zoo.architectures.googlenet import googlenet
from hgpart.zoo.architectures.inception_resnet_v2 import inception_resnet_v2
from hgpart.zoo.architectures.inception_v3 import inception_v3
from hgpart.zoo.architectures.initialise import initialise
from hgpart.zoo.architectures.lenet import lenet5
from hgpart.zoo.architectures.mobilenet_v2 import mobilenet_v2
from hgpart.zoo.architectures.resnet import resnet, resnet1001
from hgpart.zoo.architectures.shufflenet_v2 import shufflenet_v2_x1_0
from hgpart.zoo.architectures.squeezenet import squeezenet1_1
from hgpart.zoo.architectures.unet import unet
from hgpart.zoo.architectures.vgg import vgg
from hgpart.zoo.exported_programs import program_factory
from hgpart.zoo.factories import Model, user_factory
from hgpart.zoo.packages import package_factory

__all__ = ["BUILTIN", "ModelSpec", "builtin_models", "load_model"]

IMAGENET = (3, 224, 224)
CIFAR = (3, 32, 32)
# Inception-ResNet-v2 with other numbers of blocks, named and trained on 100 classes as in
# F. Brakel's MSc thesis (2024, section 3.2.2).
OF_BLOCKS = re.compile(r"inception_resnet_v2((?:-[1-9]\d?){3})", re.ASCII)
CLASSES_OF_BLOCKS = 100


@dataclass(frozen=True)
class ModelSpec:
    """A built-in model.

    Attributes
    ----------
    name : str
        Name of the model in `load_model`.
    factory : callable
        Builds the model, with torch's default random weights.
    input_shape : tuple of int
        Channels, height and width of its images.
    """

    name: str
    factory: Callable[[], nn.Module]
    input_shape: tuple[int, ...] = IMAGENET


BUILTIN: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("lenet5", lenet5, (1, 32, 32)),
        ModelSpec("alexnet", alexnet),
        ModelSpec("alexnet_2012", alexnet_2012, (3, 227, 227)),
        ModelSpec("alexnet_tiny_imagenet", partial(alexnet_of_leon, 56, 200), (3, 56, 56)),
        ModelSpec("alexnet_dogs_vs_cats", partial(alexnet_of_leon, 128, 2), (3, 128, 128)),
        *(ModelSpec(f"vgg{n}", partial(vgg, n)) for n in (11, 13, 16, 19)),
        *(ModelSpec(f"vgg{n}_bn", partial(vgg, n, batch_norm=True)) for n in (11, 13, 16, 19)),
        *(ModelSpec(f"resnet{n}", partial(resnet, n)) for n in (18, 34, 50, 101, 152)),
        ModelSpec("resnet1001", resnet1001, CIFAR),
        ModelSpec("squeezenet1_1", squeezenet1_1),
        ModelSpec("googlenet", googlenet),
        ModelSpec("inception_v3", inception_v3, (3, 299, 299)),
        ModelSpec("inception_resnet_v2", inception_resnet_v2, (3, 299, 299)),
        ModelSpec("densenet121", densenet121),
        ModelSpec("densenet1000", densenet1000, CIFAR),
        ModelSpec("mobilenet_v2", mobilenet_v2),
        ModelSpec("efficientnet_b0", efficientnet_b0),
        ModelSpec("shufflenet_v2_x1_0", shufflenet_v2_x1_0),
        ModelSpec("unet", unet, (3, 256, 256)),
        ModelSpec("crnn", crnn, (1, 32, 100)),
    )
}


def builtin_models() -> tuple[str, ...]:
    """Names of the built-in models, oldest architectures first.

    >>> builtin_models()[:3]
    ('lenet5', 'alexnet', 'alexnet_2012')
    """
    return tuple(BUILTIN)


def _builtin(name: str) -> ModelSpec | None:
    """The built-in model of a name; Inception-ResNet-v2 may have any numbers of blocks."""
    match = OF_BLOCKS.fullmatch(name)
    if match is None:
        return BUILTIN.get(name)
    of_35, of_17, of_8 = map(int, match[1][1:].split("-"))
    factory = partial(
        inception_resnet_v2,
        (of_35, of_17, of_8),
        linear_block=False,
        classes=CLASSES_OF_BLOCKS,
    )
    return ModelSpec(name, factory, BUILTIN["inception_resnet_v2"].input_shape)


def last_change(spec: str) -> tuple[str, str, int]:
    """A spec without its last transformation, and the kind and parts of that.

    >>> last_change("timm:resnet18+split:2+grouped:4")
    ('timm:resnet18+split:2', 'grouped', 4)

    Raises
    ------
    ArgumentError
        If there is none.
    """
    match = TRANSFORMED.fullmatch(spec)
    if match is None:
        raise ArgumentError(
            f"{spec} names no change: accepted are +parallel:P, +grouped:P and +split:P behind the "
            f"model, as in {spec}+split:2"
        )
    return match[1], match[2], int(match[3])


def import_user_code(spec: str) -> None:
    """Import the user's code that a spec names, if it does; see `load_model` for what it raises."""
    if is_user_code(spec):
        _user_factory(taken_apart(spec)[0])


def _user_factory(spec: str) -> Callable[[], Model]:
    return program_factory(spec) if spec.endswith(PROGRAM) else user_factory(spec)


def load_model(spec: str, *, seed: int = 0, device: str = "cpu") -> Model:
    """Build a model, in training mode, with random weights; nothing is downloaded.

    A file of torch.export has weights of its own.

    Parameters
    ----------
    spec : str
        Name of a built-in model (`builtin_models`); ``timm:NAME``, ``torchvision:NAME`` or
        ``pytorchcv:NAME``; ``hf:CONFIG``, the config.json of a Hugging Face model;
        ``model.pt2``, a file of torch.export.save; ``path/file.py:factory`` or
        ``package.module:factory``, where the factory is called without arguments and returns a
        module or (module, input shape).
        ``inception_resnet_v2-4-8-4`` has these numbers of blocks of its three kinds, and 100
        classes. Any of these may be followed by ``+parallel:P``, ``+grouped:P`` and ``+split:P``,
        any number of times: the model is transformed in this order (`hgpart.transform`), and
        layers that lose weights draw theirs anew.
    seed : int
        Seed of the weights, 0 <= seed < 2**64: the same seed gives the same weights on every
        device. The caller's random state is left as it was.
    device : str
        Device of the parameters. On ``"meta"`` they have shapes but no memory and no values,
        which is enough to trace a model, and instant.

    Returns
    -------
    model : nn.Module
        The model, in training mode.
    input_shape : InputShape, or None if unknown
        The inputs that the model takes for each sample: sizes of the only one, or texts.

    Raises
    ------
    ModelError
        If there is no such model, it can't be built, or it can't be transformed this way.
    MissingPackageError
        If it needs an optional package that is not installed.
    ArgumentError
        If the seed is out of range, the device does not exist, or there is no such transformation.

    Examples
    --------
    >>> model, shape = load_model("vgg16", device="meta")
    >>> sum(parameter.numel() for parameter in model.parameters()), shape
    (138357544, (3, 224, 224))
    """
    if not 0 <= seed < 2**64:
        raise ArgumentError(f"seed is {seed}; it must be at least 0 and below 2**64")
    target = _device(device)
    name, transformations = taken_apart(spec)
    # Kept constants may be drawn by the seed.
    origin = origin_of(spec) if folder.is_on() and seed == 0 else None
    # New weights are drawn on the CPU, like all weights.
    built_on = torch.device("cpu") if transformations and target.type != "meta" else target
    with _seeded(seed):
        model, shape = _build(name, built_on)
    if transformations:
        set_origin(model, None if origin is None else origin_of(name))
        with _seeded(seed):
            model = _transformed(model.train(), shape, name, transformations).to(target)
    set_origin(model, origin)
    return model.train(), shape


def _build(name: str, target: torch.device) -> Model:
    spec = _builtin(name)
    return _build_elsewhere(name, target) if spec is None else _build_builtin(spec, target)


def _transformed(
    model: nn.Module,
    shape: InputShape | None,
    name: str,
    transformations: Sequence[tuple[str, int]],
) -> nn.Module:
    from hgpart.tracing.traced_model import example_inputs
    from hgpart.transformation.transforming import check_kind, transform

    for kind, parts in transformations:
        check_kind(kind, parts)
    if shape is None:
        raise ModelError(
            f"{name} does not say the shape of its input, which a transformation needs: let its "
            "factory return (module, input shape)"
        )
    for kind, parts in transformations:
        model = transform(model, kind, parts, example_inputs(model, shape), fresh=True)
    return model


def _build_builtin(spec: ModelSpec, target: torch.device) -> Model:
    with torch.device("meta"):
        model = spec.factory()
    if target.type != "meta":
        model = model.to_empty(device="cpu")
        initialise(model)
        model = model.to(target)
    return model, InputShape(spec.input_shape)


def _build_elsewhere(spec: str, target: torch.device) -> Model:
    source, colon, name = spec.partition(":")
    if is_user_code(spec):
        build = _user_factory(spec)
    elif colon:
        build = package_factory(source, name)
    else:
        forms = [
            *(f"{package}:NAME" for package in PACKAGES if package != "hf"),
            "hf:CONFIG",
            "path/file.pt2",
            "path/file.py:factory",
            "MODEL+split:P",
        ]
        raise unknown_name(
            "model", spec, BUILTIN, f"'hgpart models' lists all; also: {', '.join(forms)}"
        )
    if target.type != "meta":
        model, shape = build()
        return model.to(target), shape
    try:
        with torch.device("meta"):
            model, shape = build()
    except ModelError:
        # Code that computes with tensor values while it builds a model can't do so on meta; a
        # failure for another reason repeats here.
        model, shape = build()
    return _without_values(model), shape


def _without_values(model: nn.Module) -> nn.Module:
    """The model with all parameters and buffers on the meta device; shared ones stay shared."""
    # Module.to("meta") would separate tied weights: it makes a new parameter for each place.
    tensors = itertools.chain(model.parameters(), model.buffers())
    twins: dict[int, object] = {
        id(tensor): (
            nn.Parameter(tensor.detach().to("meta"), tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else tensor.to("meta")
        )
        for tensor in tensors
        if not tensor.is_meta
    }
    return copy.deepcopy(model, twins) if twins else model


def _device(device: str) -> torch.device:
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(
            f"device {device!r} can't be used ({reason}); 'cpu' and 'meta' always can"
        ) from error
    return target


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block; restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed every accelerator, which fork_rng doesn't restore here.
        torch.default_generator.manual_seed(seed)
        yield
