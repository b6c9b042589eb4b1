"""The tables of a comparison hold its figures, mark the best, and fit where they are printed."""

from __future__ import annotations

import io
import re

import pytest
from comparisons import comparison, outcome
from rich.console import Console

from hgpart.compare.comparison import verdict
from hgpart.compare.outcomes import Failed, NotApplicable
from hgpart.report import UNITS, print_comparison

MEGA = 10**6
KS = (2, 4, 8, 16, 32)


def printed(made, unit="MB", width=1000, terminal=False):
    text = io.StringIO()
    console = Console(
        file=text, width=width, markup=False, emoji=False, force_terminal=terminal, no_color=True
    )
    print_comparison(made, console, unit)
    return text.getvalue()


def cells(text, name):
    """The figures of a strategy, from all tables but that of epochs."""
    lines = text.split(" per epoch, ")[0].splitlines()
    return [cell for line in lines if line.startswith(f"{name} ") for cell in line.split()[1:]]


def grid(ks=KS):
    return [
        row
        for k in ks
        for row in (
            outcome("coarse-kahypar", k, 1.05, k * MEGA, 0.1),
            outcome("layerwise", k, 1.5, k * MEGA // 2)
            if k < 16
            else NotApplicable("layerwise", k, None, f"{k} devices, but only 9 layers"),
            outcome(
                *("data-parallel", k, 1.0, 0),
                bytes_per_sample=0.0,
                bytes_per_step=4 * k * MEGA,
                smallest_batch=k,
            ),
        )
    ]


def test_a_figure_has_a_column_for_each_k():
    text = printed(comparison(*grid()))
    assert cells(text, "coarse-kahypar")[:10] == [
        *("1.05", "1.05", "1.05", "1.05", "1.05"),
        *("2.00*", "4.00*", "8.00*", "16.0*", "32.0*"),
    ]
    assert cells(text, "layerwise")[:10] == [
        *("1.50", "1.50", "1.50", "-", "-"),
        *("1.00", "2.00", "4.00", "-", "-"),
    ]
    headings = [line for line in text.splitlines() if "k=2" in line]
    assert all(re.findall(r"k=(\d+)", line)[:5] == list(map(str, KS)) for line in headings)


def test_with_one_k_every_figure_is_there_and_reasons_stand_in_the_rows():
    rows = [
        outcome("random", 8, 1.07, 8 * MEGA, messages=1234, largest_parameters=2_500_000),
        NotApplicable("layerwise", 8, None, "8 devices, but only 5 layers that compute"),
    ]
    text = printed(comparison(*rows))
    assert cells(text, "random") == [
        *("1.07*", "4.00*", "8.00*", "8.00*", "1,234*", "2.50*", "0.001*", "0.50")
    ]
    assert "\nlayerwise  8 devices, but only 5 layers that compute\n" in text


def test_reasons_stand_beneath_where_there_are_several_ks():
    lines = printed(comparison(*grid())).splitlines()
    slices = "data-parallel 2 at k=2, 4 at k=4, 8 at k=8, 16 at k=16, 32 at k=32"
    assert lines[-5:] == [
        f"Slices of the batch: {slices}",
        "- in an epoch: the batch has fewer samples than the strategy has slices",
        "All figures are in --json, --csv and --html, or here with one k.",
        "- at k=16, layerwise: 16 devices, but only 9 layers",
        "- at k=32, layerwise: 32 devices, but only 9 layers",
    ]


def test_the_verdict_and_the_settings_come_first():
    made = comparison(*grid(), bytes_per_element=2, epss=(0.1, 0.2))
    first, second, *_ = printed(made).splitlines()
    assert first == verdict(made)
    assert second.startswith(
        "any at 3 x 8 x 8, batch 32, 2 bytes per element, work flops, eps 0.1, 0.2, seed 0"
    )


def test_the_rule_of_the_marks_names_the_bound():
    text = printed(comparison(*grid(), epss=(0.25, 0.1)))
    assert "of the splits within max/avg 1.1 (the smallest eps)" in text


def test_rows_besides_those_asked_for_are_not_printed():
    besides = (outcome("random", 2, 1.0, 1), outcome("coarse-kahypar", 2, 1.2, 1, 0.2))
    assert printed(comparison(*grid(), besides=besides)) == printed(comparison(*grid()))


@pytest.mark.parametrize("ks", [(8,), (8, 16)])
def test_a_row_that_failed_says_so(ks):
    rows = [outcome("random", k, 1.0, 1) for k in ks]
    text = printed(comparison(*rows, Failed("coarse-kahypar", 8, 0.1, "ran out of time")))
    assert "failed: ran out of time" in text


def test_a_batch_that_is_too_small_has_epochs_only():
    copies = outcome(
        *("copies", 64, 1.0, 0), batch_size=64, bytes_per_step=64 * MEGA, smallest_batch=64
    )
    text = printed(comparison(copies, outcome("random", 64, 1.0, 64 * MEGA), dataset_size=64_000))
    assert "\ncopies  64 devices, but only 32 samples in a batch to divide; epochs" in text
    line = next(line for line in text.split(" per epoch, ")[-1].splitlines() if "copies" in line)
    assert line.split() == ["copies", "-", "-", "64.0*"]


def test_without_figures_of_an_epoch_there_is_no_table_of_them():
    text = printed(comparison(NotApplicable("layerwise", 8, None, "why")))
    assert "per epoch" not in text


def test_several_eps_are_told_apart():
    rows = [outcome("coarse-kahypar", 2, 1 + eps, MEGA, eps) for eps in (0.03, 0.1)]
    text = printed(comparison(*rows, epss=(0.03, 0.1)))
    assert "\ncoarse-kahypar 0.03  " in text
    assert "\ncoarse-kahypar 0.1   " in text


def test_an_epoch_depends_on_the_batch_where_parameters_travel():
    text = printed(comparison(*grid(), dataset_size=64_000))
    assert "epoch of 64,000 samples" in " ".join(text.split())
    assert all(f"GB per epoch, batch {batch}" in text for batch in (16, 32, 64))
    table = text.split("GB per epoch, batch 16")[1].splitlines()
    rows = {
        name: next(line for line in table if line.startswith(name)).split()[1:]
        for name in ("coarse-kahypar", "data-parallel")
    }
    same = ["4.00*", "8.00*", "16.0*", "32.0*", "64.0*"]
    assert rows["coarse-kahypar"][:10] == same * 2
    assert rows["data-parallel"][:10] == [
        *("32.0", "64.0", "128", "256", "-"),
        *("16.0", "32.0", "64.0", "128", "256"),
    ]


def test_equal_lines_of_an_epoch_are_one():
    rows = [
        outcome(name, 2, 1.0, 0, bytes_per_step=MEGA, smallest_batch=2, bytes_per_sample=0.0)
        for name in ("a", "b", "c")
    ]
    table = printed(comparison(*rows[:2])).split("per epoch")[-1]
    assert table.splitlines()[3].startswith("a, b ")
    table = printed(comparison(*rows)).split("per epoch")[-1]
    assert [line.split()[0] for line in table.splitlines()[3:6]] == ["a", "b", "c"]


@pytest.mark.parametrize("unit", UNITS)
def test_bytes_are_printed_in_the_unit_asked_for(unit):
    text = printed(comparison(outcome("random", 8, 1.0, 3 * 2**40)), unit=unit)
    figure = float(cells(text, "random")[2].rstrip("*").replace(",", ""))
    assert figure == pytest.approx(3 * 2**40 / UNITS[unit], rel=5e-3)


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_tables_fit_the_terminal(width):
    made = comparison(*grid((2, 4, 8, 16)))
    text = printed(made, width=width, terminal=True)
    tables = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n* best")[0]
    assert max(map(len, tables.splitlines())) <= width
    plain = printed(made, width=width)
    assert tables == plain.split("\n* best")[0]  # marks need no colour


def test_rows_that_are_not_there_yet_are_blank():
    rows = [row for row in grid((2, 4)) if (row.strategy, row.k) != ("layerwise", 4)]
    assert len(cells(printed(comparison(*rows)), "layerwise")) == 4
    assert len(cells(printed(comparison(*grid((2, 4)))), "layerwise")) == 8


def test_no_row_at_all_is_a_verdict_and_settings():
    assert printed(comparison()).count("\n") == 2


@pytest.mark.parametrize("row", [NotApplicable, Failed])
def test_a_reason_of_a_resumed_file_changes_nothing_on_the_terminal(row):
    text = printed(comparison(row("random", 2, None, "\x1b[31mred\nand [/bold]")))
    assert r"\x1b[31mred\nand [/bold]" in text


def test_markup_in_a_name_is_printed_as_it_is():
    made = comparison(outcome("random", 2, 1.0, 1), model="[bold]me[/bold].py:smile:")
    assert "[bold]me[/bold].py:smile: at 3 x 8 x 8" in printed(made)
