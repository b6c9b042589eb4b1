"""Forms + the state that parts hold -> the copies that parts have in each form."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from torch import nn

from hgpart.execution.runtime import Gather
from hgpart.execution.weights.copies import Copies
from hgpart.placement.forms import Forms
from hgpart.placement.held_state import HeldState
from hgpart.placement.programs import Programs
from hgpart.placement.shares.exchanges import Holding, exchanges, together
from hgpart.placement.shares.messages import buckets_of
from hgpart.tracing.forms import Form


class CopiesByForm:
    """The copies that parts have of each other's state in each form of a plan over tiles.

    If some parts are in other processes, all processes ask for them together the first time.
    """

    def __init__(self, forms: Forms, state: HeldState) -> None:
        self._forms, self._state = forms, state
        # By form, and whether they are for batches in turns.
        self._copies: dict[tuple[Form, bool], Copies] = {}

    @property
    def present(self) -> Copies:
        """Copies of the present form; all parts are here, or processes have asked before."""
        if self._forms.programs.has_all_parts:
            return self.gathered(lambda here: [here])
        return self._copies[self._forms.present, False]

    @property
    def are_known(self) -> bool:
        """Whether the copies of the present form are known."""
        return (self._forms.present, False) in self._copies

    def gathered(self, gather: Gather) -> Copies:
        """Copies of the present form.

        The first time all processes ask for them together, and gather what each of them holds.
        """
        if not self.are_known:
            programs = self._forms.programs
            here = {part: self._state.holding(programs, part) for part in programs.parts}
            holdings = ChainMap(*gather(here))
            self._copies[self._forms.present, False] = self._copies_of([programs], [holdings])
        return self._copies[self._forms.present, False]

    def in_turns(self, gather: Gather) -> Copies:
        """The same for all turns of the present form together."""
        key, turns = (self._forms.present, True), self._forms.turns
        if key not in self._copies:
            here = [
                {part: self._state.holding(programs, part) for part in programs.parts}
                for programs in turns
            ]
            of_turns = [ChainMap(*(own[at] for own in gather(here))) for at in range(len(turns))]
            self._copies[key] = self._copies_of(turns, of_turns)
        return self._copies[key]

    def _copies_of(
        self, turns: Sequence[Programs], of_turns: Sequence[Mapping[int, Holding]]
    ) -> Copies:
        """Copies for these programs, by what parts hold for each of them."""
        holdings = {part: together(own[part] for own in of_turns) for part in of_turns[0]}
        blueprint = self._forms.programs.blueprint
        layers = buckets_of(blueprint.graph, blueprint.parameter_shapes, blueprint.trainable)
        names = (held.name for holding in holdings.values() for held in holding.copies.values())
        every = dict.fromkeys(names, "state")
        traced = blueprint.traced
        passing = {*layers, *(traced.buffers[name] for name in traced.updated)}
        fixed = {name: state for name, state in every.items() if name not in passing}
        rest = {name: state for name, state in every.items() if name not in layers}
        return Copies(
            self._state.tensor,
            tuple(self._forms.programs.parts),
            weights=exchanges(holdings, layers),
            fixed=exchanges(holdings, fixed),
            rest=exchanges(holdings, rest),
            state=exchanges(holdings, every),
            steps=dict(
                chain.from_iterable(self._state.copies_of_steps(own).items() for own in turns)
            ),
            training=self._forms.present.training,
            every=self._copies,
            of_turns=[exchanges(own, layers) for own in of_turns] if len(turns) > 1 else (),
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
        copies = self._copies[self._forms.present, True] if in_turns else self.present
        copies.check_fixed()
