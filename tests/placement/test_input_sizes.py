"""A placement of inputs of one size computes what the model does with others, or refuses them."""

from __future__ import annotations

import copy
from functools import cache, partial

import partitioned_models as models
import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from masked_models import Masked, example
from torch import nn
from torch.nn import functional

import hgpart
from hgpart.errors import ArgumentError, PlacementError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.run.placed_model import PlacedModel
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import trace


class Sized(nn.Module):
    """Numbers and constants of its code are of the size of its input; it has norms and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.up = nn.Conv2d(6, 6, 3, padding=1)
        self.same = nn.Conv2d(6, 3, 1)
        self.head = nn.Linear(3 * 4, 5)

    def forward(self, image):
        height, width = image.shape[-2:]
        maps = functional.dropout(self.norm(self.down(image)).relu(), 0.2, self.training)
        maps = functional.interpolate(self.up(maps), size=(height, width), mode="nearest")
        rows = torch.arange(height, dtype=image.dtype) / height
        maps = self.same(maps) * rows[:, None] + image / (height * width)
        return self.head(functional.adaptive_avg_pool2d(maps, 2).flatten(1)), maps


class Tokens(nn.Module):
    """An attention of one head, whose scores have a task for each place of a map."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.joint = nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, 12, 1)
        self.project, self.head = nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, image):
        maps = self.embed(image)
        query, key, value = (one.flatten(2).mT for one in self.joint(maps).chunk(3, 1))
        scores = functional.dropout((query @ key.mT).softmax(-1), 0.1, self.training)
        maps = maps + self.project((scores @ value).mT.reshape(maps.shape))
        return self.head(maps.mean((2, 3)))


