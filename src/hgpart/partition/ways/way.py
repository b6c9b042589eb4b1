"""Problem -> parts: what is known of a way to divide a model, in one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.partition.baselines.known_ways import Parts
from hgpart.partition.partition import Partition, evaluated, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.steering.checking import broken
from hgpart.partition.steering.renumbering import renumbered

Divided = Partition | Parts
Divide = Callable[[Problem, Search], Any]  # what users' functions return is checked


def nothing(problem: Problem) -> str | None:
    """Need nothing: any problem can be divided."""
    return None


@dataclass(frozen=True)
class Way:
    """A way to divide a model.

    Attributes
    ----------
    words : str
        What it does and where it comes from, in one line.
    divide : function of a Problem and a Search
        Returns a Partition, or blocks of the model and the part of each. Raises an ArgumentError or
        InfeasibleError where it can't.
    needs : function of a Problem
        Says why a problem can't be divided this way; None where it can.
    grain : str or None
        The grain it divides at; None for the problem's own.
    slices : function of a Problem, or None
        How many slices it divides the batch into; None for as many as the problem has.
    bands : function of a Problem, or None
        How many bands it divides rows into; None for one.
    in_slices : function of a Problem and a Search, or None
        The same for a number of slices that is given, where `divide` chooses one.
    searches : bool
        Whether its parts depend on eps; all others are as balanced as they happen to be.
    ring : bool
        Whether devices sum gradients in a ring, when its traffic is counted.
    for_any : bool
        Whether it is for any model, and listed; the others are used where they are named.
    """

    name: str
    words: str
    divide: Divide = field(compare=False)
    needs: Callable[[Problem], str | None] = field(default=nothing, compare=False)
    grain: str | None = "coarse"
    slices: Callable[[Problem], int] | None = field(default=None, compare=False)
    bands: Callable[[Problem], int] | None = field(default=None, compare=False)
    in_slices: Divide | None = field(default=None, compare=False)
    searches: bool = False
    ring: bool = False
    for_any: bool = True

    def problem(self, problem: Problem) -> Problem:
        """Return the problem at the way's grain, in the way's slices and bands.

        Raises
        ------
        ArgumentError
            If the batch has fewer samples, the model mixes them, or no map has so many rows.
        """
        own = problem if self.grain is None else problem.at_grain(self.grain)
        own = own.in_bands(1)
        own = own if self.slices is None else own.in_slices(self.slices(own))
        return own if self.bands is None else own.in_bands(self.bands(own))

    def parts(self, problem: Problem, search: Search, slices: int | None = None) -> Parts:
        """Divide a model: blocks, and the part of each. See `partition`."""
        divided = self._divided(problem, search, slices)
        if isinstance(divided, Partition):
            uninterrupted(divided)
            return divided.model, divided.parts
        return divided

    def partition(
        self,
        problem: Problem,
        search: Search,
        slices: int | None = None,
        bound: int | None = None,
    ) -> Partition:
        """Divide a model.

        Parameters
        ----------
        search : Search
            Seed, effort and time of ways that search.
        slices : int, optional
            Number of slices for the ways that would choose one.
        bound : int, optional
            Lower bound of the volume, such as 0 where nobody asks for it. Default: it is computed.

        Raises
        ------
        ArgumentError, InfeasibleError
            If the problem can't be divided this way, or the way breaks a constraint.
        BackendError
            If a way of the user's fails, or returns no parts.
        """
        divided = self._divided(problem, search, slices)
        if isinstance(divided, Partition):
            return divided
        model, parts = divided
        own = replace(problem, modelling=model.modelling)
        seed, name = search.seed, self.name
        return evaluated(own, model, parts, seed=seed, backend=name, start=name, bound=bound)

    def _divided(self, problem: Problem, search: Search, slices: int | None) -> Partition | Parts:
        divide, own = self.divide, self.problem(problem)
        if slices is not None and self.in_slices is not None:
            divide, own = self.in_slices, own.in_slices(slices)
        if (why := self.needs(own)) is not None:
            raise ArgumentError(why)
        divided: Divided = divide(own, search)
        if not problem.constraints:
            return divided
        if isinstance(divided, Partition):
            model, parts = divided.model, divided.parts
        else:  # a rule, whose numbers of equal devices mean nothing
            model, parts = divided
            parts = renumbered(own, model, parts, np.eye(own.k))
            divided = model, parts
        if names := broken(model, parts, problem.constraints):
            raise InfeasibleError(f"{self.name} does not keep to {'; '.join(names)}")
        return divided
