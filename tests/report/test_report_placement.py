"""The tables of a placement: the largest memory first, and every figure of the report."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from placed_models import model_of, placed
from rich.console import Console

from hgpart.placement.accounting import account
from hgpart.report.verifying import print_placement


def printed(report, disagreements=()):
    text = io.StringIO()
    print_placement(report, disagreements, Console(file=text, width=200), "MB")
    return text.getvalue().splitlines()


def test_the_answer_comes_first_then_every_part():
    model, inputs = model_of("forked")
    report = account(placed(model, inputs, grain="fine"), 1000)
    lines = printed(report)
    memory = [part.memory_bytes("sgd with momentum") / 1e6 for part in report.parts]
    largest = memory.index(max(memory))
    assert f"MB on part {largest}, which needs the most; " in lines[0]
    assert float(lines[0].split()[0]) == pytest.approx(max(memory), abs=5e-3)
    assert lines[0].endswith(f" MB of maps in {report.sent_messages.sum()} messages between parts")
    assert "3 parts, 1000 samples in a training step, states of sgd with" in lines[1]
    assert lines[2] == "Counted in the submodules; all figures are the plan's"
    rows = [line.split() for line in lines if line.startswith(("0 (cpu)", "1 (cpu)", "2 (cpu)"))]
    assert [row[0] for row in rows] == ["0", "1", "2"] * 2
    assert [float(row[2]) for row in rows[:3]] == pytest.approx(memory, abs=5e-3)
    work, traffic = rows[3:], report.sent_bytes
    assert [row[2] for row in work] == [f"{part.parameters:,}" for part in report.parts]
    assert [row[3] for row in work] == [f"{part.macs:,}" for part in report.parts]
    assert [row[6] for row in work] == [str(n) for n in report.sent_messages.sum(axis=1)]
    assert [row[8] for row in work] == [str(n) for n in report.received_messages.sum(axis=0)]
    assert "Also held: 42 parameters that the model makes no use of" in " ".join(lines)
    pair = lines[-3:][0].split()
    assert pair[0] == "0"
    assert float(pair[1]) == pytest.approx(traffic[0, 1] / 1e6, abs=5e-4)


def test_disagreements_are_listed():
    model, inputs = model_of("plain")
    lines = printed(account(placed(model, inputs), 2), ["part 0 sends too much"])
    assert lines[2:4] == [
        "Counted in the submodules; not as the partition says:",
        "  part 0 sends too much",
    ]


def test_one_part_sends_nothing_and_some_parts_are_a_share():
    model, inputs = model_of("plain")
    report = account(placed(model, inputs, k=1), 2)
    lines = printed(replace(report, training=False))
    assert "1 part, 2 samples in a forward pass in evaluation, states of sgd with" in lines[1]
    assert not any("Between parts" in line for line in lines)
    lines = printed(account(placed(model, inputs, parts=[1]), 2))
    assert lines[1].startswith("3 parts, 1 of them here, ")
