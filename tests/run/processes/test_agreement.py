"""Ranks are threads here, and what they send each other lies in queues."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest
import torch

from hgpart.errors import ArgumentError
from hgpart.run.processes.agreement import Agreement
from hgpart.run.processes.begun import TYPES, Begun, JointCall, check_same

OURS = Begun(JointCall.STEP.number, samples=4, grad_mode=True, training=True)
OTHERS = [
    (OURS._replace(samples=3), "of 4 samples, rank 1 a batch of 3 samples"),
    (OURS._replace(micro_batches=2), "in 1 micro-batch, rank 1 a batch in 2 micro-batches"),
    (OURS._replace(learns=True), "without backward passes, rank 1 a batch with backward passes"),
    (OURS._replace(grad_mode=False), "in grad mode, rank 1 a batch under no_grad"),
    (OURS._replace(training=False), "in training, rank 1 a batch in evaluation"),
    (
        OURS._replace(counts_classes=True),
        "with no mean over classes as its loss, rank 1 a batch with a mean over classes as its "
        "loss",
    ),
    (
        OURS._replace(autocast=1 + TYPES.index(torch.bfloat16)),
        "without autocast, rank 1 a batch under autocast to torch.bfloat16",
    ),
]


class Connection:
    def __init__(self, rank, boxes):
        self.rank, self.boxes = rank, boxes

    def tell(self, peer, numbers, doing):
        self.boxes[self.rank, peer].put(numbers)
        return lambda: None

    def hear(self, peer, numbers, doing):
        return lambda: numbers.copy_(self.boxes[peer, self.rank].get(timeout=10))


@pytest.fixture
def begun():
    """What ranks of a chain, each of which sends to the next, are told when they begin batches."""
    boxes = defaultdict(SimpleQueue)

    def begin(*batches, both_ways=False):
        def of_rank(rank):
            near = [one for one in (rank - 1, rank + 1) if 0 <= one < len(batches)]
            senders, receivers = near, near
            if not both_ways:
                senders, receivers = [one for one in near if one < rank], [rank + 1]
            try:
                Agreement(Connection(rank, boxes)).check(batches[rank], senders, receivers)
            except ArgumentError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(len(batches)) as threads:
            return [*threads.map(of_rank, range(len(batches)))]

    return begin


def test_those_that_begin_the_same_are_told_nothing(begun):
    assert begun(OURS, OURS, OURS) == [None] * 3
    assert begun(OURS, OURS, OURS, both_ways=True) == [None] * 3


@pytest.mark.parametrize(("other", "said"), OTHERS)
def test_who_receives_names_both(begun, other, said):
    """Of a message of another size than it waited for, gloo ended the process."""
    sentence = f"rank 0 begins a batch {said}: accepted is the same on all ranks, in one order"
    assert begun(OURS, other) == [None, sentence]
    assert begun(OURS, other, both_ways=True) == [sentence] * 2


def test_the_first_of_a_chain_does_not_wait_for_the_last_to_begin():
    """A row of batches without gradients would go through the parts one by one."""
    first = Agreement(Connection(0, defaultdict(SimpleQueue)))
    for _ in range(3):
        first.check(OURS, [], [1])


def test_ranks_that_send_nothing_are_compared_too():
    check_same({0: OURS, 1: OURS, 2: OURS})
    with pytest.raises(ArgumentError, match="begins a batch of 4 samples, rank 2 a batch of 3"):
        check_same({0: OURS, 1: OURS, 2: OTHERS[0][0]})
