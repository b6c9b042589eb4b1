"""The tables of a comparison hold its figures, mark the best, and fit where they are printed."""

from __future__ import annotations

import io
import re

import pytest
from comparisons import comparison, outcome
from rich.console import Console

from hgpart.compare.comparison import verdict
from hgpart.compare.outcomes import Failed, NotApplicable
from hgpart.files.columns import UNITS
from hgpart.report.comparison import print_comparison

MEGA = 10**6
KS = (2, 4, 8, 16, 32)


def printed(made, unit="MB", width=1000, terminal=False, wide=False):
    text = io.StringIO()
    console = Console(
        file=text, width=width, markup=False, emoji=False, force_terminal=terminal, no_color=True
    )
    print_comparison(made, console, unit, wide=wide)
    return text.getvalue()


def cells(text, name):
    """The figures of a strategy."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.split()[1:]


def group(text, name, heading):
    """The figures of a strategy below a heading, by k."""
    lines = text.partition("\n\n")[2].splitlines()
    top = next(at for at, line in enumerate(lines) if f" {heading} " in f"{line} ")
    begins = [m.start() for m in re.finditer(r"(?<=  )-+", lines[top + 2])]
    middle = lines[top].index(heading) + len(heading) // 2
    begin = max(at for at in begins if at <= middle)
    end = begin + len(re.match("-+", lines[top + 2][begin:])[0])
    line = next(line for line in lines if line.startswith(f"{name} "))
    return line[begin:end].split()


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
    sent, load = "sent a step MB", "max/avg"
    kahypar = group(text, "coarse-kahypar", sent)
    assert kahypar == ["2.00*", "4.00*", "8.00*", "16.0*", "32.0*"]
    assert group(text, "coarse-kahypar", load) == ["1.05"] * 5
    assert group(text, "layerwise", sent) == ["1.00!", "2.00!", "4.00!", "-", "-"]
    assert group(text, "layerwise", load) == ["1.50!", "1.50!", "1.50!", "-", "-"]
    headings = [line for line in text.splitlines() if "k=2" in line]
    assert all(re.findall(r"k=(\d+)", line)[:5] == list(map(str, KS)) for line in headings)


def test_with_one_k_every_figure_is_there_and_reasons_stand_in_the_rows():
    rows = [
        outcome("random", 8, 1.07, 8 * MEGA, messages=1234, largest_parameters=2_500_000),
        NotApplicable("layerwise", 8, None, "8 devices, but only 5 layers that compute"),
    ]
    text = printed(comparison(*rows))
    assert cells(text, "random") == [
        *("8.00*", "1.07*", "8.00*", "2.50*", "1,234*", "0.001*", "4.00*"),
        *("0.025*", "0.025*", "0.025*", "0.500"),
    ]
    assert "\nlayerwise  8 devices, but only 5 layers that compute\n" in text


def test_reasons_stand_beneath_where_there_are_several_ks():
    lines = printed(comparison(*grid())).splitlines()
    slices = "data-parallel 2 at k=2, 4 at k=4, 8 at k=8, 16 at k=16, 32 at k=32"
    assert lines[-3:] == [
        f"Slices of the batch: {slices}",
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
    assert "! beyond max/avg 1.1 (the smallest eps): such a split is best in load" in text


def test_rows_besides_those_asked_for_are_not_printed():
    besides = (outcome("random", 2, 1.0, 1), outcome("coarse-kahypar", 2, 1.2, 1, 0.2))
    assert printed(comparison(*grid(), besides=besides)) == printed(comparison(*grid()))


@pytest.mark.parametrize("ks", [(8,), (8, 16)])
def test_a_row_that_failed_says_so(ks):
    rows = [outcome("random", k, 1.0, 1) for k in ks]
    text = printed(comparison(*rows, Failed("coarse-kahypar", 8, 0.1, "ran out of time")))
    assert "failed: ran out of time" in text


def test_a_batch_that_is_too_small_has_epochs_only():
    copies = [
        outcome("copies", k, 1.0, 0, batch_size=k, bytes_per_step=64 * MEGA, smallest_batch=k)
        for k in (32, 64)
    ]
    text = printed(comparison(copies[1], outcome("random", 64, 1.0, 64 * MEGA)))
    assert "\ncopies  64 devices, but only 32 samples in a batch to divide; epochs" in text
    several = printed(comparison(*copies, dataset_size=64_000))
    assert group(several, "copies", "sent a step MB") == ["64.0*", "-"]
    assert "epoch (batch 16)" not in several  # there is no figure at all
    assert group(several, "copies", "epoch (batch 32) GB") == ["128*", "-"]
    assert group(several, "copies", "epoch (batch 64) GB") == ["64.0*", "64.0*"]


def test_several_eps_are_told_apart():
    rows = [outcome("coarse-kahypar", 2, 1 + eps, MEGA, eps) for eps in (0.03, 0.1)]
    text = printed(comparison(*rows, epss=(0.03, 0.1)))
    assert "\ncoarse-kahypar 0.03  " in text
    assert "\ncoarse-kahypar 0.1   " in text


def test_an_epoch_depends_on_the_batch_where_parameters_travel():
    text = printed(comparison(*grid(), dataset_size=64_000))
    assert "epoch of 64,000 samples" in " ".join(text.split())
    same = ["4.00*", "8.00*", "16.0*", "32.0*", "64.0*"]
    copies = {
        16: ["32.0", "64.0", "128", "256", "-"],
        32: ["16.0", "32.0", "64.0", "128", "256"],
    }
    for batch, figures in copies.items():
        assert group(text, "coarse-kahypar", f"epoch (batch {batch}) GB") == same
        assert group(text, "data-parallel", f"epoch (batch {batch}) GB") == figures


@pytest.mark.parametrize("ks", [(8,), (2, 4, 8, 16)])
def test_there_is_one_table_whatever_the_width(ks):
    """The figures that matter most come first; all of them with --wide."""
    made = comparison(*grid(ks))
    for width, wide in ((60, False), (80, False), (80, True), (1000, False)):
        lines = printed(made, width=width, wide=wide).splitlines()
        assert sum(line.startswith("coarse-kahypar ") for line in lines) == 1
        assert "sent a step MB" in lines[next(at for at, line in enumerate(lines) if not line) + 1]
        hidden = [line for line in lines if line.startswith("More columns with --wide: ")]
        assert len(hidden) == (width < 1000 and not wide)
    narrow, whole = printed(made, width=80), printed(made, width=1000)
    assert printed(made, width=80, wide=True).count("time to find") == 1
    sent = len(ks)
    assert cells(narrow, "coarse-kahypar")[:sent] == cells(whole, "coarse-kahypar")[:sent]


def test_where_there_is_no_room_the_k_of_the_verdict_stands_for_all():
    text = printed(comparison(*grid((2, 4, 8, 16))), width=60)
    assert group(text, "coarse-kahypar", "sent a step MB") == ["2.00*", "4.00*", "8.00*", "16.0*"]
    headings = next(line for line in text.splitlines() if "k=16" in line)
    assert headings.split() == ["k=2", "k=4", "k=8", "k=16", "k=8"]
    assert group(text, "coarse-kahypar", "max/avg") == ["1.05"]


@pytest.mark.parametrize("unit", UNITS)
def test_bytes_are_printed_in_the_unit_asked_for(unit):
    text = printed(comparison(outcome("random", 8, 1.0, 3 * 2**40)), unit=unit)
    figure = float(cells(text, "random")[0].rstrip("*").replace(",", ""))
    assert figure == pytest.approx(3 * 2**40 / UNITS[unit], rel=5e-3)


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_tables_fit_the_terminal(width):
    made = comparison(*grid((2, 4, 8, 16)))
    text = printed(made, width=width, terminal=True)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, shown.splitlines())) <= width
    assert shown == printed(made, width=width)  # marks need no colour


def test_rows_that_are_not_there_yet_are_blank():
    rows = [row for row in grid((2, 4)) if (row.strategy, row.k) != ("layerwise", 4)]
    sent = "sent a step MB"
    assert group(printed(comparison(*rows)), "layerwise", sent) == ["1.00!"]
    assert group(printed(comparison(*grid((2, 4)))), "layerwise", sent) == ["1.00!", "2.00!"]


def test_no_row_at_all_is_a_verdict_and_settings():
    assert printed(comparison()).count("\n") == 2


@pytest.mark.parametrize("row", [NotApplicable, Failed])
def test_a_reason_of_a_resumed_file_changes_nothing_on_the_terminal(row):
    text = printed(comparison(row("random", 2, None, "\x1b[31mred\nand [/bold]")))
    assert r"\x1b[31mred\nand [/bold]" in text


def test_markup_in_a_name_is_printed_as_it_is():
    made = comparison(outcome("random", 2, 1.0, 1), model="[bold]me[/bold].py:smile:")
    assert "[bold]me[/bold].py:smile: at 3 x 8 x 8" in printed(made)
