"""What is done to a placement over slices between its passes, or within them, is seen by copies.

Parts have copies of each other's state. All of these were results that differed from the model's
without a word.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import pytest
import torch
from changed_models import CHANGES, change, freeze, of_data_parallel, taught
from torch import nn

from hgpart import Placement, place
from hgpart.errors import ArgumentError, PlacementError
from hgpart.execution.engine import PartRun
from hgpart.execution.weights import copies, exchanges
from hgpart.run.placed_model import PlacedModel
from hgpart.run.scheduling import schedule

LOSS = nn.functional.mse_loss


@lru_cache
def plan():
    return of_data_parallel(*taught()[:2], slices=3)


class Both:
    """The model and its placement, which is to have what the model has."""

    def __init__(self) -> None:
        self.model, self.inputs, self.targets = taught()
        self.placement: Placement = place(self.model, plan())
        self.optimizers = [
            torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
            for one in (self.model, self.placement)
        ]

    def held(self, name):
        """What parts have of a parameter."""
        held = (self.placement.held(part) for part in range(self.placement.k))
        return [tensor for of_part in held for one, tensor in of_part if one.name == name]

    def step(self) -> None:
        """One of training, from which both are the same."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        expected = LOSS(self.model(*self.inputs), self.targets)
        expected.backward()
        found = self.placement.step(self.inputs, self.targets, LOSS)
        torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-12)
        self.check()
        self.update()

    def update(self) -> None:
        """Learn, from which both are the same."""
        for optimizer in self.optimizers:
            optimizer.step()
        self.check()

    def add_up(self) -> None:
        """Add to gradients, from which both are the same."""
        LOSS(self.model(*self.inputs), self.targets).backward()
        self.placement.step(self.inputs, self.targets, LOSS)
        self.check()

    def check(self) -> None:
        """Assert that state and gradients are the same."""
        state = self.model.state_dict(keep_vars=True)
        for part in range(self.placement.k):
            for held, tensor in self.placement.held(part):
                whole = state[held.name]
                pairs = [(whole.detach(), tensor.detach())]
                assert (whole.grad is None) == (tensor.grad is None), held.name
                pairs += [] if whole.grad is None else [(whole.grad, tensor.grad)]
                for expected, found in pairs:
                    torch.testing.assert_close(found, held.take(expected), rtol=1e-9, atol=1e-12)


def test_what_does_not_learn_reaches_copies_when_it_is_changed():
    """Copies got the weights that learn, and kept the first values of all else."""
    both = Both()
    both.step()
    for how in CHANGES:
        change(both.placement, how)
        with torch.no_grad():
            for one in both.model.state_dict(keep_vars=True).values():
                if not one.requires_grad:
                    CHANGES[how](one)
        both.step()
        assert both.placement.runtime.last.traffic.uncounted_bytes.sum() > 0
    both.step()
    assert both.placement.runtime.last.traffic.uncounted_bytes.sum() == 0


def test_weights_that_have_not_changed_do_not_travel():
    """As where gradients are added up over several batches, and then there is an update."""
    both = Both()

    def travelled():
        both.add_up()
        sent = both.placement.runtime.last.traffic
        whole = both.placement.programs.expected_traffic([len(both.targets)], True)
        assert sent.backward_bytes.tolist() == whole.backward_bytes.tolist()
        return sent.forward_bytes.tolist() == whole.forward_bytes.tolist()

    # The second is the first to find nothing changed: from then on contents are kept.
    assert [travelled() for _ in range(4)] == [True, True, False, False]
    for _ in range(2):
        both.update()
        assert [travelled() for _ in range(2)] == [True, False]
    for one in both.model.parameters():
        one.data.mul_(0.5)
    for one in both.placement.parameters():  # torch does not count it
        one.data.mul_(0.5)
    assert [travelled() for _ in range(2)] == [True, False]
    both.placement.copies.let_weights_travel()
    assert [travelled() for _ in range(2)] == [True, False]


