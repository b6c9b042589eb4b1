"""What the options of the commands are called, mean and accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hgpart.errors import ArgumentError, not_one_of

if TYPE_CHECKING:
    from torch import nn

    from hgpart.hypergraph.modelling import Modelling
    from hgpart.layers.channel_graph import ChannelGraph
    from hgpart.tracing.traced_model import TracedModel
    from hgpart.work.figures import Work

WIDEST_METAVAR = 28  # characters, in a help of 80 columns


def integers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write whole numbers with commas between") from None


def shape(text: str) -> tuple[int, ...]:
    """Whole numbers of a shape."""
    try:
        return integers(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error}, as in 3,224,224") from None


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write numbers as in 1,1,2") from None


def whole(text: str) -> int:
    """A whole number, at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r}: write a whole number, at least 1")
    return int(text)


def whole_or_auto(text: str) -> int | Literal["auto"]:
    """A whole number, at least 1, or what leaves it to hgpart."""
    try:
        return "auto" if text == "auto" else whole(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error}, or auto") from None


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in text.split(","))


def one_of(*declared: str, words: Sequence[str], besides: str = "", help: str) -> Any:
    """Option whose value is one of some words, which the help and the shell then offer."""
    offered = "|".join([*words, besides] if besides else words)
    return typer.Option(
        *declared,
        metavar=offered if len(offered) < WIDEST_METAVAR else "NAME",
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
        help=help,
    )


def _models(incomplete: str) -> list[str]:
    """Built-in models for the shell; it imports torch, which only a shell that asks waits for."""
    from hgpart.zoo import builtin_models

    return [name for name in builtin_models() if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=_models,
        help="A built-in model (see 'hgpart models'), timm:NAME, torchvision:NAME, "
        "pytorchcv:NAME, path/file.py:factory or package.module:factory; behind it "
        "+parallel:P, +grouped:P or +split:P for what 'hgpart transform' makes of it.",
    ),
]
PlannedModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        autocompletion=_models,
        help="The plan's model when left out; to be given where that is code of yours.",
        show_default=False,
    ),
]
InputShape = Annotated[
    Any,
    typer.Option(
        parser=shape, metavar="C,H,W", help="Shape of one sample; the model's own if known."
    ),
]
Grain = Annotated[
    str,
    one_of(words=("coarse", "fine"), help="A vertex per filter, or per channel of each filter."),
]
Linear = Annotated[
    str,
    one_of(
        words=("neuron", "layer"), help="A vertex per output of a linear layer, or one for all."
    ),
]
BatchSize = Annotated[int, typer.Option(help="Samples whose maps travel together.")]
Slices = Annotated[
    Any,
    typer.Option(
        parser=whole,
        metavar="S",
        help="Slices of the batch: each device computes its filters for the slices that it has.",
    ),
]
AnySlices = Annotated[
    Any,
    typer.Option(
        parser=whole_or_auto,
        metavar="S|auto",
        help="Slices of the batch: each device computes its filters for the slices that it has; "
        "auto: as many as save most.",
    ),
]
Norms = Annotated[
    str,
    one_of(
        words=("slice", "batch"),
        help="What batch norms take their statistics of: each slice its own, or all of the batch, "
        "and then they travel.",
    ),
]
StepNorms = Annotated[
    str,
    one_of(
        "--norms",
        words=("micro-batch", "batch"),
        help="What updates running statistics: each micro-batch, or all of the batch at once.",
    ),
]
Inference = Annotated[
    bool,
    typer.Option(
        "--inference", help="Nothing is trained: no gradients of parameters, no new weights travel."
    ),
]
BytesPerElement = Annotated[
    int | None, typer.Option(help="Bytes of an element; each map's own dtype when left out.")
]
NoInputVertex = Annotated[
    bool, typer.Option("--no-input-vertex", help="Do not count what the inputs send.")
]
NoOutputVertex = Annotated[
    bool, typer.Option("--no-output-vertex", help="Do not count what the result's reader gets.")
]
WorkSource = Annotated[
    str,
    one_of(
        "--work",
        words=("flops", "profile"),
        besides="FILE",
        help="Multiply-accumulates, measured seconds, or a file of --save-work or hgpart profile.",
    ),
]
ProfileDevice = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="Device that --work profile measures on; cpu when left out."
    ),
]
SaveWork = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep the work of each layer, to pass back.")
]
Speeds = Annotated[
    Any,
    typer.Option(
        parser=numbers, metavar="S,S,...", help="Relative speeds of the devices, one each."
    ),
]
Eps = Annotated[
    float, typer.Option(help="Imbalance allowed: work up to (1 + eps) times a device's share.")
]
Partitioner = Annotated[
    str,
    one_of(
        "--backend",
        words=("native", "kahypar", "mtkahypar", "exact"),
        help="Who divides: native, kahypar, mtkahypar or exact.",
    ),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same partition.")]
Wide = Annotated[
    bool, typer.Option("--wide", help="All columns of the table, however wide it gets.")
]
Unit = Annotated[str, one_of(words=("MB", "GB", "MiB", "GiB"), help="What bytes are printed in.")]
PlanFile = Annotated[
    Path, typer.Option(metavar="PLAN", help="A file of 'hgpart partition -o' for the model.")
]
Devices = Annotated[
    Any,
    typer.Option(
        parser=names,
        metavar="D,D,...",
        help="Of each part, or one for all: cpu, cuda, cuda:0; auto: the GPUs that there are.",
    ),
]
# Called as torchrun's users know it from torch.distributed, not --transport.
Transport = Annotated[
    str,
    one_of(
        "--backend",
        words=("gloo", "nccl"),
        help="By way of the hosts, or from GPU to GPU.",
    ),
]
OneProcess = Annotated[
    bool, typer.Option("--one-process", help="A thread for each part, not a process.")
]
MicroBatches = Annotated[
    int | None,
    typer.Option(
        help="That a batch is divided into, so that no part need wait for another; left out, those "
        "of the schedule's file or of the plan, or else 1."
    ),
]
ScheduleRule = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="RULE|FILE",
        help="When each part does what: sequential, gpipe, 1f1b, zero-bubble, greedy, or a file of "
        "'hgpart show --schedule RULE -o FILE'; async is training without a stop, each part "
        "updating its weights by itself. Left out, the plan's if it has one, or else greedy.",
    ),
]
InFlight = Annotated[
    int | None,
    typer.Option(
        help="Batches that each part may have begun at a time, with --schedule async; 2 when left "
        "out, and 1 is training without it."
    ),
]
NoStash = Annotated[
    bool,
    typer.Option(
        "--no-stash",
        help="With --schedule async: do not keep the weights that batches in flight began with. "
        "They go back through newer ones then, so that gradients are those of no weights at all.",
    ),
]
Recompute = Annotated[
    bool,
    typer.Option(
        "--recompute",
        help="Keep only what chunks read, and compute them again in backward, where that takes "
        "less memory.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A state_dict, safetensors or torch's, instead of random weights; each process reads "
        "its slices only.",
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for a process that is alive.")]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="All figures; - prints them, and no tables."),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="A page to look at: one file, no network."),
]
GraphmlFile = Annotated[
    Path | None, typer.Option("--graphml", metavar="FILE", help="As a graph, for other programs.")
]
DotFile = Annotated[
    Path | None, typer.Option("--dot", metavar="FILE", help="As a graph, for Graphviz to draw.")
]
CsvFile = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="The figures of each part.")
]


