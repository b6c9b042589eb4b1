"""A layer, and the channels of a part -> the layer for these channels alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from hgpart.transformation.residual import CellError

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, _NormBase, nn.LayerNorm, nn.GroupNorm)


def parts_of(channels: int, parts: int) -> Tensor:
    """The part of each channel: runs of nearly equal length.

    Raises
    ------
    CellError
        If there are fewer channels than parts.

    Examples
    --------
    >>> parts_of(7, 3).tolist()
    [0, 0, 1, 1, 2, 2, 2]
    """
    if channels < parts:
        raise CellError(f"{channels} channels are fewer than {parts} parts")
    bounds = torch.arange(parts + 1) * channels // parts
    return torch.repeat_interleave(torch.arange(parts), bounds.diff())


def is_layer(module: nn.Module) -> bool:
    """Whether `narrow` knows how to take channels from a module."""
    return isinstance(module, LAYERS)


def narrow(layer: nn.Module, read: Tensor, made: Tensor, *, fresh: bool) -> None:
    """Leave a layer only some of the channels that it reads, and some of those that it makes.

    Parameters
    ----------
    layer : nn.Module
        A convolution, a linear layer or a norm; it is changed.
    read, made : int tensors
        Numbers of the remaining channels, ascending.
    fresh : bool
        Whether weights between channels are drawn anew by the layer's own rule, because the
        remaining ones were drawn for more channels. Norms and convolutions in groups are kept.

    Raises
    ------
    CellError
        If groups that are normalised together belong to several parts.
    """
    mixes = False
    if isinstance(layer, _ConvNd):
        mixes = layer.groups == 1
        _keep(layer, ("weight", "bias"), made)
        if mixes:
            _keep(layer, ("weight",), read, axis=1)
        else:
            layer.groups = len(read) * layer.groups // layer.in_channels
        layer.in_channels, layer.out_channels = len(read), len(made)
    elif isinstance(layer, nn.Linear):
        mixes = True
        _keep(layer, ("weight", "bias"), made)
        _keep(layer, ("weight",), read, axis=1)
        layer.in_features, layer.out_features = len(read), len(made)
    elif isinstance(layer, _NormBase):
        _keep(layer, ("weight", "bias", "running_mean", "running_var"), made)
        layer.num_features = len(made)
    elif isinstance(layer, nn.LayerNorm):
        _keep(layer, ("weight", "bias"), made)
        layer.normalized_shape = (len(made),)
    elif isinstance(layer, nn.GroupNorm):
        if layer.num_groups > 1:
            group_size = layer.num_channels // layer.num_groups
            groups, counts = torch.unique(made // group_size, return_counts=True)
            if not bool((counts == group_size).all()):
                raise CellError(f"its {layer.num_groups} groups are not those of the parts")
            layer.num_groups = len(groups)
        _keep(layer, ("weight", "bias"), made)
        layer.num_channels = len(made)
    if fresh and mixes:
        layer.reset_parameters()  # type: ignore[operator]


def narrow_parameter(module: nn.Module, name: str, kept: Tensor, size: int) -> None:
    """Leave a module's own parameter only some elements, along the dimension of size `size`."""
    axis = module.get_parameter(name).shape.index(size)
    _keep(module, (name,), kept, axis=axis)


def _keep(module: nn.Module, names: tuple[str, ...], kept: Tensor, axis: int = 0) -> None:
    for name in names:
        old = getattr(module, name, None)
        if old is not None:
            new = old.detach().index_select(axis, kept.to(old.device))
            is_learned = isinstance(old, nn.Parameter)
            setattr(module, name, nn.Parameter(new, old.requires_grad) if is_learned else new)
