"""Comparison, Modelling -> what a page says of how bytes and work were counted."""

from __future__ import annotations

from hgpart.compare.comparison import Comparison
from hgpart.hypergraph.modelling import Modelling


def all_settings(chosen: Comparison | Modelling) -> dict[str, str]:
    """All that figures depend on, by name, to be compared with another's."""
    element = chosen.bytes_per_element
    return {
        "batch_size": f"batch of {chosen.batch_size}",
        "linear": f"a linear layer is {'one task' if chosen.linear == 'layer' else 'its neurons'}",
        "bytes_per_element": (
            "the model's own element size" if element is None else f"{element} bytes per element"
        ),
        "input_vertex": f"inputs {'' if chosen.input_vertex else 'not '}counted",
        "output_vertex": f"result {'' if chosen.output_vertex else 'not '}counted",
    }


def settings_of(chosen: Comparison | Modelling) -> list[str]:
    """What counts as traffic; only the batch size where the rest is the default."""
    element = chosen.bytes_per_element
    texts = {
        f"batch of {chosen.batch_size}": True,
        f"{element} bytes per element": element is not None,
        "a linear layer is one task": chosen.linear == "layer",
        "inputs not counted": not chosen.input_vertex,
        "result not counted": not chosen.output_vertex,
    }
    return [text for text, holds in texts.items() if holds]


def slices_text(modelling: Modelling) -> list[str]:
    """How the batch is divided, and whether the plan is for inference."""
    texts = {
        f"{modelling.slices} slices of the batch": modelling.slices > 1,
        "nothing is trained": not modelling.training,
    }
    return [text for text, holds in texts.items() if holds]


def shape_text(sizes: tuple[int, ...]) -> str:
    """The shape of an input, as text.

    >>> shape_text((3, 224, 224))
    '3 x 224 x 224'
    """
    return " x ".join(map(str, sizes))
