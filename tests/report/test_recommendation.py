"""What is said of a recommendation: the answer first, and no figure that is not known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from recommended import machine, recommended

from hgpart.recommendation import ways as module
from hgpart.recommendation.ranking import Dropped, Recommendation
from hgpart.recommendation.trials import trials
from hgpart.report.recommendation import answer, print_recommendation, reasons, recommendation_json
from hgpart.terminal import PlainConsole


@pytest.fixture(scope="module")
def found() -> Iterator[Recommendation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trials", lambda k, *_, **__: trials(k)[:3])
        yield recommended(machine(2))


def shown(recommendation: Recommendation, capsys: pytest.CaptureFixture[str]) -> str:
    noted = replace(recommendation, notes=("A note.",))
    print_recommendation(noted, PlainConsole(width=1000), "MB")
    return capsys.readouterr().out


def split(recommendation: Recommendation) -> Recommendation:
    """The same with its best split in front."""
    ways = sorted(recommendation.ranked, key=lambda one: one.trial.k == 1)
    return replace(recommendation, ranked=tuple(ways))


def alone(recommendation: Recommendation) -> Recommendation:
    ways = sorted(recommendation.ranked, key=lambda one: one.trial.k > 1)
    return replace(recommendation, ranked=tuple(ways))


def test_the_answer_comes_first(found: Recommendation, capsys) -> None:
    said = shown(split(found), capsys).splitlines()
    best = split(found).best
    assert said[0].startswith(f"Best: {best.trial.text}, ")
    assert " s a step (simulated), " in said[0]
    assert " times as fast as one device; no way can be more than 2.00 times as fast" in said[0]
    assert "A note." in said
    for one in found.ranked:
        assert any(re.match(rf"{re.escape(one.trial.name)} +{one.trial.k} ", x) for x in said)


def test_a_split_that_does_not_pay(found: Recommendation) -> None:
    said = answer(alone(found), "MB")
    assert said.endswith(
        "(simulated); no split is faster, nor can any be more than 2.00 times as fast"
    )
    assert "To split it among 2 devices does not pay" in reasons(alone(found), "MB")
    assert answer(replace(alone(found), goal="memory"), "MB").endswith("; no split needs less")
    assert answer(replace(alone(found), devices=1), "MB").endswith("(simulated)")


def test_what_was_measured_is_called_so(found: Recommendation, capsys) -> None:
    best, *others = split(found).ranked
    ran = replace(
        split(found),
        ranked=(replace(best, measured_seconds=0.5), *others),
        measured={"torch ddp": 0.25},
        dropped=(Dropped("a way", "why"),),
        left_out=3,
    )
    said = shown(ran, capsys)
    assert "0.5 s a step (measured)" in said.splitlines()[0]
    assert "times as fast" not in said.splitlines()[0]  # which is simulated
    assert said.startswith("Fastest: torch ddp, 0.25 s a step (measured); best of hgpart: ")
    as_fast = replace(ran, measured={"torch ddp": 0.49})
    assert shown(as_fast, capsys).startswith("Best: ")
    assert "a way: why" in said
    assert "no time for 3 others" in said


def test_what_disturbed_it_stands_right_under_the_answer(
    found: Recommendation, capsys, monkeypatch
) -> None:
    """With other work on the cores "no split is faster" was all that was said."""
    monkeypatch.setattr(module, "trials", lambda k, *_, **__: trials(k)[:1])
    disturbed = recommended(replace(machine(2), disturbed="others ran"))
    said = shown(disturbed, capsys).splitlines()
    assert said[1].startswith("The machine's figures can't be trusted: others ran while")
    assert json.loads(recommendation_json(disturbed))["cautions"] == [said[1]]
    assert found.cautions == ()


def test_json_has_all_figures(found: Recommendation) -> None:
    read = json.loads(recommendation_json(replace(found, notes=("A note.",))))
    assert [one["way"] for one in read["ways"]] == [one.trial.text for one in found.ranked]
    assert [one["simulated_seconds"] for one in read["ways"]] == pytest.approx(
        [one.simulated_seconds for one in found.ranked]
    )
    assert read["one_device"]["k"] == 1
    assert read["notes"] == ["A note."]