def modelling_of(
    grain: str,
    linear: str,
    batch_size: int,
    bytes_per_element: int | None,
    no_input_vertex: bool,
    no_output_vertex: bool,
    slices: int = 1,
    inference: bool = False,
    norms: str = "slice",
) -> Modelling:
    """The options that say how a model becomes a hypergraph, checked."""
    from hgpart.hypergraph.modelling import Modelling

    return Modelling(
        grain=grain,
        linear=linear,
        batch_size=batch_size,
        bytes_per_element=bytes_per_element,
        input_vertex=not no_input_vertex,
        output_vertex=not no_output_vertex,
        slices=slices,
        training=not inference,
        norms=norms,
    )


def work_of(
    source: str, device: str | None, batch_size: int
) -> Callable[[nn.Module, TracedModel, ChannelGraph], Work]:
    """What --work asks for, checked before the model is traced."""
    from hgpart.work.figures import flops
    from hgpart.work.layer_times import load_any_work

    if device is not None and source != "profile":
        raise ArgumentError(f"--profile-device {device}: only --work profile measures on a device")
    if source == "flops":
        return lambda module, traced, graph: flops(graph)
    if source == "profile":
        from hgpart.work.profiling import profile

        return lambda module, traced, graph: profile(
            module, traced, graph, batch_size=batch_size, device=device or "cpu"
        )
    if not Path(source).is_file():
        raise not_one_of("work", source, ("flops", "profile"), "and a file that exists")
    return lambda module, traced, graph: load_any_work(source, graph, batch_size)


def checked_unit(unit: str) -> str:
    """What bytes are printed in, if it is a unit."""
    from hgpart.report import UNITS

    if unit not in UNITS:
        raise not_one_of("unit", unit, UNITS)
    return unit
