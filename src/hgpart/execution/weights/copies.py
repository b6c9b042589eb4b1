"""Exchanges + tensors -> Copies: what is done so that copies of the model's state are like it.

A pass with gradients begins with the weights of copies, which come from whom they belong to, and
ends with the gradients of copies, which go there: so the gradient of each element is that of the
whole batch in one place, where its optimizer is. These bytes are the partition's, (lambda - 1)
times each way. What copies need besides is not counted: before a pass in evaluation running
statistics, and the weights once after training; before one with gradients what does not learn,
where the user has changed it. Schedules say when weights and gradients travel: see
`hgpart.schedules.lowering`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hgpart.errors import PlacementError
from hgpart.execution.weights.exchanges import (
    Elements,
    Exchange,
    Key,
    Pair,
    add,
    add_all,
    is_every,
    packed,
    put_if_other,
    taken,
    unpacked,
)
from hgpart.schedules.schedule import Travel

WORDS = 2**16  # that are looked at at once
FACTOR = 6364136223846793005  # odd, so that no word is lost of what wraps (Knuth's MMIX)

Contents = list[tuple[int, ...]]  # of several tensors: another one if any has other elements
SoOnAny = Callable[[Sequence[bool]], Sequence[bool]]
Leaves = Mapping[Tensor, Tensor]  # what a batch in flight computes with, by what they are of


class Due(NamedTuple):
    """What has to travel before a pass.

    Attributes
    ----------
    beside : sequence of Exchange or None
        What has to besides weights that learn; None if nothing has to.
    weights : bool
        Whether weights that learn have to.
    contents : Contents or None
        What weights that learn are now, where that was looked at.
    """

    beside: Sequence[Exchange] | None
    weights: bool
    contents: Contents | None


class Copies:
    """The copies that parts hold, and what they are copies of.

    Parameters
    ----------
    tensor : callable
        Given a part that is here and a key, the tensor that the part holds under it.
    here : collection of int
        The parts that this process holds.
    weights : sequence of Exchange
        Of parameters, of layers that have some with gradients.
    fixed : sequence of Exchange
        Of all else that passes leave as it is: other parameters, and buffers that are only read.
    beside : sequence of Exchange
        Of all but `weights`.
    state : sequence of Exchange
        Of all parameters and buffers.
    steps : mapping of nn.Module to collection of (int, Key)
        By step, the part and the keys of the copies that it computes with.
    training : bool
        The mode that they are of.
    every : mapping of Hashable to Copies
        Those of all forms of the placement: what passes in one of them change, others have not.

    Attributes
    ----------
    moved : bool
        Whether the model has other tensors now: what a pass has begun with is gone.
    alike : bool
        Whether all of them are like what they are of, unless somebody has changed that since.
    """

    def __init__(
        self,
        tensor: Callable[[int, Key], Tensor],
        here: Collection[int],
        weights: Sequence[Exchange],
        fixed: Sequence[Exchange],
        beside: Sequence[Exchange],
        state: Sequence[Exchange],
        steps: Mapping[nn.Module, Collection[tuple[int, Key]]],
        training: bool,
        every: Mapping[Any, Copies],
    ) -> None:
        self.weights, self.fixed, self.beside, self.state = weights, fixed, beside, state
        self.moved = self.alike = self._begun = False
        self._training, self._every = training, every
        self._tensor, self._here = tensor, here
        holders: dict[tuple[int, Key], list[int]] = {}
        for number, one in enumerate(weights):
            for key in one.copy_keys:
                holders.setdefault((one.holder, key), []).append(number)
        self._of_steps = {
            step: sorted({number for copy in used for number in holders.get(copy, ())})
            for step, used in steps.items()
        }
        self._own_state, self._own_fixed = self._own(state), self._own(fixed)
        self._own_weights = self._own(weights)
        self._contents: dict[tuple[int, Key], tuple[int, ...]] = {}
        # Of own weights: how often they had been written to when the last pass that learned ended,
        # and what copies got of them; None if that is not known.
        self._counts: list[tuple[int, int]] | None = None
        self._given: Contents | None = None
        self._adds_up = False
        # As gradients come about: of the last layer first, of one layer in the order of exchanges.
        self.backward = [number for layer in reversed(_by_layer(weights)) for number in layer]
        self._known_types: dict[Exchange, list[torch.dtype]] = {}
        self.buffers: dict[int, Tensor] = {}  # where gradients arrive, by number

    def of_step(self, step: nn.Module) -> Sequence[int]:
        """The weights that a step computes copies of with, by their numbers."""
        return self._of_steps.get(step, ())

    def copy(self, exchange: Exchange, key: Key) -> Tensor:
        """A copy."""
        return self._tensor(exchange.holder, key)

    def tensors_of(self, part: int) -> list[Tensor]:
        """The copies of weights that a part has, each once."""
        held = (one for one in self.weights if one.holder == part)
        keys = {key: one for one in held for key in one.copy_keys}
        return [self.copy(one, key) for key, one in keys.items()]

    def due(self, learns: bool, so_on_any: SoOnAny) -> Due:
        """What has to travel so that a pass begins with copies that are like what they are of.

        The first pass in a form begins with all. Later ones that learn begin with what passes leave
        as it is, if that was changed, and with weights that learn, if these were; others with all,
        if anything was. What is due beside weights is to be noted when it has travelled.

        Parameters
        ----------
        learns : bool
            Whether the pass has gradients.
        so_on_any : callable
            Given what is so here, whether it is so on any process: all come to the same answers.
        """
        whole = not self._begun or not (self.alike or (learns and self._training))
        if learns or self._training:  # weights or statistics may change behind it
            for one in self._every.values():
                one.alike = False
        some, contents, weights = self.fixed if learns else self.state, None, False
        changed = not whole and bool(some) and self._are_other(self._own_of(learns))
        if learns:
            contents = self._looked_at()
            changed, weights = so_on_any([changed, contents is None or contents != self._given])
        elif some and not whole:
            (changed,) = so_on_any([changed])
        if learns or whole or changed:  # copies of several forms may be the same tensors
            for one in self._every.values():
                one.forget_weights()
        if whole:
            some = self.beside if learns else self.state
        return Due(some if whole or changed else None, weights, contents)

    def _looked_at(self) -> Contents | None:
        """What own weights that learn are now, if that is worth a look.

        torch counts how often a tensor is written to, but not through its `data`: so the contents
        decide. They are looked at from the first pass on before which nothing was counted, as where
        gradients of several are added up.
        """
        weights = [self._tensor(*one) for one in self._own_weights]
        self._adds_up |= self._counts == [_count(one) for one in weights]
        return [_content(one)[2:] for one in weights] if self._adds_up else None

    def note(self, learns: bool, due: Due) -> None:
        """Note that what was due beside weights is there."""
        self._begun = True
        self.alike |= not learns and not self._training
        if due.beside is not None:
            self._contents |= {one: _content(self._tensor(*one)) for one in self._own_of(learns)}

    def note_weights(self, due: Due) -> None:
        """Note, when a pass has ended well, that copies are like the weights that it began with."""
        self._given = due.contents
        self._counts = [_count(self._tensor(*one)) for one in self._own_weights]

    def forget_weights(self) -> None:
        """Let weights travel in the next pass that learns, whether they have changed or not."""
        self._given = None

    def _own_of(self, learns: bool) -> Sequence[tuple[int, Key]]:
        return self._own_fixed if learns else self._own_state

    @property
    def fixed_changed(self) -> bool:
        """Whether what passes leave as it is has changed here since copies were like it."""
        return self._are_other(self._own_fixed)

    def _are_other(self, keys: Sequence[tuple[int, Key]]) -> bool:
        return any(self._contents.get(one) != _content(self._tensor(*one)) for one in keys)

    def check_fixed(self) -> None:
        """Raise a PlacementError if what does not learn is other than when a stream began."""
        if self.fixed_changed:
            raise PlacementError(
                "what does not learn was changed in a stream by a plan over slices, whose copies "
                "are as it began: accepted is before or after it"
            )

    def _own(self, exchanges: Sequence[Exchange]) -> list[tuple[int, Key]]:
        """What belongs to parts that are here, each once."""
        here = (one for one in exchanges if one.owner in self._here)
        return [*dict.fromkeys((one.owner, each.key) for one in here for each in one.elements)]

    def nbytes(self, exchange: Exchange) -> int:
        """What travels, one way."""
        sizes = zip(exchange.elements, self._types(exchange), strict=True)
        return sum(elements.count * dtype.itemsize for elements, dtype in sizes)

    def _types(self, exchange: Exchange) -> list[torch.dtype]:
        if exchange not in self._known_types:  # there are other copies when the model is cast
            if exchange.owner in self._here:
                keys = [(exchange.owner, one.key) for one in exchange.elements]
            else:
                keys = [(exchange.holder, one.copies[0].key) for one in exchange.elements]
            self._known_types[exchange] = [self._tensor(*key).dtype for key in keys]
        return self._known_types[exchange]

    def values(self, exchange: Exchange) -> Tensor:
        """What the owner has."""
        return packed(
            [taken(self._tensor(exchange.owner, one.key), one.places) for one in exchange.elements]
        )

    def put(self, exchange: Exchange, body: Tensor) -> None:
        """Let the holder's copies be like it, if they are not.

        An autograd graph that has a copy takes notice of what is put there.
        """
        pieces = unpacked(body, exchange, self._types(exchange))
        pairs = [
            (self._tensor(exchange.holder, copy.key), copy.places, taken(values, copy.among))
            for elements, values in zip(exchange.elements, pieces, strict=True)
            for copy in elements.copies
        ]
        put_if_other(pairs)

    def memory(self, exchange: Exchange) -> Tensor | None:
        """The bytes of a copy of the holder's, where it has the same elements in this order."""
        if len(exchange.elements) == 1:
            for copy in exchange.elements[0].copies:
                tensor = self._tensor(exchange.holder, copy.key)
                in_order = isinstance(copy.places, slice) and is_every(copy.among)
                if in_order and tensor.is_contiguous():
                    return tensor.detach().view(-1)[copy.places].view(torch.uint8)
        return None

    def gradients(self, exchange: Exchange, leaves: Leaves | None = None) -> Tensor:
        """What the holder's copies have, or leaves in their place, added up; see `clear`.

        Raises
        ------
        PlacementError
            If the model was moved since.
        """
        found = []
        for elements in exchange.elements:
            total = self._gradient(exchange, elements, leaves)
            if total is None:
                some = self._tensor(exchange.holder, elements.copies[0].key)
                total = torch.zeros(elements.count, dtype=some.dtype, device=some.device)
            found.append(total)
        return packed(found)

    def _gradient(
        self, exchange: Exchange, elements: Elements, leaves: Leaves | None
    ) -> Tensor | None:
        """The same of some elements, flat; None if no copy has any."""
        if self.moved:
            raise PlacementError(
                "the model was moved, or cast, between a pass and its backward pass: accepted is "
                "before or after both"
            )
        pieces = []
        for copy in elements.copies:
            tensor = self._tensor(exchange.holder, copy.key)
            gradient = (tensor if leaves is None else leaves[tensor]).grad
            if gradient is not None:
                pieces.append((copy.among, taken(gradient, copy.places)))
        if not pieces:
            return None
        (among, total), *others = pieces
        if others or not is_every(among):
            total = total.new_zeros(elements.count)
            for among, piece in pieces:
                add(total, among, piece)
        return total

    def hand_over(self, exchange: Exchange, leaves: Leaves | None = None) -> None:
        """Give a part's parameters the gradients that its own copies, or leaves, have."""
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
        """Add them to the owner's; what was frozen after it was placed gets none."""
        pairs = list[Pair]()
        pieces = unpacked(body, exchange, self._types(exchange))
        for elements, values in zip(exchange.elements, pieces, strict=True):
            tensor = self._tensor(exchange.owner, elements.key)
            if not tensor.requires_grad:
                continue
            values = values.to(tensor.device)
            if tensor.grad is None:
                if not values.any():  # nobody has one: neither would the model
                    continue
                tensor.grad = torch.zeros_like(tensor)
            pairs.append((tensor.grad, elements.places, values))
        add_all(pairs)

    def clear(self, part: int) -> None:
        """Forget the gradients of a part's copies."""
        for one in self.tensors_of(part):
            one.grad = None


