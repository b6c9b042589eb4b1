"""One contract for all transports: what a runtime does over them is the same, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toy_programs import Cut, crew_of, cuts

from hgpart.execution.outlines import outline
from hgpart.execution.records.totals import Traffic
from hgpart.execution.runtime import Runtime
from hgpart.run.processes import rank_messages
from hgpart.run.processes.rank import Rank
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule import Schedule

SAMPLES = 3
PATIENCE = 20  # seconds


class Network:
    """Stands for torch.distributed: ranks are threads, and messages have tags or have not."""

    def __init__(self, k: int, has_tags: bool) -> None:
        self.k, self.has_tags = k, has_tags
        self.rank = threading.local()
        self.changed = threading.Condition()
        self.sent: dict[Any, list[Tensor]] = {}
        self.expected: dict[Any, int] = {}
        self.told: list[Any] = [None] * k
        self.meeting = threading.Barrier(k)

    def isend(self, body: Tensor, to: int, group: None, tag: int) -> SimpleNamespace:
        with self.changed:
            way = self.rank.number, to, tag * self.has_tags
            self.sent.setdefault(way, []).append(body.clone())
            self.changed.notify_all()
        return SimpleNamespace(wait=lambda: None)

    def irecv(self, body: Tensor, source: int, group: None, tag: int) -> SimpleNamespace:
        """Of several the first that is posted gets the first that is sent."""
        way = source, self.rank.number, tag * self.has_tags
        number = self.expected.get(way, 0)
        self.expected[way] = number + 1

        def wait() -> None:
            with self.changed:
                come = self.changed.wait_for(lambda: len(self.sent.get(way, ())) > number, PATIENCE)
                assert come, f"waited for message {number} of {way}"
                body.copy_(self.sent[way][number])

        return SimpleNamespace(wait=wait)


class Place:
    """What a `Rank` needs of a connection."""

    device, nccl, lanes = torch.device("cpu"), False, {}

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank, self.k = network, rank, network.k

    def group(self, sender: int, receiver: int) -> None:
        return None

    def guard(self, call: Callable[[], Any], *words: object) -> Any:
        return call()

    def gather(self, value: Any) -> list[Any]:
        self.network.told[self.rank] = value
        self.network.meeting.wait(PATIENCE)
        found = [*self.network.told]
        self.network.meeting.wait(PATIENCE)
        return found

    def numbers(self, own: Any) -> list[list[Any]]:
        return self.gather([*own])


Work = Callable[[Runtime], Any]
Found = tuple[list[Any], Traffic]  # of each process


def by_threads(cut: Cut, work: Work) -> Found:
    runtime = Runtime(cut.placed, crew_of(cut.placed))
    return [work(runtime)], runtime.last.traffic


def by_processes(cut: Cut, work: Work, has_tags: bool) -> Found:
    network = Network(cut.k, has_tags)
    found: dict[int, Any] = {}

    def live(rank: int) -> None:
        network.rank.number = rank
        own = replace(cut.placed, programs={rank: cut.placed.programs[rank]})
        runtime = Runtime(own, Rank(Place(network, rank)))  # type: ignore[arg-type]
        found[rank] = work(runtime), runtime.last.traffic

    with patch.object(rank_messages, "dist", network):
        ranks = [threading.Thread(target=live, args=(rank,)) for rank in range(cut.k)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    traffic = sum((found[rank][1] for rank in range(cut.k)), Traffic.none(cut.k))
    return [found[rank][0] for rank in range(cut.k)], traffic


def assert_alike(cut: Cut, work: Work) -> None:
    """Results, gradients and bytes are the same by each transport."""
    outcomes = []
    state = [
        {name: one.clone() for name, one in share.state_dict().items()} for _, share in cut.shares()
    ]
    for way in (by_threads, by_messages_with_tags, by_messages_in_order):
        found, sent = way(cut, work)
        results = [one for one in found if one]
        held = [(one, one.grad) for _, share in cut.shares() for one in share.parameters()]
        copies = [(a.detach().clone(), b if b is None else b.clone()) for a, b in held]
        bytes_sent = [sent.forward_bytes.tolist(), sent.backward_bytes.tolist()]
        outcomes.append([results, copies, bytes_sent])
        for before, (_, share) in zip(state, cut.shares(), strict=True):
            share.load_state_dict(before)
            share.zero_grad()
    first, *others = outcomes
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def by_messages_with_tags(cut: Cut, work: Work) -> Found:
    return by_processes(cut, work, has_tags=True)


def by_messages_in_order(cut: Cut, work: Work) -> Found:
    """As over NCCL."""
    return by_processes(cut, work, has_tags=False)


def order_of(cut: Cut, rule: str, count: int) -> Schedule:
    outlines = [outline(cut.placed.programs[part], {}) for part in range(cut.k)]
    return make_schedule(outlines, rule, count, Costs(message=1.0))


def values(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(SAMPLES, 3, dtype=torch.float64, generator=generator)}


def square(part: int) -> Callable[[int, tuple[Tensor, ...]], Tensor]:
    return lambda batch, results: results[0].square().sum()


@given(cuts(), st.sampled_from(sorted(RULES)), st.integers(1, 3))
def test_steps(cut: Cut, rule: str, micro_batches: int) -> None:
    order, batches = order_of(cut, rule, micro_batches), [*map(values, range(micro_batches))]

    def step(runtime: Runtime) -> Any:
        return runtime.step(order, batches, square, [SAMPLES] * micro_batches)

    assert_alike(cut, step)


@given(cuts())
def test_calls(cut: Cut) -> None:
    def call(runtime: Runtime) -> Any:
        begun = runtime.forward(values(0), SAMPLES, learns=True)
        results = {part: run.results.pop(0) for part, run in begun.runs.items() if run.results[0]}
        begun.backward({part: [torch.ones_like(*one)] for part, one in results.items()})
        return {part: [one.detach() for one in found] for part, found in results.items()}

    with torch.enable_grad():
        assert_alike(cut, call)


@given(cuts(), st.integers(1, 5), st.booleans())
def test_streams(cut: Cut, count: int, stash: bool) -> None:
    order = order_of(cut, "async", count)

    def stream(runtime: Runtime) -> Any:
        losses: dict[int, list[Tensor]] = {}

        def update(part: int) -> None:
            with torch.no_grad():
                for one in cut.placed.programs[part].module.parameters():
                    if one.grad is not None:
                        one.sub_(one.grad, alpha=0.01)

        def tell(part: int, loss: Tensor | None) -> None:
            if loss is not None:
                losses.setdefault(part, []).append(loss)

        batches = iter([*map(values, range(count))])
        runtime.stream(order, batches, square, update, tell, stash, SAMPLES)
        return losses

    assert_alike(cut, stream)
