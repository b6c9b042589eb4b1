"""Pages of what was trained and recommended draw the figures of their records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects
import pytest
from bench_settings import SETTINGS
from browser import PLOTS, Page, browse, in_a_browser
from recommended import machine, recommended

from hgpart.bench.races import Point, Race, Races
from hgpart.bench.results import Bench, Measured
from hgpart.execution.records.events import Doing, Event, planned_events
from hgpart.execution.records.totals import Timing, Totals, Traffic
from hgpart.placement.accounting import StepBytes
from hgpart.prediction.jobs import Span
from hgpart.prediction.predict import Prediction
from hgpart.recommendation import ways as module
from hgpart.recommendation.ranking import Dropped, Recommendation
from hgpart.recommendation.trials import trials
from hgpart.report.page.document import Drawings
from hgpart.report.page.drawing.figures import Figure
from hgpart.report.page.drawing.timelines import milliseconds_of, timeline_figure
from hgpart.report.page.prediction import prediction_page
from hgpart.report.page.recommended import recommendation_page
from hgpart.report.page.running import measured_sections, stretched
from hgpart.report.page.training import MOST_POINTS, training_page
from hgpart.report.page.ways import bench_page, race_figure
from hgpart.report.partition.looks import hatch_of, part_colour
from hgpart.report.prediction import PredictionReport, prediction_notes
from hgpart.report.training import TrainingReport
from hgpart.run.measuring import Measurement
from hgpart.run.training.epochs import Epoch
from hgpart.run.training.loop import TrainingResult
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.scores import Loss
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.outline import Outline
from hgpart.schedules.schedule import Action, Direction, Schedule
from hgpart.work.layer_times import LayerTimes

NASTY = "</script><b>"


def figures(html: str) -> dict:
    found = re.search(r'id="figures">(.*?)</script>', html)
    drawn: dict = json.loads(found[1])["figures"]
    for one in drawn.values():
        plotly.graph_objects.Figure(one["data"], one["layout"])  # raises for unknown properties
        assert len(one["data"]) <= 8
    return drawn


def predicted(measured: bool) -> PredictionReport:
    """A step of two parts, of 3 s by simulation and of 2 s as it was measured."""
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    actions = [Action(part, way, 0, 0) for part, way in ((0, forward), (1, forward), (1, backward))]
    outlines = (Outline((), ()),) * 2
    prediction = Prediction(
        seconds=3.0,
        period=3.0,
        batch_size=8,
        schedule=Schedule("gpipe", 1, outlines, tuple(actions)),
        spans=tuple(Span(float(at), at + 1.0) for at in range(3)),
        busy=np.array([1.0, 2.0]),
        update_seconds=0.0,
        peak_bytes=(1, 2),
        step_bytes=(StepBytes(1, 1), StepBytes(2, 2)),
        offloaded_bytes=np.zeros(2, np.int64),
        sent_bytes=np.zeros((2, 2), np.int64),
    )
    timings = (Timing(1.0, 0.0, 1.0, 0.0), Timing(2.0, 0.5, 1.0, 0.0))
    events = tuple(
        Event(action, Doing.RUN, 10**9 * at, 10**9 * at + 6 * 10**8)
        for at, action in enumerate(actions)
    )
    steps = Measurement(2, 8, True, 4.0, Totals(timings, Traffic.none(2)), timeline=((), events))
    return PredictionReport(
        NASTY,
        machine(2),
        LayerTimes((1,), (), "times"),
        prediction,
        Scheduling(),
        steps if measured else None,
    )


def test_a_prediction_says_what_disturbed_its_figures() -> None:
    report = predicted(measured=True)
    assert report.measurement is not None
    steps = replace(report.measurement, disturbed="others ran")
    disturbed = replace(report, machine=replace(machine(2), disturbed="more"), measurement=steps)
    said = " can't be trusted: {} while they were measured; repeat on an idle machine"
    assert [*prediction_notes(disturbed)][:2] == [
        f"The machine's figures{said.format('more')}",
        f"The measured seconds{said.format('others ran')}",
    ]
    assert report.cautions == ()


def test_a_prediction_stands_over_what_was_measured() -> None:
    html = prediction_page(predicted(measured=True))
    assert NASTY not in html
    assert "<h1>3,000.0 ms a step, 2.7 samples/s (simulated)</h1>" in html
    assert "Measured: 2,000.0 ms a step; the simulation says +50.0 %" in html
    drawn = figures(html)
    computes, clock = drawn["seconds"]["data"]
    assert (computes["x"], clock["x"]) == ([1000.0, 2000.0], [1000.0, 1500.0])
    planned, measured = drawn["step"]["data"][:2]
    assert (planned["name"], measured["name"]) == ("planned", "measured")
    assert planned["base"] == measured["base"] == [0.0, 1000.0, 2000.0]
    assert (planned["x"], measured["x"]) == ([1000.0] * 3, [600.0] * 3)


def test_a_prediction_alone_has_one_row_a_part() -> None:
    drawn = figures(prediction_page(predicted(measured=False)))
    assert [one["name"] for one in drawn["step"]["data"]] == ["planned", "forward", "backward"]
    assert drawn["step"]["data"][0]["y"] == [0, 1, 1]
    assert len(drawn["seconds"]["data"]) == 1


@pytest.mark.full
@in_a_browser
@pytest.mark.parametrize("theme", [1, 0])
def test_a_timeline_in_a_browser(theme: int, tmp_path: Path) -> None:
    script = (
        PLOTS
        + """
        const plot = document.getElementById("step");
        const labels = [...plot.querySelectorAll(".ytick text")].map((text) => text.textContent);
        const legend = [...plot.querySelectorAll(".legendtext")].map((text) => text.textContent);
        const bars = [...plot.querySelectorAll(".barlayer .point path")]
          .map((path) => path.getBoundingClientRect())
          .filter(({ width }) => width)
          .map(({ left, top, width, height }) => [left, top, width, height].map(Math.round));
        const root = document.documentElement;
        return { labels, legend, bars, overflow: root.scrollWidth - root.clientWidth };
        """
    )
    seen, problems, _ = browse(
        prediction_page(predicted(measured=True)),
        tmp_path,
        script,
        *("--window-size=500,900", f"--blink-settings=preferredColorScheme={theme}"),
    )
    assert problems == []
    assert seen["overflow"] <= 0
    assert seen["labels"] == ["planned", "0 measured", "planned", "1 measured"]
    assert seen["legend"] == ["forward", "backward"]
    planned, measured = seen["bars"][:3], seen["bars"][3:6]
    for (left, top, width, height), (other, below, shorter, higher) in zip(
        planned, measured, strict=True
    ):
        assert abs(left - other) <= 1  # one axis for both
        assert shorter == pytest.approx(0.6 * width, abs=3)
        assert top + height <= below
        assert higher > 2 * height


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
    html = training_page(trained([1.0, 0.5], epochs=(Epoch(1, 0.1, 0.25), Epoch(2, 0.08, 0.5))))
    assert "<h1>loss 0.5, validation accuracy 50.00 %, 8.0 samples/s</h1>" in html
    assert NASTY not in html
    drawn = figures(html)
    works, waits = drawn["seconds"]["data"]
    assert (works["x"], waits["x"]) == ([1000.0, 250.0], [375.0, 0.0])  # ms of 2 steps
    assert drawn["validation"]["data"][0]["y"] == [25.0, 50.0]
    assert drawn["validation"]["data"][0]["customdata"] == ["0.1", "0.08"]


def test_a_users_loss_is_drawn_as_it_is() -> None:
    epochs, loss = (Epoch(1, 0.1, 2.0), Epoch(2, 0.1, 0.5)), Loss("net.py:loss", of_classes=False)
    of_loss = {"loss": loss, "accuracy": None, "validation_loss": 0.5}
    html = training_page(trained([1.0, 0.5], epochs=epochs, **of_loss))
    assert "<h1>loss 0.5, validation loss 0.5, 8.0 samples/s</h1>" in html
    assert figures(html)["validation"]["data"][0]["y"] == [2.0, 0.5]


def test_a_training_of_no_steps_has_a_page() -> None:
    assert figures(training_page(trained([]))) == {}


def drawn_boxes(figure: Figure, lane: str) -> dict[str, list[tuple[int, float, float]]]:
    """Part, begin and length of what is drawn in a lane, by what it is."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    (boxes,) = (one for one in figure.data if one["name"] == lane)
    for (part, name, _, _), begin, length in zip(
        boxes["customdata"], boxes["base"], boxes["x"], strict=True
    ):
        found.setdefault(name, []).append((part, begin, length))
    return found