@dataclass(frozen=True, eq=False)
class Travelling:
    """What of copies travels by a schedule.

    Attributes
    ----------
    copies : Copies
    exchanges : sequence of Exchange
        What the numbers in the schedule mean.
    is_counted : bool
        Whether they are part of the partition's communication volume.
    due : Due or None
        What was found to have to travel; None if that was not looked at, and all does.
    """

    copies: Copies
    exchanges: Sequence[Exchange]
    is_counted: bool = True
    due: Due | None = None

    @property
    def is_due(self) -> bool:
        """Whether weights travel; else copies are like them, and only gradients do."""
        return self.due is None or self.due.weights

    def note(self) -> None:
        """Note that a pass that learns has ended well."""
        assert self.due is not None
        self.copies.note_weights(self.due)

    @property
    def travels(self) -> tuple[Travel, ...]:
        """From whom to whom."""
        return tuple(Travel(one.owner, one.holder) for one in self.exchanges)


def _by_layer(exchanges: Sequence[Exchange]) -> list[list[int]]:
    """Their numbers, layer by layer."""
    runs = groupby(range(len(exchanges)), key=lambda number: exchanges[number].layer)
    return [[*numbers] for _, numbers in runs]


def _count(tensor: Tensor) -> tuple[int, int]:
    """What torch changes where a tensor is written to, or has other `data`."""
    return tensor._version, tensor.data_ptr()


def _content(tensor: Tensor) -> tuple[int, ...]:
    """What is another one when a tensor was changed, given another `data`, or that in place.

    torch keeps no version of the last, as of averaged weights and target networks: so all words are
    added up, each times its place, as what was moved alone is another one, too.
    """
    flat = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
    if flat.storage_offset() % 8:
        flat = flat.clone()
    words = flat[: len(flat) // 8 * 8].view(torch.int64)
    places = 2 * torch.arange(min(len(words), WORDS), device=flat.device) + 1
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for first in range(0, len(words), WORDS):
        some = words[first : first + WORDS]
        total = total * FACTOR + (some * places[: len(some)]).sum()
    return *_count(tensor), int(total), *flat[words.nbytes :].tolist()
