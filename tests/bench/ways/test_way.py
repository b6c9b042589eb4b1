"""Ways by name: what is accepted, and what can use how many processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from partitioned_models import graph_of

from hgpart.bench.ways.way import MEANINGS, all_ways, check_ways, chosen_ways, way_of
from hgpart.errors import ArgumentError
from hgpart.partition.ways.built_in import BUILT_IN
from hgpart.partition.ways.catalogue import partition_by
from hgpart.plan import Plan, save_plan
from hgpart.work.figures import flops


def test_all_ways_can_be_written_and_have_a_meaning() -> None:
    for workers in (2, 4, 8):
        ways = all_ways(workers)
        assert len({way.text for way in ways}) == len(ways)
        assert all(way_of(way.text) == way for way in ways)
        assert all(way.meaning for way in ways)
        assert not MEANINGS.keys() & BUILT_IN.keys() - {"single"}
        assert all(way.why_not(workers, 16) is None for way in ways)
    assert {"hybrid-2"} == {way.text for way in all_ways(4)} - {way.text for way in all_ways(2)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dpp", "hybrid-R, others of hgpart compare, PLAN.json; did you mean ddp?"),
        ("gems:1f1b", "way 'gems' is called opposed-replicas now"),
        (
            "horovod-ring",
            "way 'horovod-ring': accepted are single, apart, ddp, fsdp, pipeline-gpipe",
        ),
        ("hybrid-R", "accepted is a number for R, as in hybrid-2"),
        ("hybrid-0", "way 'hybrid-0'"),
        ("ddp:2", "way 'ddp:2': behind ddp, accepted is nothing"),
        ("ps-sync:two", "behind ps-sync, accepted are distributed, servers=, shards=, fetch="),
        ("ps-async:push=x", "behind ps-async, accepted are distributed, servers=, shards=, fetch="),
        ("ps-async:push=0", "push 0: accepted is 1 or more"),
        ("pipeline-1f1b:0", "accepted are 1 micro-batch or more, not '0'"),
        ("pipeline-1f1b:2:2", "behind pipeline-1f1b, accepted is a number of micro-batches"),
        ("coarse:fastest", "behind coarse, accepted is a rule (sequential, gpipe, 1f1b"),
        ("coarse:1f1b:x", "accepted are 1 micro-batch or more, not 'x'"),
        ("coarse:async:2", "2 micro-batches with async"),
    ],
)
def test_what_is_no_way_is_refused_and_what_is_accepted_is_said(text: str, said: str) -> None:
    with pytest.raises(ArgumentError) as error:
        way_of(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [-1, 0, 1, 65])
def test_there_are_two_processes_at_least_and_not_too_many(workers: int) -> None:
    with pytest.raises(ArgumentError, match=rf"--processes {workers}: accepted are 2 to 64"):
        chosen_ways(None, workers)


@pytest.mark.parametrize(
    ("text", "workers", "batch_size", "said"),
    [
        ("ddp", 4, 2, "accepted are batches of a multiple of 4"),
        ("fsdp", 2, 3, "accepted are batches of a multiple of 2"),
        ("ps-async:distributed", 3, 4, "accepted are batches of a multiple of 3"),
        ("pipeline-gpipe", 2, 6, "a multiple of its 4 micro-batches"),
        ("pipeline-1f1b:2", 3, 8, "or more, as in pipeline-1f1b:3"),
        ("coarse:greedy:8", 2, 4, "accepted are at most as many micro-batches"),
    ],
)
def test_more_processes_than_a_way_can_use_are_refused(
    text: str, workers: int, batch_size: int, said: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        check_ways([way_of("single"), way_of(text)], workers, batch_size)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["ddp", "fsdp", "ps-sync", "pipeline-1f1b", "coarse:async"])
def test_what_only_trains_is_refused_in_inference(text: str) -> None:
    with pytest.raises(
        ArgumentError, match=rf"{text} trains: accepted with --inference are single"
    ):
        check_ways([way_of("single"), way_of(text)], 2, 8, inference=True)


def test_ways_of_inference() -> None:
    ways = chosen_ways(None, 2, inference=True)
    assert {"single", "spatial", "fused-tiles"} <= {way.text for way in ways}
    assert all(way.why_not(2, 2, inference=True) is None for way in ways)
    with pytest.raises(ArgumentError, match="fused-tiles runs passes forward: accepted is with"):
        check_ways(ways, 2, 8)


def test_one_server_is_beside_the_workers_and_distributed_ones_are_among_them() -> None:
    for name in ("ps-sync", "ps-async"):
        assert way_of(name).processes(4) == 5
        assert way_of(f"{name}:distributed").processes(4) == 4
        assert way_of(f"{name}:servers=3:shards=round-robin").processes(4) == 7
    assert way_of("single").processes(4) == 1
    assert way_of("ddp").processes(4) == 4


def test_two_plan_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """One of them was run, and its row printed twice."""
    graph = graph_of("plain")
    plan = Plan(partition_by("layerwise", graph, flops(graph), 2), "any", (3, 8, 8))
    paths = [tmp_path / folder / "plan.json" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        save_plan(plan, path)
    texts = [*map(str, paths)]
    assert [way.text for way in chosen_ways(texts[:1], 2)] == ["plan"]
    with pytest.raises(ArgumentError, match="both rows would be called plan, accepted are plan"):
        chosen_ways(texts, 2)