def test_the_last_step_is_drawn_from_its_begin_without_its_waits() -> None:
    forward, backward = (
        Action(part, direction, 0, 0)
        for part, direction in ((0, Direction.FORWARD), (1, Direction.BACKWARD))
    )
    step = (
        Event(forward, Doing.RUN, 5_000_000, 7_000_000),
        Event(backward, Doing.RUN, 6_000_000, 9_000_000),
        Event(backward, Doing.WAIT, 6_000_000, 7_500_000),
    )
    figure = timeline_figure(2, step, (), "ms")
    assert drawn_boxes(figure, "measured") == {
        "forward": [(0, 0.0, 2.0)],
        "backward": [(1, 2.5, 1.5)],
    }
    waits, legend = (one for one in figure.data if one["name"] == "waits for a message")
    assert (waits["y"], waits["base"], waits["x"]) == ([1.0], [1.0], [1.5])
    assert legend["x"] == [None]
    assert {one["name"] for one in figure.data if one.get("showlegend", True)} == {
        *("forward", "backward", "waits for a message")
    }


def test_the_plan_is_drawn_over_the_measured_step_in_the_same_colours() -> None:
    actions = [Action(part, Direction.FORWARD, at, 0) for part in range(9) for at in range(2)]
    step = tuple(
        Event(action, Doing.RUN, 10**6 * at, 10**6 * (at + 1)) for at, action in enumerate(actions)
    )
    plan = planned_events(actions, [(0.001 * at, 0.001 * at + 0.0005) for at in range(18)])
    figure = timeline_figure(9, step, plan, "ms")
    planned, measured = figure.data[:2]
    assert (planned["name"], measured["name"]) == ("planned", "measured")
    for one in (planned, measured):
        parts = [part for part, *_ in one["customdata"]]
        assert one["marker"]["color"] == [part_colour(part) for part in parts]
        assert one["marker"]["pattern"]["shape"] == [hatch_of(part) for part in parts]
        assert [round(y) for y in one["y"]] == parts  # all in the rows of their parts
    middles = zip(planned["y"], measured["y"], strict=True)
    room = (planned["width"] + measured["width"]) / 2
    assert all(above + room < below for above, below in middles)  # downwards; they do not overlap
    assert planned["width"] < measured["width"]
    ticks = figure.layout["yaxis"]
    assert ticks["ticktext"][-2:] == ["planned", "<b>8</b> measured"]
    assert ticks["tickvals"][-2:] == [planned["y"][-1], measured["y"][-1]]


