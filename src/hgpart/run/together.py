"""Placement + Connection -> Together: what all ranks begin alike, and end or hear why not."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial, wraps
from hashlib import sha256
from numbers import Integral
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from hgpart.errors import ArgumentError, PlacementError, RunError
from hgpart.execution.as_function import first_order
from hgpart.execution.autocast import autocast_type
from hgpart.execution.runtime import RunningPass
from hgpart.placement import Placement
from hgpart.placement.batches.loss_counts import class_loss
from hgpart.placement.batches.micro_batches import Counts
from hgpart.placement.passes import gradients_wanted
from hgpart.run.elsewhere import Elsewhere
from hgpart.run.processes.agreement import Agreement
from hgpart.run.processes.begun import TYPES, Begun, JointCall
from hgpart.run.processes.connection import Connection
from hgpart.tracing.forms import Sizes, said_of
from hgpart.tracing.model_outline import outline_of

Method = TypeVar("Method", bound=Callable[..., Any])


class CalledWith(NamedTuple):
    """What all ranks call a model with.

    Attributes
    ----------
    inputs : list of Tensor or None
        Inputs with the values that this rank reads.
    samples : int
        Number of all ranks' samples.
    learns : bool
        Whether some parameter gets a gradient.
    with_gradients : bool
        Whether some rank wants the gradients of inputs.
    """

    inputs: list[Tensor | None]
    samples: int
    learns: bool
    with_gradients: bool


class _Has(IntEnum):
    """What a rank has of an input."""

    NOTHING = 0
    STAND_IN = 1
    STAND_IN_THAT_IS_READ = 2
    VALUES = 3


class _Arrived(torch.autograd.Function):
    """A stand-in + its values, which have arrived -> the values, in the stand-in's graph."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, values: Tensor) -> Tensor:
        return values

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Together:
    """A rank among the others, from pass to pass."""

    def __init__(self, placement: Placement, connection: Connection) -> None:
        self._placement, self._connection = placement, connection
        self.agreement, self.rank = Agreement(connection), connection.rank
        self.device, self.calling = connection.device, connection.calling
        self._model, self._failed = connection.models, False
        connection.models += 1

    @contextmanager
    def whole_pass(self) -> Iterator[None]:
        """A pass that all ranks take part in, and that must come to its end.

        If it fails here, the others are told why, and wait no longer; even if only this rank finds
        that it can't begin. What was sent by then would be taken for part of a later pass.
        """
        if self._failed:
            raise RunError(
                f"rank {self._connection.rank} begins a pass after a failed one, which ended its "
                "connections: accepted are new processes"
            )
        try:
            yield
        except BaseException as error:
            self._failed = True
            self._connection.fail(error)
            raise

    def agreed_sizes(self, own: Sequence[tuple[int, ...] | None]) -> Sizes:
        """Sizes of each input, which some rank has; see `DistributedModel.for_inputs`."""
        by_input = zip(*self._connection.gather(own, JointCall.SIZES), strict=True)
        sizes = []
        for name, of_ranks in zip(self._placement.programs.arguments.names, by_input, strict=True):
            known = {*of_ranks} - {None}
            if len(known) != 1:
                seen = " and ".join(sorted(said_of([size]) for size in known)) or "no size"
                raise ArgumentError(f"{name} has {seen} on the ranks: accepted is one size")
            sizes.append(known.pop())
        return tuple(sizes)

    def switch(self, sizes: Sizes, batch_size: int | None) -> None:
        """Switch all ranks to a batch of other sizes; see `DistributedModel.for_inputs`."""
        forms = self._placement.forms
        before = forms.present
        reasons = self._switched(partial(forms.for_sizes, sizes, batch_size), JointCall.SIZES)
        for rank, reason in enumerate(reasons):
            if reason is not None:
                forms.for_sizes(before.sizes, before.batch_size)
                raise PlacementError(f"rank {rank} can't have a batch of these sizes: {reason}")

    def follow_settings(self) -> None:
        """Switch all ranks to attributes, modes and hooks that were set on modules, on all alike.

        Raises
        ------
        PlacementError
            If they were set otherwise on another rank, or can't be had there.
        """
        placement = self._placement
        if not placement.forms.are_set_anew:
            return
        outline = outline_of(placement.model_settings.model)
        try:
            content = sha256(pickle.dumps(outline)).hexdigest()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise PlacementError(
                f"modules were given attributes or hooks that ranks can't compare ({error}): "
                "accepted are such changes before the model is placed"
            ) from None
        contents = self._connection.gather(content, JointCall.SETTINGS)
        if len({*contents}) > 1:
            raise PlacementError(
                "modules were given other attributes, modes or hooks on one rank than on another: "
                "accepted are the same changes on all ranks"
            )
        follow = partial(placement.forms.follow, placement.training)
        for rank, reason in enumerate(self._switched(follow, JointCall.SETTINGS)):
            if reason is not None:
                raise PlacementError(f"rank {rank} can't have these attributes: {reason}")

    def _switched(self, switch: Callable[[], None], call: JointCall) -> list[str | None]:
        """Switch to another form; returns why other ranks could not, by rank."""
        failed: Exception | None = None
        try:
            switch()
        except Exception as error:
            failed = error
        reasons = self._connection.gather(failed and str(failed), call)
        if failed is not None:
            raise failed
        return reasons

    def beginning(
        self,
        call: JointCall,
        micro_batches: int = 1,
        learns: bool = False,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
    ) -> Begun:
        """What this rank begins, in the present modes; the size of its batch is not known yet."""
        autocast = autocast_type(self.device)
        return Begun(
            call.number,
            self._model,
            micro_batches=micro_batches,
            learns=learns,
            grad_mode=torch.is_grad_enabled(),
            training=self._placement.training,
            counts_classes=len({*self._placement.programs.output_parts}) > 1
            and class_loss(loss_fn) is not None,
            autocast=0 if autocast is None else 1 + TYPES.index(autocast),
        )

    def begin_call(self, inputs: Sequence[Tensor | None], batch_size: int | None) -> CalledWith:
        """Begin a forward pass with all ranks, which compare what they have of its inputs.

        An input may be another model's result, which only some ranks have: those that read it get
        it. Errors about the batch size alone occur on all ranks: nobody has to be told.

        Raises
        ------
        ArgumentError
            If no rank knows the batch size, or they begin different things.
        PlacementError
            If a rank reads an input that no rank has.
        """
        programs = self._placement.programs
        own = self.beginning(JointCall.FORWARD)._replace(samples=self._said_size(batch_size) or 0)
        with self.whole_pass():
            if batch_size is None:
                own = own._replace(samples=programs.arguments.batch_size(inputs) or 0)
            samples = self._connection.begin(own).samples
            if not samples:
                raise ArgumentError(
                    "neither inputs nor a batch size on any rank: accepted is one of them, as in "
                    "batch_size=32"
                )
            programs.check_types(inputs)  # of what may be sent
            learns = any(parameter.requires_grad for parameter in self._placement.parameters())
            known = [self._has(at, value) for at, value in enumerate(inputs)]
            wanted = [
                torch.is_grad_enabled() and value is not None and value.requires_grad
                for value in inputs
            ]
            of_ranks = self._connection.numbers([learns, *known, *wanted])
            count, arrived = len(inputs), list[Tensor | None]()
            for at, value in enumerate(inputs):
                has = [row[1 + at] for row in of_ranks]
                self._check_gradients(at, has, [row[1 + count + at] for row in of_ranks])
                arrived.append(self._arrived(at, value, has, samples))
        learns = torch.is_grad_enabled() and any(row[0] for row in of_ranks)
        return CalledWith(arrived, samples, learns, any(any(row[1 + count :]) for row in of_ranks))

    def _has(self, at: int, value: Tensor | None) -> _Has:
        """What this rank has of an input."""
        if value is None or value.is_meta:
            return _Has.NOTHING
        if not isinstance(value, Elsewhere):
            return _Has.VALUES
        is_read = self._placement.programs.reads(self.rank, at)
        return _Has.STAND_IN_THAT_IS_READ if is_read else _Has.STAND_IN

    def _check_gradients(self, at: int, has: Sequence[int], wanted: Sequence[int]) -> None:
        """Raise a PlacementError if an input requires a gradient on some ranks that have it."""
        asked = {rank: want for rank, want in enumerate(wanted) if has[rank] != _Has.NOTHING}
        if len({*asked.values()}) > 1:
            name = self._placement.programs.arguments.names[at]
            with_it, without = (
                next(rank for rank, want in asked.items() if want == value) for value in (1, 0)
            )
            raise PlacementError(
                f"{name} requires a gradient on rank {with_it} and none on rank {without}: "
                "accepted is the same on all ranks that have it"
            )

    def types_of_results(
        self, begun: RunningPass, placed: Sequence[torch.dtype]
    ) -> list[torch.dtype]:
        """The types that a pass gave its results, which ranks that have them tell all."""
        (run,) = begun.runs.values()
        made = [TYPES.index(result.dtype) for result in run.results.get(0, ())]
        own = [*made[: len(placed)], *[-1] * (len(placed) - len(made))]
        of_ranks = zip(*self._connection.numbers(own), strict=True)
        return [TYPES[max(types)] for types in of_ranks]

    def _arrived(
        self, at: int, value: Tensor | None, on_ranks: Sequence[int], samples: int
    ) -> Tensor | None:
        """An input's values, sent to all by a rank that has them if one that reads it has not."""
        if _Has.STAND_IN_THAT_IS_READ not in on_ranks:
            return value
        programs = self._placement.programs
        name = programs.arguments.names[at]
        if _Has.VALUES not in on_ranks:
            raise PlacementError(
                f"rank {on_ranks.index(_Has.STAND_IN_THAT_IS_READ)} reads {name}, whose values no "
                "rank has alone, as of a sum of two models' results: accepted is a tensor that one "
                "rank has"
            )
        if len(programs.shares) > 1:
            raise PlacementError(
                f"{name} is another model's result on other ranks than those that read it: over "
                "slices accepted are models whose plans divide the batch alike"
            )
        like, has = value, on_ranks[self.rank]
        if has != _Has.VALUES:
            shape = programs.blueprint.input_shapes(samples)[at] if value is None else value.shape
            dtype = programs.sent_as(programs.arguments.tensors[at].dtype)
            like = torch.empty(shape, dtype=dtype, device=self.device)
        assert like is not None
        body = self._connection.spread(like.detach(), on_ranks.index(_Has.VALUES))
        if has != _Has.STAND_IN_THAT_IS_READ:
            return value
        arrived: Tensor = _Arrived.apply(value, body)  # type: ignore[no-untyped-call]
        return arrived

    def _said_size(self, batch_size: int | None) -> int | None:
        """The batch size that a call says, checked."""
        if batch_size is not None:
            check_size(batch_size)
        elif len(self._placement.programs.shares) > 1:
            raise ArgumentError(
                "no batch size, and with a plan over slices inputs may hold only this process's "
                "samples: accepted is the size of the whole batch, as in batch_size=32"
            )
        return batch_size

    def next_pass(self) -> int:
        """Number of a forward pass that begins, by which ranks know it when they go back."""
        self._connection.passes += 1
        return self._connection.passes

    def begin_back(self, number: int, weights: bool) -> None:
        """Begin to go back through a pass, if all ranks do.

        Raises
        ------
        ArgumentError
            If another rank goes back through another pass, or does something else.
        """
        call = JointCall.BACKWARD.number
        self._connection.begin(Begun(call, self._model, number, learns=weights))

    def sum_of(self, tensor: Tensor) -> Tensor:
        """The sum of what all ranks have."""
        return self._connection.sum_of(tensor)

    def agreed_size(
        self, inputs: Sequence[Tensor | None], batch_size: int | None, own: Begun
    ) -> int:
        """Number of samples in the batch of a step that all ranks now begin.

        Errors about the batch size alone occur on all ranks: nobody has to be told.
        """
        size = self._said_size(batch_size)
        with self.whole_pass():
            if gradients_wanted(inputs):
                raise PlacementError(
                    "an input requires a gradient, which a step does not compute: accepted are "
                    "inputs without one, as from detach(), or model(...) and loss.backward()"
                )
            if size is None:
                size = self._placement.programs.arguments.batch_size(inputs)
            if size is None:
                raise ArgumentError(
                    f"neither inputs nor a batch size on rank {self._connection.rank}: accepted is "
                    "one of them, as in batch_size=32; another model's result is on only one rank"
                )
            self.check_same(size, own)
        return size

    def check_same(self, batch_size: int, own: Begun) -> None:
        """Raise an ArgumentError if other ranks begin another batch, or in another mode.

        This comes before anything that all do together, which may be more in another mode.
        """
        check_size(batch_size)
        own = own._replace(samples=batch_size)
        if len(self._placement.programs.shares) > 1:  # where a rank may send nothing
            self._connection.begin(own)
            return
        messages = [
            (transfer.sender, transfer.receiver, transfer)
            for transfer in self._placement.programs.parts[self._connection.rank].transfers.values()
        ]
        if own.learns:
            messages += [
                (receiver, sender, transfer)
                for sender, receiver, transfer in messages
                if transfer.differentiable
            ]
        rank = self._connection.rank
        senders = dict.fromkeys(sender for sender, receiver, _ in messages if receiver == rank)
        receivers = dict.fromkeys(receiver for sender, receiver, _ in messages if sender == rank)
        self.agreement.check(own, [*senders], [*receivers])

    def total(self, counts: Counts) -> Counts:
        """Add up the counts of targets over all ranks, if several have some."""
        if len({*self._placement.programs.output_parts}) == 1:
            return counts
        first, second = zip(*self._connection.numbers(counts, torch.float64), strict=True)
        return sum(first), sum(second)


def joint(call: JointCall) -> Callable[[Method], Method]:
    """Decorate a method of a model that all ranks call, so that who waits in vain can name it."""

    def decorated(method: Method) -> Method:
        @wraps(method)
        def called(model: Any, *args: Any, **kwargs: Any) -> Any:
            with model.connection.calling(call):
                return method(model, *args, **kwargs)

        return cast(Method, called)

    return decorated


def check_size(batch_size: object) -> None:
    """Raise an ArgumentError unless `batch_size` is a number of samples."""
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise ArgumentError(f"batch size {batch_size!r}: accepted are whole numbers from 1 on")
