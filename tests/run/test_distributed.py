"""Parts in processes of their own: `toy_ranks.py` runs in them and checks itself."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from hgpart import DistributedModel, partition_model, place
from hgpart.errors import PlacementError, RunError
from hgpart.run.processes.launch import launch
from hgpart.schedules.rules import DEFAULT

# Each by itself where tests are to be full, else the default.
PATIENCE = 240  # seconds that processes have on a machine that does much besides
RANKS = str(Path(__file__).parents[1] / "toy_ranks.py")


def kill_when_all_work(folder, k, victim):
    """Kill one of k processes that are all in the middle of their steps."""

    def wait():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            files = [Path(folder, f"{rank}.pid") for rank in range(k)]
            if all(file.exists() and file.read_text() for file in files):
                os.kill(int(files[victim].read_text()), signal.SIGKILL)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(("seeds", "micro_batches"), [(2, "3"), (12, "123")])
def test_parts_in_processes_do_what_the_model_does(seeds, micro_batches, capfd):
    launch(RANKS, ["agree", str(seeds), *micro_batches], 3)
    assert capfd.readouterr().out == "all agree\n"


@pytest.mark.full
@pytest.mark.long
def test_a_rank_that_is_killed_is_named(capfd, tmp_path):
    killer = kill_when_all_work(tmp_path, k=2, victim=0)
    with pytest.raises(RunError, match=r"^rank 0 was ended by SIGKILL"):
        launch(RANKS, ["forever", str(tmp_path), DEFAULT], 2)
    killer.join()
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int(Path(tmp_path, f"{rank}.pid").read_text()), 0)


def started(*arguments):
    """Three processes without a launcher; the first one keeps their store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [
        subprocess.Popen(
            [sys.executable, RANKS, *map(str, arguments)],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("rule", ["greedy", "dynamic"])
def test_without_a_launcher_the_others_notice_and_name_it(tmp_path, rule):
    ranks = started("forever", tmp_path, rule)
    kill_when_all_work(tmp_path, k=3, victim=2).join()
    said = [rank.communicate(timeout=PATIENCE)[1].splitlines()[-1] for rank in ranks[:2]]
    ranks[2].communicate()
    assert [rank.returncode for rank in ranks] == [RunError.exit_status] * 2 + [-signal.SIGKILL]
    assert said[0] == said[1]  # the first who noticed told the other why
    assert re.match(
        r"hgpart: error: rank 2 is gone: seen when rank [01] (waited for|sent) ", said[0]
    )


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(("rule", "victim"), [("called", 0), (DEFAULT, 1)])
def test_one_that_is_stopped_is_named_by_all(tmp_path, rule, victim):
    """Two of three named the one that they waited for, or that had left as it waited in vain."""
    ranks = started("stopped", tmp_path, rule, victim)
    others = [rank for number, rank in enumerate(ranks) if number != victim]
    try:
        said = [rank.communicate(timeout=PATIENCE)[1].splitlines()[-1] for rank in others]
    finally:
        ranks[victim].kill()
        ranks[victim].communicate()
    for line in said:
        assert re.match(rf"hgpart: error: rank {victim} is (silent|gone, or stopped)", line), said


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("step", "ValueError: no such target"),
        ("stream", "ValueError: no such target"),
        ("called", "rank 0 got no loss: accepted is one on each rank that has results, and None"),
        ("inputs", "l0 sends 96 bytes, accepted is 120"),
    ],
)
def test_what_one_is_refused_all_hear_though_none_leaves(tmp_path, way, said):
    """They waited for it until it left, or for as long as allowed."""
    launch(RANKS, ["refused", str(tmp_path), way], 3)
    files = [Path(tmp_path, f"{rank}.said") for rank in range(3)]
    (first, *others), later = zip(*(file.read_text().splitlines() for file in files), strict=True)
    assert first.startswith(said.removeprefix("ValueError: "))
    assert all(one.startswith(f"rank 0: {said}") for one in others)
    for rank, one in enumerate(later):
        assert one.startswith(f"rank {rank} begins a pass after a failed one")


@pytest.mark.full
@pytest.mark.long
def test_one_that_does_not_answer_is_not_waited_for_longer_than_allowed(tmp_path):
    with pytest.raises(RunError, match=r"^rank 1 is still at work, too long to be waited for: "):
        launch(RANKS, ["silent", str(tmp_path)], 2)


@pytest.mark.full
@pytest.mark.long
def test_out_of_memory_is_one_clear_line(capfd):
    with pytest.raises(RunError, match=r"^rank 1: out of memory: DefaultCPUAllocator: can't alloc"):
        launch(RANKS, ["memory"], 2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
@pytest.mark.long
def test_torchrun_starts_them_again(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--max-restarts", "1", RANKS, "elastic", DEFAULT]
    done = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "agreed in attempt 1\n"


class Told:
    """A connection of one of two processes, of which the other one says what it likes."""

    rank, k, device, models = 0, 2, torch.device("cpu"), 0

    def __init__(self, other):
        self.other = other

    def gather(self, own):
        return [own, self.other]

    calling = None


def test_each_element_of_a_parameter_belongs_to_exactly_one_process():
    """What was known in one process was not looked at among several, and trained wrong weights."""
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1))
    plan = partition_model(model, torch.zeros(2, 2, 3, 3), k=2, eps=0.3, effort=0)
    first, second = (place(model, plan, parts=[part]) for part in range(2))
    others = [held for held, _ in second.held(1)]
    DistributedModel(first, Told(others))
    name = others[0].name
    for wrong in (others[1:], [others[0], *others]):
        with pytest.raises(PlacementError, match=f"{name}: the parts hold .* accepted is each"):
            DistributedModel(first, Told(wrong))
