"""A program for the processes of a test: keyword inputs, beside one process with all parts.

    python input_ranks.py FOLDER

Each rank trains its part, and by itself all parts in threads, which other tests hold to the model;
it writes to a file of its own for each of `WAYS` what differs, or ok.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
from pathlib import Path
from typing import Any

import placements
import torch
from branching_models import Branching, batch
from masked_models import Masked, example
from torch.nn.functional import mse_loss

from hgpart import Modelling, partition_model, place
from hgpart.errors import HgpartError, TraceError
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.scheduling import schedule

SECONDS = 120  # that all may take
SAMPLES = 7
TARGETS = torch.zeros(SAMPLES, 4, dtype=torch.float64)
WAYS = ("called", "steps", "slices", "sizes", "sizes of slices", "batches", "refused")


def main(folder: str) -> None:
    signal.alarm(SECONDS)  # ends this process, and the launcher the others
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with connect(k, timeout=60) as connection:
        found = [differences(connection, way) or "ok" for way in WAYS]
    Path(folder, str(rank)).write_text("\n".join(found))


def differences(connection: Connection, way: str) -> str:
    if way == "batches":
        return of_batches(connection)
    torch.manual_seed(1)
    model, inputs = Masked().double(), example(SAMPLES, "mask", "gains", "scale", seed=2)
    traced, graph = placements.traced_model(model, inputs)
    modelling = Modelling(batch_size=SAMPLES, slices=2 if way.endswith("slices") else 1)
    plan = placements.of_single_tasks(traced, graph, modelling, connection.k, seed=3)
    threads = place(copy.deepcopy(model), plan)
    placed = DistributedModel(place(model, plan, parts=[connection.rank]), connection)
    image = torch.randn(SAMPLES, 3, 12, 10, dtype=torch.float64)
    larger = {**inputs, "image": image, "mask": image[:, :1]}
    if way == "refused":
        return refused(placed, inputs, larger)
    if way == "called":
        loss = mse_loss(threads(**inputs), TARGETS)
        loss.backward()
        image = inputs.pop("image")
        given = (image,) if placed.reads_inputs else (None,)
        result = placed(*given, **inputs, batch_size=SAMPLES)
        mse_loss(result, TARGETS).backward()
    else:
        order = schedule(placed, "1f1b", 3)
        for each in (larger, inputs, larger) if way.startswith("sizes") else (inputs,):
            threads.step(each, TARGETS, mse_loss, schedule(threads, "1f1b", 3))
            given = each if placed.reads_inputs else ()
            placed.for_inputs(given)
            placed.step(given, TARGETS, mse_loss, order, batch_size=SAMPLES)
    rank, sent = connection.rank, threads.runtime.last.traffic
    if (
        placed.runtime.last.traffic.backward_bytes[rank].tolist()
        != sent.backward_bytes[rank].tolist()
    ):
        return "other bytes"
    whole = dict(threads.held(rank))
    for held, tensor in placed.placement.held(rank):
        other = next(value for one, value in whole.items() if one.key == held.key)
        if not torch.equal(tensor, other):
            return f"{held.name} differs"
        if tensor.requires_grad and not torch.equal(tensor.grad, other.grad):
            return f"the gradient of {held.name} differs"
    return ""


def of_batches(connection: Connection) -> str:
    """A model that goes by the size of its batch, in all ranks as by itself, or in none."""
    torch.manual_seed(1)
    model = Branching().double()
    plan = partition_model(model, batch(3), connection.k)
    placed = DistributedModel(place(model, plan, parts=[connection.rank]), connection)
    for samples in (3, 5, 1, 4):
        try:
            made = placed(batch(samples))
        except HgpartError as error:
            if samples != 5 or "norm." not in str(error):
                return f"of {samples}: {error}"
            continue
        if samples == 5:
            return "it has computed"
        if placed.makes_result and not torch.allclose(made, model(batch(samples))):
            return f"of {samples} another result"
        made.sum().backward()
    return ""


def refused(placed: DistributedModel, inputs: dict[str, Any], larger: dict[str, Any]) -> str:
    """What all ranks are refused leaves them together; what one is, all hear."""
    said = []
    for changed in ({"masks": None}, {"scale": 3.0}):
        try:
            placed.step({**inputs, **changed}, TARGETS, mse_loss)
        except HgpartError as error:
            said.append(str(error))
    for given in ((), larger if placed.connection.rank else inputs):
        try:
            placed.for_inputs(given)
        except HgpartError as error:
            said.append(str(error))
    placement = placed.placement
    for _ in range(2):  # alone, which others would not know of; then together, where one can't
        switch = placed.for_inputs
        if not said[4:]:
            switch = placement.for_inputs
        elif placed.connection.rank:
            placement.forms.for_sizes = cannot
        try:
            switch(larger)
        except HgpartError as error:
            said.append(str(error))
    vars(placement.forms).pop("for_sizes", None)
    placed.step(inputs, TARGETS, mse_loss)
    try:
        placed.step({**inputs, "mask": None}, TARGETS, mse_loss)
    except HgpartError as error:
        said.append(str(error))
    expected = (
        "got an unexpected keyword argument 'masks': accepted are inputs for Masked.forward(",
        "scale is 3.0: accepted is 0.5, as Masked was traced with",
        "image has no size on the ranks: accepted is one size",
        "image has 3x12x10 and 3x8x8 on the ranks: accepted is one size",
        "this process holds 1 of 2 parts only: accepted is DistributedModel.for_inputs, in all",
        "can't trace it here",
        "reads mask, which is None: accepted is a tensor",
    )
    if len(said) != 7 or any(part not in one for part, one in zip(expected, said, strict=True)):
        return f"said {said}"
    return ""


def cannot(*sizes: Any) -> None:
    raise TraceError("can't trace it here")


if __name__ == "__main__":
    main(*sys.argv[1:])
