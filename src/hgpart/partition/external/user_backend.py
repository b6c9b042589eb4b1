"""A function of the user's -> a backend whose answer is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hgpart.arrays import Int32, Int64
from hgpart.errors import BackendError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.contract import check_request, checked_parts, easy_parts
from hgpart.specs.user_code import UserCode


class UserBackend:
    """A backend that calls a function of the user's, in this process.

    The function gets the hypergraph with arrays that can't be written to, and is not called where
    no search is needed. It is not stopped at the time limit.

    Parameters
    ----------
    function : callable
        Takes what a `Backend` takes, and returns the part of each vertex.
    code : UserCode, optional
        Where the function comes from, if it was named; its name is then that of the backend.
    """

    def __init__(self, function: Callable[..., Any], code: UserCode | None = None) -> None:
        named = function if hasattr(function, "__name__") else type(function)
        own = UserCode(f"{named.__module__}:{named.__name__}", "backend", BackendError)
        self._function, self._code = function, code or own
        self.name = self._code.spec

    def __call__(
        self,
        hypergraph: Hypergraph,
        capacities: Int64,
        *,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Int32:
        """Partition as `Backend` says.

        Raises
        ------
        BackendError
            If the function raises anything, or returns what is not a partition.
        """
        check_request(hypergraph, capacities, seed, time_limit)
        easy = easy_parts(hypergraph, capacities)
        if easy is not None:
            return easy
        with self._code.running():
            parts = self._function(
                _read_only(hypergraph), capacities.copy(), seed=seed, time_limit=time_limit
            )
        return checked_parts(self.name, parts, hypergraph.vertices, len(capacities))


def _read_only(hypergraph: Hypergraph) -> Hypergraph:
    """The same arrays, which nobody can write to through it."""
    views = {field.name: getattr(hypergraph, field.name).view() for field in fields(hypergraph)}
    for view in views.values():
        view.flags.writeable = False
    return Hypergraph(**views)