@pytest.mark.parametrize("seconds", [0.25, 0.0])
def test_a_plan_by_guesses_is_drawn_as_long_as_the_step(seconds: float) -> None:
    action = Action(0, Direction.FORWARD, 0, 0)
    plan = planned_events([action, action._replace(chunk=1)], [(0.0, seconds)] * 2)
    timeline = ((Event(action, Doing.RUN, 5, 8),),)
    drawn = Drawings()
    sections = measured_sections((Timing(1.0),), 1, timeline, plan, drawn)
    said_of_steps = " ".join(sections)
    figure = drawn["last-step"]
    assert isinstance(figure, Figure)
    assert milliseconds_of(stretched(plan, 2.0)) == (2.0 if seconds else 0.0)
    said = {one["name"]: one["hovertemplate"] for one in figure.data if "hovertemplate" in one}
    assert " ms" in said["measured"]
    assert " ms" not in said.get("planned", "")  # they would be of the measured step's time
    assert f"by the estimates {1000 * seconds:.4g} ms" in said_of_steps
    sections = measured_sections((Timing(1.0),), 1, timeline, (), drawn)
    assert "estimates" not in " ".join(sections)


def test_ways_to_an_accuracy_begin_with_the_eight_that_came_first() -> None:
    ways = ("single", "apart", "ddp", "fsdp", "layerwise", "horizontal", "coarse", "fine", "sliced")
    races = Races(**SETTINGS, data="digits", until=0.9, epochs=2)
    rows = tuple(
        Race(way, (Point(10, 9.0 - at, 1.0, 0.95 if way != "sliced" else 0.1),))
        for at, way in enumerate(ways)
    )
    lines = race_figure(replace(races, rows=rows)).data
    waiting = {line["name"] for line in lines if line["visible"] == "legendonly"}
    assert (len(lines), waiting) == (9, {"sliced"})  # the last point is early, but not there


