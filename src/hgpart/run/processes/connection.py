"""k -> Connection: this process's place among the k processes of a run, over torch.distributed."""

from __future__ import annotations

import atexit
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import torch

# torch.export imports this as well. As defaults of its functions it keeps the process group that
# exists at that time, which would outlive its end together with the threads of gloo: a thread that
# frees a tensor while Python shuts down aborts the process (pytorch#190489). So it is imported
# here, while there is no group.
import torch.distributed.nn.functional
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hgpart.errors import (
    ArgumentError,
    HgpartError,
    PlacementError,
    RunError,
    first_line,
    is_out_of_memory,
)
from hgpart.run.processes.begun import Begun, JointCall, check_same
from hgpart.run.processes.heartbeats import Heartbeats, Others
from hgpart.run.processes.lanes import Lanes, lanes_of
from hgpart.run.processes.transports import check_transport

TIMEOUT, LONGEST_TIMEOUT = 300.0, 1e7  # seconds
NEVER = 2**30  # tag of a message that nobody sends
TOLD = NEVER + 1  # tag of numbers that one rank tells another
ANNOUNCED = NEVER + 2  # tag of the number of a message that follows
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun
TORCHS_PLACE = re.compile(r"^\[(?:enforce fail at )?\S+:\d+\] (?:err == 0\. )?")
Result = TypeVar("Result")


