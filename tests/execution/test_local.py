from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from operator import getitem

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor, fx, nn
from toy_programs import Cut, Dense, Model, cuts, local, program, toy, transfer

from hgpart.errors import PlacementError, RunError
from hgpart.execution.program import TransferredTensor, receive, send
from hgpart.execution.records.totals import Timing
from hgpart.execution.threads.crew import Crew
from hgpart.execution.threads.local import LocalRuntime


class Call(nn.Module):
    """A step that is any function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: object) -> object:
        return self.function(*values)


def there_and_back(on_part_1: nn.Module, on_part_0: nn.Module | None = None) -> LocalRuntime:
    """Part 0 sends x * 2 to part 1 and returns what comes back: part 0, part 1, part 0."""
    transfers = (transfer(0, 0, 1), transfer(1, 1, 0))

    def first(graph: fx.Graph) -> tuple[fx.Node]:
        doubled = graph.call_module("twice", (graph.placeholder("x"),))
        graph.call_function(send, (0, doubled))
        back = graph.call_function(receive, (1,))
        return (graph.call_module("last", (back,)),)

    def second(graph: fx.Graph) -> tuple[()]:
        there = graph.call_function(receive, (0,))
        graph.call_function(send, (1, graph.call_module("step", (there,))))
        return ()

    last = on_part_0 or nn.Identity()
    return local(
        toy(
            program(0, first, transfers, twice=Call(lambda x: x * 2), last=last),
            program(1, second, transfers, step=on_part_1),
        )
    )


def example(batch_size: int = 2) -> Tensor:
    return torch.randn(batch_size, 3, dtype=torch.float64)


def gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def assert_same_gradients(cut: Cut) -> None:
    for linear, share in cut.shares():
        weight = gradient(linear.weight)[share.rows][:, share.columns]
        assert_close(gradient(share.weight), weight)
        assert_close(gradient(share.bias), gradient(linear.bias)[share.rows])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def step_forward_and_back(runtime: LocalRuntime, x: Tensor) -> Tensor:
    (result,) = runtime.run({"x": x})
    result.sum().backward()
    return result


@given(cuts())
def test_any_cut_computes_the_original_and_sends_each_map_once(cut: Cut) -> None:
    runtime = local(cut.placed)
    x = example(3).requires_grad_()
    expected = cut.model(x)
    (result,) = runtime.run({"x": x, "batch_size": 3})
    assert_close(result, expected)
    assert runtime.last is not None
    assert not runtime.last.traffic.backward_bytes.any()

    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    expected_from_x, x.grad = gradient(x), None
    (result * weight).sum().backward()
    assert_close(gradient(x), expected_from_x)
    assert_same_gradients(cut)
    traffic = runtime.last.traffic
    assert traffic.forward_bytes.tolist() == cut.expected_bytes(3).tolist()
    assert traffic.backward_bytes.tolist() == cut.expected_bytes(3).T.tolist()
    assert traffic.forward_messages.sum() == traffic.backward_messages.sum() == len(cut.transfers)
    assert not traffic.uncounted_bytes.any()


@given(cuts())
def test_runs_are_equal_to_the_bit(cut: Cut) -> None:
    runtime, x = local(cut.placed), example()
    outcomes = []
    for _ in range(2):
        result = step_forward_and_back(runtime, x)
        gradients = [gradient(share.weight) for _, share in cut.shares()]
        outcomes.append([result.detach(), *gradients])
        for _, share in cut.shares():
            share.zero_grad()
    assert all(torch.equal(*pair) for pair in zip(*outcomes, strict=True))


@given(cuts())
def test_two_forwards_before_two_backwards(cut: Cut) -> None:
    runtime, batches = local(cut.placed), (example(2), example(3))
    losses = [runtime.run({"x": x})[0].sum() for x in batches]
    for loss in losses:
        loss.backward()
    for x in batches:
        cut.model(x).sum().backward()
    assert_same_gradients(cut)


@given(cuts())
def test_without_gradients_nothing_is_kept(cut: Cut) -> None:
    runtime, x = local(cut.placed), example()
    with torch.no_grad():
        (result,) = runtime.run({"x": x})
    assert not result.requires_grad
    with torch.inference_mode():
        (inferred,) = runtime.run({"x": x})
    assert inferred.is_inference()
    for each in cut.placed.programs.values():
        each.module.requires_grad_(False)
    (frozen,) = runtime.run({"x": x})
    assert not frozen.requires_grad
    assert torch.equal(result, inferred)
    assert torch.equal(result, frozen)


def test_skip_connections_over_parts_in_turn() -> None:
    layers = (
        Dense((-1,), 1, (0, 0, 1)),
        Dense((0,), 1, (1, 1)),
        Dense((0, 1), 2, (0, 2, 0)),
        Dense((-1, 0, 1, 2), 1, (1, 0)),
    )
    cut = Cut(Model(layers), 3, output_part=2)
    step_forward_and_back(local(cut.placed), x := example())
    cut.model(x).sum().backward()
    assert_same_gradients(cut)


def test_integers_travel_beside_maps() -> None:
    tensors = tuple(
        TransferredTensor((1, 0), (0, 1), dtype) for dtype in (torch.float64, torch.int64)
    )
    over = (transfer(0, 0, 1, tensors=tensors), transfer(1, 1, 0, tensors=tensors))

    def first(graph: fx.Graph) -> tuple[fx.Node, ...]:
        sort = graph.call_module("sort", (graph.placeholder("x"),))
        values, order = (graph.call_function(getitem, (sort, at)) for at in range(2))
        graph.call_function(send, (0, values, order))
        back = graph.call_function(receive, (1,))
        back_values, back_order = (graph.call_function(getitem, (back, at)) for at in range(2))
        return values, back_values, back_order

    def second(graph: fx.Graph) -> tuple[()]:
        there = graph.call_function(receive, (0,))
        values, order = (graph.call_function(getitem, (there, at)) for at in range(2))
        graph.call_function(send, (1, graph.call_module("pick", (values, order)), order))
        return ()

    runtime = local(
        toy(
            program(0, first, over, sort=Call(lambda x: x.sort(1))),
            program(1, second, over, pick=Call(lambda values, order: values.gather(1, order) ** 2)),
        )
    )
    x = example().requires_grad_()
    values, picked, order = runtime.run({"x": x})
    (values.sum() + picked.sum()).backward()
    actual, x.grad = x.grad, None

    expected_values, expected_order = x.sort(1)
    expected = expected_values.gather(1, expected_order) ** 2
    (expected_values.sum() + expected.sum()).backward()
    assert torch.equal(picked, expected)
    assert torch.equal(order, expected_order)
    assert not order.requires_grad
    assert actual is not None
    assert_close(actual, gradient(x))
    assert runtime.last is not None
    assert runtime.last.traffic.forward_bytes.tolist() == [[0, 96], [96, 0]]
    assert runtime.last.traffic.backward_bytes.tolist() == [[0, 96], [96, 0]]


def test_results_may_be_inputs_alike_or_moved_elements() -> None:
    def first(graph: fx.Graph) -> tuple[fx.Node, ...]:
        x = graph.placeholder("x")
        flat = graph.call_module("flatten", (x,))
        return x, flat, flat, graph.placeholder("batch_size")

    runtime = local(toy(program(0, first, flatten=nn.Flatten(0))))
    x = example().requires_grad_()
    same, flat, again, batch_size = runtime.run({"x": x, "batch_size": torch.tensor(2)})
    (same.sum() + 2 * flat.sum() + 3 * again.sum()).backward()
    assert torch.equal(gradient(x), torch.full_like(x, 6))
    assert batch_size == 2


def test_gradients_reach_only_what_the_loss_depends_on() -> None:
    def first(graph: fx.Graph) -> tuple[fx.Node, ...]:
        x = graph.placeholder("x")
        return tuple(graph.call_module(name, (x,)) for name in ("used", "unused"))

    layers = {name: nn.Linear(3, 2, dtype=torch.float64) for name in ("used", "unused")}
    used, _ = local(toy(program(0, first, **layers))).run({"x": example()})
    used.sum().backward()
    assert layers["used"].weight.grad is not None
    assert layers["unused"].weight.grad is None


def test_uncounted_transfers_are_counted_apart() -> None:
    runtime = there_and_back(nn.Tanh())
    runtime.programs[0].transfers[1].__dict__["counted"] = False
    step_forward_and_back(runtime, example().requires_grad_())
    assert runtime.last is not None
    traffic = runtime.last.traffic
    assert traffic.forward_bytes.tolist() == [[0, 48], [0, 0]]
    assert traffic.backward_bytes.tolist() == [[0, 0], [48, 0]]
    assert traffic.uncounted_bytes.tolist() == [[0, 48], [48, 0]]
    assert traffic.forward_messages.sum() == traffic.backward_messages.sum() == 1


class Clock:
    """Stands still but while part 1 works, which it begins once part 0 has begun to wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.readings = 0  # by part 0
        self.read = threading.Condition()

    def __call__(self) -> float:
        with self.read:
            self.readings += threading.current_thread().name == "hgpart part 0"
            self.read.notify_all()
        return self.now

    def work(self, seconds: float, after: int) -> None:
        """Let seconds pass after so many readings by part 0."""
        with self.read:
            assert self.read.wait_for(lambda: self.readings == after, timeout=60)
        self.now += seconds