def test_weights_that_a_loss_writes_to_travel_with_the_next_pass():
    """They were noted as travelled, as what was noted was what they were at the end of the pass."""
    both = Both()
    for _ in range(3):
        both.add_up()
    unwritten = [*both.placement.parameters()]

    def writing(result, targets):
        while unwritten:  # by the first part that has results
            unwritten.pop().data.mul_(0.5)
        return LOSS(result, targets)

    both.placement.step(both.inputs, both.targets, writing)
    both.placement.zero_grad(), both.model.zero_grad()
    for one in both.model.parameters():
        one.data.mul_(0.5)
    for _ in range(2):
        both.add_up()


def test_weights_of_a_step_that_is_refused_travel_with_the_next():
    """They were noted as travelled when it was found that they had to."""
    both = Both()
    for _ in range(3):
        both.add_up()
    both.update()
    with pytest.raises(ArgumentError):
        both.placement.step(both.inputs, both.targets[:1], LOSS)
    both.add_up()


def test_passes_of_several_threads_of_the_caller_add_up():
    """One cleared the gradients of copies that the other was adding to."""
    both = Both()

    def once():
        both.placement(*both.inputs).square().mean().backward()

    learning = [one for one in both.placement.parameters() if one.requires_grad]
    once()
    wanted = [2 * one.grad for one in learning]
    for _ in range(10):
        both.placement.zero_grad()
        callers = [threading.Thread(target=once) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        found = [one.grad for one in learning]
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_step_may_follow_a_call_with_gradients_of_inputs():
    """It went by the schedule of programs that send these."""
    both = Both()
    image = both.inputs[0].clone().requires_grad_()
    both.placement(image).sum().backward()
    both.placement.zero_grad()
    both.step()


@pytest.mark.full
def test_weights_that_are_put_back_after_an_evaluation_travel():
    """Copies of an evaluation, of averaged weights, may be those of training."""
    both = Both()
    for _ in range(3):
        both.add_up()
    parameters = [*both.placement.parameters()]
    before = [one.data.clone() for one in parameters]
    both.placement.eval()
    for one in parameters:
        one.data.zero_()
    with torch.no_grad():
        both.placement(*both.inputs)
    for one, data in zip(parameters, before, strict=True):
        one.data.copy_(data)
    both.placement.train()
    both.step()


def test_what_is_only_moved_is_a_change():
    """A sum of all bytes took it for none."""
    both = Both()
    both.step()
    copies = both.placement.copies.present
    assert not copies.fixed_changed
    for part in both.placement.programs.parts:
        for held, tensor in both.placement.held(part):
            if held.name == "teacher.weight":
                tensor.data.copy_(tensor.data.flip(0))
    assert copies.fixed_changed


@pytest.mark.full
def test_weights_whose_data_is_changed_between_evaluations_reach_copies():
    """As averaged weights are put in place: torch counts no version, and copies stayed old."""
    both = Both()
    both.placement.eval(), both.model.eval()
    for how in CHANGES:
        with torch.no_grad():
            change(both.placement, how)
            for one in both.model.state_dict(keep_vars=True).values():
                CHANGES[how](one)
            found, expected = both.placement(*both.inputs), both.model(*both.inputs)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_other_tensors_in_the_place_of_parameters_are_refused_by_name():
    """The copies went on being like those that were there before, and the result with them."""
    both = Both()
    other = {name: 2 * one for name, one in both.placement.named_parameters()}
    with pytest.raises(PlacementError, match=r"another tensor is in the place of \w+\.weight, of"):
        torch.func.functional_call(both.placement, other, tuple(both.inputs))
    both.step()


def test_a_state_that_is_restored_after_a_step_reaches_copies():
    """As `resuming.restore` does it, into tensors; it only worked before the first step."""
    both = Both()
    both.step()
    state = {name: 2 * one + 1 for name, one in both.model.state_dict().items()}
    both.model.load_state_dict(state)
    with torch.no_grad():
        for _, held, tensor in PlacedModel(both.placement).held():
            tensor.copy_(held.take(state[held.name]))
    both.step()


def test_a_parameter_that_is_frozen_after_placing_stays_as_it_is():
    """It was given the gradients of other parts' copies, by which the optimizer changed it."""
    both = Both()
    both.step()
    both.model.stem.weight.requires_grad_(False)
    freeze(both.placement, "stem.weight")
    before = both.model.stem.weight.clone()
    for _ in range(2):
        both.step()
    assert torch.equal(both.model.stem.weight, before)
    for one in (both.model.stem.weight, *both.held("stem.weight")):
        one.requires_grad_(True)
    both.step()


def test_one_that_was_frozen_when_it_was_placed_can_not_learn():
    """It would have had the gradients of one part's slices alone."""
    both = Both()
    for one in both.held("teacher.weight"):
        one.requires_grad_(True)
    refused = "teacher.weight requires a gradient, and did not when it was placed: accepted"
    with pytest.raises(PlacementError, match=refused):
        both.step()


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_are_refused(register):
    """They were told of the gradients of one part's slices alone."""
    both = Both()
    handles = [getattr(one, register)(lambda *_: None) for one in both.held("stem.weight")]
    refused = "a hook on stem.weight, whose gradient is added up from slices or bands: accepted"
    for pass_of in (both.step, lambda: both.placement(*both.inputs)):
        with pytest.raises(PlacementError, match=refused):
            pass_of()
    with torch.no_grad():
        both.placement(*both.inputs)
    for handle in handles:
        handle.remove()
    both.step()


def test_a_step_that_failed_leaves_nothing_to_the_next(monkeypatch):
    """Copies kept gradients of which no zero_grad knows, and the next step added them."""
    both = Both()
    wrong = both.targets.clone()
    wrong[-1] = torch.nan

    def loss_fn(result, targets):
        if targets.isnan().any():  # of the second micro-batch: the first has been backward
            raise ValueError("not a number")
        return LOSS(result, targets)

    order = schedule(both.placement, "sequential", 2)
    with pytest.raises(ValueError, match="not a number"):
        both.placement.step(both.inputs, wrong, loss_fn, order)
    both.step()

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PartRun, "end_backward", interrupted)
        both.placement(*both.inputs).square().mean().backward()
    both.step()