def test_the_fastest_way_and_the_base_of_speed_ups_are_marked() -> None:
    rows = [
        Measured(way, 1, (seconds, seconds), (1.0,), (0.5,), 0.0, (100,))
        for way, seconds in (("single", 2.0), ("ddp", 1.0), ("fsdp", 1.5), ("apart", 0.5))
    ]
    html = bench_page(Bench(**SETTINGS, steps=2, rows=tuple(rows)))
    (bars,) = figures(html)["ways"]["data"]
    assert bars["y"] == ["single (base of speed-ups)", "ddp (fastest)", "fsdp", "apart"]
    base, best, *others = bars["marker"]["color"]
    assert len({base, best, *others}) == 3
    assert len(set(others)) == 1
    cells = Page(html).tables["ways-table"]
    marked = [row[0]["text"] for row in cells for cell in row if cell["text"].startswith("★ ")]
    assert marked == ["ddp fastest"]
    fused = replace(rows[1], way="fused-tiles", note="3 of 5 layers fused")
    html = bench_page(Bench(**SETTINGS, steps=2, inference=True, rows=(rows[0], fused, rows[3])))
    assert "fused-tiles: 3 of 5 layers fused" in html
    assert figures(html)["ways"]["data"][0]["y"][2] == "apart (fastest)"


def test_chunks_of_a_pass_are_one_box_unless_something_lies_between() -> None:
    def run(direction: Direction, chunk: int, begin: int) -> Event:
        return Event(Action(0, direction, 0, chunk), Doing.RUN, begin, begin + 1_000_000)

    forward, update = Direction.FORWARD, Direction.UPDATE
    step = (
        *(run(forward, chunk, 1_000_000 * chunk) for chunk in (0, 1)),
        run(update, 0, 2_000_000),
        run(forward, 2, 3_000_000),
    )
    assert drawn_boxes(timeline_figure(1, step, (), "ms"), "measured") == {
        "forward": [(0, 0.0, 2.0), (0, 3.0, 1.0)],
        "update": [(0, 2.0, 1.0)],
    }


@pytest.fixture(scope="module")
def found() -> Iterator[Recommendation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trials", lambda k, *_, **__: trials(k)[:3])
        yield recommended(machine(2))


def test_ways_are_drawn_in_their_order(found: Recommendation) -> None:
    first, *others = found.ranked
    measured = (replace(first, measured_seconds=0.25), *others)
    dropped = (Dropped("a way", NASTY),)
    html = recommendation_page(
        replace(found, ranked=measured, dropped=dropped, notes=(NASTY,)), [10**9, None]
    )
    assert NASTY not in html
    drawn = figures(html)
    step, computes, clock = drawn["ways"]["data"]
    assert step["x"] == pytest.approx([one.simulated_seconds for one in found.ranked], rel=1e-5)
    assert computes["x"] == pytest.approx([one.computing_seconds for one in found.ranked], rel=1e-5)
    assert clock["x"] == [0.25, *[None] * len(others)]
    needs, has = drawn["memory"]["data"]
    assert needs["y"] == [one / 1e6 for one in found.best.needed_bytes]
    had = [1000.0, None][: len(needs["y"])]
    assert has["y"] == [had[0], *had, had[-1]]


@pytest.mark.full
@in_a_browser
def test_names_leave_room_for_figures_in_a_narrow_window(
    found: Recommendation, tmp_path: Path
) -> None:
    script = """
        const table = document.getElementById("ways-table");
        const frame = table.parentNode.getBoundingClientRect();
        const cells = [...table.tBodies[0].rows].map((row) => row.cells[2].getBoundingClientRect());
        return cells.map(({ right }) => right - frame.right);
        """
    way = replace(found.best.trial.way, name="slices and filters for the least time of all")
    trial = replace(found.best.trial, way=way)
    ways = (replace(found.best, trial=trial), *found.ranked[1:])
    html = recommendation_page(replace(found, ranked=ways), [])
    seen, problems, _ = browse(html, tmp_path, script, "--window-size=500,900")
    assert problems == []
    assert all(beyond <= 0 for beyond in seen)
