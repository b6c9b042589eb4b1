"""``timm:NAME``, ``torchvision:NAME``, ``pytorchcv:NAME`` -> the model that the package builds."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from hgpart.errors import MissingPackageError, ModelError
from hgpart.zoo.factories import Model
from hgpart.zoo.nearest import unknown_name


def package_factory(package: str, name: str) -> Callable[[], Model]:
    """Return a function that builds model ``name`` of ``package`` with random weights.

    Nothing is downloaded. The input shape is the one that the package states: timm's
    ``input_size`` or pytorchcv's ``in_size``; 3 x 224 x 224 for torchvision's classifiers (299 for
    inception_v3), None for its other models.

    Raises
    ------
    MissingPackageError
        If the package is not installed.
    ModelError
        If it has no such model, or fails to build it.
    """
    create = PACKAGES[package](name)

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
        return model, tuple(size) if size else None

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
    shape = (3, side, side) if name in models.list_models(module=models) else None

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
        return model, (3, *size) if size else None

    return create


PACKAGES: dict[str, Callable[[str], Callable[[], Model]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "pytorchcv": _pytorchcv,
}


def _import(package: str, module: str) -> Any:
    """Import ``module`` of the optional ``package``."""
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
        f"{package}:NAME needs the package {package}, which is not installed; "
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