def test_working_and_waiting_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in ("step_run", "part_state"):
        nanoseconds = f"hgpart.execution.{module}.perf_counter_ns"
        monkeypatch.setattr(nanoseconds, lambda: round(clock() * 10**9))

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            clock.work(3, after=6)  # a chunk and its send, the start of the next and its wait
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            clock.work(5, after=15)
            return gradient * 2

    runtime = there_and_back(Call(Slow.apply))
    step_forward_and_back(runtime, example().requires_grad_())
    assert runtime.last is not None
    assert [*runtime.last.timing] == [Timing(0, 3, 0, 5), Timing(3, 0, 5, 0)]


class TroubleError(Exception):
    pass


def fail(x: Tensor) -> Tensor:
    raise TroubleError("in part 1")


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise TroubleError("in backward of part 1")


def test_an_error_in_a_part_comes_out_as_it_is_and_the_runtime_stays_usable() -> None:
    step = Call(fail)
    runtime = there_and_back(step)
    x = example().requires_grad_()
    for _ in range(2):
        with pytest.raises(TroubleError, match="in part 1"):
            runtime.run({"x": x})
    step.function = FailsBackward.apply
    for _ in range(2):
        (result,) = runtime.run({"x": x})
        with pytest.raises(TroubleError, match="in backward of part 1"):
            result.sum().backward()
    step.function = torch.tanh
    step_forward_and_back(runtime, x)
    assert_close(gradient(x), 2 * (1 - torch.tanh(2 * x.detach()) ** 2))