class Connection:
    """The processes of a run, seen from one of them; as a context manager, it disconnects.

    Rank and part are the same number. An exception that leaves the ``with`` block, or a pass, is
    reported to the other processes, so that all end with the same first cause.

    Attributes
    ----------
    device : torch.device
        Device that this process computes on.
    nccl : bool
        Whether messages are sent between GPUs directly, and not by way of the hosts.
    lanes : dict of int to Lanes
        Memory that is shared with the other ranks on this machine, by rank; none over NCCL.
    models, passes : int
        Number of models that were placed over it, and of forward passes that were called; ranks
        know models and passes by these numbers.
    """

    def __init__(
        self,
        rank: int,
        k: int,
        device: torch.device,
        nccl: bool,
        heartbeats: Heartbeats,
        lanes: Mapping[int, Lanes] = MappingProxyType({}),
    ) -> None:
        self.rank, self.k, self.device, self.nccl = rank, k, device, nccl
        self.lanes = lanes
        self._heartbeats = heartbeats
        self._failed = False
        self.models = self.passes = 0
        # NCCL knows no tags. In each of its groups a pair of ranks sends one way only, so that
        # both see the same order: the global order of transfers.
        self.upward = dist.new_group(backend="nccl") if nccl else None
        self.downward = dist.new_group(backend="nccl") if nccl else None
        if nccl:
            self._meet()

    def _meet(self) -> None:
        """Connect each pair, in the same order everywhere: NCCL waits for both sides."""
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        for low in range(self.k):
            for high in range(low + 1, self.k):
                for source, target in ((low, high), (high, low)):
                    if self.rank == source:
                        dist.send(byte, target, self.group(source, target))
                    elif self.rank == target:
                        dist.recv(byte, source, self.group(source, target))

    def group(self, sender: int, receiver: int) -> dist.ProcessGroup | None:
        """The group in which a rank sends messages to another."""
        return self.upward if sender < receiver else self.downward

    def begin(self, own: Begun) -> Begun:
        """Begin something with all processes, which all call it.

        Without this, gloo may end a process that is sent another number of bytes than it expects.

        Returns
        -------
        Begun
            The call that all begin, with the number of samples that some process knows.

        Raises
        ------
        ArgumentError
            If processes begin different things.
        """
        begun = [Begun(*row) for row in self.numbers(own)]
        samples = max(of_rank.samples for of_rank in begun)
        known = [of_rank._replace(samples=of_rank.samples or samples) for of_rank in begun]
        check_same(dict(enumerate(known)))
        return known[0]

    def gather(self, value: Any, call: JointCall = JointCall.GATHER) -> list[Any]:
        """The values of all processes, in their order; all processes call it.

        Raises
        ------
        ArgumentError
            If another process calls something else.
        """
        values: list[Any] = [None] * self.k
        with self.calling(call):
            self.begin(Begun(call.number))
            self.guard(lambda: dist.all_gather_object(values, value), "gathered what all have")
        return values

    def numbers(self, own: Sequence[float], dtype: torch.dtype = torch.int64) -> list[list[Any]]:
        """Gather equally many numbers from each process, which is faster; all processes call it."""
        own_numbers = torch.tensor(own, dtype=dtype)
        if len(self.lanes) == self.k - 1:
            return self._numbers_by_lanes(own_numbers)
        all_numbers = [torch.empty_like(own_numbers) for _ in range(self.k)]
        self.guard(lambda: dist.all_gather(all_numbers, own_numbers), "gathered what all have")
        return [numbers.tolist() for numbers in all_numbers]

    def _numbers_by_lanes(self, own: Tensor) -> list[list[Any]]:
        for peer in self.lanes:
            self.tell(peer, own, f"told rank {peer} what it has")
        heard = {self.rank: own}
        for peer in self.lanes:
            heard[peer] = torch.empty_like(own)
            self.hear(peer, heard[peer], f"gathered what rank {peer} has")()
        return [heard[rank].tolist() for rank in range(self.k)]

    def tell(self, peer: int, numbers: Tensor, doing: str) -> Callable[[], object]:
        """Begin to send numbers to a process, which hears them; the returned function waits.

        They go through a lane if there is one with room for them, on both sides alike.
        """
        body = numbers.view(torch.uint8)
        if (lanes := self._lanes_with_room(peer, body)) is not None:
            self.guard(partial(lanes.there.send, TOLD, [body]), doing, peer)
            return _nothing
        group = self.group(self.rank, peer) if numbers.is_cuda else None
        work = self.guard(partial(dist.isend, numbers, peer, group, TOLD), doing, peer)
        return _nothing if work is None else partial(self.guard, work.wait, doing, peer)

    def hear(self, peer: int, numbers: Tensor, doing: str) -> Callable[[], object]:
        """Begin to receive numbers that a process tells; the returned function waits."""
        body = numbers.view(torch.uint8)
        if (lanes := self._lanes_with_room(peer, body)) is not None:
            call = partial(lanes.back.receive, lanes.back.expect(len(body)), TOLD, body)
            return partial(self.guard, call, doing, peer)
        group = self.group(peer, self.rank) if numbers.is_cuda else None
        work = self.guard(partial(dist.irecv, numbers, peer, group, TOLD), doing, peer)
        return _nothing if work is None else partial(self.guard, work.wait, doing, peer)

    def _lanes_with_room(self, peer: int, body: Tensor) -> Lanes | None:
        lanes = self.lanes.get(peer)
        return lanes if lanes is not None and lanes.there.fitting({TOLD: len(body)}) else None

    def collect(self, value: Any, call: JointCall = JointCall.GATHER) -> list[Any] | None:
        """The values of all processes, in their order, on the first process; None on the others."""
        values = [None] * self.k if self.rank == 0 else None
        with self.calling(call):
            self.begin(Begun(call.number))
            self.guard(lambda: dist.gather_object(value, values), "told rank 0 what it has", 0)
        return values

    def share_later(self, value: float | None, source: int) -> Callable[[], float]:
        """Share the number that process `source` has; all processes call it.

        Nobody waits before the returned function is called.
        """
        number = torch.tensor([value or 0.0], dtype=torch.float64)
        doing = f"shared what rank {source} has"
        work = self.guard(lambda: dist.broadcast(number, source, async_op=True), doing, source)

        def wait() -> float:
            self.guard(work.wait, doing, source)
            return float(number)

        return wait

    def add_later(self, value: float) -> Callable[[], float]:
        """Add up a number over all processes, in their order; the returned function waits."""
        numbers = [torch.empty(1, dtype=torch.float64) for _ in range(self.k)]
        own, doing = torch.tensor([value], dtype=torch.float64), "added up what all have"
        work = self.guard(lambda: dist.all_gather(numbers, own, async_op=True), doing)

        def wait() -> float:
            self.guard(work.wait, doing)
            return sum(map(float, numbers))

        return wait

    def sum_of(self, tensor: Tensor) -> Tensor:
        """Add up tensors of one shape over all processes, which all call it; returns a new one."""
        place = self.device if self.nccl else torch.device("cpu")
        total = tensor.to(place, copy=True).contiguous()
        self.guard(lambda: dist.all_reduce(total), "added up what all have")
        return total.to(tensor.device)

    def spread(self, tensor: Tensor, source: int) -> Tensor:
        """The tensor that process `source` has; all call it with tensors of its shape and type."""
        place = self.device if self.nccl else torch.device("cpu")
        body = tensor.to(place).contiguous()
        doing = f"got what rank {source} has"
        self.guard(lambda: dist.broadcast(body, source), doing, source)
        return body.to(self.device)

    @contextmanager
    def calling(self, call: JointCall) -> Iterator[None]:
        """A call that all processes make: who waits for them in vain can tell what they do."""
        before, self._heartbeats.call = self._heartbeats.call, call.value
        try:
            yield
        finally:
            self._heartbeats.call = before

    def guard(self, call: Callable[[], Result], doing: str, peer: int | None = None) -> Result:
        """Call torch.distributed; its errors become a `RunError` that names the rank."""
        self._heartbeats.waits = True
        try:
            return call()
        except RuntimeError as error:
            raise self.lost(error, doing, peer) from error
        finally:
            self._heartbeats.waits = False

    def lost(self, error: Exception, doing: str, peer: int | None) -> RunError:
        """The error that says which process is gone, or does not answer."""
        others = Others((), ())
        if "imed out" in str(error):
            others = self._heartbeats.look()
            what = self._unanswered(others, peer)
        elif any(sign in str(error) for sign in ("onnection", "not connected", "pair closure")):
            what = self._left(peer)
        else:
            what = f"{_of(peer)} can't be reached ({_text(error)})"
        seen = f"seen when rank {self.rank} {doing}{self._calls(others)}"
        return RunError(self._heartbeats.tell(f"{what}: {seen}"))

    def _calls(self, others: Others) -> str:
        """The calls that ranks are in, in words, if they differ: then they wait for ever."""
        calls = {**others.calls, self.rank: self._heartbeats.call}
        if len({*calls.values()}) == 1:
            return ""
        said = (f"rank {rank}: {calls[rank] or 'no call of hgpart'}" for rank in sorted(calls))
        return f" ({', '.join(said)}; accepted are the same calls on all ranks)"

    def _unanswered(self, others: Others, peer: int | None) -> str:
        """The process to blame for no answer: not always `peer`, which may itself be waiting."""
        if others.silent:
            return f"{_are(others.silent)} silent, as if stopped or cut off"
        if others.working:
            return f"{_are(others.working)} still at work, too long to be waited for"
        return f"{_of(peer)} has not answered in time"

    def _left(self, peer: int | None) -> str:
        """The process that is gone: a live one that left will tell for whom it waited in vain."""
        others = self._heartbeats.look()
        if peer is not None and peer in others.silent:
            return f"rank {peer} is gone"
        if others.silent:
            return f"{_are(others.silent)} gone, or stopped"
        deadline = time.monotonic() + 2 * self._heartbeats.silence
        while not self._heartbeats.told and time.monotonic() < deadline:
            time.sleep(self._heartbeats.interval)
        return f"{_of(peer)} is gone"

    def fail(self, error: BaseException) -> str:
        """Tell the others why this process fails, and keep them from waiting for it any longer.

        Over NCCL they wait until it has left. Returns the cause that any process told first.
        """
        cause = self._heartbeats.tell(_cause(self.rank, error))
        for lanes in self.lanes.values():
            lanes.there.close()
            lanes.back.close()
        if not self._failed and dist.is_initialized() and self.k > 1:
            # A receive that times out ends gloo's connections, for everyone who waits on them.
            with suppress(RuntimeError):
                next_rank = (self.rank + 1) % self.k
                work = dist.irecv(torch.empty(1), next_rank, tag=NEVER)
                assert work is not None
                work.wait(timedelta(milliseconds=1))
        self._failed = True
        return cause

    def disconnect(self) -> None:
        """Leave, when all are done, or have heard why they can't be."""
        if self._failed:
            self._heartbeats.leave()
        elif dist.is_initialized():
            with self.calling(JointCall.END):
                self.begin(Begun(JointCall.END.number))
                self.guard(dist.barrier, "was done and waited for the others")
            self._heartbeats.stop()
            dist.destroy_process_group()

    def __enter__(self) -> Connection:
        """Return the connection."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect, or tell the others what went wrong."""
        with ExitStack() as failing:
            failing.callback(self._heartbeats.leave)
            if error is None:
                self.disconnect()
                failing.pop_all()
            else:
                cause = self.fail(error)
                if is_out_of_memory(error):
                    raise RunError(cause) from error


