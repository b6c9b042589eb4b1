"""What stands in for a result of other ranks: the graph of a loss without its numbers."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.nn import functional

from hgpart.errors import RunError
from hgpart.run.elsewhere import Elsewhere

CLASSES = torch.tensor([0, 2, 1, 4])


def stand_in(*shape, dtype=torch.float32):
    return Elsewhere(torch.empty(*shape, dtype=dtype, device="meta"), torch.device("cpu"), [1])


LOSSES = {
    "cross entropy": lambda x: functional.cross_entropy(x, CLASSES, label_smoothing=0.1),
    "nll": lambda x: functional.nll_loss(x.log_softmax(1), CLASSES),
    "hinge": lambda x: torch.relu(1 - x).mean(),
    "pixels": lambda x: functional.binary_cross_entropy_with_logits(x, torch.ones(4, 5)),
    "dice": lambda x: 1 - (2 * (x.sigmoid() * CLASSES[:, None]).sum() + 1) / (x.sum() + 9),
    "pieces": lambda x: x[:2].sum() + x[torch.tensor([3, 1])].mean() + x.split(2)[0].norm(),
    "masked": lambda x: x.clone().masked_fill_(CLASSES[:, None] > 1, 0).sum(),
    "a column": lambda x: torch.cat([x[:, :1] * 2, x.cumprod(0)[:, 1:]], 1).quantile(0.5),
    "written": lambda x: _without_a_column(x).sum(),
    "in place": lambda x: (x * 2).mul_(3).clamp_(0).sum(),
    "joined": lambda x: torch.cat([x, torch.ones(1, 5)]).std(),
    "other type": lambda x: x.to(torch.float64).cpu().logsumexp(0).sum(),
    "autocast": lambda x: functional.cross_entropy(x @ torch.ones(5, 5), CLASSES),
}


def _without_a_column(x):
    y = x.clone()
    y[:, 0] = 0
    return y


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_it_has_the_graph_of_the_real_one(name):
    real, other = torch.randn(4, 5, requires_grad=True), stand_in(4, 5).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
        expected, loss = LOSSES[name](real), LOSSES[name](other)
    assert isinstance(loss, Elsewhere)
    assert (loss.shape, loss.dtype) == (expected.shape, expected.dtype)
    assert nodes(loss.grad_fn) == nodes(expected.grad_fn)
    loss.backward()
    assert other.grad.shape == (4, 5)


def nodes(function):
    """Names of autograd's nodes behind one, in the order of a walk."""
    behind = [nodes(following) for following, _ in function.next_functions if following]
    return [function.name(), *behind]


def test_what_is_added_to_a_loss_gets_its_numbers():
    """Of two models' joint loss, the gradient of each part is that of the part alone."""
    here = torch.tensor([1.0, 2.0], requires_grad=True)
    other = stand_in(4, 5).requires_grad_()
    ((functional.mse_loss(other, torch.ones(4, 5)) + 3 * here.square().sum()) / 2).backward()
    assert here.grad.tolist() == [3.0, 6.0]
    with pytest.raises(RunError, match="writes values that rank 1 has into a tensor of this rank"):
        (other.mean() * here.sum()).backward()


def test_it_draws_as_many_random_numbers_as_the_real_one():
    """Masks of the next pass are drawn from the same generator on all ranks."""
    states = []
    for x in (torch.randn(4, 5), stand_in(4, 5)):
        torch.manual_seed(0)
        functional.dropout(x).add(torch.rand_like(x)).add(torch.bernoulli(x.sigmoid()))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("item()", lambda x: x.sum().item()),
        ("item()", lambda x: float(x.sum())),
        ("item()", lambda x: bool(x.sum() > 0)),
        ("a number in the form '.3f'", lambda x: f"{x.sum():.3f}"),
        ("numpy()", lambda x: x.numpy()),
        ("tolist()", lambda x: x.tolist()),
        ("nonzero", lambda x: x.nonzero()),
        ("index", lambda x: x[x > 0]),
        ("equal", lambda x: torch.equal(x, x)),
        ("a file", lambda x: torch.save(x, io.BytesIO())),
    ],
)
def test_numbers_are_refused_by_name(what, use):
    with pytest.raises(RunError) as caught:
        use(stand_in(4, 5))
    assert str(caught.value).startswith(
        f"{what} of a result that rank 1 has: accepted are model.value(...), which all ranks call"
    )


def test_it_is_not_written_into_what_is_here():
    """A running sum of losses would not have changed, without a word."""
    total = torch.zeros(())
    with pytest.raises(RunError, match="add_ writes values that rank 1 has into a tensor of this"):
        total += stand_in(4, 5).sum()


@pytest.mark.parametrize("foreach", [False, True])
def test_a_layer_behind_the_result_does_not_learn_on_some_ranks_alone(foreach):
    """Of all parameters at once, an optimizer wrote nothing, and said nothing."""
    head = torch.nn.Linear(5, 2)
    head(stand_in(4, 5)).sum().backward()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, foreach=foreach)
    with pytest.raises(RunError, match="accepted are new tensors, and layers that learn within"):
        optimizer.step()


def test_numbers_drawn_by_its_values_are_not_written():
    """Ones were, which the next model read."""
    with pytest.raises(RunError, match="bernoulli_ writes values that rank 1 has"):
        torch.empty(4, 5).bernoulli_(stand_in(4, 5).sigmoid())


def test_it_says_what_it_is():
    x = stand_in(4, 5)
    assert repr(x) == f"{x}" == "Elsewhere(shape=(4, 5), dtype=float32, rank 1)"
    assert repr(copy.deepcopy(x)) == repr(x)
    assert len(x) == 4
    assert repr(x + Elsewhere(torch.empty(5, device="meta"), x.device, [2])).endswith("ranks 1, 2)")
