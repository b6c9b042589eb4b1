"""Ranks that call different things end in one line that names what each calls: `hang_ranks.py`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = str(Path(__file__).parents[1] / "hang_ranks.py")
SAME = "accepted is the same on all ranks, in one order"


def told(folder, case, timeout):
    """What both ranks, which have no launcher that would end one with the other, are told."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, RANKS, str(folder), str(timeout), case]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(at)}) for at in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return [Path(folder, str(rank)).read_text().split(" ", 1)[1] for rank in range(2)]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("evaluation", "rank 0 begins a batch under no_grad in evaluation, rank 1 a batch in grad"),
        ("saving", f"rank 0 begins model.gathered_state_dict(), rank 1 model(...): {SAME}"),
        ("clipping", f"rank 0 begins hgpart.clip_grad_norm_(...), rank 1 model(...): {SAME}"),
        ("one batch more", f"rank 0 begins model(...), rank 1 the end of the connection: {SAME}"),
    ],
)
def test_other_calls_are_refused_at_once(tmp_path, case, said):
    for line in told(tmp_path, case, timeout=100):
        assert line.startswith(said)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("gathering", "(rank 0: connection.gather(...), rank 1: model.step(...); accepted are the"),
        ("one step more", "(rank 0: model.step(...), rank 1: the end of the connection; accepted"),
        ("stepping", "(rank 0: model.step(...), rank 1: model.gathered_state_dict(); accepted are"),
    ],
)
def test_those_that_wait_for_each_other_are_told_in_time(tmp_path, case, calls):
    for line in told(tmp_path, case, timeout=4):
        assert calls in line
        assert re.match(r"(rank \d|another rank) has not answered in time: seen when rank", line)
