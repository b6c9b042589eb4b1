"""A comparison: its grid, who wins, what the verdict says, and files that can be gone on from."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import threading

import pytest
from comparisons import comparison, load_comparison, outcome
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import graph_of

from hgpart.compare.comparison import (
    CONTESTED,
    cell_of,
    check_grid,
    chosen_ways,
    compare,
    grid,
    verdict,
    winners,
    work_digest,
)
from hgpart.compare.comparison_files import (
    as_record,
    comparison_csv,
    comparison_json,
    rows_done,
)
from hgpart.compare.outcomes import Failed, NotApplicable, Outcome
from hgpart.errors import ArgumentError, FormatError, PlanError
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.ways.way import Way
from hgpart.work.figures import flops, measured

# ------------------------------------------------------------------ the grid


def test_the_grid_has_each_eps_only_where_one_is_taken():
    chosen = chosen_ways(["coarse-kahypar", "random"])
    cells = [(strategy.name, k, eps) for strategy, k, eps in grid(chosen, (2, 4), (0.1, 0.2))]
    assert cells == [
        *(("coarse-kahypar", 2, 0.1), ("coarse-kahypar", 2, 0.2), ("random", 2, None)),
        *(("coarse-kahypar", 4, 0.1), ("coarse-kahypar", 4, 0.2), ("random", 4, None)),
    ]


def test_an_unknown_way_has_near_names():
    assert [way.name for way in chosen_ways(["random"])] == ["random"]
    assert len(chosen_ways(None)) > 10
    with pytest.raises(ArgumentError, match=r"way 'layer-wise': .* did you mean layerwise"):
        chosen_ways(["random", "layer-wise"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((2, 0), (0.1,), 0, 1, 1), "k is 0"),
        (((2**15,), (0.1,), 0, 1, 1), "k is 32768, expected at most 16384"),
        (((2,), (0.1, -1.0), 0, 1, 1), "eps is -1"),
        (((2,), (0.1,), -1, 1, 1), "seed is -1"),
        (((2,), (0.1,), 0, 0, 1), "dataset size is 0"),
        (((2,), (0.1,), 0, 1, 0), "jobs is 0"),
    ],
)
def test_what_no_model_can_be_compared_with_is_refused(arguments, said):
    check_grid((1, 2), (0.0,), 0, 1, 1)
    with pytest.raises(ArgumentError, match=said):
        check_grid(*arguments)


def run(names, jobs=1, **options):
    graph = graph_of("plain")
    cells = list(grid(chosen_ways(names), (2, 3), (0.2,)))
    rows = compare(graph, flops(graph), Modelling(), cells, 0, jobs=jobs, **options)
    return [dataclasses.replace(row, seconds=0.0) for row in rows]


@pytest.mark.full
@pytest.mark.long
def test_rows_come_in_the_order_of_the_grid_whatever_runs_at_once():
    names = ["coarse-kahypar", "random", "layerwise", "fine-kahypar"]
    told = []
    alone, together = run(names), run(names, jobs=3, on_row=told.append)
    assert alone == together
    assert [row.strategy for row in alone] == names * 2
    assert sorted(map(cell_of, told)) == sorted(map(cell_of, alone))


def test_rows_that_are_done_are_taken_as_they_are():
    done = {("random", 2, None): outcome("random", 2, 7.0, 1)}
    rows = run(["random"], done=done)
    assert [row.max_over_average == 7.0 for row in rows] == [True, False]


def test_rows_that_failed_are_tried_again():
    done = {("random", 2, None): Failed("random", 2, None, "no memory")}
    assert [type(row) for row in run(["random"], done=done)] == [Outcome, Outcome]


def test_what_has_not_begun_when_it_is_closed_never_does():
    begun, go_on = [], threading.Event()

    def wait(problem, search):
        begun.append(problem.k)
        go_on.wait(10)
        return random_parts(problem, seed=0)

    graph = graph_of("plain")
    cells = [(Way("wait", "", wait), k, None) for k in range(1, 9)]
    rows = compare(graph, flops(graph), Modelling(), cells, 0, jobs=2)
    go_on.set()
    next(rows)
    go_on.clear()
    rows.close()
    count = len(begun)
    go_on.set()
    assert count < 8
    assert len(begun) <= count + 2


# ------------------------------------------------------------------ who wins


def test_only_balanced_splits_win_a_column_but_load():
    rows = comparison(
        outcome("heavy", 2, 1.5, 10),
        outcome("light", 2, 1.05, 100),
        outcome("even", 2, 1.0, 200, largest_parameters=50),
        outcome("heavy", 4, 3.0, 20),
    )
    assert winners(rows, "max_over_average") == {("even", 2, None), ("heavy", 4, None)}
    assert winners(rows, "imbalance") == winners(rows, "max_over_average")
    assert winners(rows, "step_bytes") == {("light", 2, None)}  # nobody does at k = 4
    assert winners(rows, "largest_parameters") == {("even", 2, None)}


def test_like_is_compared_with_like_at_the_smallest_eps():
    # What was allowed more moves less: no merit.
    rows = (
        outcome("a", 8, 1.15, 10, 0.15),
        outcome("a", 8, 1.02, 20, 0.03),
        outcome("layerwise", 8, 1.02, 60),
        outcome("rule", 8, 1.1, 5),
    )
    made = comparison(*rows, epss=(0.15, 0.03))
    assert winners(made, "step_bytes") == {("a", 8, 0.03)}
    assert winners(comparison(*rows, epss=(0.15,)), "step_bytes") == {("rule", 8, None)}
    assert verdict(made) == (
        "a: 3.0x less traffic than layerwise at k=8, at 1.02 max/avg against 1.02 "
        "(eps 0.03, batch 32)"
    )


def test_rows_besides_those_asked_for_win_nothing():
    asked = outcome("a", 8, 1.05, 20, 0.1), outcome("layerwise", 8, 1.05, 40)
    besides = outcome("a", 8, 1.2, 1, 0.2), outcome("random", 8, 1.0, 1)
    made = comparison(*asked, besides=besides)
    assert verdict(made) == verdict(comparison(*asked))
    for column in CONTESTED:
        assert winners(made, column) == winners(comparison(*asked), column)


def copies(k, **figures):
    return outcome(
        *("copies", k, 1.0, 0),
        **{
            "batch_size": max(k, 32),
            "bytes_per_sample": 0.0,
            "bytes_per_step": 3000,
            "smallest_batch": k,
            **figures,
        },
    )


def test_each_batch_size_of_an_epoch_has_its_own_best():
    # 100 samples: 7, 4 or 2 steps of 3000 bytes against 100 times 100 bytes.
    made = comparison(outcome("a", 2, 1.0, 3200), copies(2), dataset_size=100)
    a, copied = {("a", 2, None)}, {("copies", 2, None)}
    best = [winners(made, f"epoch_bytes_batch_{batch}") for batch in (16, 32, 64)]
    assert best == [a, a, copied]


def test_copies_of_the_model_do_not_win_what_they_never_send():
    made = comparison(outcome("a", 2, 1.0, 3200), copies(2))
    assert winners(made, "forward_bytes") == {("a", 2, None)}
    assert "seconds" not in CONTESTED


def test_what_needs_a_larger_batch_contests_epochs_only():
    made = comparison(outcome("a", 64, 1.0, 32_000), copies(64))
    assert winners(made, "step_bytes") == winners(made, "messages") == {("a", 64, None)}
    assert winners(made, "epoch_bytes_batch_32") == {("a", 64, None)}
    assert winners(made, "epoch_bytes_batch_64") == {("copies", 64, None)}
    assert "copies" not in verdict(made)


def test_figures_within_a_thousandth_win_together():
    rows = comparison(
        outcome("a", 2, 1.0, 10_000), outcome("b", 2, 1.0, 10_009), outcome("c", 2, 1.0, 10_020)
    )
    assert winners(rows, "step_bytes") == {("a", 2, None), ("b", 2, None)}


def test_what_can_not_be_used_wins_nothing():
    usable = outcome("b", 2, 1.0, 5, step_seconds=1.0)
    rows = comparison(NotApplicable("a", 2, None, "why"), usable)
    for column in CONTESTED:
        assert winners(rows, column) == {("b", 2, None)}


# ------------------------------------------------------------------ the verdict


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [outcome("coarse", 8, 1.09, 100, 0.1), outcome("layerwise", 8, 1.31, 230)],
            "coarse: 2.3x less traffic than layerwise at k=8, at 1.09 max/avg against 1.31",
        ),
        (
            [outcome("coarse", 8, 1.09, 230, 0.1), outcome("layerwise", 8, 1.31, 100)],
            "coarse: 2.3x the traffic of layerwise at k=8, at 1.09 max/avg against 1.31",
        ),
        (
            [outcome("coarse", 8, 1.0, 100, 0.1), outcome("layerwise", 8, 1.0, 101)],
            "coarse: as much traffic as layerwise at k=8, at 1.00 max/avg against 1.00",
        ),
        (  # the better of two, and the best of all others that are balanced
            [
                outcome("coarse", 8, 1.09, 200, 0.1),
                outcome("fine", 8, 1.08, 150, 0.1),
                outcome("layerwise", 8, 1.31, 300),
                outcome("lopsided", 8, 4.0, 1),
                outcome("trick", 8, 1.0, 100),
                outcome("random", 8, 1.1, 9000),
            ],
            "fine: 2.0x less traffic than layerwise at k=8, at 1.08 max/avg against 1.31; "
            "1.5x the traffic of trick at 1.00",
        ),
        (  # k = 8 is not there: the largest at which both are
            [
                outcome("coarse", 4, 1.0, 10, 0.1),
                outcome("layerwise", 4, 1.5, 20),
                outcome("coarse", 64, 1.0, 10, 0.1),
            ],
            "coarse: 2.0x less traffic than layerwise at k=4, at 1.00 max/avg against 1.50",
        ),
        (
            [
                outcome("coarse", 64, 1.02, 10, 0.1),
                NotApplicable("layerwise", 64, None, "too few"),
                outcome("random", 64, 1.0, 50),
            ],
            "coarse: 5.0x less traffic than random at k=64, at 1.02 max/avg against 1.00",
        ),
        ([outcome("coarse", 2, 1.02, 10, 0.1)], "coarse: 1.02 max/avg at k=2"),
        (
            [outcome("random", 2, 1.02, 10), outcome("even", 2, 1.0, 5)],
            "even: least traffic of those within 1.1 max/avg at k=2",
        ),
        ([outcome("random", 2, 1.2, 10)], "nothing is within 1.1 max/avg"),
        ([outcome("coarse", 1, 1.0, 0, 0.1), outcome("layerwise", 1, 1.0, 0)], "as much traffic"),
        ([], "nothing is within 1.1 max/avg"),
    ],
)
def test_the_verdict_says_how_the_best_partition_compares(rows, said):
    assert said in verdict(comparison(*rows))


# ------------------------------------------------------------------ files

figures = st.integers(0, 2**50)
names = st.sampled_from(["coarse-kahypar", "layerwise", 'a "name"', "µ\n"])
epss = st.one_of(st.none(), st.floats(0, 10))
outcomes = st.builds(
    Outcome,
    strategy=names,
    k=st.integers(1, 2**14),
    eps=epss,
    batch_size=st.integers(1, 1024),
    max_over_average=st.floats(1, 1e6),
    imbalance=st.floats(0, 1e6),
    forward_bytes=figures,
    bytes_per_sample=st.floats(0, 2**40),
    bytes_per_step=figures,
    largest_device_bytes=figures,
    messages=figures,
    largest_parameters=figures,
    largest_activation_bytes=figures,
    seconds=st.floats(0, 1e6),
    smallest_batch=st.integers(1, 100),
)
one_line = st.text(st.characters(exclude_categories=["C"]))
reasons = st.one_of(
    st.builds(kind, names, st.integers(1, 2**14), epss, one_line)
    for kind in (NotApplicable, Failed)
)
comparisons = st.builds(
    comparison,
    st.one_of(outcomes, reasons),
    st.one_of(outcomes, reasons),
    bytes_per_element=st.one_of(st.none(), st.integers(1, 8)),
    epss=st.lists(st.floats(0, 10), min_size=1).map(tuple),
    linear=st.sampled_from(["neuron", "layer"]),
    input_vertex=st.booleans(),
    slices=st.one_of(st.none(), st.integers(1, 32)),
)


@given(comparisons)
def test_a_saved_comparison_is_the_same_again(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("saved") / "comparison.json"
    path.write_text(comparison_json(made))
    assert load_comparison(path) == made
    moved = dataclasses.replace(made, rows=made.rows[:1], besides=made.rows[1:])
    path.write_text(comparison_json(moved))
    assert load_comparison(path) == moved


@given(comparisons)
def test_csv_and_json_have_the_same_rows(made):
    records = json.loads(comparison_json(made))["rows"]
    lines = list(csv.DictReader(io.StringIO(comparison_csv(made), newline="")))
    assert len(lines) == len(records) == 2
    for row, record, line in zip(made.rows, records, lines, strict=True):
        assert record == as_record(row, made)
        for name, value in record.items():
            assert line[name] == ("" if value is None else str(value))
        if isinstance(row, Outcome):
            assert record["step_bytes"] == row.step_bytes
            assert record["epoch_bytes_batch_64"] == row.epoch_bytes(100, 64)


SOME = comparison(outcome("random", 2, 1.0, 50), NotApplicable("layerwise", 2, None, "why"))


@given(st.data())
def test_a_file_that_was_changed_is_an_error_or_a_comparison(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("changed") / "comparison.json"
    text = comparison_json(SOME)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    path.write_text(text[:start] + data.draw(st.text(max_size=4)) + text[end:])
    try:
        rows = rows_done(path, dataclasses.replace(SOME, rows=()))
    except (FormatError, PlanError):
        return
    found = dataclasses.replace(SOME, rows=tuple(rows.values()))
    verdict(found)
    for row in found.rows:
        as_record(row, found)


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ('"k": 2', '"k": 0', 22, '"k"'),
        ('"imbalance": 0.0', '"imbalance": -1', 22, "a number from 0"),
        ('"bytes_per_sample": 1.5625', '"bytes_per_sample": 1e300', 22, "a number from 0"),
        ('"row_count": 2', '"row_count": 3', 21, "a list of 3"),
        ("comparison 1", "comparison 2", 2, "format"),
    ],
)
def test_a_malformed_file_names_the_line(before, after, line, said, tmp_path):
    path = tmp_path / "comparison.json"
    text = comparison_json(SOME)
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(FormatError, match=rf"comparison.json, line {line}:") as error:
        rows_done(path, dataclasses.replace(SOME, rows=()))
    assert said in str(error.value)


def test_a_file_is_gone_on_from(tmp_path):
    path = tmp_path / "comparison.json"
    empty = dataclasses.replace(SOME, rows=(), epss=(0.3,), dataset_size=7, model="alias")
    assert rows_done(path, empty) == {}
    path.write_text(comparison_json(SOME))
    assert rows_done(path, empty) == {cell_of(row): row for row in SOME.rows}


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "g"},
        {"batch_size": 16},
        {"bytes_per_element": 2},
        {"linear": "layer"},
        {"input_vertex": False},
        {"output_vertex": False},
        {"work_digest": "other"},
        {"seed": 1},
    ],
)
def test_other_settings_can_not_be_gone_on_from(other, tmp_path):
    path = tmp_path / "comparison.json"
    path.write_text(comparison_json(SOME))
    (name,) = other
    with pytest.raises(PlanError, match=f"can't be resumed: its {name} is"):
        rows_done(path, dataclasses.replace(SOME, rows=(), **other))


def test_two_measurements_have_two_digests():
    graph = graph_of("plain")
    seconds = [0.5] * len(graph.layers)
    one, other = (measured(graph, [each, *seconds[1:]], "today") for each in (0.5, 0.25))
    assert len({work_digest(work) for work in (one, other, flops(graph))}) == 3
    assert work_digest(one) == work_digest(measured(graph, seconds, "tomorrow"))


def test_the_verdict_names_what_takes_less_time_than_the_least_traffic():
    few = outcome("coarse-native", 8, 1.05, 100, 0.1, step_seconds=0.3)
    cut = outcome("layerwise", 8, 1.5, 200, step_seconds=0.1)  # beyond eps: no rival
    fast = outcome("data-parallel", 8, 1.0, 400, step_seconds=0.2)
    said = verdict(comparison(few, cut, fast))
    assert said.startswith("coarse-native: 2.0x less traffic than layerwise at k=8, ")
    assert "; but by the estimate of seconds data-parallel is 1.50x as fast (eps" in said
    assert "estimate" not in verdict(comparison(few, cut))
    slow = dataclasses.replace(fast, step_seconds=0.2999)
    assert "estimate" not in verdict(comparison(few, cut, slow))
