"""Digests of what random networks come to in parts: two commits that do the same have the same.

Of the seeds between two numbers (28 in a row are all rules by 1 to 4 slices): results, losses,
gradients, statistics, bytes and weights of 20 steps or batches, in threads and by two processes,
as a digest each in FILE. It is run by two ranks, from a checkout's `tests` folder, as by

    torchrun --nproc-per-node 2 digests.py FILE 0 336

With "adds-up" behind it weights travel only if they have changed, and bytes are no part of digests;
with "values" they travel anyway, and these have to be the same digests.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from random_networks import SPLITS, RandomNetwork, leaves, loss_of
from torch import Tensor, nn

from hgpart import Placement, place
from hgpart.errors import HgpartError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement.shares import joining, messages
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.scheduling import schedule
from hgpart.schedules.costs import Costs
from hgpart.tracing.traced_model import trace

STEPS = 20
BATCH = 8
RATE = 0.002
RULES = ["call", "sequential", "gpipe", "1f1b", "zero-bubble", "greedy", "async"]
SIZES = messages.SMALL, messages.BUCKET


@dataclass(frozen=True)
class Case:
    """How a network is divided and trained."""

    rule: str
    slices: int
    grain: str
    split: str
    micro_batches: int
    norms: str
    recompute: bool
    in_flight: int
    in_buckets: bool  # of several messages, as in large models

    @classmethod
    def drawn(cls, seed: int) -> Case:
        draw = random.Random(seed)
        rule, slices = RULES[seed % len(RULES)], 1 + seed // len(RULES) % 4
        steps = slices > 1 and rule != "async"
        return cls(
            rule=rule,
            slices=slices,
            grain=draw.choice(["coarse", "fine"]),
            split=draw.choice(sorted(SPLITS)) if slices > 1 else "single tasks",
            micro_batches=1 if rule == "call" else draw.randint(1, 2 if slices > 2 else 3),
            norms=draw.choice(["slice", "batch"]) if steps else "slice",
            recompute=rule != "call" and draw.random() < 0.3,
            in_flight=draw.randint(1, 3),
            in_buckets=draw.random() < 0.6,
        )


class Trial:
    """A case, with its network, batches and plan."""

    def __init__(self, seed: int, how: str = "") -> None:
        self.adds_up, self.counts = how == "adds-up", not how
        self.case = case = Case.drawn(seed)
        messages.SMALL, messages.BUCKET = (16, 24) if case.in_buckets else SIZES
        torch.manual_seed(seed)
        self.model = RandomNetwork(seed)
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.InstanceNorm2d):
                module.train(case.rule != "async" or case.slices == 1)
        self.batches = [self.model.example(BATCH) for _ in range(4)]
        self.batches = [tuple(one.float() for one in batch) for batch in self.batches]
        with torch.no_grad():
            made = leaves(copy.deepcopy(self.model)(*self.batches[0]))
            self.heads = [torch.randn_like(one) / one[0].numel() ** 0.5 for one in made]
        traced = trace(self.model, tuple(one[:2] for one in self.batches[0]))
        modelling = Modelling(
            grain=case.grain, batch_size=BATCH, slices=case.slices, norms=case.norms
        )
        split = SPLITS[case.split]
        self.plan: PartitionedModel = split(traced, channel_graph(traced), modelling, 2, seed)

    def digest(self, run: Placement | DistributedModel, connection: Connection | None) -> str:
        """Train, in threads or as a rank of two."""
        return _Training(self, run, connection).digest()


class _Training:
    def __init__(
        self, trial: Trial, run: Placement | DistributedModel, connection: Connection | None
    ) -> None:
        self.trial, self.case, self.run, self.connection = trial, trial.case, run, connection
        self.placement = run if isinstance(run, Placement) else run.placement
        self.parts = range(2) if connection is None else [connection.rank]
        self.options: dict[str, Any] = {} if connection is None else {"batch_size": BATCH}
        self.hash = sha256()
        self.optimizers = {}
        for part in self.parts:
            held = (one for _, one in self.placement.held(part) if one.requires_grad)
            learning = [one for one in held if isinstance(one, nn.Parameter)]
            if learning:
                self.optimizers[part] = torch.optim.SGD(learning, RATE, momentum=0.9)

    def digest(self) -> str:
        (self._stream if self.case.rule == "async" else self._steps)()
        for part in self.parts:
            for _, tensor in self.placement.held(part):
                self._note(tensor, tensor.grad if tensor.requires_grad else None)
        found = self.hash.hexdigest()[:16]
        return found if self.connection is None else "-".join(self.connection.gather(found))

    def _note(self, *tensors: Tensor | None) -> None:
        for one in tensors:
            if one is None:
                self.hash.update(b"none")
            else:
                flat = one.detach().contiguous().reshape(-1)
                self.hash.update(str(one.dtype).encode() + flat.view(torch.uint8).numpy().tobytes())

    def _note_loss(self, loss: Tensor | None) -> None:
        if self.connection is None:
            self._note(loss)
        else:
            total = self.connection.add_later(0.0 if loss is None else loss.item())()
            self._note(torch.tensor(total))

    def _note_traffic(self) -> None:
        if not self.trial.counts:
            return
        run = self.run
        sent = run.runtime.last.traffic
        if self.connection is not None:
            first, *others = self.connection.gather(sent)
            sent = sum(others, first)
        counts = sent.forward_bytes, sent.forward_messages
        for one in (*counts, sent.backward_bytes, sent.backward_messages):
            self.hash.update(one.tobytes())

    def _stream(self) -> None:
        made = schedule(
            *(self.run, "async", STEPS, Costs(message=1e-3)),
            in_flight=self.case.in_flight,
            recompute=self.case.recompute,
        )
        batches, heads = self.trial.batches, self.trial.heads
        torch.manual_seed(3)
        losses = self.run.stream(
            [([*batches[at % len(batches)]], heads) for at in range(STEPS)],
            loss_of,
            self._update,
            made,
            **self.options,
        )
        for at in range(STEPS):
            self._note_loss(None if losses is None else losses[at])
        self._note_traffic()

    def _update(self, part: int) -> None:
        if part in self.optimizers:
            self.optimizers[part].step()
            self.optimizers[part].zero_grad()

    def _steps(self) -> None:
        made = None
        if self.case.rule != "call":
            facts = self.case.rule, self.case.micro_batches, Costs(message=1e-3)
            made = schedule(self.run, *facts, recompute=self.case.recompute)
        for step in range(STEPS):
            torch.manual_seed(step)
            if not self.trial.adds_up:  # bytes are then those of the table
                self.placement.copies.let_weights_travel()
            inputs = [*self.trial.batches[step % len(self.trial.batches)]]
            if made is None:
                self._call(inputs)
            else:
                targets = [*self.trial.heads]
                self._note_loss(self.run.step(inputs, targets, loss_of, made, **self.options))
            self._note_traffic()
            if step % 5 != 4:  # else gradients are added to
                for part in self.parts:
                    self._update(part)
            if step == STEPS // 2:
                self._evaluate(inputs)

    def _evaluate(self, inputs: Sequence[Tensor]) -> None:
        """Where it is not refused: a process may have too little of the model for it."""
        said = ""
        try:
            self.run.eval()
        except HgpartError as error:
            said = str(error)
        if not any([said] if self.connection is None else self.connection.gather(said)):
            with torch.no_grad():
                self._note(*self._results(self.run(*inputs, **self.options)))
        self.run.train()

    def _call(self, inputs: Sequence[Tensor]) -> None:
        results = self._results(self.run(*inputs, **self.options))
        self._note(*results)
        loss = None
        if results:
            programs, heads = self.placement.programs, self.trial.heads
            if self.connection is not None:
                own = programs.samples_of_result(self.connection.rank, BATCH)
                heads = [one[own] for one in heads]
            loss = loss_of(results, heads) * len(results[0])
        if isinstance(self.run, DistributedModel):
            self.run.backward(loss)
        elif loss is not None:
            loss.backward()

    def _results(self, made: Any) -> list[Tensor]:
        return leaves(made) if self.connection is None or self.run.makes_result else []


def main(file: str, first: str, last: str, how: str = "") -> None:
    torch.set_num_threads(1)
    joining.end_of = lambda units, order: 0.0  # shares wait for each other where they can be one
    found: dict[int, str] = {}
    with connect(2, timeout=120) as connection:
        rank = connection.rank
        for seed in range(int(first), int(last)):
            refused, threads = None, ""
            try:
                trial = Trial(seed, how)
                placed = partial(place, copy.deepcopy(trial.model), trial.plan)
                if rank == 0:
                    threads = trial.digest(placed(), None)
            except HgpartError as error:
                refused = f"refused: {error}"
            (refused, _) = connection.gather(refused)
            if refused is None:
                process = DistributedModel(placed(parts=[rank]), connection)
                both = threads, trial.digest(process, connection), trial.case
                refused = " ".join(map(str, both))
            found[seed] = refused
            if rank == 0:
                print(seed, refused[:150], flush=True)
                Path(file).write_text(json.dumps(found, indent=0))


if __name__ == "__main__":
    assert int(os.environ["WORLD_SIZE"]) == 2
    main(*sys.argv[1:])