def test_an_error_keeps_no_tensors_alive() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def watch_and_fail(x: Tensor) -> Tensor:
        seen.append(weakref.ref(x))
        raise TroubleError

    runtime = there_and_back(Call(watch_and_fail))
    gc.collect()
    gc.disable()  # what the garbage collector has to find lives too long
    try:
        with pytest.raises(TroubleError):
            runtime.run({"x": example()})
        time.sleep(0.1)  # the thread lets go of it after it has handed it over
        assert seen[0]() is None
    finally:
        gc.enable()


@pytest.fixture
def interruptible() -> object:
    """Python's own way with Ctrl-C, which a background process has not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_ctrl_c_stops_the_waits(direction: str) -> None:
    class Interrupts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            if direction == "forward":
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            return gradient

    step = Call(Interrupts.apply)
    runtime = there_and_back(step)
    x = example().requires_grad_()
    with pytest.raises(KeyboardInterrupt):
        step_forward_and_back(runtime, x)
    step.function = torch.tanh
    step_forward_and_back(runtime, x)
    assert_close(gradient(x), 2 * (1 - torch.tanh(2 * x.detach()) ** 2))


def test_a_second_backward_is_refused() -> None:
    runtime = there_and_back(nn.Tanh())
    (result,) = runtime.run({"x": example().requires_grad_()})
    result.sum().backward(retain_graph=True)
    with pytest.raises(RunError, match="backward after backward, accepted is one forward"):
        result.sum().backward()


def test_a_dropped_loss_frees_the_batch() -> None:
    seen: list[weakref.ref[object]] = []

    def watch(x: Tensor) -> Tensor:
        seen.append(weakref.ref(x.grad_fn))  # lives as long as the graph
        return torch.tanh(x)

    runtime = there_and_back(Call(watch))
    (result,) = runtime.run({"x": example().requires_grad_()})
    assert seen[0]() is not None
    del result
    time.sleep(0.1)  # the threads let go of it after they have handed it over
    assert seen[0]() is None


def test_modes_of_the_caller_hold_in_the_parts() -> None:
    seen: list[tuple[bool, bool, torch.dtype]] = []

    def look(x: Tensor) -> Tensor:
        product = torch.mm(x.float(), x.float().T)
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), product.dtype))
        return x

    runtime = there_and_back(Call(look))
    x = example().requires_grad_()
    runtime.run({"x": x})
    with torch.autocast("cpu", torch.bfloat16):
        runtime.run({"x": x})
    with torch.inference_mode():
        runtime.run({"x": x})
    with torch.no_grad():
        runtime.run({"x": x})
    assert seen == [
        (True, False, torch.float32),
        (True, False, torch.bfloat16),
        (False, True, torch.float32),
        (False, False, torch.float32),
    ]


def part_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return sorted(name for name in names if name.startswith("hgpart part"))


def await_end_of_threads() -> None:
    deadline = time.monotonic() + 10
    while part_threads() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert part_threads() == []


def test_threads_are_named_kept_and_ended() -> None:
    await_end_of_threads()  # those of other tests
    seen: list[threading.Thread] = []

    def look(x: Tensor) -> Tensor:
        seen.append(threading.current_thread())
        return x

    runtime = there_and_back(Call(look), Call(look))
    assert part_threads() == []
    for _ in range(2):
        runtime.run({"x": example()})
    assert part_threads() == ["hgpart part 0", "hgpart part 1"]
    assert [thread.name for thread in seen] == ["hgpart part 1", "hgpart part 0"] * 2
    assert seen[0] is seen[2]
    runtime.transport.close()
    await_end_of_threads()
    runtime.run({"x": example()})
    assert len(part_threads()) == 2
    del runtime
    await_end_of_threads()


def test_one_part_runs_in_the_callers_thread() -> None:
    seen = []

    def first(graph: fx.Graph) -> tuple[fx.Node]:
        return (graph.call_module("step", (graph.placeholder("x"),)),)

    def look(x: Tensor) -> Tensor:
        seen.append(threading.current_thread())
        return x**3

    runtime = local(toy(program(0, first, step=Call(look))))
    x = example().requires_grad_()
    (result,) = runtime.run({"x": x})
    assert seen == [threading.current_thread()]
    assert runtime.last is not None
    (timing,) = runtime.last.timing
    assert timing.forward_busy > 0
    assert timing.backward_busy == timing.forward_waiting == 0
    # It is autograd as ever.
    (once,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)
    assert_close(twice, 6 * x.detach())
    assert timing.backward_busy > 0
    with pytest.raises(RunError, match="part 0 needs a value for x, got y"):
        runtime.run({"y": x})


@pytest.mark.parametrize("again", ["penalty", "loss"])
def test_second_derivatives_are_refused_by_name(again: str) -> None:
    """torch says so only if the incoming gradient requires one: a penalty's is a constant."""
    runtime = there_and_back(nn.Linear(3, 3).double())
    x = example().requires_grad_()
    (result,) = runtime.run({"x": x})
    end = result if again == "penalty" else result.square().mean()
    with pytest.raises(PlacementError, match=r"create_graph=True: .* no second derivatives"):
        torch.autograd.grad(end, x, torch.ones_like(end), create_graph=True)


