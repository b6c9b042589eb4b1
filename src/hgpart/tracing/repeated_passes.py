"""Forward passes without data -> whether each computes what the one before it did.

State that a pass keeps outside its modules (a variable of a Python module, the time, a generator
of its own) can't be listed. It shows in the next pass, which calls other operators or gives them
other numbers. Values are numbered as compilers do: equal operators on equal operands make values
of equal number, so a tensor that an earlier pass made and kept is as good as one made anew.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from hgpart.operators.table import record_of
from hgpart.tracing.arguments import Arguments
from hgpart.tracing.code.followed_constants import PLAIN
from hgpart.tracing.code.unread_draws import watched_draws
from hgpart.tracing.programs.stand_ins import storage_of

aten = torch.ops.aten

SEEDS = "the model seeds torch's generator"
_PLAIN = (*PLAIN, bytes, np.generic)
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TORCHS = (Tensor, nn.Parameter)


def compare_passes(
    model: nn.Module,
    arguments: Arguments,
    is_given: Callable[[Tensor], bool],
    tell: Callable[[str], None],
    lost: Callable[[str], None],
) -> None:
    """Run a model a few times on tensors without data.

    `tell` is told which module computes something else than in the pass before, and of seeds;
    `lost` of parameters whose `requires_grad` the forward pass changes. `is_given` says whether a
    tensor that was made, and kept, during the trace was made from the model's inputs. The first
    pass may fill caches. Fake tensors take ten times as long as the meta device; they are for
    models that ask for a device or for sizes that data decide. A model that fails on both shows
    nothing.
    """
    for on_meta in (True, False):
        passes = _Passes(model, is_given, tell, lost, on_meta)
        with passes.watching():
            first = passes.run(arguments)
            if isinstance(first, type):
                continue
            second = passes.run(arguments)
            if first != second and second != passes.run(arguments):
                tell(f"{_module_name(passes.changed())} computes something else")
            return


def reads_draws(
    model: nn.Module, arguments: Arguments, is_given: Callable[[Tensor], bool]
) -> str | None:
    """The line at which a pass reads a number that Python's or NumPy's generator has drawn.

    None if it reads none; empty where that is not known.
    """
    for on_meta in (True, False):
        passes = _Passes(model, is_given, lambda _: None, lambda _: None, on_meta)
        with passes.watching(), watched_draws() as draws:
            has_failed = isinstance(passes.run(arguments), type)
        if draws.read_at is not None or not has_failed:
            return draws.read_at
    return ""


class _Passes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Numbers the values of forward passes: values of equal number are computed alike."""

    supports_higher_order_operators = True

    def __init__(
        self,
        model: nn.Module,
        is_given: Callable[[Tensor], bool],
        tell: Callable[[str], None],
        lost: Callable[[str], None],
        on_meta: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.is_given, self.tell, self.lost = model, is_given, tell, lost
        self.fake = None if on_meta else _fake_mode()
        self.drawn = torch.default_generator.get_state()
        self.numbers: dict[Any, int] = {}
        self.of_inputs: set[int] = set()  # numbers of values made from inputs
        # By id: the tensor (so that no other gets its id), its number, and the pass that made it,
        # None for the model's own.
        self.known: dict[int, tuple[Tensor, int, int | None]] = {}
        self.written: dict[int, int] = {}  # by storage, the number of what was last written there
        self.outside: set[int] = set()  # storages that no pass has made
        self.stand_ins: dict[int, tuple[Tensor, Tensor]] = {}
        self.parameters: dict[int, tuple[str, bool]] = {}  # name, and whether it needs a gradient
        self.made: list[dict[int, str]] = []  # for each pass: numbers, and the module of each
        self.running: list[str] = []
        self.registries = self._registries()

    def _registries(self) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
        """All dicts of parameters and buffers, copies of them, and the same with stand-ins."""
        registries = []
        for path, module in self.model.named_modules():
            for registry in (module._parameters, module._buffers):
                replaced: dict[str, Any] = {}
                for name, tensor in registry.items():
                    replaced[name] = None if tensor is None else self._stand_in(tensor)
                    for own in (tensor, replaced[name]) if tensor is not None else ():
                        full = f"{path}.{name}" if path else name
                        number = self._number(("named", full), ())
                        self.known.setdefault(id(own), (own, number, None))
                        self.outside.add(storage_of(own))
                        if isinstance(own, nn.Parameter):
                            self.parameters.setdefault(id(own), (full, own.requires_grad))
                registries.append((registry, dict(registry), replaced))
        return registries

    # -------------------------------------------------------------- passes

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Give the model stand-ins for its tensors, and keep what it prints from the user."""
        paths = {id(module): path for path, module in self.model.named_modules()}
        with ExitStack() as stack:
            for hook in (
                register_module_forward_pre_hook(
                    lambda module, _: self.running.append(paths.get(id(module), ""))
                ),
                register_module_forward_hook(lambda *_: self._leave(), always_call=True),
            ):
                stack.callback(hook.remove)
            stack.callback(self._restore)
            generator = _TorchsGenerator(lambda: self.tell(SEEDS))
            stack.enter_context(mock.patch.object(torch.random, "default_generator", generator))
            stack.enter_context(redirect_stdout(io.StringIO()))
            yield

    def _path(self) -> str:
        """The module whose forward pass is running."""
        return self.running[-1] if self.running else ""

    def _leave(self) -> None:
        self.running.pop()

    def _restore(self) -> None:
        for registry, before, _ in self.registries:
            registry.clear()
            registry.update(before)

    def run(self, arguments: Arguments) -> Any:
        """Run the model once; returns a record of what it computes, equal if passes do the same."""
        self.made.append({})
        for registry, _, replaced in self.registries:
            registry.clear()
            registry.update(replaced)
            for tensor in replaced.values():
                if tensor is not None:
                    self.written.pop(storage_of(tensor), None)
        given = [self._fresh(tensor) for tensor in arguments.tensors]
        for at, tensor in enumerate(given):
            number = self._number(("input", at), ())
            self.of_inputs.add(number)
            self.known[id(tensor)] = (tensor, number, len(self.made))
        args, kwargs = arguments.with_tensors(given).call
        self.running.clear()
        torch.default_generator.set_state(self.drawn)
        try:
            with self.fake or nullcontext(), self:
                results = self.model(*args, **kwargs)
        except (Exception, SystemExit) as error:
            return type(error)
        operands: list[int] = []
        noted = [self._note(value, operands) for value in pytree.tree_leaves(results)]
        for registry, _, _ in self.registries[1::2]:
            noted.extend(self._note(value, operands) for value in registry.values())
        for key, (name, needs) in self.parameters.items():
            if self.known[key][0].requires_grad != needs:
                self._tell_switched(name)
        return noted

    def changed(self) -> str:
        """The module of the last pass's first value that the pass before it has not made."""
        before, last = self.made[-2:]
        return next((path for number, path in last.items() if number not in before), "")

    def _tell_switched(self, name: str) -> None:
        self.lost(f"{name}, of which the forward pass changes requires_grad")

    # -------------------------------------------------------------- calls

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Number what an operator makes and writes."""
        kwargs = dict(kwargs or {})
        if kwargs.get("generator") not in (None, torch.default_generator):
            self.tell(f"{_module_name(self._path())} draws from a generator of its own")
            kwargs["generator"] = None  # the user's stays as it is
        operands: list[int] = []
        noted = self._note(args, operands), self._note(kwargs, operands)
        targets = [
            (args[at] if at < len(args) else kwargs.get(name), is_returned)
            for at, name, is_returned in _written_by(func)
        ]
        written = {storage_of(tensor) for target, _ in targets for tensor in _tensors_in(target)}
        result = self._call(func, args, kwargs, not written.isdisjoint(self.outside))
        shaped = record_of(func).makes is not None
        number = self._number((func, noted), () if shaped else operands)
        self.made[-1].setdefault(number, self._path())
        for at, tensor in enumerate(_tensors_in(result)):
            if id(tensor) not in self.known:
                self.known[id(tensor)] = (
                    tensor,
                    self._number((number, at), (number,)),
                    len(self.made),
                )
        self.written.update(dict.fromkeys(written, number))
        return next((target for target, is_returned in targets if is_returned), result)

    def _call(self, func: Any, args: Any, kwargs: Any, writes_outside: bool) -> Any:
        """Call an operator; without data if an operand has none, or if it writes the user's."""
        args, kwargs = _mapped(self._own, args), _mapped(self._own, kwargs)
        operands = _tensors_in((args, *kwargs.values()))
        if self.fake is None and (writes_outside or any(operand.is_meta for operand in operands)):
            args, kwargs = _mapped(_on_meta, args), _mapped(_on_meta, kwargs)
            if "device" in kwargs:
                kwargs["device"] = torch.device("meta")
            if func is aten.native_batch_norm.default:  # torch needs 15 operators for its shapes
                statistics = args[0].new_empty(args[0].shape[1:2])
                return torch.empty_like(args[0]), statistics, torch.empty_like(statistics)
        return func(*args, **kwargs)

    def _number(self, value: Any, operands: Sequence[int]) -> int:
        number = self.numbers.setdefault(value, len(self.numbers))
        if not self.of_inputs.isdisjoint(operands):
            self.of_inputs.add(number)
        return number

    def _note(self, value: Any, operands: list[int]) -> Any:
        """A key that two values share if they are the same to the operators."""
        if isinstance(value, Tensor):
            operands.append(self._number_of(value))
            return Tensor, operands[-1]
        if isinstance(value, _PLAIN):
            return type(value), repr(value)
        if isinstance(value, (list, tuple)):
            return tuple([self._note(item, operands) for item in value])
        if isinstance(value, _SYMBOLS):
            return re.sub(r"\bu\d+", "u", str(value))  # sizes that data decide, of any number
        if isinstance(value, Mapping):
            return tuple([(str(key), self._note(item, operands)) for key, item in value.items()])
        return type(value)

    def _number_of(self, tensor: Tensor) -> int:
        key = id(tensor)
        if key not in self.known and self._is_traced(tensor):
            return self._number_of(self._own(tensor))
        if key not in self.known:
            self.known[key] = (tensor, self._number(_content(tensor), ()), None)
            self.outside.add(storage_of(tensor))
        _, number, made = self.known[key]
        if made is not None and made != len(self.made) and number in self.of_inputs:
            number = self._number(("kept", len(self.made), number), (number,))
        if key in self.parameters:
            name, needs = self.parameters[key]
            if tensor.requires_grad != needs:
                self._tell_switched(name)
        written = self.written.get(storage_of(tensor))
        return number if written is None else self._number((number, written), (number, written))

    # -------------------------------------------------------------- stand-ins

    def _is_traced(self, value: Any) -> bool:
        """Whether a tensor was made while the model was traced."""
        if isinstance(value, FakeTensor):
            return value.fake_mode is not self.fake
        return isinstance(value, FunctionalTensor)

    def _own(self, tensor: Tensor) -> Tensor:
        if not self._is_traced(tensor):
            return tensor
        own = self._stand_in(tensor)
        if id(own) not in self.known:
            number = self._number(("traced", id(tensor)), ())
            if self.is_given(tensor):
                self.of_inputs.add(number)
            self.known[id(own)] = (own, number, 0)
        return own

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor
        if id(tensor) not in self.stand_ins:
            self.stand_ins[id(tensor)] = tensor, self._fresh(tensor)
        return self.stand_ins[id(tensor)][1]

    def _fresh(self, tensor: Tensor) -> Tensor:
        """A tensor without data, with numbers for sizes."""
        needs = tensor.requires_grad
        is_parameter = isinstance(tensor, nn.Parameter)
        if isinstance(tensor, FunctionalTensor):
            tensor = torch._from_functional_tensor(tensor.elem)
        sizes, strides = ([*map(_hint, values)] for values in (tensor.shape, tensor.stride()))
        device = "meta" if self.fake is None else tensor.device
        with self.fake or nullcontext():
            like = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=device)
            if is_parameter:
                return nn.Parameter(like, requires_grad=needs)
            return like.requires_grad_(needs)


