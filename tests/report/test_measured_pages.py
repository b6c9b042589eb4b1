"""Pages of what was trained and recommended draw the figures of their records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import plotly.graph_objects
import pytest
from bench_settings import SETTINGS
from recommended import machine, recommended

from hgpart.bench.races import Point, Race, Races
from hgpart.execution.events import Doing, Event
from hgpart.execution.totals import Timing, Totals, Traffic
from hgpart.recommendation import ways as module
from hgpart.recommendation.divisions import divisions
from hgpart.recommendation.ranking import Dropped, Recommendation
from hgpart.report.page.measured_steps import last_step_figure
from hgpart.report.page.recommended import recommendation_page
from hgpart.report.page.training import MOST_POINTS, training_page
from hgpart.report.page.ways import race_figure
from hgpart.report.training import TrainingReport
from hgpart.run.training.loop import TrainingOptions, TrainingResult
from hgpart.schedules.schedule import Action, Direction

NASTY = "</script><b>"


def figures(html: str) -> dict:
    found = re.search(r'id="figures">(.*?)</script>', html)
    drawn: dict = json.loads(found[1])["figures"]
    for one in drawn.values():
        plotly.graph_objects.Figure(one["data"], one["layout"])  # raises for unknown properties
        assert len(one["data"]) <= 8
    return drawn


def trained(losses: list[float], **more: object) -> TrainingReport:
    timings = (Timing(1.0, 0.5, 1.0, 0.25), Timing(backward_busy=0.5))
    totals = Totals(timings, Traffic.none(2))
    options = TrainingOptions(max(1, len(losses)), 4).completed({})
    result = TrainingResult(tuple(losses), 0.5, len(losses), 8.0, totals, options)
    return TrainingReport(NASTY, "digits", "float32", ("cpu",) * 2, 2, replace(result, **more), 7)


def test_losses_are_drawn_each_or_in_means() -> None:
    few = figures(training_page(trained([2.0, float("nan"), 0.5])))["losses"]["data"][0]
    assert (few["x"], few["y"]) == ([1, 2, 3], [2.0, None, 0.5])
    many = figures(training_page(trained([1.0, 3.0] * MOST_POINTS)))["losses"]["data"][0]
    assert many["x"] == list(range(2, 2 * MOST_POINTS + 1, 2))
    assert set(many["y"]) == {2.0}


def test_a_training_says_its_answer_first_and_what_parts_did() -> None:
    html = training_page(trained([1.0, 0.5], accuracies=(0.25, 0.5), learning_rates=(0.1, 0.08)))
    assert "<h1>loss 0.5, test accuracy 50.00 %, 8.0 samples/s</h1>" in html
    assert NASTY not in html
    drawn = figures(html)
    works, waits = drawn["seconds"]["data"]
    assert (works["x"], waits["x"]) == ([1000.0, 250.0], [375.0, 0.0])  # ms of 2 steps
    assert drawn["accuracies"]["data"][0]["y"] == [25.0, 50.0]
    assert drawn["accuracies"]["data"][0]["customdata"] == ["0.1", "0.08"]


def test_a_training_of_no_steps_has_a_page() -> None:
    assert figures(training_page(trained([]))) == {}


def test_the_last_step_is_drawn_from_its_begin() -> None:
    forward, backward = (
        Action(part, direction, 0, 0)
        for part, direction in ((0, Direction.FORWARD), (1, Direction.BACKWARD))
    )
    step = (
        Event(forward, Doing.RUN, 5_000_000, 7_000_000),
        Event(backward, Doing.RUN, 6_000_000, 9_000_000),
        Event(backward, Doing.WAIT, 6_000_000, 7_500_000),
    )
    drawn = {look["name"]: look for look in last_step_figure(((), step), 2).data}
    assert list(drawn) == ["forward", "backward", "waits for a message"]
    boxes = {name: (*look["y"], *look["base"], *look["x"]) for name, look in drawn.items()}
    assert boxes == {
        "forward": (0, 0.0, 2.0),
        "backward": (1, 1.0, 3.0),
        "waits for a message": (1, 1.0, 1.5),
    }


def test_ways_to_an_accuracy_begin_with_the_eight_that_came_first() -> None:
    ways = ("single", "apart", "ddp", "fsdp", "layerwise", "halves", "coarse", "fine", "sliced")
    races = Races(**SETTINGS, data="digits", until=0.9, epochs=2)
    rows = tuple(
        Race(way, (Point(10, 9.0 - at, 1.0, 0.95 if way != "sliced" else 0.1),))
        for at, way in enumerate(ways)
    )
    lines = race_figure(replace(races, rows=rows)).data
    waiting = {line["name"] for line in lines if line["visible"] == "legendonly"}
    assert (len(lines), waiting) == (9, {"sliced"})  # the last point is early, but not there


def test_chunks_of_a_pass_are_one_box_unless_something_lies_between() -> None:
    def run(direction: Direction, chunk: int, begin: int) -> Event:
        return Event(Action(0, direction, 0, chunk), Doing.RUN, begin, begin + 1_000_000)

    forward, update = Direction.FORWARD, Direction.UPDATE
    step = (
        *(run(forward, chunk, 1_000_000 * chunk) for chunk in (0, 1)),
        run(update, 0, 2_000_000),
        run(forward, 2, 3_000_000),
    )
    drawn = {look["name"]: look for look in last_step_figure((step,), 1).data}
    assert (drawn["forward"]["base"], drawn["forward"]["x"]) == ([0.0, 3.0], [2.0, 1.0])
    assert drawn["update"]["base"] == [2.0]


@pytest.fixture(scope="module")
def found() -> Iterator[Recommendation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "divisions", lambda k: divisions(k)[:3])
        yield recommended(machine(2))


def test_ways_are_drawn_in_their_order(found: Recommendation) -> None:
    first, *others = found.ranked
    measured = (replace(first, measured_seconds=0.25), *others)
    dropped = (Dropped("a way", NASTY),)
    html = recommendation_page(
        replace(found, ranked=measured, dropped=dropped), [NASTY], [10**9, None]
    )
    assert NASTY not in html
    drawn = figures(html)
    step, computes, clock = drawn["ways"]["data"]
    assert step["x"] == pytest.approx([one.simulated_seconds for one in found.ranked], rel=1e-5)
    assert computes["x"] == pytest.approx([one.computing_seconds for one in found.ranked], rel=1e-5)
    assert clock["x"] == [0.25, *[None] * len(others)]
    needs, has = drawn["memory"]["data"]
    assert needs["y"] == [one / 1e6 for one in found.best.needed_bytes]
    assert has["y"] == [1000.0, None][: len(needs["y"])]
