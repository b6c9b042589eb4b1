"""A server and workers in threads: who waits for whom, and what is added up."""

from __future__ import annotations

import random
import time
from threading import Thread

import torch
from torch import nn

from hgpart.run.servers.server import TICK, Server
from hgpart.run.servers.serving import Serving

WORKERS, STEPS = 3, 12


def trained(serving):
    """The server after all steps of workers who dawdle, and what each has seen of the others."""
    weight = nn.Parameter(torch.zeros(2))
    server = Server(0, [weight], serving, WORKERS)
    server.begin(lambda part, step: torch.optim.SGD([weight], lr=1.0).step())
    done, ahead, ends = [0] * WORKERS, [], [None] * WORKERS

    def work(worker):
        dawdles = random.Random(worker)
        for step in range(STEPS):
            last = step == STEPS - 1
            time.sleep(dawdles.random() / 500)
            ahead.append(step - min(done))
            body = torch.full((2,), float(worker + 1)) if serving.pushes(step, last) else TICK
            if serving.pushes(step, last) or serving.tells_steps:
                done[worker] = step + 1
                server.push(worker, step, last, body)
            if serving.fetches(step, last) or serving.tells_steps:
                ends[worker] = server.answer(worker, step, last)

    threads = [Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return server, max(ahead), ends


def assert_same(ends, total):
    assert all(torch.equal(end, torch.full((2,), -float(total))) for end in ends)


def test_synchronous_workers_go_together():
    server, ahead, ends = trained(Serving("ps-sync"))
    assert ahead == 0
    assert_same(ends, STEPS * (1 + 2 + 3))
    assert server.staleness == [[], [], []]


def test_workers_are_ahead_by_the_bound_at_most():
    for bound in (0, 2):
        server, ahead, ends = trained(Serving("ps-async", staleness=bound))
        assert ahead <= bound
        assert_same(ends, STEPS * (1 + 2 + 3))
        assert max(map(max, server.staleness)) <= (2 * bound + 1) * (WORKERS - 1)


def test_in_intervals_all_have_the_same_weights_in_the_end():
    server, _, ends = trained(Serving("ps-async", push=5, fetch=4))
    assert [len(own) for own in server.staleness] == [3, 3, 3]  # after steps 5, 10 and 12
    assert_same(ends, 3 * (1 + 2 + 3))
