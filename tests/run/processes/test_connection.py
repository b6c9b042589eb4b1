"""Meeting the other processes: what is refused before anything is connected."""

from __future__ import annotations

import socket
from functools import partial

import pytest
import torch

from hgpart.errors import ArgumentError, PlacementError, RunError
from hgpart.run.processes.connection import Connection, connect, local_device
from hgpart.run.processes.heartbeats import Others


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
    with pytest.raises(ArgumentError, match="backend 'mpi': accepted are gloo and nccl"):
        connect(2, transport="mpi")


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(one_of_two, timeout):
    with pytest.raises(ArgumentError, match=r"timeout is .* s, expected more than 0"):
        connect(2, timeout=timeout)


def test_nccl_needs_gpus(one_of_two):
    with pytest.raises(PlacementError, match="backend nccl on device cpu: it needs GPUs"):
        connect(2, transport="nccl")


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
    assert chosen == [torch.device("cuda", 3), torch.device("cuda", 1)]
    assert local_device("cpu") == torch.device("cpu")


class Looking:
    """What a look at the others finds, and what one of them tells meanwhile."""

    interval, silence, call = 0.01, 1.0, "model.step(...)"

    def __init__(self, found, meanwhile=None):
        self.found, self.meanwhile, self.cause = found, meanwhile, None

    def look(self):
        self.cause = self.meanwhile
        return self.found

    @property
    def told(self):
        return self.cause is not None

    def tell(self, cause):
        return self.cause or cause


TIMED_OUT, CLOSED = "Timed out waiting 6000ms", "Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("said", "peer", "found", "named"),
    [
        (TIMED_OUT, 1, Others((2,), ()), "rank 2 is silent, as if stopped or cut off"),
        (TIMED_OUT, None, Others((1, 2), ()), "ranks 1, 2 are silent, as if stopped or cut off"),
        (TIMED_OUT, 1, Others((), (2,)), "rank 2 is still at work, too long to be waited for"),
        (TIMED_OUT, 1, Others((), ()), "rank 1 has not answered in time"),
        (CLOSED, 1, Others((1,), ()), "rank 1 is gone"),
        (CLOSED, 1, Others((2,), ()), "rank 2 is gone, or stopped"),
        (CLOSED, None, Others((1,), (2,)), "rank 1 is gone, or stopped"),
        ("gloo is out of order", 1, Others((2,), ()), "rank 1 can't be reached (gloo is out of"),
    ],
)
def test_who_is_to_blame_is_named(said, peer, found, named):
    """It was the one that was waited for, which may wait for another itself."""
    connection = Connection(0, 3, torch.device("cpu"), False, Looking(found))
    with pytest.raises(RunError) as caught:
        connection.guard(partial(failing, said), "waited for conv1", peer)
    assert str(caught.value).startswith(named)
    assert str(caught.value).endswith(": seen when rank 0 waited for conv1")


def test_the_calls_of_ranks_that_wait_for_ever_are_named():
    """Of an evaluation on one rank alone only a message in vain was said."""
    found = Others((), (), {1: "model.gathered_state_dict()", 2: ""})
    connection = Connection(0, 3, torch.device("cpu"), False, Looking(found))
    with pytest.raises(RunError) as caught:
        connection.guard(partial(failing, TIMED_OUT), "waited for conv1", 1)
    assert str(caught.value) == (
        "rank 1 has not answered in time: seen when rank 0 waited for conv1 (rank 0: "
        "model.step(...), rank 1: model.gathered_state_dict(), rank 2: no call of hgpart; accepted "
        "are the same calls on all ranks)"
    )


def failing(said):
    raise RuntimeError(f"[../pair.cc:1] {said}")


def test_one_that_left_as_it_waited_in_vain_tells_for_whom():
    looking = Looking(Others((), (1,)), "rank 2 is silent: seen when rank 1 was done")
    connection = Connection(0, 3, torch.device("cpu"), False, looking)
    with pytest.raises(RunError, match=f"^{looking.meanwhile}$"):
        connection.guard(partial(failing, CLOSED), "waited for conv1", 1)
