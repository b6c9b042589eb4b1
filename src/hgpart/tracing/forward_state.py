"""A forward pass in Python -> what it does that torch.export's graph of it can't hold.

torch.export runs a model's forward once and keeps the operators. Everything else that the code
reads and changes is frozen as it was in this pass: an attribute that counts, numbers that NumPy
drew. `watched` reports that, and leaves the model and the generators as they were before. What the
code keeps outside the model shows in further passes.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental import proxy_tensor
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import _pytree as pytree

from hgpart.errors import TraceError
from hgpart.operators.table import operator_of
from hgpart.tracing.arguments import Arguments
from hgpart.tracing.code.contents import digest_of
from hgpart.tracing.code.model_lines import is_the_models
from hgpart.tracing.code.reachable import NO_STATE, Place, identities, places_of
from hgpart.tracing.repeated_passes import SEEDS, compare_passes, reads_draws

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_MISSING = object()


@contextmanager
def watched(
    model: nn.Module,
    arguments: Arguments,
    tell: Callable[[str], None],
    lost: Callable[[str], None],
) -> Iterator[None]:
    """Watch the forward pass of a model while it is exported, once, inside the block.

    `tell` is told what the graph can't hold, `lost` which gradients it loses.
    """
    watch = _ForwardWatch(model, tell)
    drawn, seeded = _generators(), torch.get_rng_state()
    try:
        with ExitStack() as stack:
            stack.callback(watch.reading.close)
            hooks = (
                model.register_forward_pre_hook(watch.begin, prepend=True, with_kwargs=True),
                register_module_forward_pre_hook(watch.enter),
                register_module_forward_hook(watch.leave),
                model.register_forward_hook(watch.end, with_kwargs=True),
            )
            for hook in hooks:
                stack.callback(hook.remove)
            stack.callback(watch.restore)
            yield
        if not torch.equal(seeded, torch.get_rng_state()):
            watch.tell(SEEDS)
        _tell_draws(watch, model, arguments)
        if not watch.has_told:  # state outside the model has no name: compare passes
            compare_passes(model, arguments, watch.is_given, tell, lost)
    finally:
        watch.restore()
        torch.set_rng_state(seeded)
        random.setstate(drawn["Python"])
        np.random.set_state(pickle.loads(drawn["NumPy"]))  # noqa: NPY002 (models draw from it)


# ------------------------------------------------------------------ generators


def _generators() -> dict[str, Any]:
    """States of the generators whose numbers become constants in a trace."""
    return {
        "Python": random.getstate(),
        "NumPy": pickle.dumps(np.random.get_state(legacy=False)),  # noqa: NPY002 (models draw from it)
    }


def _tell_draws(watch: _ForwardWatch, model: nn.Module, arguments: Arguments) -> None:
    """Tell which modules draw from them, unless nothing reads what is drawn."""
    if not watch.draws:
        return
    before = _generators()
    line = reads_draws(model, arguments, watch.is_given)
    if line is None and _generators() != before:  # by a function that has another name here
        line = ""
    if line is not None:
        for draw in watch.draws:
            watch.tell(f"{draw} (read at {line})" if line else draw)


# ------------------------------------------------------------------ attributes


@dataclass(frozen=True)
class _Before:
    """A module as it was before the forward pass.

    Attributes
    ----------
    state : dict
        Its attributes by name, without those that every module has.
    prints : dict
        A fingerprint of each attribute.
    items : dict
        Copies of the attributes that are dicts.
    registries : dict
        Copies of its dicts of parameters, buffers and modules.
    """

    path: str
    module: nn.Module
    state: dict[str, Any]
    prints: dict[str, Any]
    items: dict[str, dict[Any, Any]]
    registries: dict[str, dict[str, Any]]


class _ForwardWatch:
    def __init__(self, model: nn.Module, tell: Callable[[str], None]) -> None:
        self.model, self._tell = model, tell
        self.has_told = False
        self.draws: dict[str, None] = {}  # which module draws from which generator
        self.alive: list[Any] = []  # so that no other object gets the id of a compared one
        self.original = self._modules()
        self.places = places_of(model)
        self.kept: set[int] = set()  # ids of tensors that were reached before the forward pass
        self.before: dict[int, _Before] = {}  # as the forward pass begins, tensors without data
        self.stale: set[tuple[int, str]] = set()  # attributes whose old value was read
        self.inputs: list[Any] = []
        self.learned: list[Any] = []  # nodes of the parameters
        self.tracer: Any = None
        self.generators = _generators()
        self.running: list[str] = []  # modules whose forward pass has begun
        self.reading = ExitStack()  # while it is open, reads of attributes are noted

    def tell(self, what: str) -> None:
        self._tell(what)
        self.has_told = True

    def _modules(self) -> dict[int, _Before]:
        """Modules by the ids of their `vars`: during export other objects share these."""
        named = self.model.named_modules()
        return {id(vars(module)): self._as_it_is(path, module) for path, module in named}

    def _as_it_is(self, path: str, module: nn.Module) -> _Before:
        state = {name: value for name, value in vars(module).items() if name not in NO_STATE}
        return _Before(
            path,
            module,
            state,
            {name: self._print(value) for name, value in state.items()},
            {name: dict(value) for name, value in state.items() if isinstance(value, dict)},
            {name: dict(vars(module)[name]) for name in _REGISTRIES},
        )

    def reader(self) -> Callable[[Any, str], Any]:
        """What reads an attribute of a module, and notes which old values were read."""
        get = object.__getattribute__

        def read(module: Any, name: str) -> Any:
            before = self.before.get(id(get(module, "__dict__")))
            if before is None or name in NO_STATE:
                return get(module, name)
            try:
                value = get(module, name)
            except AttributeError:
                self.stale.add((id(vars(before.module)), name))
                raise
            if value is before.state.get(name, _MISSING):
                self.stale.add((id(vars(before.module)), name))
            return value

        return read

    def begin(self, model: Any, args: Any, kwargs: Any) -> None:
        """Note the arguments of the forward pass."""
        self.tracer = _tracer()
        self.inputs = [_node_of(value, self.tracer) for value in pytree.tree_leaves((args, kwargs))]
        self.learned = [_node_of(weight, self.tracer) for weight in self.model.parameters()]
        self.before = self._modules()
        self.kept = {id(value) for _, _, value in self._reached()}
        read = mock.patch.object(nn.Module, "__getattribute__", self.reader(), create=True)
        self.reading.enter_context(read)
        self.reading.enter_context(mock.patch.object(Tensor, "data", self.data()))
        self.reading.enter_context(mock.patch.object(Tensor, "set_", _refusing_set()))

    def data(self) -> property:
        """A replacement of `Tensor.data` that refuses to assign to a parameter's.

        torch.export loses such an assignment: its message is only that a constant is fake.
        """
        plain: Any = torch._C.TensorBase.data

        def assign(tensor: Tensor, value: Tensor) -> None:
            for name, parameter in self.model.named_parameters():
                if parameter is tensor:
                    raise TraceError(
                        f"it assigns to {name}.data: accepted are forward passes that leave "
                        "parameters as they are"
                    )
            plain.__set__(tensor, value)

        return property(plain.__get__, assign)

    def enter(self, module: nn.Module, args: Any) -> None:
        """Note if a module has drawn numbers before it calls another module."""
        self._note_draws()
        before = self.before.get(id(vars(module)))
        self.running.append(before.path if before is not None else "")

    def leave(self, module: nn.Module, args: Any, result: Any) -> None:
        """Note if a module has drawn numbers since its last call of another module."""
        self._note_draws()
        self.running.pop()

    def _note_draws(self) -> None:
        now = _generators()
        for name, state in now.items():
            if state != self.generators[name]:
                path = self.running[-1] if self.running else ""
                self.draws[f"{path or 'the model itself'} draws from {name}'s generator"] = None
        self.generators = now

    def end(self, model: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """Compare the modules with what they were before."""
        self.reading.close()
        for before in self.before.values():
            self._compare_registries(before)
        changed = {
            (key, name): self._print(vars(self.before[key].module).get(name, _MISSING))
            for key, name in sorted(self.stale, key=lambda at: (self.before[at[0]].path, at[1]))
        }
        changed = {
            attribute: now
            for attribute, now in changed.items()
            if now != self._print_before(*attribute)
        }
        once = {attribute for attribute in changed if self._is_made_once(*attribute)}
        if once:  # see whether the next pass finds them
            self._pass_again(args, kwargs)
        for (key, name), now in changed.items():
            module = self.before[key].module
            if (key, name) not in once or now != self._print(vars(module).get(name, _MISSING)):
                path = _joined(self.before[key].path, name)
                self.tell(f"the attribute {path} changes")
        if not self.has_told:
            self._tell_kept()

    def _reached(self) -> Iterator[tuple[Place, Any, Any]]:
        """Tensors, and numbers that data decide, that code can reach: the place, key and value."""
        for place in places_of(self.model):
            for key, value in place.values.items():
                for leaf in pytree.tree_leaves(value) if isinstance(value, tuple) else (value,):
                    if isinstance(leaf, (Tensor, torch.SymFloat)):
                        yield place, key, leaf

    def _tell_kept(self) -> None:
        """Tell of values that the forward pass has computed and left behind.

        Weights made from parameters, such as from a norm and a direction, may stay in modules.
        """
        for place, key, value in self._reached():
            sources = self.inputs if place.is_module else [*self.inputs, *self.learned]
            if id(value) not in self.kept and _depends_on(value, sources, self.tracer):
                self.tell(f"{place.origin} stores what it computes in {place.named(key)}")
                self.kept.add(id(value))

    def _pass_again(self, args: Any, kwargs: Any) -> None:
        """Run the model once more, without recording, and without keeping changes of buffers."""
        with ExitStack() as stack:
            stack.enter_context(proxy_tensor.disable_proxy_modes_tracing())
            # torch.export's own hook looks for assignments to buffers among what it records.
            hooks = nn.modules.module._global_buffer_registration_hooks
            for entries in (
                hooks,
                *(vars(before.module)["_buffers"] for before in self.before.values()),
            ):
                stack.enter_context(mock.patch.dict(entries))
            hooks.clear()
            self.model.forward(*args, **kwargs)

    def _print_before(self, key: int, name: str) -> Any:
        return self.before[key].prints.get(name, self._print(_MISSING))

    def _is_made_once(self, key: int, name: str) -> bool:
        """Whether an attribute was made on first use, and not from the pass's arguments."""
        before = self.before[key]
        old, new = before.state.get(name), vars(before.module).get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            items = before.items[name]
            kept = all(name in new and new[name] is value for name, value in items.items())
            added = [value for name, value in new.items() if name not in items]
            return kept and not self.is_given(added)
        return old is None and not self.is_given(new)

    def is_given(self, value: Any) -> bool:
        """Whether a value that the forward pass made was made from its arguments."""
        return _depends_on(value, self.inputs, self.tracer)

    def _compare_registries(self, before: _Before) -> None:
        module = before.module
        for name, value in module._buffers.items():
            start = before.registries["_buffers"].get(name)
            if value is start:
                continue
            if not isinstance(start, Tensor) or not isinstance(value, Tensor):
                raise TraceError(f"it makes {_joined(before.path, name)} a buffer as it runs")
            if (start.shape, start.dtype) != (value.shape, value.dtype):
                raise TraceError(f"it gives {_joined(before.path, name)} another shape or type")
            start.copy_(value.detach())  # torch.export does so only for the model's own buffers
        for name, value in module._parameters.items():
            if value is not before.registries["_parameters"].get(name):
                self.tell(f"{_joined(before.path, name)} is replaced")
        for name in module._modules.keys() - before.registries["_modules"].keys():
            self.tell(f"{_joined(before.path, name)} is made anew")

    def _print(self, value: Any) -> Any:
        """A fingerprint: equal for values of equal content; for tensors, only for the same one."""
        if value is _MISSING or isinstance(value, (bool, int, float, str, type(None))):
            return type(value), value
        digest = digest_of(value, self._name_of)
        if digest is None:
            self.alive.append(value)
            return id(value)
        return digest

    def _name_of(self, value: Any) -> Any:
        """A name for a value that is not looked into."""
        if isinstance(value, nn.Module):
            return id(vars(value))
        if isinstance(value, Tensor):
            self.alive.append(value)
            return id(value)
        return None

    def restore(self) -> None:
        """Undo what the forward pass added, removed and replaced in the reach of the code."""
        for place in self.places:
            place.restore()
        for before in self.original.values():
            now = vars(before.module)
            for name in now.keys() - before.state.keys() - NO_STATE:
                del now[name]
            now.update(before.state)
            kept = {**before.items, **before.registries}
            for name, entries in kept.items():
                if identities(now[name]) != identities(entries):
                    now[name].clear()
                    now[name].update(entries)


