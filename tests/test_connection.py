"""Meeting the other processes: what is refused before anything is connected."""

from __future__ import annotations

import socket

import pytest
import torch

from hgpart.errors import ArgumentError, PlacementError, RunError
from hgpart.run.connection import connect, local_device


@pytest.fixture
def one_of_two(monkeypatch):
    """The environment of the second of two processes, of which there is no first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, value)
    return port


def test_without_processes_there_is_nothing_to_join(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RunError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start"):
        connect(2)


def test_another_k_is_refused(one_of_two):
    with pytest.raises(RunError, match="there are 2 processes, the plan has k=3: accepted is 3"):
        connect(3)


def test_an_unknown_backend_is_refused(one_of_two):
    with pytest.raises(ArgumentError, match="backend 'mpi': accepted are gloo, nccl"):
        connect(2, backend="mpi")


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(one_of_two, timeout):
    with pytest.raises(ArgumentError, match=r"timeout is .* s, expected more than 0"):
        connect(2, timeout=timeout)


def test_nccl_needs_gpus(one_of_two):
    with pytest.raises(PlacementError, match="backend nccl on device cpu: it needs GPUs"):
        connect(2, backend="nccl")


def test_a_first_process_that_is_not_there_is_missed(one_of_two):
    with pytest.raises(RunError, match=f"rank 1 can't meet the others at 127.0.0.1:{one_of_two}"):
        connect(2, timeout=1.0)


@pytest.mark.parametrize("device", ["gpu", "meta", "mps", "cuda:x"])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(PlacementError, match=f"device '{device}': accepted are cpu, cuda"):
        local_device(device)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    with pytest.raises(PlacementError, match="device cuda:5 is not there: this machine has 5 GPUs"):
        local_device("cuda")
    with pytest.raises(PlacementError, match="device cuda:7 is not there"):
        local_device("cuda:7")


def test_the_gpu_of_the_local_rank(monkeypatch):
    chosen = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert local_device("cuda") == torch.device("cuda", 3)
    assert local_device("cuda:1") == torch.device("cuda", 1)
    assert chosen == [3, 1]
    assert local_device("cpu") == torch.device("cpu")