def test_gradients_of_inputs_alone_leave_the_parameters_as_they_are() -> None:
    """As in an attack on the images of a training step, whose own gradients come afterwards."""
    step = nn.Linear(3, 3).double()
    runtime = there_and_back(step)
    x = example().requires_grad_()
    (result,) = runtime.run({"x": x})
    (found,) = torch.autograd.grad(result.sum(), x)
    assert_close(found, 2 * step.weight.detach().sum(0).expand(2, 3))
    assert step.weight.grad is None and step.bias.grad is None
    step_forward_and_back(runtime, x)
    assert_close(gradient(step.bias), torch.full((3,), 2.0, dtype=torch.float64))


def test_gradients_of_inputs_alone_pass_over_what_computes_with_none_of_them() -> None:
    """Part 0's layer has weights, but no map with a gradient: torch refused an empty list."""
    linear = nn.Linear(3, 3).double()
    transfers = (transfer(0, 0, 1), transfer(1, 1, 0))

    def first(graph: fx.Graph) -> tuple[fx.Node]:
        graph.call_function(send, (0, graph.call_module("linear", (graph.placeholder("x"),))))
        return (graph.call_module("last", (graph.call_function(receive, (1,)),)),)

    def second(graph: fx.Graph) -> tuple[()]:
        y = graph.placeholder("y")
        graph.call_function(
            send, (1, graph.call_module("product", (graph.call_function(receive, (0,)), y)))
        )
        return ()

    runtime = local(
        toy(
            program(0, first, transfers, linear=linear, last=nn.Identity()),
            program(1, second, transfers, product=Call(torch.mul)),
        )
    )
    x, y = example(), example().requires_grad_()
    (result,) = runtime.run({"x": x, "y": y})
    (found,) = torch.autograd.grad(result.sum(), y)
    assert_close(found, linear(x).detach())
    assert linear.weight.grad is None