class Deeper(nn.Module):
    """Larger images go through one more layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3)
        self.last = nn.Conv2d(6, 4, 3)

    def forward(self, image):
        maps = self.first(image)
        return self.last(self.second(maps) if image.shape[-1] > 10 else maps)


@cache
def small(name):
    if name == "sized":
        torch.manual_seed(1)
        model, examples = Sized(), (torch.zeros(2, 3, 8, 8),)
    else:
        model, examples = models.built(name)
    model = copy.deepcopy(model).double()
    inputs = [torch.randn(3, *one.shape[1:], dtype=torch.float64) for one in examples]
    return model, inputs, *placements.traced_model(model, inputs)


def resized(inputs, height, width, samples=3):
    torch.manual_seed(height)
    return [torch.randn(samples, one.shape[1], height, width).double() for one in inputs]


def takes(model, inputs):
    try:
        copy.deepcopy(model)(*inputs)
    except RuntimeError:
        return False
    return True


TAKEN = {"residual", "grouped", "depthwise", "single", "branches", "heavy", "pooling", "sized"}


@pytest.mark.full
@pytest.mark.parametrize("training", [True, False])
def test_other_sizes_have_other_numbers_of_tokens(training):
    """They would be refused: a layer of the scores has as many tasks as there are tokens."""
    torch.manual_seed(1)
    model, inputs = Tokens().double().train(training), [torch.randn(3, 3, 8, 8).double()]
    traced, graph = placements.traced_model(model, inputs)
    assert 16 in [layer.tasks for layer in graph.layers]
    for seed in range(3):
        modelling = Modelling(batch_size=3)
        plan = placements.of_single_tasks(traced, graph, modelling, 3, seed)
        placed, original = hgpart.place(model, plan), copy.deepcopy(model)
        for size in ((8, 8), (4, 6), (12, 10)):
            placed.zero_grad()
            original.zero_grad()
            placements.check_as(original, placed, resized(inputs, *size), seed)


@pytest.mark.full
@pytest.mark.long
@given(
    name=st.sampled_from([*models.MODELS, "sized"]),
    grain=st.sampled_from(["coarse", "fine"]),
    size=st.sampled_from([(12, 12), (9, 14), (7, 7)]),
    k=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_any_partition_with_other_sizes(name, grain, size, k, seed):
    """Results, gradients, statistics, elements and bytes, forth and back; or a refusal."""
    model, inputs, traced, graph = small(name)
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), k, seed)
    placed, original = hgpart.place(model, plan), copy.deepcopy(model)
    others = resized(inputs, *size)
    assert takes(model, others) == (name in TAKEN)
    if name not in TAKEN:
        with pytest.raises(PlacementError, match=r"^inputs of \dx\d+x\d+: accepted are \dx\d+x\d+"):
            placed(*others)
        placements.check_as(original, placed, inputs, seed)
        return
    for each in (others, inputs, others):
        placed.zero_grad()
        original.zero_grad()
        placements.check_as(original, placed, each, seed)
    same = placed.for_inputs(inputs).programs.partition.evaluation
    assert same.traffic.tolist() == plan.partition.evaluation.traffic.tolist()


@pytest.mark.full
@pytest.mark.long
def test_trains_and_evaluates_with_sizes_that_change():
    """One optimizer, one schedule and one state for all of them."""
    model, inputs, traced, graph = small("sized")
    model = copy.deepcopy(model)
    plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 3, 7)
    placed = hgpart.place(model, plan)
    order = hgpart.schedule(placed, "greedy", micro_batches=1)
    parameters = list(placed.parameters())
    both = [(one, torch.optim.SGD(one.parameters(), lr=0.05)) for one in (model, placed)]

    def loss_of(results, targets):
        return results[0].square().mean() + results[1].square().mean()

    for number, side in enumerate((8, 12, 8, 12)):
        images = resized(inputs, side, side)
        for one, optimizer in both:
            optimizer.zero_grad()
            torch.manual_seed(number)
            if one is placed and number < 2:
                placed.step(images, None, loss_of, order)
            else:
                loss_of(one(*images), None).backward()
            optimizer.step()
        assert {id(one) for one in placed.parameters()} == {id(one) for one in parameters}
    state = model.state_dict()
    for name, value in placed.state_dict().items():
        torch.testing.assert_close(value, state[name])
    model.eval()
    for one in (placed.eval(), copy.deepcopy(placed)):
        for side in (12, 8):
            images = resized(inputs, side, side)
            for found, expected in zip(one(*images), model(*images), strict=True):
                torch.testing.assert_close(found, expected)


@pytest.mark.full
def test_learners_have_one_schedule_for_all_sizes():
    """They chose by the size before a step had switched: it went by that of another size."""
    model, inputs, traced, graph = small("sized")
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 7)
    learner = PlacedModel(hgpart.place(model, plan), Scheduling("greedy", 2))
    found = []
    for side in (8, 12):
        (images,) = resized(inputs, side, side, samples=4)
        learner.step(images, None, 4, lambda results, targets: results[0].square().mean())
        found.append(learner.schedule(batch_size=4))
    assert found[0] is found[1]
    learner.placement.eval()
    assert learner.schedule(batch_size=4) is not found[0]


@pytest.mark.full
@pytest.mark.long
def test_slices_micro_batches_and_names():
    torch.manual_seed(1)
    model, inputs = Masked().double(), example(7, "mask", "gains", "scale")
    traced = trace(model, inputs)
    modelling = Modelling(batch_size=7, slices=2)
    plan = placements.of_single_tasks(traced, channel_graph(traced), modelling, 3, seed=2)
    placed = hgpart.place(model, plan)
    larger = {
        **inputs,
        "image": torch.randn(7, 3, 12, 10).double(),
        "mask": torch.rand(7, 1, 12, 10).double(),
    }
    for each in (larger, inputs, larger):
        placed.load_state_dict(model.state_dict())
        found = verify(model, placed, each, scheduling=Scheduling("greedy", 3))
        assert found.failures == ()
    placed.load_state_dict(model.state_dict())
    assert verify(model.eval(), placed.eval(), larger).failures == ()


def test_other_types_move_all_sizes():
    model, inputs, traced, graph = small("grouped")
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 7)
    placed, model = hgpart.place(model, plan), copy.deepcopy(model).float()
    placed.for_inputs(resized(inputs, 12, 12)).float()
    for side in (12, 8, 9):
        (images,) = resized(inputs, side, side)
        torch.testing.assert_close(placed(images.float()), model(images.float()))


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    "mode",
    [
        torch.inference_mode,
        pytest.param(torch.no_grad, marks=pytest.mark.full),
        pytest.param(partial(torch.autocast, "cpu", torch.bfloat16), marks=pytest.mark.full),
    ],
)
def test_what_a_size_is_first_called_in_is_not_kept(mode):
    """The casts of autocast are not in its graph, and its constants learn afterwards."""
    model = Sized()
    placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
    image = torch.randn(2, 3, 12, 12)
    with mode():
        placed(image)
    placed.load_state_dict(model.state_dict())
    found = []
    for one in (placed, model):
        torch.manual_seed(1)
        result, _ = one(image)
        result.square().sum().backward()
        found.append(result)
    torch.testing.assert_close(*found)
    for name, _, tensor in placements.held(placed):
        assert tensor.grad is not None or name.startswith("norm."), name


def test_bytes_of_another_size_are_known_before():
    """They are those of the same partition of a model that is traced with it."""
    model, inputs, traced, graph = small("residual")
    modelling, others = Modelling(batch_size=3), resized(inputs, 16, 12)
    placed = hgpart.place(model, placements.of_single_tasks(traced, graph, modelling, 3, seed=1))
    traced, graph = placements.traced_model(model, others)
    table = placements.of_single_tasks(traced, graph, modelling, 3, seed=1).partition.evaluation
    placed.for_inputs([one.to("meta") for one in others])
    assert placed.programs.partition.evaluation.traffic.tolist() == table.traffic.tolist()
    placed(*others)
    assert placed.runtime.last.traffic.forward_bytes.tolist() == table.traffic.tolist()


def test_what_is_refused_by_name():
    placed = hgpart.place(Deeper(), k=2, example=torch.zeros(2, 3, 8, 8))
    with pytest.raises(
        PlacementError, match=r"^inputs of 3x12x12, with which layer second differs"
    ):
        placed(torch.zeros(2, 3, 12, 12))
    assert placed(torch.zeros(2, 3, 10, 10)).shape == (2, 4, 6, 6)
    with pytest.raises(PlacementError, match=r"^inputs of 5x8x8: accepted are 3x8x8, and"):
        placed(torch.zeros(2, 5, 8, 8))
    form = placed.forms.present
    for call in (placed, placed.step):  # a wrong type alone is named, and nothing is traced for it
        with pytest.raises(
            PlacementError, match=r"^image of type torch.float64: accepted is torch"
        ):
            call(torch.zeros(2, 3, 9, 9).double())
    assert placed.forms.present == form
    order = hgpart.schedule(placed, "async", micro_batches=2, in_flight=1)
    batches = [([torch.zeros(2, 3, side, side)], None) for side in (10, 8)]
    said = (
        r"^image of shape \(2, 3, 8, 8\): accepted .* in a batch of 2, other sizes by for_inputs$"
    )
    with pytest.raises(PlacementError, match=said):
        placed.stream(batches, lambda result, _: result.mean(), lambda part: None, order)
    with pytest.raises(ArgumentError, match=r"^image is None: accepted is a tensor, as Deeper was"):
        placed.for_inputs([None])


@pytest.mark.full
def test_a_stage_is_of_one_size():
    """Its graph has sizes in it: other inputs would be computed with these."""
    model, inputs, traced, graph = small("sized")
    model = copy.deepcopy(model).eval()
    placed = hgpart.place(model, placements.of_single_tasks(traced, graph, Modelling(), 1, 7))
    (images,) = resized(inputs, 12, 12)
    (stage,) = hgpart.to_pipeline_stages(placed)
    with pytest.raises(PlacementError, match=r"^image of 3x12x12 for a stage: acc"):
        stage(images)
    (stage,) = hgpart.to_pipeline_stages(placed.for_inputs(images))
    exported = torch.export.export(stage, (images,)).module()
    for found, again, expected in zip(stage(images), exported(images), model(images), strict=True):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(again, expected)


@pytest.mark.full
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
def test_modules_in_a_mode_of_their_own_stay_in_it(training):
    """Another size put all modules in one mode: frozen norms took statistics of the batch."""
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Dropout(0.5))
    ).double()
    model.train(training)
    model[1].train(not training)
    model[4].eval()
    images = [torch.randn(4, 3, side, side).double() for side in (8, 12)]
    placed, original = hgpart.place(model, k=2, example=images[0]), copy.deepcopy(model)
    for one in (*images, *images):
        torch.testing.assert_close(placed(one), original(one))
    for name, value in placed.state_dict().items():
        torch.testing.assert_close(value, original.state_dict()[name])
    original.load_state_dict(placed.train(not training).state_dict())
    modes = [module.training for module in original.modules()]
    torch.manual_seed(2)
    found = placed(images[1])
    torch.manual_seed(2)
    torch.testing.assert_close(found, original.train(not training)(images[1]))
    for module, mode in zip(original.modules(), modes, strict=True):
        module.training = mode
    torch.testing.assert_close(placed.train(training)(images[1]), original(images[1]))


@pytest.mark.full
def test_one_process_of_several_does_not_switch_alone():
    """Others would send it what is of the size before: it took that for its own, or ended."""
    placed = hgpart.place(Sized(), k=2, example=torch.zeros(2, 3, 8, 8), parts=[0])
    said = r"^this process holds 1 of 2 parts only: accepted is DistributedModel.for_inputs, in all"
    with pytest.raises(PlacementError, match=said):
        placed.for_inputs(torch.zeros(2, 3, 12, 12))
    form = placed.forms.present
    for call, name in ((placed, "forward"), (placed.step, "step")):
        with pytest.raises(PlacementError, match=said.replace("for_inputs", name)):
            call(torch.zeros(2, 3, 12, 12))
        assert placed.forms.present == form
