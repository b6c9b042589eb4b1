"""A model that a command names -> its layers: kept by an earlier command, or found now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hgpart
from hgpart.cli.grouping import Options
from hgpart.cli.stages import Stages, shape_of, trusted_model
from hgpart.errors import ArgumentError, TraceError
from hgpart.layers.cache.kept_layers import graph_of, plain_layers
from hgpart.layers.channel_graph import ChannelGraph, LayerRows
from hgpart.terminal import warn
from hgpart.tracing.cache.kept import NotKeptError, kept_or_new
from hgpart.tracing.cache.origins import origin_of
from hgpart.tracing.input_shape import InputShape

if TYPE_CHECKING:
    from torch import nn

    from hgpart.plan import PlanFile

CODE_ACCEPTED = "--model MODEL, which names the code to call, or --trust, if the plan is yours"


class NamedModel:
    """A model on the meta device: nothing here needs its weights.

    Where an earlier command has kept its layers, it is neither built nor traced, and torch is not
    imported, before `module` or `traced` are asked for.

    Attributes
    ----------
    shape : InputShape
        The inputs that the model takes for each sample.
    graph : ChannelGraph
        The layers.
    """

    def __init__(
        self,
        stage: Stages,
        name: str,
        input_shape: Sequence[Any] | None,
        before: Callable[[InputShape], object] = lambda shape: None,
        inference: bool = False,
    ) -> None:
        """Find the layers; `before` is told what the model takes before that is traced."""
        self._stage, self._name, self._inference = stage, name, inference
        self._input_shape, self._before, self._is_told = input_shape, before, False
        about = "layers", input_shape, inference
        self.shape, cautions, self.graph = kept_or_new(
            origin_of(name), about, self._found, self._facts, self._restored
        )
        self._tell(self.shape)
        for caution in cautions:
            warn(caution)

    @cached_property
    def module(self) -> nn.Module:
        """The model itself, in training mode, or in evaluation for inference."""
        return self._loaded[0]

    @cached_property
    def traced(self) -> hgpart.TracedModel:
        """Its trace."""
        module, shape = self._loaded
        with self._stage("trace"):
            return hgpart.trace(module, hgpart.example_inputs(module, shape))

    @cached_property
    def _loaded(self) -> tuple[nn.Module, InputShape]:
        with self._stage("load"):
            module, own_shape = hgpart.load_model(self._name, device="meta")
            shape = shape_of(self._name, self._input_shape or own_shape)
            return module.eval() if self._inference else module, shape

    def _found(self) -> KnownLayers:
        with self._stage("import"):  # with torch, for seconds
            from hgpart.layers.layering import channel_graph
        _, shape = self._loaded
        self._tell(shape)
        cautions = [*_cautions(self.traced)]
        with self._stage("graph"):
            return KnownLayers(shape, cautions, channel_graph(self.traced))

    def _facts(self, found: KnownLayers) -> dict[str, Any]:
        if self.traced.unheld or self.traced.lost_gradients:
            raise NotKeptError("its graph lacks what its forward pass does")
        layers = plain_layers(found.graph)
        return {"shape": found.shape, "cautions": found.cautions, **layers}

    def _restored(self, facts: dict[str, Any]) -> KnownLayers:
        with self._stage("read"):
            graph = graph_of(facts, self._rows)
        return KnownLayers(InputShape(facts["shape"]), facts["cautions"], graph)

    def _tell(self, shape: InputShape) -> None:
        if not self._is_told:
            self._is_told = True
            self._before(shape)

    def _rows(self, graph: ChannelGraph) -> tuple[LayerRows, ...]:
        from hgpart.layers.row_windows import row_windows

        with redirect_stdout(sys.stderr):  # what the model prints, behind the stages as well
            return row_windows(self.traced, graph)


@dataclass(frozen=True, kw_only=True)
class PlanModel(Options):
    """The model that a plan is for.

    Attributes
    ----------
    model : MODEL
        The plan's model. Default: the one that the plan names; required, or --trust, if that is
        your own code.
    trust
        Import and call the code that the plan names.
    """

    model: str | None = None
    trust: bool = False

    def known(self, stage: Stages, loaded: PlanFile, plan: Path) -> tuple[str, NamedModel]:
        """The spec of a plan's model, and the model.

        Raises
        ------
        ArgumentError
            If the plan names code that nobody has asked to be called.
        PlanError
            If the model can't be traced with the plan's samples.
        """
        from hgpart.plan import another_model

        named = self.model
        if named is None:
            named = loaded.model if self.trust else trusted_model(loaded, plan, CODE_ACCEPTED)
        try:
            return named, NamedModel(stage, named, loaded.input_shape)
        except (ArgumentError, TraceError) as error:
            raise another_model(loaded, error) from error


class KnownLayers(NamedTuple):
    """What is kept of a model: what it takes, what its user should know, and its layers."""

    shape: InputShape
    cautions: list[str]
    graph: ChannelGraph


def _cautions(traced: hgpart.TracedModel) -> Iterator[str]:
    """Facts about a model that a plan of it would hide."""
    for fact in traced.unheld:
        yield f"{fact} in each forward pass: the model can be divided, but not placed"
    for fact in traced.lost_gradients:
        yield f"the backward pass has {fact}: in parts the model runs, but can't be trained"
    if not traced.has_dynamic_batch:
        yield (
            f"the model computes with its batch size, here {traced.batch_size}: in parts it takes "
            "whole batches only, and is traced anew for each other size"
        )
