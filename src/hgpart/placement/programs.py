"""Programs of the parts of a placement in one form, and what follows from them for a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch import fx

from hgpart.errors import PlacementError, check_whole
from hgpart.execution.autocast import autocast_type
from hgpart.execution.program import PartProgram, Share, Transfer
from hgpart.execution.records.totals import Traffic
from hgpart.execution.step_run import Score
from hgpart.hypergraph.metrics import Evaluation
from hgpart.operators.calls import has_gradients
from hgpart.partition import Partition
from hgpart.placement.batches.micro_batches import (
    Total,
    divided_values,
    joined_results,
    named_by_share,
    score_of,
    stand_in,
)
from hgpart.placement.batches.streams import (
    check_buffers_of_stream,
    check_norms_of_stream,
    check_slices_of_stream,
    check_stream,
)
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.expected import (
    expected,
    expected_gradients,
    expected_statistics,
    expected_weights,
    planned_bytes,
    together,
)
from hgpart.placement.shares.batch_shares import joined, sizes_of
from hgpart.placement.shares.statistics import SharedStatistics
from hgpart.placement.state.batch_statistics import batch_of
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.arguments import Arguments, Inputs, as_called
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_nodes import first_tensor
from hgpart.work.figures import Work


@dataclass(frozen=True, eq=False)
class Programs:
    """Programs of the parts that a process holds, in one form, and what follows from them alone.

    `parts`, `slices` and `copies` are for the parts that this process holds, all else for all
    parts.

    Attributes
    ----------
    blueprints : tuple of Blueprint
        Blueprint of each share of the batch.
    slices : mapping of int to mapping of str to Slice
        Slices that each part holds, by dotted attribute of its module.
    drawing : fx.GraphModule or None
        Module that draws the random masks.
    idle : tuple of Slice
        Elements of parameters that no step of any part uses; part 0 has them, if it is held here.
    copies : mapping of int to frozenset of str
        Attributes of each part that are copies of the model's state: of parameters that another
        part owns, or that this part owns only in part; of buffers in steps of all shares except the
        first.
    owners : Blueprint
        Blueprint whose partition says which part owns each parameter of the model; see
        `shares.owners`.
    statistics : tuple of SharedStatistics
        Statistics of norms that tiles send each other: those of all shares of the batch together,
        or of each of them.
    dtype : torch.dtype
        Type in which floating tensors are sent.
    """

    blueprints: tuple[Blueprint, ...]
    transfers: tuple[Transfer, ...]
    parts: Mapping[int, PartProgram]
    slices: Mapping[int, Mapping[str, Slice]]
    drawing: fx.GraphModule | None
    idle: tuple[Slice, ...]
    copies: Mapping[int, frozenset[str]]
    owners: Blueprint
    statistics: tuple[SharedStatistics, ...]
    dtype: torch.dtype

    @property
    def blueprint(self) -> Blueprint:
        """Blueprint of the first share; all shares are of the same traced model."""
        return self.blueprints[0]

    @property
    def k(self) -> int:
        """Number of all parts."""
        return self.blueprint.partition.k

    @property
    def has_all_parts(self) -> bool:
        """Whether this process holds all parts."""
        return len(self.parts) == self.k

    @cached_property
    def partition(self) -> Partition:
        """The plan's partition; in another form, the same partition of that form's layers.

        Its volume is that of the present sizes; work, and so imbalance, stay those of the plan.
        """
        shares = [(blueprint.share, blueprint.partition) for blueprint in self.blueprints]
        return joined(shares, self.work)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Shares that a batch is computed in: the whole batch, or slices with the same layout."""
        return tuple(blueprint.share for blueprint in self.blueprints)

    @property
    def has_copies(self) -> bool:
        """Whether parts may have copies of each other's state, for tiles of the same tasks."""
        return self.blueprint.has_tiles

    @property
    def work(self) -> Work:
        """The work that the partition divides."""
        return self.blueprint.work

    @property
    def norms(self) -> str:
        """When running statistics are updated: per ``micro-batch`` or once per ``batch``."""
        return self.blueprint.norms

    @property
    def shares_statistics(self) -> bool:
        """Whether norms take statistics over several tiles, which send them to each other."""
        return bool(self.blueprint.norms_of_batch)

    @property
    def has_norms_of_batch(self) -> bool:
        """Whether norms take statistics over several shares of a batch or micro-batch."""
        return self.shares_statistics and self.partition.modelling.norms == "batch"

    def submodule(self, part: int) -> fx.GraphModule:
        """A part's module: it receives, computes its steps, packs and sends."""
        if part not in self.parts:
            raise PlacementError(f"part {part}: accepted are {', '.join(map(str, self.parts))}")
        return self.parts[part].module

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors among the model's inputs, in order."""
        return self.blueprint.traced.inputs

    @property
    def operands(self) -> set[str]:
        """Names of the inputs in the programs of parts, for each share of the batch."""
        return {f"{plan.prefix}{name}" for plan in self.blueprints for name in self.inputs}

    def owned_elsewhere(self) -> list[tuple[tuple[int, int], ...]]:
        """Owners of the weights that each part has copies of, and the bytes of their gradients.

        The bytes are those of the table. There are no copies unless the plan is in slices or bands.
        """
        if not self.has_copies:
            return [()] * self.k
        return [
            tuple((owner, int(nbytes)) for owner, nbytes in enumerate(sent) if nbytes)
            for sent in self._expected_weights().traffic
        ]

    def _expected_weights(self, turn: int | None = None) -> Evaluation:
        owners = self.owners.partition
        return expected_weights(self.partition, owners, self.blueprint, self.dtype, turn)

    @property
    def output_part(self) -> int:
        """The part that has the result, or the first share's result."""
        return self.blueprint.output_part

    @property
    def output_parts(self) -> tuple[int, ...]:
        """The part that has the result of each share of the batch."""
        return tuple(blueprint.output_part for blueprint in self.blueprints)

    def shares_of_result(self, part: int) -> tuple[int, ...]:
        """Numbers of the shares whose result a part has."""
        return tuple(at for at, output in enumerate(self.output_parts) if output == part)

    def samples_of_result(self, part: int, *sizes: int) -> list[int]:
        """Samples whose result a part has, in a batch of micro-batches of some sizes."""
        return self._samples(self.shares_of_result(part), sizes)

    def samples_read(self, part: int, sizes: Sequence[int]) -> list[int]:
        """Samples whose inputs a part needs, in a batch of micro-batches of some sizes."""
        return self._samples(self.shares_read(part), sizes)

    def samples_needed(self, part: int, sizes: Sequence[int]) -> list[int]:
        """Samples whose inputs a part needs, or whose result it has."""
        return self._samples(self._shares_needed(part), sizes)

    def shares_read(self, part: int) -> tuple[int, ...]:
        """Numbers of the shares whose inputs a part needs."""
        operands = self._operands_of(part)
        return tuple(
            at
            for at, blueprint in enumerate(self.blueprints)
            if not operands.isdisjoint(f"{blueprint.prefix}{name}" for name in self.inputs)
        )

    def _operands_of(self, part: int) -> set[Any]:
        """Names of the values that a part's program takes."""
        return {node.target for node in self.parts[part].module.graph.find_nodes(op="placeholder")}

    def _shares_needed(self, part: int) -> list[int]:
        return sorted({*self.shares_read(part), *self.shares_of_result(part)})

    def _samples(self, shares: Sequence[int], sizes: Sequence[int]) -> list[int]:
        samples: list[int] = []
        first = 0
        for size in sizes:
            ends = [*accumulate(sizes_of(self.shares, size), initial=first)]
            samples += chain.from_iterable(range(ends[at], ends[at + 1]) for at in shares)
            first += size
        return samples

    def build_results(self, results: Sequence[torch.Tensor]) -> Any:
        """The model's result, given the tensors in it."""
        return self.blueprint.traced.structure(results)

    def draw(self, batch_size: int) -> dict[str, torch.Tensor]:
        """Whole random masks for a batch, as the unpartitioned model would draw them now."""
        if self.drawing is None:
            return {}
        drawn = self.drawing(batch_size)
        masks = (mask.to(self.dtype) if mask.is_floating_point() else mask for mask in drawn)
        return dict(zip(self.blueprint.draws.values(), masks, strict=True))

    def _check_targets(self, inputs: Sequence[torch.Tensor | None]) -> None:
        """Raise a PlacementError if means that the model takes over targets leave some out."""
        shown = dict(zip(self.inputs, self.arguments.names, strict=True))
        values = dict(zip(self.inputs, inputs, strict=True))
        for name, ignored in self.blueprint.graph.mixing.ignored:
            value = values[name]
            if value is not None and bool((value.to(torch.int64) == ignored).any()):
                raise PlacementError(
                    f"{shown[name]} holds {ignored}, which a mean that the model computes over "
                    "targets leaves out: accepted in slices and micro-batches are other targets, "
                    "or a loss function that computes the mean"
                )

    def check_types(self, inputs: Sequence[torch.Tensor | None]) -> None:
        """Raise a PlacementError if an input has another type than the programs are for."""
        arguments = self.arguments
        for name, value, example in zip(arguments.names, inputs, arguments.tensors, strict=True):
            dtype = self.dtype if example.is_floating_point() else example.dtype
            if value is not None and value.dtype != dtype:
                raise PlacementError(f"{name} of type {value.dtype}: accepted is {dtype}")

    def check_inputs(self, batch_size: int, inputs: Sequence[torch.Tensor | None]) -> None:
        """Raise a PlacementError if an input has another type or shape; inputs may be None."""
        self.check_types(inputs)
        shapes = self.blueprint.input_shapes(batch_size)
        for name, value, shape in zip(self.arguments.names, inputs, shapes, strict=True):
            if value is not None and tuple(value.shape) != shape:
                raise PlacementError(
                    f"{name} of shape {tuple(value.shape)}: accepted is {shape} in a batch of "
                    f"{batch_size}, other sizes by for_inputs"
                )

    def reads(self, part: int, at: int) -> bool:
        """Whether a part reads an input, given its place among the inputs."""
        name, operands = self.inputs[at], self._operands_of(part)
        return any(f"{blueprint.prefix}{name}" in operands for blueprint in self.blueprints)

    def _check_there(self, inputs: Sequence[torch.Tensor | None], part: int) -> None:
        """Raise a PlacementError if a part reads an input that is None."""
        for at, (shown, value) in enumerate(zip(self.arguments.names, inputs, strict=True)):
            if value is None and self.reads(part, at):
                raise PlacementError(
                    f"part {part} reads {shown}, which is None: accepted is a tensor"
                )

    def check_samples(self, batch_size: int) -> None:
        """Raise a PlacementError if a micro-batch has too few samples, or too many."""
        self.blueprint.input_shapes(batch_size)
        for share, size in zip(self.shares, sizes_of(self.shares, batch_size), strict=True):
            if not size:
                raise PlacementError(
                    f"a batch or micro-batch of {batch_size}, of which slice {share.slices[0]} of "
                    f"{share.of} has no sample: accepted are larger ones"
                )
            self.blueprint.input_shapes(size)
            self.blueprint.check_norms(batch_size if self.has_norms_of_batch else size)

    def check_micro_batches(self, count: int) -> None:
        """Raise a PlacementError if a batch can't be divided; see `Blueprint.check_divided`."""
        if count > 1:
            self.blueprint.check_divided("micro-batches")

    def check_norms_of_batch(self, devices: Iterable[torch.device]) -> None:
        """Raise a PlacementError if statistics would have 16 bits per element."""
        if not self.shares_statistics:
            return
        for dtype in (self.dtype, *map(autocast_type, devices)):
            if dtype is not None and dtype.itemsize < 4:
                raise PlacementError(
                    f"norms over several slices or bands, in {dtype}: accepted are float32 and "
                    "float64, without autocast"
                )

    def check_stream(self, schedule: Schedule, stash: bool) -> None:
        """Raise an ArgumentError unless a stream can run by a schedule; processes decide alike."""
        check_norms_of_stream(self.norms)
        check_buffers_of_stream(self.blueprint)
        if self.has_copies:
            check_slices_of_stream(stash=stash)
        check_stream(schedule, stash)

    def expected(self, batch_size: int) -> Evaluation:
        """Figures of maps for a batch size, from the hypergraph, not from the submodules."""
        check_whole("batch size", batch_size)
        return self._of_all_shares(expected, batch_size, backward=False)

    def expected_gradients(self, batch_size: int) -> Evaluation:
        """The same figures for a backward pass: of nets whose layers have gradients.

        What part s sent to part r in the forward pass comes back, so traffic and messages are
        transposed.
        """
        return self._of_all_shares(expected_gradients, batch_size, backward=True)

    def _of_all_shares(
        self,
        figures: Callable[[Blueprint, torch.dtype, int], Evaluation],
        batch_size: int,
        backward: bool,
    ) -> Evaluation:
        blueprints = self.blueprints
        sizes = sizes_of(self.shares, batch_size)
        shares = [
            figures(blueprint, self.dtype, size)
            for blueprint, size in zip(blueprints, sizes, strict=True)
        ]
        if self.shares_statistics:
            facts = self.partition, self.blueprint, self.dtype
            shares.append(expected_statistics(*facts, backward))
        return (
            shares[0]
            if len(shares) == 1
            else together(shares, self.blueprint.partition.problem.speeds)
        )

    def expected_traffic(self, sizes: Sequence[int], backward: bool) -> Traffic:
        """What a step in micro-batches of some sizes should send, by the same figures.

        With backward passes, weights that several parts hold go from their owners to the others,
        and their gradients come back, once per step.
        """
        total = Traffic.none(self.k)
        for size, count in Counter(sizes).items():
            forward = self.expected(size)
            total.forward_bytes[:] += count * forward.traffic
            total.forward_messages[:] += count * forward.messages
            if backward:
                back = self.expected_gradients(size)
                total.backward_bytes[:] += count * back.traffic
                total.backward_messages[:] += count * back.messages
        if backward and self.has_copies:
            weights = self._expected_weights()
            total.forward_bytes[:] += weights.traffic.T
            total.forward_messages[:] += weights.messages.T
            total.backward_bytes[:] += weights.traffic
            total.backward_messages[:] += weights.messages
        return total

    def expected_turn(self, turn: int, programs: Programs, batch_size: int) -> Traffic:
        """What one batch of a stream in turns should send, by the same figures.

        Its maps are those of the slice whose turn it is. New weights go to the copies of all turns,
        and gradients come back from those of this turn.

        Parameters
        ----------
        programs : Programs
            Programs of the slice; see `hgpart.placement.mode_programs.in_turns`.
        """
        maps, gradients = programs.expected(batch_size), programs.expected_gradients(batch_size)
        weights, returned = self._expected_weights(), self._expected_weights(turn)
        total = Traffic.none(self.k)
        total.forward_bytes[:] = maps.traffic + weights.traffic.T
        total.forward_messages[:] = maps.messages + weights.messages.T
        total.backward_bytes[:] = gradients.traffic + returned.traffic
        total.backward_messages[:] = gradients.messages + returned.messages
        return total

    def planned_bytes(self, sizes: Sequence[int], learns: bool) -> int | None:
        """Bytes of a step's forward passes by the plan's hypergraph; see `expected_traffic`.

        None if a slice has no sample, which a plan does not cover.
        """
        return planned_bytes(self.partition, self.blueprints, self.dtype, sizes, learns)

    def inputs_of_shares(self, batch_size: int) -> dict[str, torch.Tensor]:
        """Meta tensors like the inputs that can have gradients, by name in programs of parts."""
        tensors = {}
        for blueprint, size in zip(self.blueprints, sizes_of(self.shares, batch_size), strict=True):
            shapes = blueprint.input_shapes(size)
            facts = zip(self.inputs, shapes, self.arguments.tensors, strict=True)
            for name, shape, example in facts:
                if has_gradients(example.dtype):
                    dtype = self.sent_as(example.dtype)
                    tensors[blueprint.prefix + name] = torch.empty(
                        shape, dtype=dtype, device="meta"
                    )
        return tensors

    def results_without_data(self, part: int, batch_size: int) -> list[torch.Tensor]:
        """Meta tensors like the results of the samples that a part needs, or else of all."""
        samples = len(self.samples_needed(part, (batch_size,))) or batch_size
        if samples in self._results_without_data:
            return self._results_without_data[samples]
        values = (first_tensor(node.meta["val"]) for node in self.blueprint.traced.results)
        self._results_without_data[samples] = [
            torch.empty(
                [at_batch(size, samples) for size in value.shape],
                dtype=self.sent_as(value.dtype),
                device="meta",
            )
            for value in values
        ]
        return self._results_without_data[samples]

    @cached_property
    def _results_without_data(self) -> dict[int, list[torch.Tensor]]:
        """The same by number of samples, remembered as symbols take time in each pass."""
        return {}

    def sent_as(self, dtype: torch.dtype) -> torch.dtype:
        """The type that values of a traced type have; they may be traced in another precision."""
        return self.dtype if dtype.is_floating_point else dtype

    def by_share(self, results: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
        """Tensors of the model's result for each share, from the tensors of all shares in turn."""
        count = len(results) // len(self.shares)
        return [results[at * count : (at + 1) * count] for at in range(len(self.shares))]

    def whole_result(self, by_share: Sequence[Sequence[torch.Tensor]]) -> Any:
        """The model's result, given the tensors of each share's result."""
        return self.build_results(joined_results(self.blueprint, by_share))

    def score(
        self,
        targets: Any,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None,
        sizes: Sequence[int],
        part: int,
        *,
        alone: bool = False,
        total: Total | None = lambda counts: counts,
    ) -> Score:
        """The function that scores a part's results; see `score_of`.

        For one part alone, targets may have only the samples that it needs, or has the result of.
        """
        of_shares = [sizes_of(self.shares, size) for size in sizes]
        shares = self.shares_of_result(part)
        some = (self._shares_needed(part), shares) if alone else ()
        counted = shares if alone else range(len(self.shares))
        all_are_here = not alone or len({*self.output_parts}) == 1
        return score_of(
            self.build_results,
            targets,
            loss_fn,
            of_shares,
            shares,
            some,
            total=total,
            counted=counted,
            stand_in=partial(stand_in, self.blueprint) if all_are_here else None,
        )

    def batch(self) -> AbstractContextManager[None]:
        """A context for the micro-batches of one batch; norms may update at its end."""
        return batch_of(self.parts) if self.norms == "batch" else nullcontext()

    @property
    def arguments(self) -> Arguments:
        """Arguments that the model was traced with, and so is called with."""
        return self.blueprint.traced.arguments

    def tensors_of(self, inputs: Inputs) -> list[torch.Tensor]:
        """The tensors among inputs that the model is called with.

        Raises
        ------
        ArgumentError
            If the model is not called with such inputs.
        """
        return self.arguments.tensors_of(*as_called(inputs))

    def batch_size_of(self, inputs: Sequence[torch.Tensor]) -> int:
        """Samples in the tensors of a call."""
        size = self.arguments.batch_size(inputs)
        if size is None:
            raise PlacementError(
                "no input has samples: accepted are inputs with a batch among them"
            )
        return size

    def divided(
        self,
        inputs: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        part: int | None = None,
    ) -> list[dict[str, Any]]:
        """Values of placeholders for each micro-batch, from the tensors among the inputs.

        They include random masks, which are drawn now. For one part alone, inputs may have only the
        samples that it needs or reads, and be None if it reads none.

        Raises
        ------
        PlacementError
            If an input has another shape or type than the programs are for, if a part reads one
            that is None, or if a mean that the model computes leaves out some targets.
        """
        if part is not None:
            self._check_there(inputs, part)
        if len(sizes) * len(self.shares) > 1:
            self._check_targets(inputs)
        values: dict[str, Any] = {
            name: value
            for name, value in zip(self.inputs, inputs, strict=True)
            if value is not None
        }
        values.update(self.draw(sum(sizes)))
        some = () if part is None else (self._shares_needed(part), self.shares_read(part))
        of_shares = [sizes_of(self.shares, size) for size in sizes]
        by_share = divided_values(self.blueprint, values, of_shares, some)
        for batch in by_share:
            for own in batch:
                self.check_inputs(own["batch_size"], [own.get(name) for name in self.inputs])
        return [named_by_share(self.blueprints, batch) for batch in by_share]
