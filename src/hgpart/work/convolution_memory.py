"""A convolution's operands and results -> the bytes that it takes on a CPU while it works.

ATen computes most convolutions with oneDNN, which packs the maps that it reads and writes in blocks
of channels, so that for a while each is in memory twice, and the others as products with a matrix
of columns, which has each element as often as windows meet it (``use_mkldnn`` in ATen's
Convolution.cpp says which). What is computed here is what torch's profiler shows of torch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hgpart.operators.calls import argument_of

BLOCK = 16  # channels
FEW = 4  # channels; an image with fewer is read as it is
SMALL = 20480  # elements of a sample, which are not worth packing


def working_bytes(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
) -> int:
    """Bytes at the worst moment, besides operands and results; 0 if it is no convolution.

    Parameters
    ----------
    func : OpOverload
        A convolution or its backward pass.
    results : sequence
        The tensors that the call returns.

    >>> maps, filters = torch.empty(2, 64, 32, 32), torch.empty(64, 64, 3, 3)
    >>> call = maps, filters, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    >>> working_bytes(torch.ops.aten.convolution.default, call, {}, [maps]) == maps.nbytes + (
    ...     filters.nbytes
    ... )
    True
    """
    if "transposed" not in {argument.name for argument in func._schema.arguments}:
        return 0

    def given(name: str) -> Any:
        return argument_of(func, args, kwargs, name)

    maps: Tensor = given("input")
    filters: Tensor = given("weight")
    forward = len(results) == 1
    made: Tensor = results[0] if forward else given("grad_output")
    if not _is_packed(maps, filters, given):
        return _columns(maps, filters, made, given)
    read = 0 if maps.shape[1] < FEW else _packed(maps)
    write = _packed(made)
    if forward:
        again: int = made.nbytes if given("transposed") else 0
        return max(read + filters.nbytes + write - made.nbytes, write + again)
    sizes = [0 if result is None else result.nbytes for result in results]
    of_maps, of_filters, *_ = sizes
    most = 0
    if of_maps:
        packed = _packed(maps)
        most = packed + max(write + filters.nbytes, of_maps)
    if of_filters:
        turned = read + write if maps.dtype == torch.bfloat16 else 0
        most = max(most, of_maps + read + write + turned + of_filters, of_maps + 2 * of_filters)
    return max(0, most - sum(sizes))


def _is_packed(maps: Tensor, filters: Tensor, given: Any) -> bool:
    """Whether oneDNN computes it."""
    groups, kernel = given("groups"), filters.shape[2:]
    if given("transposed") and groups > 1 and groups == maps.shape[1]:
        return False
    if maps.dtype != torch.float32:
        return maps.dtype == torch.bfloat16
    moves = any(step != 1 for step in (*given("stride"), *given("dilation"), *kernel))
    if not (moves or len(maps) >= BLOCK or torch.get_num_threads() > 1):
        return False
    return groups > 1 or min(kernel) > 3 or len(maps) > 1 or maps.numel() > SMALL


def _packed(maps: Tensor) -> int:
    """Bytes of maps in whole blocks of channels."""
    blocks = -(-maps.shape[1] // BLOCK)
    return maps.nbytes // max(1, maps.shape[1]) * blocks * BLOCK


def _columns(maps: Tensor, filters: Tensor, made: Tensor, given: Any) -> int:
    """Bytes of the matrix of columns."""
    moves = (*given("stride"), *given("dilation"), *filters.shape[2:])
    if all(step == 1 for step in moves) and not any(given("padding")):
        return 0
    fixed, slid = (made, maps) if given("transposed") else (maps, made)
    channels: int = fixed.shape[1] // given("groups")
    places = len(maps) * math.prod(slid.shape[2:])
    return channels * math.prod(filters.shape[2:]) * places * maps.element_size()
