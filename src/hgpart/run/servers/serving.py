"""What is asked of parameter servers -> who serves what, and when a worker pushes and fetches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hgpart.errors import ArgumentError, check_whole, not_one_of

SYNC, ASYNC = "ps-sync", "ps-async"
SERVERS = (SYNC, ASYNC)
DISTRIBUTED = "distributed"
GREEDY, ROUND_ROBIN = "greedy", "round-robin"
SHARDS = (GREEDY, ROUND_ROBIN)
SETTINGS: Mapping[str, Callable[[str], Any]] = {
    **{"servers": str, "shards": str, "fetch": int, "push": int, "staleness": int}
}


@dataclass(frozen=True)
class Serving:
    """What is asked of parameter servers.

    Attributes
    ----------
    name : {"ps-sync", "ps-async"}
        Whether servers wait for the gradients of all workers before they update weights.
    servers : str
        The number of servers, which are processes beside the workers (thesis 1.1), or
        ``distributed``: each worker serves some of the parameters (thesis 5.2.3).
    shards : {"greedy", "round-robin"}
        How parameters are shared out among the servers; see `shares`.
    fetch, push : int
        Steps from one fetch of weights to the next, and from one push of gradients to the next:
        Downpour SGD's n_fetch and n_push (Dean et al., Large Scale Distributed Deep Networks,
        NIPS 2012, section 4.1). In a step after which a worker does not fetch, it changes its own
        weights by plain gradient descent, with the gradient that it will push and the learning
        rate of the step, whatever the servers' optimizer is (algorithm 7.1 there); the weights
        that it fetches replace them. What it pushes is the sum of its gradients since its last
        push, by which a server updates once, with the learning rate of the last of these steps.
        After the last step before a validation, and at the end, all push what they have and fetch,
        once everyone has pushed.
    staleness : int or None
        The most steps that a worker may be ahead of the slowest (stale synchronous parallel, Ho et
        al., NIPS 2013): after each step it waits until that is so. None for no bound.

    Raises
    ------
    ArgumentError
        If a setting is out of range, or one that synchronous servers have no use for.

    >>> Serving("ps-async", servers="2").processes(4), Serving("ps-sync").processes(4)
    (6, 5)
    """

    name: str
    servers: str = "1"
    shards: str = GREEDY
    fetch: int = 1
    push: int = 1
    staleness: int | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.name not in SERVERS:
            raise not_one_of("way", self.name, SERVERS)
        if self.servers != DISTRIBUTED and not (self.servers.isdecimal() and int(self.servers)):
            raise ArgumentError(
                f"servers={self.servers}: accepted are a number, 1 or more, and {DISTRIBUTED}"
            )
        if self.shards not in SHARDS:
            raise not_one_of("shards", self.shards, SHARDS)
        check_whole("fetch", self.fetch)
        check_whole("push", self.push)
        if self.staleness is not None:
            check_whole("staleness", self.staleness, least=0)
        if self.waits_for_all and (self.fetch, self.push, self.staleness) != (1, 1, None):
            raise ArgumentError(
                f"{self.name} with fetch=, push= or staleness=: accepted are these with {ASYNC}, "
                f"as workers of {self.name} push and fetch together in each step"
            )

    @property
    def waits_for_all(self) -> bool:
        """Whether an update has the gradients of all workers."""
        return self.name == SYNC

    @property
    def is_distributed(self) -> bool:
        """Whether the workers are the servers."""
        return self.servers == DISTRIBUTED

    @property
    def words(self) -> str:
        """The settings in words.

        >>> Serving("ps-async", push=5, staleness=3).words
        '1 server, push every 5 steps, at most 3 steps ahead'
        """
        plural = "s" * (self.servers != "1")
        said = ["distributed servers" if self.is_distributed else f"{self.servers} server{plural}"]
        said += ["parameters in turn"] * (self.shards == ROUND_ROBIN)
        for name in ("fetch", "push"):
            if (steps := getattr(self, name)) > 1:
                said.append(f"{name} every {steps} steps")
        if self.staleness is not None:
            said.append(f"at most {self.staleness} step{'s' * (self.staleness != 1)} ahead")
        return ", ".join(said)

    def processes(self, workers: int) -> int:
        """Number of processes of so many workers and their servers."""
        return workers if self.is_distributed else workers + int(self.servers)

    def owned(self, sizes: Sequence[int], workers: int) -> dict[int, list[int]]:
        """The numbers of the parameters that each server has, by its rank; none has nothing.

        Workers are the ranks 0 to workers - 1, and servers beside them the ranks behind those.

        >>> Serving("ps-sync", "2").owned([10, 4, 5, 2], workers=4)
        {4: [0], 5: [1, 2, 3]}
        >>> Serving("ps-sync", "distributed", "round-robin").owned([10, 4, 5, 2], workers=3)
        {0: [0, 3], 1: [1], 2: [2]}
        """
        first = 0 if self.is_distributed else workers
        ranks = range(first, self.processes(workers))
        owned: dict[int, list[int]] = {rank: [] for rank in ranks}
        for number, rank in enumerate(shares(sizes, len(ranks), self.shards)):
            owned[ranks[rank]].append(number)
        return {rank: numbers for rank, numbers in owned.items() if numbers}

    def pushes(self, step: int, last: bool) -> bool:
        """Whether a worker pushes gradients after a step, counted from 0, the last of a row or not.

        >>> [step for step in range(8) if Serving("ps-async", push=3).pushes(step, step == 7)]
        [2, 5, 7]
        """
        return last or (step + 1) % self.push == 0

    def fetches(self, step: int, last: bool) -> bool:
        """Whether a worker fetches weights after a step; see `pushes`."""
        return last or (step + 1) % self.fetch == 0

    @property
    def tells_steps(self) -> bool:
        """Whether workers say that a step is done where they neither push nor fetch behind it."""
        return self.staleness is not None

    def least_done(self, step: int, last: bool) -> int:
        """Steps that all workers must have done before one goes on behind a step."""
        if self.waits_for_all or last:
            return step + 1
        return 0 if self.staleness is None else step + 1 - self.staleness


def shares(sizes: Sequence[int], servers: int, how: str) -> list[int]:
    """The server of each parameter (thesis 5.2.3): in turn, or the one that has least so far.

    >>> shares([10, 4, 5, 2], 2, "greedy"), shares([10, 4, 5, 2], 2, "round-robin")
    ([0, 1, 1, 1], [0, 1, 0, 1])
    """
    if how == ROUND_ROBIN:
        return [number % servers for number in range(len(sizes))]
    loads, chosen = [0] * servers, []
    for size in sizes:
        chosen.append(loads.index(min(loads)))
        loads[chosen[-1]] += size
    return chosen


def share_of_batch(worker: int, workers: int, batch_size: int) -> range:
    """The samples of a worker in a batch; numbers differ by one where it does not divide.

    >>> [share_of_batch(worker, 3, 8) for worker in range(3)]
    [range(0, 2), range(2, 5), range(5, 8)]
    """
    return range(worker * batch_size // workers, (worker + 1) * batch_size // workers)
