"""RunningPass + Together -> RankCall: a pass of all ranks, called like a function on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hgpart.errors import RunError
from hgpart.execution.runtime import RunningPass
from hgpart.operators.calls import has_gradients
from hgpart.run.elsewhere import Elsewhere
from hgpart.run.processes.begun import JointCall
from hgpart.run.together import Together


class RankCall:
    """A forward pass in grad mode that a backward pass of all ranks can follow.

    Parameters
    ----------
    elsewhere : sequence of Elsewhere
        Stand-ins for the results, on a rank that has none.
    inputs : mapping of str to Tensor
        Meta tensors with the shape and type of each input in the programs of all ranks, if some
        rank wants the gradients of inputs.
    """

    def __init__(
        self,
        begun: RunningPass,
        together: Together,
        elsewhere: Sequence[Elsewhere],
        inputs: Mapping[str, Tensor],
    ) -> None:
        self._pass, self._together, self._inputs = begun, together, inputs
        (self._run,) = begun.runs.values()
        self.number = together.next_pass()
        self._results: tuple[Tensor, ...] = self._run.results.pop(0, ())
        self._has_results = not elsewhere
        if elsewhere:
            for stand_in in elsewhere:
                stand_in.requires_grad_(has_gradients(stand_in.dtype))
            self._results = (*elsewhere,)

    def taken_results(self) -> tuple[Tensor, ...]:
        """Results of this rank, or stand-ins."""
        results, self._results = self._results, ()
        return results

    def backward(
        self, gradients: Sequence[Tensor | None], weights: bool
    ) -> Mapping[str, Tensor | None]:
        """Go back with all ranks; the gradient of an input is the sum over those that read it.

        Raises
        ------
        RunError
            If a gradient of results of this rank depends on values of others.
        ArgumentError
            If other ranks do something else.
        """
        with self._together.whole_pass(), self._together.calling(JointCall.BACKWARD):
            self._together.begin_back(self.number, weights)
            own: list[Tensor | None] = []
            for gradient in gradients if self._has_results else ():
                if isinstance(gradient, Elsewhere):
                    raise RunError(
                        f"the gradient of a result of rank {self._together.rank} is computed from "
                        f"values of another rank, as by a product of two models' results: accepted "
                        "is a sum of losses, each of results of the same ranks, and values that do "
                        "not learn, as by teacher.value(...)"
                    )
                own.append(gradient)
            self._pass.backward({self._together.rank: own} if self._has_results else {}, weights)
            return self._gradients_of_inputs()

    def _gradients_of_inputs(self) -> dict[str, Tensor | None]:
        total: dict[str, Tensor | None] = {}
        for name, like in self._inputs.items():
            own = self._run.input_gradients.get(name)
            if own is None:
                own = torch.zeros(like.shape, dtype=like.dtype, device=self._together.device)
            total[name] = self._together.sum_of(own)
        return total
