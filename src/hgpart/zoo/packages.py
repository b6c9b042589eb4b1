"""``timm:NAME``, ``torchvision:NAME``, ``pytorchcv:NAME``, ``hf:CONFIG`` -> a package's model."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from hgpart.errors import MissingPackageError, ModelError
from hgpart.specs.models import hf_config
from hgpart.specs.nearest import unknown_name
from hgpart.tracing.input_shape import InputShape
from hgpart.zoo.factories import Model


def package_factory(package: str, name: str) -> Callable[[], Model]:
    """Return a function that builds model ``name`` of ``package`` with random weights.

    Of ``hf`` (Hugging Face's transformers) the name is that of a file of a configuration, such as
    ``config.json``, or of the folder that it is in.

    Nothing is downloaded. The input shape is the one that the package states: timm's
    ``input_size`` or pytorchcv's ``in_size``; 3 x 224 x 224 for torchvision's classifiers (299 for
    inception_v3), None for its other models; for ``hf`` the ``image_size`` of the configuration,
    None for a model whose first input is something else.

    Raises
    ------
    MissingPackageError
        If the package is not installed.
    ModelError
        If it has no such model, or fails to build it.
    """
    create = _FACTORIES[package](name)

    def build() -> Model:
        try:
            return create()
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())
            raise ModelError(
                f"{package}:{name} can't be built: {type(error).__name__}: {message}"
            ) from error

    return build


def _timm(name: str) -> Callable[[], Model]:
    timm = _import("timm", "timm")
    if not timm.is_model(name):
        raise unknown_name("timm model", name, timm.list_models(), "timm.list_models() has all")

    def create() -> Model:
        model = timm.create_model(name, pretrained=False)
        size = model.pretrained_cfg.get("input_size")
        return model, InputShape(size) if size else None

    return create


def _torchvision(name: str) -> Callable[[], Model]:
    models = _import("torchvision", "torchvision.models")
    if name not in models.list_models():
        raise unknown_name(
            "torchvision model", name, models.list_models(), "torchvision.models lists all"
        )
    builder = models.get_model_builder(name)
    # Detection and segmentation models would download the weights of their backbones.
    backbone = "weights_backbone" in inspect.signature(builder).parameters
    side = 299 if name == "inception_v3" else 224
    shape = InputShape((3, side, side)) if name in models.list_models(module=models) else None

    def create() -> Model:
        model = builder(weights=None, **({"weights_backbone": None} if backbone else {}))
        return model, shape

    return create


def _pytorchcv(name: str) -> Callable[[], Model]:
    provider = _import("pytorchcv", "pytorchcv.model_provider")
    known = [key for key, value in vars(provider).items() if inspect.isfunction(value)]
    known.remove("get_model")
    if name not in known:
        raise unknown_name(
            "pytorchcv model", name, known, "pytorchcv.model_provider has a function for each"
        )

    def create() -> Model:
        model = provider.get_model(name, pretrained=False)
        size = getattr(model, "in_size", None)
        return model, InputShape((3, *size)) if size else None

    return create


def _hf(name: str) -> Callable[[], Model]:
    transformers = _import("transformers", "transformers", "hf:CONFIG")
    with suppress(ImportError):  # transformers imports it if it is there
        _import_beside_any_torch("torchvision")
    path = hf_config(name)
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} can't be read: {error}; accepted is a model's config.json, or its folder"
        ) from error
    named = facts.get("architectures") if isinstance(facts, dict) else None
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise ModelError(
            f'{path} names no class: accepted is a config.json with "architectures", such as '
            '["ViTForImageClassification"]'
        )
    kind: Any = getattr(transformers, named[0], None)
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not is_model:
        raise ModelError(f"{path}: transformers {transformers.__version__} has no {named[0]}")

    def create() -> Model:
        config = kind.config_class.from_dict(facts)
        of_images = kind.main_input_name == "pixel_values"
        side = getattr(config, "image_size", None) if of_images else None
        sides = (side, side) if isinstance(side, int) else side
        channels = getattr(config, "num_channels", 3)
        return kind(config), InputShape((channels, *sides)) if sides else None

    return create


_FACTORIES: dict[str, Callable[[str], Callable[[], Model]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "pytorchcv": _pytorchcv,
    "hf": _hf,
}


def _import(package: str, module: str, spec: str = "") -> Any:
    """Import ``module`` of the optional ``package``, which a spec needs."""
    try:
        return _import_beside_any_torch(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise ModelError(
                f"{package} is installed, but what it needs is not: {error}"
            ) from error
    except (ImportError, RuntimeError, SystemExit) as error:
        message = " ".join(str(error).split())
        raise ModelError(f"{package} can't be imported: {message}") from error
    raise MissingPackageError(
        f"{spec or f'{package}:NAME'} needs the package {package}, which is not installed; "
        f"install it with: pip install {package}"
    )


def _import_beside_any_torch(module: str) -> Any:
    """Import ``module``, even if it needs a torchvision whose compiled half doesn't fit torch.

    torchvision's wheels are compiled for one build of torch. Beside another (the CPU build of
    torch with the CUDA build of torchvision, say) its library of operators does not load, and its
    Python half, which describes two of those operators to torch as it is imported, fails with
    "operator torchvision::nms does not exist". Only detection models call them: declaring the two,
    without an implementation, makes every other model importable. timm imports torchvision too.
    """
    try:
        return importlib.import_module(module)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(
                f"torchvision::{operator}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )
    return importlib.import_module(module)