def test_gradients_of_inputs_alone_leave_vectors_as_they_are() -> None:
    """What samples are multiplied by element by element got its gradient on the way."""
    step = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).double()
    runtime = there_and_back(step)
    x = example().requires_grad_()
    (result,) = runtime.run({"x": x})
    torch.autograd.grad(result.square().sum(), x)
    assert all(one.grad is None for one in step.parameters())


def test_parts_share_the_intra_op_threads() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    new_threads: list[int] = []

    def look(x: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return x

    runtime = there_and_back(Call(look), Call(look))
    try:
        for threads in (4, 4, 7, 1):
            torch.set_num_threads(threads)
            runtime.run({"x": example()})
            assert torch.get_num_threads() == threads
            new = threading.Thread(target=lambda: new_threads.append(torch.get_num_threads()))
            new.start()
            new.join()
    finally:
        torch.set_num_threads(before)
    assert new_threads == [4, 4, 7, 1]
    assert seen == [2, 2, 2, 2, 3, 3, 1, 1]


def test_calls_from_many_threads_at_once() -> None:
    runtime = there_and_back(nn.Tanh())
    wrong: list[Tensor] = []

    def call() -> None:
        for _ in range(20):
            x = example()
            (result,) = runtime.run({"x": x})
            if not torch.equal(result, torch.tanh(x * 2)):
                wrong.append(x)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert wrong == []


def test_a_copy_runs_by_itself() -> None:
    layers = (Dense((-1,), 1, (0, 1)), Dense((0,), 1, (1, 0)))
    cut = Cut(Model(layers), 2, output_part=0)
    runtime, x = local(cut.placed), example()
    (expected,) = runtime.run({"x": x})
    result = step_forward_and_back(copy.deepcopy(runtime), x)
    assert torch.equal(result, expected)
    assert all(share.weight.grad is None for _, share in cut.shares())


def test_inputs_that_travel_without_a_gradient_back_must_not_require_one() -> None:
    over = (transfer(0, 0, 1, differentiable=False, layer="x"),)

    def first(graph: fx.Graph) -> tuple[()]:
        graph.call_function(send, (0, graph.placeholder("x")))
        return ()

    def second(graph: fx.Graph) -> tuple[fx.Node]:
        return (graph.call_module("step", (graph.call_function(receive, (0,)),)),)

    linear = nn.Linear(3, 2, dtype=torch.float64)
    programs = program(0, first, over), program(1, second, over, step=linear)
    runtime = local(toy(*programs, output_part=1))
    step_forward_and_back(runtime, example())
    assert linear.weight.grad is not None
    assert runtime.last is not None
    assert np.count_nonzero(runtime.last.traffic.backward_bytes) == 0
    with pytest.raises(RunError, match="x requires a gradient, but part 1 sends none back"):
        runtime.run({"x": example().requires_grad_()})


def test_a_runtime_needs_all_parts() -> None:
    placed = toy(program(0, lambda graph: (graph.placeholder("x"),)))
    placed.__dict__["k"] = 2
    with pytest.raises(PlacementError, match="1 programs and 1 devices for 2 parts"):
        LocalRuntime(placed, Crew([torch.device("cpu")]))