def test_a_pass_ends_with_the_copies_that_it_began_with():
    """Gradients were looked for in the other mode's, which has none of what trains alone."""
    both = Both()
    results = [one(*both.inputs) for one in (both.model, both.placement)]
    both.model.eval(), both.placement.eval()
    for result in results:
        result.square().mean().backward()
    both.check()
    both.model.train(), both.placement.train()
    both.step()


def test_a_model_that_is_moved_between_a_pass_and_its_backward_pass_is_refused():
    """Its copies are other tensors then: those that get the gradients would be forgotten."""
    both = Both()
    result = both.placement(*both.inputs)
    both.placement.double()
    with pytest.raises(PlacementError, match="was moved, or cast, between a pass and its backward"):
        result.square().mean().backward()
    both.step()


def test_a_change_of_every_fifth_element_is_seen():
    """A part's own channels of a kernel of one element lie apart: reading them as words failed."""
    whole = torch.zeros(3, 5, dtype=torch.float64)
    own = whole[:, :1]
    before = copies._content(own)
    assert copies._content(own) == before
    whole.data[1, 0] = 1
    assert copies._content(own) != before


def test_what_is_no_number_may_lie_within_its_own_copy():
    """NaN is never what is there already, and torch refuses to put memory where it lies itself."""
    copy = torch.full((2, 5), torch.nan)
    own = copy.detach()[1:, 2:3]
    elements = exchanges.SharedElements(
        *("weight", (2, 5), ("own",), exchanges.EVERY, 1),
        (exchanges.Copied(("copy",), torch.tensor([7]), exchanges.EVERY),),
    )
    one = exchanges.Exchange("layer", 0, 0, (elements,))
    tensors = {("own",): own, ("copy",): copy}
    found = copies.Copies(lambda _, key: tensors[key], [0], [one], [], [], [one], {}, True, {})
    found.put(one, found.values(one), at_once=True)
    assert copy.isnan().all()