def connect(
    k: int, *, device: str | torch.device = "cpu", transport: str = "gloo", timeout: float = TIMEOUT
) -> Connection:
    """Join the other processes, by the environment that torchrun or `launch` has set.

    Parameters
    ----------
    k : int
        Number of parts, one per process.
    device : str or torch.device
        Device of this process; ``cuda`` is the GPU with its local rank.
    transport : {"gloo", "nccl"}
        gloo sends by way of the hosts, and between processes of one machine through memory that
        they share, but for large messages (`hgpart.run.processes.lanes`); nccl sends from GPU to
        GPU.
    timeout : float
        Seconds that a process waits for another live one, here and in each receive. A process that
        is gone is noticed at once.

    Raises
    ------
    RunError
        If there is no such environment, if it is for another number of processes than `k`, or if
        the others can't be reached.
    PlacementError
        If the device does not exist.
    """
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise RunError(
            f"{', '.join(missing)} not set: start the processes with torchrun or 'hgpart run'"
        )
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if processes != k:
        raise RunError(f"there are {processes} processes, the plan has k={k}: accepted is {k}")
    check_transport(transport)
    check_timeout(timeout)
    # A receive that waits on a GPU must not keep other streams' work from starting: CUDA has 8
    # queues for all streams by default, and a stream for each peer and direction is needed.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    place = local_device(device)
    if transport == "nccl" and (place.type != "cuda" or not dist.is_nccl_available()):
        raise PlacementError(
            f"backend nccl on device {place}: it needs GPUs and a torch that is built with it; "
            "accepted here is gloo"
        )
    limit = timedelta(seconds=timeout)
    # A launcher keeps the store; without one the first process does.
    keeper = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
    heartbeats = None
    try:
        store, _, _ = next(rendezvous("env://", timeout=limit))
        # With torchrun's elastic restarts the store may outlive the processes.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"hgpart/{attempt}", store)
        heartbeats = Heartbeats(store, rank, k, timeout, keeper)
        heartbeats.start()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if transport == "nccl" else "gloo",
            store=store,
            rank=rank,
            world_size=k,
            timeout=limit,
        )
        atexit.register(_end, heartbeats)
        lanes = lanes_of(rank, k, _gathered, timeout) if transport == "gloo" else {}
        return Connection(rank, k, place, transport == "nccl", heartbeats, lanes)
    except RuntimeError as error:
        if heartbeats is not None:
            heartbeats.stop()
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunError(f"rank {rank} can't meet the others at {address}: {_text(error)}") from error


