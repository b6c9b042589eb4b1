"""Exchanges + tensors -> Copies: what keeps copies of the model's state equal to it.

A pass with gradients begins with the weights of copies, which their owners send, and ends with
the gradients of copies, which go back to the owners: so the gradient of each element is that of the
whole batch in one place, where its optimizer is. These bytes are the partition's, (lambda - 1)
times each way. All else that copies need is not counted: before a pass in evaluation mode, running
statistics, and the weights once after training; before a pass with gradients, what does not learn,
where the user has changed it. Schedules say when weights and gradients travel: see
`hgpart.schedules.lowering`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
import xxhash
from torch import Tensor, nn

from hgpart.errors import PlacementError
from hgpart.execution.weights.exchanges import (
    Exchange,
    Key,
    Pair,
    SharedElements,
    absent,
    add,
    add_all,
    is_absent,
    is_every,
    packed,
    put_if_other,
    taken,
    unpacked,
)
from hgpart.schedules.schedule import Travel

WORDS = 2**16  # words that are added up at once
FACTOR = 6364136223846793005  # odd, so that no bits are lost by wrapping (Knuth's MMIX)

Contents = list[tuple[int, ...]]  # of several tensors: differs if any of them has changed
SoOnAny = Callable[[Sequence[bool]], Sequence[bool]]
Leaves = Mapping[Tensor, Tensor]  # the weights of a batch in flight, by parameter or copy


class Due(NamedTuple):
    """What must travel before a pass.

    Attributes
    ----------
    rest : sequence of Exchange or None
        All that must travel except weights that learn; None if nothing must.
    weights : bool
        Whether weights that learn must travel.
    contents : Contents or None
        Contents of the weights that learn at present, if they were looked at.
    """

    rest: Sequence[Exchange] | None
    weights: bool
    contents: Contents | None


class Copies:
    """The copies that parts hold of each other's parameters and buffers.

    Parameters
    ----------
    tensor : callable
        Function from a part in this process and a key to the part's tensor.
    here : collection of int
        Parts in this process.
    weights : sequence of Exchange
        Exchanges of parameters, in layers of which some learn.
    fixed : sequence of Exchange
        Exchanges of all else that passes leave as it is: other parameters, and buffers that are
        only read.
    rest : sequence of Exchange
        Exchanges of all except `weights`.
    state : sequence of Exchange
        Exchanges of all parameters and buffers.
    steps : mapping of nn.Module to collection of (int, Key)
        Part and keys of the copies that a step computes with, by step.
    training : bool
        The mode of the model that they are for.
    every : mapping of Hashable to Copies
        The copies of all forms of the placement: what changes in one form is out of date in others.
    of_turns : sequence of sequence of Exchange
        The weights of each turn alone, where batches take turns.

    Attributes
    ----------
    moved : bool
        Whether the model has new tensors, so that those of a pass under way are gone.
    up_to_date : bool
        Whether all copies equal their originals, unless somebody has changed these since.
    """

    def __init__(
        self,
        tensor: Callable[[int, Key], Tensor],
        here: Collection[int],
        weights: Sequence[Exchange],
        fixed: Sequence[Exchange],
        rest: Sequence[Exchange],
        state: Sequence[Exchange],
        steps: Mapping[nn.Module, Collection[tuple[int, Key]]],
        training: bool,
        every: Mapping[Any, Copies],
        of_turns: Sequence[Sequence[Exchange]] = (),
    ) -> None:
        self.weights, self.fixed, self.rest, self.state = weights, fixed, rest, state
        self.of_turns = of_turns
        self.moved = self.up_to_date = self._begun = False
        self._training, self._every = training, every
        self._tensor, self._here = tensor, here
        holders: dict[tuple[int, Key], list[int]] = {}
        for number, exchange in enumerate(weights):
            for key in exchange.copy_keys:
                holders.setdefault((exchange.holder, key), []).append(number)
        self._of_steps = {
            step: sorted({number for copy in used for number in holders.get(copy, ())})
            for step, used in steps.items()
        }
        self._own_state, self._own_fixed = self._own(state), self._own(fixed)
        self._own_weights = self._own(weights)
        self._contents: dict[tuple[int, Key], tuple[int, ...]] = {}
        # For own weights: their write counts when the last pass that learned ended, and the
        # contents that copies got; None if that is not known.
        self._counts: list[tuple[int, int]] | None = None
        self._given: Contents | None = None
        self._adds_up = False
        # In the order in which gradients are complete: last layer first, exchanges of a layer in
        # order.
        self.backward = [number for layer in reversed(_by_layer(weights)) for number in layer]
        self._known_types: dict[Exchange, list[torch.dtype]] = {}
        self.buffers: dict[int, Tensor] = {}  # memory in which gradients arrive, by number

    def of_step(self, step: nn.Module) -> Sequence[int]:
        """Numbers of the weights of which a step reads copies."""
        return self._of_steps.get(step, ())

    def copy(self, exchange: Exchange, key: Key) -> Tensor:
        """The holder's copy of a tensor."""
        return self._tensor(exchange.holder, key)

    def tensors_of(self, part: int) -> list[Tensor]:
        """Copies of weights in a part, each once."""
        held = (exchange for exchange in self.weights if exchange.holder == part)
        by_key = {key: exchange for exchange in held for key in exchange.copy_keys}
        return [self.copy(exchange, key) for key, exchange in by_key.items()]

    def due(self, learns: bool, so_on_any: SoOnAny) -> Due:
        """What must travel so that a pass begins with copies that equal their originals.

        For the first pass in a form everything is due. Later passes that learn need what passes
        leave as it is, if that was changed, and weights that learn, if these were; other passes
        need everything, if anything was changed. The caller notes what is due apart from weights
        when it has travelled.

        Parameters
        ----------
        learns : bool
            Whether the pass has gradients.
        so_on_any : callable
            Function that tells for each flag whether it is set in any process: so all processes
            decide alike.
        """
        whole = not self._begun or not (self.up_to_date or (learns and self._training))
        if learns or self._training:  # the pass may change weights or statistics
            for copies in self._every.values():
                copies.up_to_date = False
        exchanges, contents, weights = self.fixed if learns else self.state, None, False
        changed = not whole and bool(exchanges) and self._have_changed(self._own_of(learns))
        if learns:
            contents = self._looked_at()
            changed, weights = so_on_any([changed, contents is None or contents != self._given])
        elif exchanges and not whole:
            (changed,) = so_on_any([changed])
        if learns or whole or changed:  # copies in several forms may be the same tensors
            for copies in self._every.values():
                copies.forget_weights()
        if whole:
            exchanges = self.rest if learns else self.state
        return Due(exchanges if whole or changed else None, weights, contents)

    def _looked_at(self) -> Contents | None:
        """Contents of the own weights that learn, if it is worth looking at them.

        torch counts how often a tensor is written to, but not writes through its `data`: so the
        contents decide. They are looked at from the first pass on before which nothing was counted,
        as where gradients of several passes are added up.
        """
        weights = [self._tensor(part, key) for part, key in self._own_weights]
        self._adds_up |= self._counts == [_count(weight) for weight in weights]
        return [_content(weight)[2:] for weight in weights] if self._adds_up else None

    def note(self, learns: bool, due: Due) -> None:
        """Note that what was due apart from weights has travelled."""
        self._begun = True
        self.up_to_date |= not learns and not self._training
        if due.rest is not None:
            self._contents |= {own: _content(self._tensor(*own)) for own in self._own_of(learns)}

    def note_weights(self, due: Due) -> None:
        """Note, when a pass has ended well, that copies equal the weights that it began with."""
        self._given = due.contents
        self._counts = [_count(self._tensor(*own)) for own in self._own_weights]

    def forget_weights(self) -> None:
        """Let weights travel in the next pass that learns, even if they have not changed."""
        self._given = None

    def _own_of(self, learns: bool) -> Sequence[tuple[int, Key]]:
        return self._own_fixed if learns else self._own_state

    @property
    def fixed_changed(self) -> bool:
        """Whether what passes leave as it is has changed in this process since it was copied."""
        return self._have_changed(self._own_fixed)

    def _have_changed(self, keys: Sequence[tuple[int, Key]]) -> bool:
        return any(self._contents.get(own) != _content(self._tensor(*own)) for own in keys)

    def check_fixed(self) -> None:
        """Raise a PlacementError if what does not learn has changed since a stream began."""
        if self.fixed_changed:
            raise PlacementError(
                "what does not learn was changed in a stream by a plan over slices or bands, which "
                "copied it when it began: accepted are changes before or after the stream"
            )

    def _own(self, exchanges: Sequence[Exchange]) -> list[tuple[int, Key]]:
        """Part and key of the originals in this process, each once."""
        here = (exchange for exchange in exchanges if exchange.owner in self._here)
        own = (
            (exchange.owner, elements.key) for exchange in here for elements in exchange.elements
        )
        return [*dict.fromkeys(own)]

    def nbytes(self, exchange: Exchange) -> int:
        """Bytes of an exchange, one way."""
        sizes = zip(exchange.elements, self._types(exchange), strict=True)
        return sum(elements.count * dtype.itemsize for elements, dtype in sizes)

    def _types(self, exchange: Exchange) -> list[torch.dtype]:
        if exchange not in self._known_types:  # when the model is cast, there are new copies
            if exchange.owner in self._here:
                keys = [(exchange.owner, elements.key) for elements in exchange.elements]
            else:
                keys = [(exchange.holder, elements.copies[0].key) for elements in exchange.elements]
            self._known_types[exchange] = [self._tensor(*key).dtype for key in keys]
        return self._known_types[exchange]

    def values(self, exchange: Exchange) -> Tensor:
        """Values of the owner's weights, as bytes."""
        tensors = (self._tensor(exchange.owner, elements.key) for elements in exchange.elements)
        pairs = zip(tensors, exchange.elements, strict=True)
        return packed([taken(tensor, elements.places) for tensor, elements in pairs])

    def put(self, exchange: Exchange, body: Tensor, at_once: bool) -> None:
        """Write values into the holder's copies, where they differ.

        Autograd notices a write to a copy that one of its graphs has saved. So outside of steps,
        between a forward pass and its backward pass, only the copies that differ are written; in a
        step, where nearly all do, they are written at once, which takes less time.
        """
        pieces = unpacked(body, exchange, self._types(exchange))
        pairs = [
            (self._tensor(exchange.holder, copy.key), copy.places, taken(values, copy.among))
            for elements, values in zip(exchange.elements, pieces, strict=True)
            for copy in elements.copies
        ]
        for some in [pairs] if at_once else [[pair] for pair in pairs]:
            put_if_other(some)

    def memory(self, exchange: Exchange) -> Tensor | None:
        """The bytes of the holder's copy, if it has exactly these elements in this order."""
        if len(exchange.elements) == 1:
            for copy in exchange.elements[0].copies:
                tensor = self._tensor(exchange.holder, copy.key)
                in_order = isinstance(copy.places, slice) and is_every(copy.among)
                if in_order and tensor.is_contiguous():
                    return tensor.detach().view(-1)[copy.places].view(torch.uint8)
        return None

    def gradients(self, exchange: Exchange, leaves: Leaves | None) -> Tensor:
        """Sum of the gradients of the holder's copies, or of their leaves, as bytes; see `clear`.

        Raises
        ------
        PlacementError
            If the model was moved since the forward pass.
        """
        totals = []
        for elements in exchange.elements:
            total = self._gradient(exchange, elements, leaves)
            if total is None:
                copy = self._tensor(exchange.holder, elements.copies[0].key)
                total = absent(elements.count, copy)
            totals.append(total)
        return packed(totals)

    def _gradient(
        self, exchange: Exchange, elements: SharedElements, leaves: Leaves | None
    ) -> Tensor | None:
        """Sum of the gradients of some elements, flat; None if no copy has a gradient."""
        if self.moved:
            raise PlacementError(
                "the model was moved, or cast, between a pass and its backward pass: accepted is "
                "moving it before or after both"
            )
        pieces = []
        for copy in elements.copies:
            tensor = self._tensor(exchange.holder, copy.key)
            gradient = (tensor if leaves is None else leaves[tensor]).grad
            if gradient is not None:
                pieces.append((copy.among, taken(gradient, copy.places)))
        if not pieces:
            return None
        (among, total), *more = pieces
        if more or not is_every(among):
            total = total.new_zeros(elements.count)
            for among, piece in pieces:
                add(total, among, piece)
        return total

    def hand_over(self, exchange: Exchange, leaves: Leaves | None) -> None:
        """Add the gradients of a part's own copies, or of their leaves, to its parameters."""
        pairs = list[Pair]()
        for elements in exchange.elements:
            tensor = self._tensor(exchange.owner, elements.key)
            total = self._gradient(exchange, elements, leaves)
            if total is None or not tensor.requires_grad:
                continue
            if tensor.grad is None and is_every(elements.places):
                tensor.grad = total.view(tensor.shape)
                continue
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            pairs.append((tensor.grad, elements.places, total))
        add_all(pairs)

    def add_gradients(self, exchange: Exchange, body: Tensor) -> None:
        """Add gradients to the owner's parameters, except those frozen since they were placed."""
        pairs = list[Pair]()
        pieces = unpacked(body, exchange, self._types(exchange))
        for elements, values in zip(exchange.elements, pieces, strict=True):
            tensor = self._tensor(exchange.owner, elements.key)
            if not tensor.requires_grad or is_absent(values):
                continue
            values = values.to(tensor.device)
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
            pairs.append((tensor.grad, elements.places, values))
        add_all(pairs)

    def clear(self, part: int) -> None:
        """Forget the gradients of a part's copies."""
        for copy in self.tensors_of(part):
            copy.grad = None


