"""Forms + the state that parts hold -> the copies that parts have in each form."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from torch import nn

from hgpart.execution.runtime import Gather
from hgpart.execution.weights.copies import Copies
from hgpart.execution.weights.exchanges import Exchange
from hgpart.placement.forms import Forms
from hgpart.placement.held_state import HeldState
from hgpart.placement.programs import Programs
from hgpart.placement.shares.exchanges import Holding, exchanges, together
from hgpart.placement.shares.messages import buckets_of
from hgpart.tracing.forms import Form


@dataclass(frozen=True, eq=False)
class InTurns:
    """The copies that parts have where slices have batches in turns.

    Attributes
    ----------
    copies : Copies
        Copies for all turns.
    of_turns : tuple of tuple of Exchange
        The weights of which a part has copies for each turn.
    """

    copies: Copies
    of_turns: tuple[tuple[Exchange, ...], ...]

    @property
    def sent_elements(self) -> int:
        """Elements of weights that parts send each other after an update."""
        return sum(
            elements.count
            for exchange in self.copies.weights
            if exchange.owner != exchange.holder
            for elements in exchange.elements
        )


class CopiesByForm:
    """The copies that parts have of each other's state in each form of a plan over tiles.

    If some parts are in other processes, all processes ask for them together the first time.
    """

    def __init__(self, forms: Forms, state: HeldState) -> None:
        self._forms, self._state = forms, state
        self._copies: dict[Form, Copies] = {}
        self._in_turns: dict[Form, InTurns] = {}

    @property
    def present(self) -> Copies:
        """Copies of the present form; all parts are here, or processes have asked before."""
        if self._forms.programs.has_all_parts:
            return self.gathered(lambda here: [here])
        return self._copies[self._forms.present]

    @property
    def are_known(self) -> bool:
        """Whether the copies of the present form are known."""
        return self._forms.present in self._copies

    def gathered(self, gather: Gather) -> Copies:
        """Copies of the present form.

        The first time all processes ask for them together, and gather what each of them holds.
        """
        if not self.are_known:
            programs = self._forms.programs
            here = {part: self._state.holding(programs, part) for part in programs.parts}
            self._copies[self._forms.present] = self._copies_of(ChainMap(*gather(here)))
        return self._copies[self._forms.present]

    def in_turns(self, gather: Gather) -> InTurns:
        """Copies of the present form's turns, all together, and what travels in each of them."""
        form, turns = self._forms.present, self._forms.turns
        if form not in self._in_turns:
            here = [
                {part: self._state.holding(programs, part) for part in programs.parts}
                for programs in turns
            ]
            of_turns = [ChainMap(*(own[at] for own in gather(here))) for at in range(len(turns))]
            every = {part: together(own[part] for own in of_turns) for part in of_turns[0]}
            layers = self._layers()
            self._in_turns[form] = InTurns(
                self._copies_of(every, turns),
                tuple(exchanges(holdings, layers) for holdings in of_turns),
            )
        return self._in_turns[form]

    def _layers(self) -> Mapping[str, str]:
        blueprint = self._forms.programs.blueprint
        return buckets_of(blueprint.graph, blueprint.parameter_shapes, blueprint.trainable)

    def _copies_of(
        self, holdings: Mapping[int, Holding], of_steps: Sequence[Programs] | None = None
    ) -> Copies:
        programs = self._forms.programs
        blueprint, layers = programs.blueprint, self._layers()
        names = (held.name for holding in holdings.values() for held in holding.copies.values())
        every = dict.fromkeys(names, "state")
        traced = blueprint.traced
        passing = {*layers, *(traced.buffers[name] for name in traced.updated)}
        fixed = {name: state for name, state in every.items() if name not in passing}
        rest = {name: state for name, state in every.items() if name not in layers}
        return Copies(
            self._state.tensor,
            tuple(programs.parts),
            weights=exchanges(holdings, layers),
            fixed=exchanges(holdings, fixed),
            rest=exchanges(holdings, rest),
            state=exchanges(holdings, every),
            steps=dict(
                chain.from_iterable(
                    self._state.copies_of_steps(own).items() for own in of_steps or [programs]
                )
            ),
            training=self._forms.present.training,
            every=self._copies,
        )

    def let_weights_travel(self) -> None:
        """Let the next pass send weights to copies, as after an update.

        Otherwise a pass sends none if no weight has changed since the last one, as where gradients
        are added up: then fewer bytes travel than tables say of a step.
        """
        for copies in self._copies.values():
            copies.forget_weights()

    def note_loaded(self) -> None:
        """Note that copies may be out of date, as state was loaded."""
        for copies in self._copies.values():
            copies.up_to_date = False
            copies.forget_weights()

    def forget(self) -> None:
        """Forget all copies, as the model was moved and has other tensors now."""
        for copies in self._copies.values():
            copies.moved = True
        self._copies.clear()
        self._in_turns.clear()

    @contextmanager
    def in_flight(
        self, parameters: Iterable[nn.Parameter], *, in_turns: bool = False
    ) -> Iterator[None]:
        """Let a stream replace tensors of copies; afterwards restore what parts own within them.

        If it fails, the parameters of the parts in this process have no gradients.

        Raises
        ------
        PlacementError
            At the end, if something that does not learn was changed meanwhile.
        """
        if not self._forms.programs.has_copies:
            yield
            return
        try:
            yield
        except BaseException:
            for parameter in parameters:  # some may be of a batch that other parts have not ended
                parameter.grad = None
            raise
        finally:
            self._state.join()
        copies = self._in_turns[self._forms.present].copies if in_turns else self.present
        copies.check_fixed()