def _gathered(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _nothing() -> None:
    """Wait for nothing."""


def _end(heartbeats: Heartbeats) -> None:
    """End the threads of gloo before Python shuts down, which they might abort."""
    heartbeats.stop()
    if dist.is_initialized():
        dist.destroy_process_group()


def check_timeout(timeout: float) -> None:
    """Raise an ArgumentError unless `timeout` is an accepted number of seconds."""
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise ArgumentError(
            f"timeout is {timeout:g} s, expected more than 0 and at most {LONGEST_TIMEOUT:g}"
        )


def local_device(device: str | torch.device) -> torch.device:
    """The device of this process, if it exists, which becomes the default of torch's calls.

    Raises
    ------
    PlacementError
        If the device does not exist.
    """
    place = device_of_rank(device, int(os.environ.get("LOCAL_RANK", 0)))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    return place


def device_of_rank(device: str | torch.device, local_rank: int) -> torch.device:
    """The device of a process with this local rank on this machine, if it exists.

    Raises
    ------
    PlacementError
        If the device does not exist.

    >>> device_of_rank("cpu", 1)
    device(type='cpu')
    """
    try:
        place = torch.device(device)
    except RuntimeError:
        raise PlacementError(f"device {str(device)!r}: accepted are cpu, cuda and cuda:N") from None
    if place.type == "cpu":
        return torch.device("cpu")
    if place.type != "cuda":
        raise PlacementError(f"device {str(device)!r}: accepted are cpu, cuda and cuda:N")
    index = local_rank if place.index is None else place.index
    count = torch.cuda.device_count()
    if index >= count:
        raise PlacementError(f"device cuda:{index} is not there: this machine has {count} GPUs")
    return torch.device("cuda", index)


def _cause(rank: int, error: BaseException) -> str:
    if is_out_of_memory(error):
        return f"rank {rank}: out of memory: {_text(error)}"
    if isinstance(error, HgpartError):
        return f"rank {rank}: {error}"
    what = _text(error)
    return f"rank {rank}: {type(error).__name__}{what and f': {what}'}"


def _of(peer: int | None) -> str:
    return "another rank" if peer is None else f"rank {peer}"


def _are(ranks: Sequence[int]) -> str:
    """The ranks with a verb.

    >>> _are([2]), _are([0, 1])
    ('rank 2 is', 'ranks 0, 1 are')
    """
    names = ", ".join(map(str, ranks))
    return f"rank {names} is" if len(ranks) == 1 else f"ranks {names} are"


def _text(error: BaseException) -> str:
    """An error's message, without the place in torch's sources that it begins with."""
    return TORCHS_PLACE.sub("", first_line(error))