def _refusing_set() -> Callable[..., Tensor]:
    """A replacement of `Tensor.set_` that refuses a model's own calls: no trace keeps them."""
    plain: Any = Tensor.set_

    def set_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if is_the_models(sys._getframe(1).f_code.co_filename):
            raise TraceError(
                "it gives a tensor other memory, or none, by set_(): accepted are forward passes "
                "that leave the memory of tensors to torch"
            )
        made: Tensor = plain(tensor, *args, **kwargs)
        return made

    return set_


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# ------------------------------------------------------------------ what a value is made of


def _tracer() -> Any:
    """The tracer that records the graph now."""
    mode = proxy_tensor.get_proxy_mode()
    return None if mode is None else mode.tracer


def _node_of(value: Any, tracer: Any) -> torch.fx.Node | None:
    """The node of a tensor in the graph that is being recorded."""
    if tracer is None or not isinstance(value, Tensor):
        return None
    slot: Any = proxy_tensor.get_proxy_slot(value, tracer, None)
    return None if slot is None else slot.proxy.node


def _depends_on(value: Any, sources: list[Any], tracer: Any) -> bool:
    """Whether a value, or a tensor in it, was made from these nodes, or is a symbolic size."""
    leaves = pytree.tree_leaves(value)
    if any(isinstance(leaf, (torch.SymInt, torch.SymFloat)) for leaf in leaves):
        return True
    waiting: list[Any] = [_node_of(leaf, tracer) for leaf in leaves]
    seen: set[Any] = {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            if operator_of(node).makes is None:
                waiting.extend(node.all_input_nodes)
    return not seen.isdisjoint(source for source in sources if source is not None)
