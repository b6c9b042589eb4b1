"""Model + its gradients -> gradients that are clipped or unscaled, alike in all processes.

In processes each has the gradients of its own part. What is decided by all gradients of a model,
such as their norm, is decided together here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hgpart.errors import ArgumentError
from hgpart.run.distributed import DistributedModel, in_processes
from hgpart.run.processes.begun import Begun, JointCall


def clip_grad_norm_(
    model: nn.Module, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale the gradients of a model down to a total norm, like torch's function of this name.

    Parameters
    ----------
    model : nn.Module
        Any module, a `Placement`, or a `DistributedModel`, for which all processes call it.
    max_norm : float
        Largest norm.
    norm_type : float
        The p of the p-norm; ``inf`` for the largest element.
    error_if_nonfinite : bool
        Whether a norm that is not a finite number is an error.

    Returns
    -------
    Tensor
        Norm of all gradients of the model, as one vector, before they were scaled.

    Raises
    ------
    ArgumentError
        If `norm_type` is not above 0, or the norm is not finite and must be.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> layer.weight.grad = torch.full((2, 2), 3.0)
    >>> clip_grad_norm_(layer, 1.0), layer.weight.grad[0]
    (tensor(6.), tensor([0.5000, 0.5000]))
    """
    if not norm_type > 0:
        raise ArgumentError(f"norm_type {norm_type}: accepted are numbers above 0, and inf")
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    total = torch.nn.utils.get_total_norm(gradients, norm_type)
    if (whole := in_processes(model)) is not None:
        norms = torch.tensor(_of_ranks(whole, float(total), JointCall.CLIP), dtype=torch.float64)
        total = torch.linalg.vector_norm(norms, norm_type)
        total = total.to(whole.connection.device, whole.placement.dtype)
    if error_if_nonfinite and not math.isfinite(total):
        raise ArgumentError(f"a total norm of {float(total)}: accepted are finite gradients")
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, total)
    return total


class GradScaler(torch.amp.GradScaler):
    """torch's GradScaler, for whose steps all processes decide alike.

    If the gradients of one process overflow, none of them updates its parameters.

    Parameters
    ----------
    model : nn.Module
        Any module, a `Placement`, or a `DistributedModel`, for which all processes call the scaler.
    device : str
        Type of the devices, as for torch's.
    options
        Further options of torch's.
    """

    def __init__(self, model: nn.Module, device: str = "cuda", **options: Any) -> None:
        super().__init__(device, **options)
        self._model = in_processes(model)

    def _unscale_grads_(self, *args: Any, **kwargs: Any) -> dict[torch.device, Tensor]:
        overflows = super()._unscale_grads_(*args, **kwargs)
        if self._model is not None:
            own = max(map(float, overflows.values()), default=0.0)
            anywhere = max(_of_ranks(self._model, own, JointCall.UNSCALE))
            device = self._model.connection.device
            overflows = {device: torch.tensor(anywhere, device=device)}
        return overflows


def _of_ranks(model: DistributedModel, own: float, call: JointCall) -> list[float]:
    """A number of each rank, in order of ranks, which all make the same call."""
    connection = model.connection
    with connection.calling(call):
        connection.begin(Begun(call.number))
        return [number for (number,) in connection.numbers([own], torch.float64)]