def _module_name(path: str) -> str:
    return path or "the model itself"


def _fake_mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)


def _on_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


def _mapped(convert: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Arguments with their tensors converted."""
    if isinstance(value, Tensor):
        return convert(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(convert, item) for item in value])
    if isinstance(value, dict):
        return {name: _mapped(convert, item) for name, item in value.items()}
    return value


class _TorchsGenerator:
    """Stands for torch's generator in `torch.random`, and tells when it is set."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell, self._generator = tell, torch.default_generator

    def __getattr__(self, name: str) -> Any:
        if name in ("manual_seed", "seed", "set_state"):
            self._tell()
        return getattr(self._generator, name)


@cache
def _written_by(func: Any) -> tuple[tuple[int, str, bool], ...]:
    """Positions and names of the arguments that an operator writes; whether it returns its one."""
    if not isinstance(func, torch._ops.OpOverload):
        return ()
    returned = func._schema.returns
    is_returned = len(returned) == 1 and returned[0].alias_info is not None
    return tuple(
        (at, argument.name, is_returned)
        for at, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _content(tensor: Tensor) -> Any:
    """A key that equal tensors of the code's own share."""
    at = tensor.dtype, tuple(tensor.shape)
    if type(tensor) in _TORCHS and tensor.is_meta:
        return at  # values that the code gives to `new_tensor` of a tensor without data are lost
    if type(tensor) not in _TORCHS or tensor.layout is not torch.strided or not tensor.is_cpu:
        return *at, id(tensor)
    with no_dispatch(), torch.no_grad():
        data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
        return *at, hashlib.sha256(data.tobytes()).digest()


def _hint(size: Any) -> int:
    return int(size.node.hint if isinstance(size, torch.SymInt) else size)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)
