"""Events of steps are all that a schedule has, and their file is what trace viewers open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from placed_models import model_of, placed
from traces import assert_covers, assert_is_trace

from hgpart.placement.ordering.ordered import costs_of
from hgpart.report.timeline import write_timeline
from hgpart.run.measuring import measure
from hgpart.run.scheduling import schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES
from hgpart.schedules.simulation import bubble


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_steps_of_parts(rule: str, backward: bool, tmp_path: Path) -> None:
    model, inputs = model_of("residual")
    placement = placed(model, inputs)
    batch = torch.randn(4, *inputs[0].shape[1:], dtype=torch.float64)
    found = measure(
        placement, batch, 2, backward=backward, scheduling=Scheduling(rule, 3), timeline=True
    )
    planned = schedule(placement, rule, 3, backward=backward)
    assert len(found.timeline) == 2
    for events in found.timeline:
        for part in range(placement.k):
            assert_covers(events, planned, part, waits_last=False)
    assert found.simulated_bubble == bubble(planned, costs_of(placement, 3))
    assert 0 < found.bubble < 1
    write_timeline(tmp_path / "times.json", found.timeline, "a model", ["cpu"] * placement.k)
    written = assert_is_trace(tmp_path / "times.json", placement.k)
    assert len(written) == sum(map(len, found.timeline))
    assert min(float(str(one["ts"])) for one in written) == 0
    assert [one["name"] for one in written if one["cat"] == "run" and one["tid"] == 1] == [
        str(action) for action in planned.sequences[0] * 2
    ]


def test_nothing_is_kept_that_nobody_wants() -> None:
    model, inputs = model_of("plain")
    assert measure(placed(model, inputs), inputs[0], 1).timeline == ()


def test_a_single_part_does_one_micro_batch_after_the_other() -> None:
    model, inputs = model_of("plain")
    batch = torch.randn(4, *inputs[0].shape[1:], dtype=torch.float64)
    scheduling = Scheduling("zero-bubble", 2)
    placement = placed(model, inputs, k=1)
    found = measure(placement, batch, 1, backward=True, scheduling=scheduling, timeline=True)
    (events,) = found.timeline
    assert [str(event.action) for event in events] == ["F0.0", "B0.0", "F1.0", "B1.0"]
    assert found.simulated_bubble == 0
