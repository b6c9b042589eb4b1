"""Parameter servers learn what one process learns, wherever workers wait for each other."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import served_ranks
import torch

from hgpart.run.processes.launch import launch
from hgpart.run.servers.served_model import ServedModel
from hgpart.run.servers.serving import Serving

ALONE = SimpleNamespace(
    **{"rank": 0, "k": 1, "gather": lambda value: [value], "guard": lambda call, *_: call()},
    spread=lambda tensor, _: tensor,
    add_later=lambda value: lambda: value,
)


@pytest.mark.parametrize("name", ["ps-sync", "ps-async"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_worker_learns_what_one_process_does_to_the_bit(name, optimizer):
    serving = Serving(name, "distributed")
    model = ServedModel(served_ranks.net(dropout=0.5), serving, 1, ALONE)
    own = served_ranks.trained(model, optimizer)
    alone, whole = served_ranks.plainly(optimizer, dropout=0.5)
    assert own.losses == alone.losses
    state = model.whole_state()
    assert all(torch.equal(state[key], value) for key, value in whole.items())


@pytest.mark.full
@pytest.mark.long
def test_three_processes_learn_what_one_does(tmp_path):
    """All cases are in one start of processes, which takes longest."""
    file = tmp_path / "found.json"
    launch(served_ranks.__file__, [str(file)], served_ranks.PROCESSES)
    found = json.loads(file.read_text())
    assert len(found) == len(served_ranks.CASES) + 2
    for name, apart in found.items():
        assert apart["bytes"] == apart["defined"], name
        assert apart["losses"] < 1e-12, name
        assert apart["state"] < 1e-12, name
