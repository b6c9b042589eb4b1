"""Processes that compute while they are told to, and no longer than who started them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from hgpart.errors import RunError
from hgpart.layers.layering import channel_graph
from hgpart.timing import neighbours as module
from hgpart.timing.neighbours import neighbours, room_for
from hgpart.timing.whole_model import WholeModel, whole_model
from hgpart.tracing.traced_model import trace


def small() -> WholeModel:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    traced = trace(model, torch.zeros(2, 3, 6, 6))
    whole = whole_model(model, traced, channel_graph(traced), (2,), torch.device("cpu"))
    assert whole is not None
    return whole


def cpu_ticks(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().split()[13])


@pytest.mark.full
@pytest.mark.long
def test_they_compute_while_told_to_and_end_with_the_context() -> None:
    with neighbours(small(), 2, 1) as others:
        (process,) = (one.pid for one in others._processes)
        for _ in range(2):
            before = cpu_ticks(process)
            with others:
                time.sleep(0.5)
            assert cpu_ticks(process) > before + 5
        before = cpu_ticks(process)
        time.sleep(0.5)
        assert cpu_ticks(process) <= before + 2
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.full
@pytest.mark.long
def test_one_that_dies_is_an_error() -> None:
    with neighbours(small(), 2, 2) as others:
        process = others._processes[1]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        message = "a process that should compute beside this one has ended"
        with pytest.raises(RunError, match=message), others:
            pass
    assert all(one.poll() is not None for one in others._processes)


def test_there_is_room_for_as_many_as_cores_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert room_for(torch.device("cpu")) == 3
    assert room_for(torch.device("cuda")) == 0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert room_for(torch.device("cpu")) == 0
