"""What a convolution takes while it works, beside what torch's profiler sees it allocate."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from hgpart.work.convolution_memory import working_bytes

aten = torch.ops.aten


def allocated(work: Callable[[], object]) -> int:
    """The most bytes at a time, with results."""
    kept = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        kept.append(work())
    events = [
        item for item in watched.profiler.kineto_results.events() if item.name() == "[memory]"
    ]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN packs otherwise elsewhere")
@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "size", "dtype", "transposed"),
    [
        ((64, 64), 3, 1, 64, torch.float32, False),
        ((64, 32), 2, 2, 32, torch.float32, True),
        ((16, 16), 3, 1, 32, torch.float64, False),
        ((256, 512), 3, 1, 16, torch.float32, False),  # its filters are more than its maps
        ((64, 128), 3, 2, 64, torch.float32, False),
        ((64, 2), 1, 1, 64, torch.float32, False),
    ],
)
def test_what_is_computed_is_what_is_allocated(
    channels, kernel, stride, size, dtype, transposed
) -> None:
    inputs, outputs = channels
    images = torch.randn(1, inputs, size, size, dtype=dtype)
    filters = torch.randn(
        *(channels if transposed else channels[::-1]), kernel, kernel, dtype=dtype
    )
    padding = 0 if transposed else kernel // 2
    settings = [stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], 1
    call = images, filters, None, *settings
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = aten.convolution.default(*call)
        assert made.shape[1] == outputs
        back = torch.randn_like(made), images, filters, None, *settings, [True, True, False]
        gradients = aten.convolution_backward.default(*back)
        for function, given, results in (
            (aten.convolution.default, call, [made]),
            (aten.convolution_backward.default, back, gradients),
        ):
            found = allocated(lambda function=function, given=given: function(*given))
            own = sum(tensor.nbytes for tensor in results if tensor is not None)
            # With a stride, some CPUs' backward passes pack the maps once more.
            near = 0.05 if stride == 1 or transposed else 0.1
            assert own + working_bytes(function, given, {}, results) == pytest.approx(
                found, rel=near
            )
    finally:
        torch.set_num_threads(threads)
