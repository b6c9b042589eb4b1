"""What a model's code can reach is found, and given back as it was."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hgpart.tracing.code.reachable import places_of

Hook = Callable[[nn.Module, Any, Tensor], Any]


class Owner:
    """Holds what hooks put something into, in its class and in itself."""

    made: list[Any] = []  # noqa: RUF012 (a class that keeps something is what is tested)
    last: Any = None

    def __init__(self) -> None:
        self.inner = Holder([])

    def keep(self, module: nn.Module, given: Any, made: Tensor) -> None:
        self.inner.maps.append(made)

    @classmethod
    def keep_in_class(cls, module: nn.Module, given: Any, made: Tensor) -> None:
        cls.made.append(made)
        cls.last = made

    @staticmethod
    def keep_in_variable(module: nn.Module, given: Any, made: Tensor) -> None:
        deeper(made)

    def __call__(self, module: nn.Module, given: Any, made: Tensor) -> None:
        self.inner.maps.append(made)


class Holder:
    def __init__(self, maps: list[Any]) -> None:
        self.maps = maps


STORE: dict[str, Any] = {"maps": deque(maxlen=3), "names": set(), "by": defaultdict(list)}


def deeper(made: Tensor) -> None:
    STORE["maps"].append(made)
    STORE["names"].add("a")
    STORE["by"]["a"].append(made)
    STORE.pop("gone", None)


def into(kept: dict[str, Any], module: nn.Module, given: Any, made: Tensor) -> None:
    kept["a"] = made
    kept.pop("gone", None)


def contents() -> tuple[Any, ...]:
    made = [*STORE["maps"]], {*STORE["names"]}, dict(STORE["by"]), [*STORE]
    return *made, [*Owner.made], Owner.last, [*Owner.__dict__], dict(ORDERED), [*ORDERED]


OWNER, ORDERED = Owner(), OrderedDict(gone=1, kept=2)
HOOKS: list[Hook] = [
    OWNER.keep,
    OWNER,
    Owner.keep_in_class,
    OWNER.keep_in_variable,
    partial(into, ORDERED),
    lambda module, given, made: into(ORDERED, module, given, made),
]


@pytest.mark.parametrize("at", range(len(HOOKS)))
def test_what_a_hook_changes_is_found_and_restored(at: int) -> None:
    """Lists of the user's held what was made while a model was traced."""
    STORE["gone"] = 1
    model = nn.Linear(2, 3)
    model.register_forward_hook(HOOKS[at])
    before, inner = contents(), [*OWNER.inner.maps]
    places = places_of(model)
    model(torch.zeros(1, 2))
    assert (contents(), OWNER.inner.maps) != (before, inner)
    for place in places:
        place.restore()
    assert (contents(), OWNER.inner.maps) == (before, inner)


def test_attributes_of_modules_are_restored_and_what_torch_keeps_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    model[0].state = SimpleNamespace(maps=[1])
    model[0].gone = 2
    places = places_of(model)
    weight = nn.Parameter(torch.zeros(3, 2))
    model[0].weight, model[0].more = weight, 3
    del model[0].gone
    for place in places:
        place.restore()
    assert (model[0].gone, hasattr(model[0], "more"), model[0].weight is weight) == (2, False, True)


def test_chains_of_objects_may_be_longer_than_pythons_stack() -> None:
    model, last = nn.Linear(2, 3), Holder([])
    for _ in range(5000):
        last = Holder([last])
    model.chain = last
    assert len(places_of(model)) > 10_000
