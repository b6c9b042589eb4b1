"""`hgpart explain` and `hgpart diff`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import Page
from toy_times import in_proportion

import hgpart
from hgpart.cli import run
from hgpart.work.layer_times import save_layer_times


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans of lenet5: one of least bytes, one with a layer elsewhere, one in slices."""
    folder = tmp_path_factory.mktemp("plans")
    model, shape = hgpart.load_model("lenet5", device="meta")
    example = hgpart.example_inputs(model, shape)
    apart = {"conv1": 0, "conv2": 1, "conv3": 1, "fc1": 1, "fc2": 1}
    for name, parts in (("plan", apart), ("other", {**apart, "conv3": 0})):
        result = hgpart.partitioned_as(model, example, parts, eps=1.0)
        result.save(folder / f"{name}.json", "lenet5")
    slices = ["--slices", "2", "--effort", "0", "-o", str(folder / "slices.json")]
    assert run(["partition", "lenet5", "--k", "2", *slices]) == 0
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_bottleneck_is_said_first_then_all_layers(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = printed(capsys, "explain", files / "plan.json").splitlines()
    assert first.startswith("Device 1 is the bottleneck: it computes for ")
    assert "(simulated)" in first
    text = "\n".join(others)
    assert text.index("Most bytes, ") < text.index("Layers (best other: ")
    table = text[text.index("Layers (") :].splitlines()[3:]
    names = ["input", "conv1", "conv2", "conv3", "fc1", "fc2", "output"]
    assert [line.split()[0] for line in table[: len(names)]] == names
    assert [line.split()[-1] for line in table[1:5]] == ["nothing"] * 2 + ["neighbours"] * 2


def test_one_layer_is_explained_in_sentences(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "explain", files / "plan.json", "fc1")
    assert text.startswith("fc1 is whole on device 1. Its neighbours hold it: any other place")
    assert "Best other place: fc1 whole on device 0: " in text
    assert "The cheapest other place pays " in text and " for the maps of conv3" in text


def test_figures_are_those_of_the_function(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    text = printed(capsys, "explain", files / "plan.json", "--json", "-", "--html", page)
    figures = json.loads(text)
    graph = graph_of()
    partition = hgpart.restore(hgpart.files.load_plan(files / "plan.json"), graph)
    explanation = hgpart.explain(partition)
    assert figures["volume_bytes"] == partition.evaluation.volume
    for own, layer in zip(figures["layers"], explanation.layers, strict=True):
        assert own["name"] == layer.name
        assert own["sent_bytes"] == layer.sent_bytes
        assert own["held_by"] == layer.hold.why
        assert (own["best"] or {}).get("volume_bytes") == (layer.best and layer.best.volume)
        assert (own["best"] is None) or own["best"]["simulated_seconds"] > 0
    tables = Page(page.read_text()).tables
    assert len(tables["layers-table"]) == 1 + len(explanation.layers)


def graph_of() -> hgpart.ChannelGraph:
    model, shape = hgpart.load_model("lenet5", device="meta")
    return hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))


def test_measured_times_and_a_machine_say_other_seconds(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    graph = graph_of()
    save_layer_times(in_proportion(graph, update=1e-3), graph, tmp_path / "times.json")
    options = ["--machine", "nvlink-8", "--times", tmp_path / "times.json", "--json", "-"]
    plan = files / "plan.json"
    measured = json.loads(printed(capsys, "explain", plan, *options))
    assumed = json.loads(printed(capsys, "explain", plan, "--json", "-"))
    assert measured["simulated_seconds"] != assumed["simulated_seconds"]
    assert "nvlink-8" in measured["simulated_for"]


def test_seconds_are_those_of_predict(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    graph, plan = graph_of(), files / "plan.json"
    save_layer_times(in_proportion(graph, update=1e-3), graph, tmp_path / "times.json")
    options = ["--machine", "nvlink-8", "--times", tmp_path / "times.json", "--json", "-"]
    options += ["--schedule", "gpipe", "--micro-batches", 4]
    explained = json.loads(printed(capsys, "explain", plan, *options))
    predicted = json.loads(printed(capsys, "predict", "lenet5", "--plan", plan, *options))
    seconds = predicted["simulated_seconds"] + predicted["update_seconds"]
    assert explained["simulated_seconds"] == pytest.approx(seconds, rel=0.01)
    assert explained["schedule"] == "gpipe, 4 micro-batches"


def test_two_plans_are_compared(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pair, page = (files / "plan.json", files / "other.json"), tmp_path / "page.html"
    text = printed(capsys, "diff", *pair, "--html", page)
    first, *_ = text.splitlines()
    assert " % of the work lies elsewhere, " in first and "(simulated)" in first
    figures = json.loads(printed(capsys, "diff", *pair, "--json", "-"))
    names = {layer["name"] for layer in figures["layers"] if layer["elsewhere"]}
    assert names == {"conv3"}
    changes = [layer["sent_after"] - layer["sent_before"] for layer in figures["layers"]]
    before, after = figures["before"]["volume_bytes"], figures["after"]["volume_bytes"]
    assert sum(changes) == after - before
    assert len(Page(page.read_text()).tables["layers-table"]) == 1 + len(figures["layers"])
    alike = printed(capsys, "diff", pair[0], pair[0])
    assert alike.startswith("The two plans divide lenet5 alike")


def test_layers_are_in_the_order_of_what_the_table_shows(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = (files / "plan.json", files / "slices.json")
    layers = json.loads(printed(capsys, "diff", *pair, "--json", "-"))["layers"]
    changes = [abs(layer["sent_after"] - layer["sent_before"]) for layer in layers]
    assert changes == sorted(changes, reverse=True) and changes[0] > changes[-1]


def test_plans_of_two_models_are_refused_by_their_names(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "vgg.json"
    assert run(["partition", "vgg11", "--k", "2", "--way", "layerwise", "-o", str(other)]) == 0
    capsys.readouterr()
    assert run(["diff", str(files / "plan.json"), str(other)]) == 12
    error = capsys.readouterr().err
    assert 'plan.json (of "lenet5") is for a model with fingerprint ' in error
    assert f'{other} (of "vgg11") for another, with ' in error


def test_another_objective_is_named_instead_of_bytes(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "largest.json"
    options = ["--k", "2", "--objective", "largest", "--effort", "0", "-o", str(path)]
    assert run(["partition", "lenet5", *options]) == 0
    text = printed(capsys, "explain", path, "fc1")
    assert " by the objective largest" in text.splitlines()[0]
    assert "neighbours, any other place is worse by the objective" in printed(
        capsys, "explain", path
    )


def test_plans_of_other_slices_say_what_is_not_compared(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "diff", files / "plan.json", files / "slices.json")
    assert ": at least " in text.splitlines()[0]
    assert "Not the same: slices=1 and 2: " in text


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ["plan.json", "conv9"],
            3,
            "there is no layer 'conv9'; accepted are the layers that hgpart trace lists",
        ),
        (["plan.json", "--machine", "10gb"], 6, "did you mean 10gbe?"),
        (["nowhere.json"], 6, "nowhere.json"),
    ],
)
def test_mistakes_are_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    path, *others = arguments
    capsys.readouterr()
    assert run(["explain", str(files / path), *others]) == status
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
