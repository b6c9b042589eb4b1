"""Connection -> LightningStrategy: Lightning's Trainer in each process, which trains its parts.

The module that is trained has a `DistributedModel` in it, or several. What Lightning does to a
module of one process is done here by all of them: norms of gradients, checkpoints, values that are
logged. No other strategy of Lightning knows parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hgpart.errors import ArgumentError, not_installed
from hgpart.run.distributed import DistributedModel
from hgpart.run.elsewhere import Elsewhere
from hgpart.run.loops.gradients import GradScaler, clip_grad_norm_
from hgpart.run.loops.lbfgs import LBFGS
from hgpart.run.loops.optimizer_state import gathered_optimizer_state, load_optimizer_state
from hgpart.run.processes.connection import Connection

try:
    from lightning.fabric.utilities.data import _auto_add_worker_init_fn
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ModuleNotFoundError as error:
    raise not_installed("LightningStrategy", "lightning", "examples") from error


def _mean(values: Tensor, dim: int) -> Tensor:
    return values.sum(dim) / len(values)  # also of whole numbers


REDUCED: dict[str, Callable[..., Tensor]] = {
    "mean": _mean,
    "avg": _mean,
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
}


class LightningStrategy(SingleDeviceStrategy):
    """A strategy for ``lightning.Trainer(strategy=..., devices=1)``, in each of the processes.

    Each process reads what its loader gives it: no sampler is put into loaders. Gradients are
    clipped by the norm over all parts. Checkpoints have the names and shapes of the whole module,
    also of the optimizer's state, and load into processes with any plan. The mean or sum of a value
    that is logged with ``sync_dist=True`` is one over the processes that have it.

    Parameters
    ----------
    connection : Connection
        The connection of the module's `DistributedModel`.

    Raises
    ------
    MissingPackageError
        If Lightning is not installed.
    ArgumentError
        In training, if a parameter that learns is in no part, which no process would share; if an
        optimizer has not the parameters of one model, or is torch's L-BFGS.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(device=connection.device)
        self.connection = connection
        self.global_rank, self.local_rank = connection.rank, int(os.environ["LOCAL_RANK"])
        self._models: dict[int, DistributedModel] = {}  # by the optimizer that they are learned by

    # -------------------------------------------------------------- processes

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes files."""
        return self.connection.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether values are logged together."""
        return True

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all processes."""
        self.connection.gather(None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What a process has."""
        return self.connection.gather(obj if self.connection.rank == src else None)[src]

    def reduce(
        self, tensor: Any, group: Any = None, reduce_op: Any = "mean", *args: Any, **kwargs: Any
    ) -> Any:
        """Reduce a tensor over the processes that have its values."""
        if not isinstance(tensor, Tensor):
            return tensor
        name = str(reduce_op).rpartition(".")[2].lower()
        if name not in REDUCED:
            raise ArgumentError(f"reduce_op {name}: accepted are {', '.join(REDUCED)}")
        own = None if isinstance(tensor, Elsewhere) else tensor.detach().cpu()
        values = [value for value in self.connection.gather(own) if value is not None]
        return REDUCED[name](torch.stack(values), 0).to(tensor.device)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """The tensors of all processes, which have values, along a new first dimension."""
        if sync_grads:
            raise ArgumentError("all_gather with sync_grads=True: accepted is False")
        return torch.stack(self.connection.gather(tensor.detach().cpu())).to(tensor.device)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes, or any, decide so."""
        decisions = self.connection.gather(bool(decision))
        return bool(min(decisions) if all else max(decisions))

    def on_exception(self, exception: BaseException) -> None:
        """Tell the other processes."""
        self.connection.fail(exception)

    # -------------------------------------------------------------- the module

    def models(self) -> dict[str, DistributedModel]:
        """The models in the module, by their names there."""
        assert self.lightning_module is not None
        return {
            name: module
            for name, module in self.lightning_module.named_modules()
            if isinstance(module, DistributedModel)
        }

    @contextmanager
    def _models_apart(self) -> Iterator[dict[str, DistributedModel]]:
        """The module without the models, for what is done to the rest of it as in one process."""
        assert self.lightning_module is not None
        models = self.models()
        places = [
            (self.lightning_module.get_submodule(name.rpartition(".")[0]), name, model)
            for name, model in models.items()
        ]
        for holder, name, _ in places:
            holder._modules[name.rpartition(".")[2]] = None
        try:
            yield models
        finally:
            for holder, name, model in places:
                holder._modules[name.rpartition(".")[2]] = model

    def model_to_device(self) -> None:
        """Move the rest of the module: parts are on their device."""
        with self._models_apart():
            super().model_to_device()

    def setup(self, trainer: Any) -> None:
        """Check that all that learns is in parts; loaders give each process what they have."""
        trainer._accelerator_connector.use_distributed_sampler = False
        with self._models_apart():
            assert self.lightning_module is not None
            rest = [
                name
                for name, weight in self.lightning_module.named_parameters()
                if weight.requires_grad
            ]
        if rest:
            raise ArgumentError(
                f"{', '.join(rest)}: of no DistributedModel, so that processes would learn "
                "different values; accepted are parameters of its parts, and frozen ones"
            )
        super().setup(trainer)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Workers of all processes draw alike."""
        if hasattr(dataloader, "worker_init_fn"):
            _auto_add_worker_init_fn(dataloader, 0)
        return dataloader

    def teardown(self) -> None:
        """End a run of the Trainer; parts stay where they are."""
        with self._models_apart():
            super().teardown()

    # -------------------------------------------------------------- optimizers

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizers, and find the model that each of them is for."""
        super().setup_optimizers(trainer)
        self._models = {
            id(optimizer): self._model_of(number, optimizer)
            for number, optimizer in enumerate(self.optimizers)
        }

    def _model_of(self, number: int, optimizer: torch.optim.Optimizer) -> DistributedModel:
        if isinstance(optimizer, torch.optim.LBFGS) and not isinstance(optimizer, LBFGS):
            raise ArgumentError(
                "torch.optim.LBFGS goes by products over the parameters of one process: accepted "
                "is hgpart.LBFGS"
            )
        own, models = _parameters(optimizer), self.models()
        here = [name for name, model in models.items() if own & {*map(id, model.parameters())}]
        names = sorted(set().union(*self.connection.gather(here)))
        if len(names) != 1:
            raise ArgumentError(
                f"optimizer {number} has parameters of {' and '.join(names) or 'no model'}: "
                "accepted are those of one DistributedModel"
            )
        return models[names[0]]

    def setup_precision_plugin(self) -> None:
        """Let the plugin clip by the norm over all parts, and skip steps in all processes alike."""
        super().setup_precision_plugin()
        plugin: Any = self.precision_plugin
        plugin.clip_grad_by_norm = self._clip_grad_by_norm
        scaler = getattr(plugin, "scaler", None)
        if scaler is not None and not isinstance(scaler, GradScaler):
            models = [*self.models().values()]
            if len(models) != 1:
                raise ArgumentError(f"a scaler of {len(models)} models: accepted is one model")
            plugin.scaler = GradScaler(models[0], scaler._device, enabled=scaler.is_enabled())
            if scaler.is_enabled():
                plugin.scaler.load_state_dict(scaler.state_dict())

    def _clip_grad_by_norm(self, optimizer: Any, clip_val: float) -> None:
        model, own = self._models[id(_bare(optimizer))], _parameters(optimizer)
        if any(weight.grad is not None and id(weight) not in own for weight in model.parameters()):
            raise ArgumentError(
                "gradients are clipped for an optimizer of some parameters of its model: accepted "
                "is one of all, or hgpart.clip_grad_norm_ in configure_gradient_clipping"
            )
        clip_grad_norm_(model, clip_val)

    # -------------------------------------------------------------- checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's own state; that of its models is whole on the first process."""
        assert self.lightning_module is not None
        with self._models_apart() as models:
            state: dict[str, Any] = self.lightning_module.state_dict()
        for name, model in models.items():
            whole = model.gathered_state_dict() or {}
            state.update((f"{name}.{own}", tensor) for own, tensor in whole.items())
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load such a state, of which each part takes its slices."""
        assert self.lightning_module is not None
        state = dict(checkpoint["state_dict"])
        with self._models_apart() as models:
            for name, model in models.items():
                names = [key for key in state if key.startswith(f"{name}.")]
                own = {key.removeprefix(f"{name}."): state.pop(key) for key in names}
                model.load_state_dict(own, strict)
            self.lightning_module.load_state_dict(state, strict=strict)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The optimizer's state by the model's names, whole on the first process."""
        optimizer = _bare(optimizer)
        return gathered_optimizer_state(self._models[id(optimizer)], optimizer) or {}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load such states."""
        states = checkpoint["optimizer_states"]
        for optimizer, state in zip(self.optimizers, states, strict=True):
            load_optimizer_state(self._models[id(optimizer)], optimizer, state)


def _bare(optimizer: Any) -> Any:
    """The optimizer, without Lightning's around it."""
    return getattr(optimizer, "optimizer", optimizer)


def _parameters(optimizer: Any) -> set[int]:
    return {id(weight) for group in optimizer.param_groups for weight in group["params"]}