@dataclass(frozen=True, eq=False)
class Travelling:
    """Weights that travel in a schedule.

    Attributes
    ----------
    exchanges : sequence of Exchange
        Exchanges; their places are the numbers in the schedule.
    is_counted : bool
        Whether their bytes are part of the partition's communication volume.
    due : Due or None
        Weights that must travel; None if all do.
    """

    copies: Copies
    exchanges: Sequence[Exchange]
    is_counted: bool = True
    due: Due | None = None

    @property
    def is_due(self) -> bool:
        """Whether weights travel; if not, copies are up to date and only gradients do."""
        return self.due is None or self.due.weights

    def note(self) -> None:
        """Note that a pass that learns has ended well."""
        assert self.due is not None
        self.copies.note_weights(self.due)

    @property
    def travels(self) -> tuple[Travel, ...]:
        """Owner and holder of each exchange."""
        return travels_of(self.exchanges)


def travels_of(exchanges: Iterable[Exchange]) -> tuple[Travel, ...]:
    """Owner and holder of each exchange."""
    return tuple(Travel(exchange.owner, exchange.holder) for exchange in exchanges)


def _by_layer(exchanges: Sequence[Exchange]) -> list[list[int]]:
    """Numbers of the exchanges, layer by layer."""
    runs = groupby(range(len(exchanges)), key=lambda number: exchanges[number].layer)
    return [[*numbers] for _, numbers in runs]


def _count(tensor: Tensor) -> tuple[int, int]:
    """Changes when torch writes to a tensor, or when the tensor gets other `data`."""
    return tensor._version, tensor.data_ptr()


def _content(tensor: Tensor) -> tuple[int, ...]:
    """A fingerprint that changes whenever the tensor's content does.

    torch does not count writes through `data`, as averaged weights and target networks make them:
    so all bytes are looked at.
    """
    flat = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
    if flat.device.type == "cpu":
        return *_count(tensor), xxhash.xxh3_64_intdigest(flat.numpy().data)
    return *_count(tensor), *_sum_of_words(flat)


def _sum_of_words(flat: Tensor) -> list[int]:
    """A fingerprint of bytes on a GPU, which are not copied from there.

    All words are added up, each times its place, so that a mere permutation changes the sum, too.
    """
    if flat.storage_offset() % 8:
        flat = flat.clone()
    words = flat[: len(flat) // 8 * 8].view(torch.int64)
    places = 2 * torch.arange(min(len(words), WORDS), device=flat.device) + 1
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for first in range(0, len(words), WORDS):
        block = words[first : first + WORDS]
        total = total * FACTOR + (block * places[: len(block)]).sum()
    return [int(total), *flat[words.nbytes :].tolist()]
