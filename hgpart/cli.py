"""The `hgpart` command: parses arguments, calls the stages, prints their records."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hgpart.errors import ArgumentError, HgpartError, OutputError

# What imports torch is imported in the commands: --version, --help and wrong options answer at
# once.
if TYPE_CHECKING:
    from torch import nn

    from hgpart.blocks import Modelling
    from hgpart.graph import ChannelGraph
    from hgpart.report import Report
    from hgpart.tracing import TracedModel
    from hgpart.work import Work

STARTED = time.perf_counter()
INTERRUPTED = 130  # 128 + the signal, as shells say it
UNLIMITED_WIDTH = 1000

app = typer.Typer(
    help="Which device computes which filters of a CNN, by hypergraph partitioning.",
    add_completion=False,
)


# ------------------------------------------------------------------ what options mean


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write whole numbers as in 3,224,224") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write numbers as in 1,1,2") from None


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A built-in model (see 'hgpart models'), timm:NAME, torchvision:NAME, "
        "pytorchcv:NAME, path/file.py:factory or package.module:factory.",
    ),
]
InputShape = Annotated[
    Any,
    typer.Option(
        parser=_integers, metavar="C,H,W", help="Shape of one sample; the model's own if known."
    ),
]
Grain = Annotated[
    str, typer.Option(help="coarse: a vertex per filter; fine: per channel of each filter.")
]
Linear = Annotated[
    str, typer.Option(help="neuron: a vertex per output of a linear layer; layer: one for all.")
]
BatchSize = Annotated[int, typer.Option(help="Samples whose maps travel together.")]
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
    typer.Option(
        "--work",
        metavar="flops|profile|FILE",
        help="Multiply-accumulates, measured seconds, or a file of --save-work.",
    ),
]
ProfileDevice = Annotated[
    str | None, typer.Option(help="Device that --work profile measures on; cpu when left out.")
]
SaveWork = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep the work of each layer, to pass back.")
]
Speeds = Annotated[
    Any,
    typer.Option(
        parser=_numbers, metavar="S,S,...", help="Relative speeds of the devices, one each."
    ),
]
Eps = Annotated[
    float, typer.Option(help="Imbalance allowed: work up to (1 + eps) times a device's share.")
]
Unit = Annotated[str, typer.Option(help="What bytes are printed in: MB, GB, MiB or GiB.")]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="All figures; - prints them, and no tables."),
]
CsvFile = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="The figures of each part.")
]


# ------------------------------------------------------------------ commands


def _print_version(asked: bool) -> None:
    if asked:
        print(f"hgpart {version('hgpart')}")
        raise typer.Exit


@app.callback()
def _hgpart(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Print the version and leave.",
        ),
    ] = False,
) -> None:
    pass


@app.command()
def partition(
    model: Model,
    k: Annotated[int, typer.Option("--k", "-k", help="Number of devices.")],
    eps: Eps = 0.1,
    grain: Grain = "coarse",
    linear: Linear = "neuron",
    batch_size: BatchSize = 32,
    bytes_per_element: BytesPerElement = None,
    input_shape: InputShape = None,
    no_input_vertex: NoInputVertex = False,
    no_output_vertex: NoOutputVertex = False,
    work: WorkSource = "flops",
    profile_device: ProfileDevice = None,
    save_work: SaveWork = None,
    backend: Annotated[str, typer.Option(help="kahypar or mtkahypar.")] = "kahypar",
    seed: Annotated[int, typer.Option(help="The same seed gives the same partition.")] = 0,
    speeds: Speeds = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds that the backend may take.")
    ] = None,
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="Show the best found where eps can't be met.")
    ] = False,
    unit: Unit = "MB",
    json: JsonFile = None,
    csv: CsvFile = None,
    partition_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The part of each vertex, in the order of 'hgpart export'."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The plan, as JSON.")
    ] = None,
) -> None:
    """Divide a model among k devices, and show what it costs."""
    _check_outputs(
        {
            "--json": json if json != "-" else None,
            "--csv": csv,
            "--save-work": save_work,
            "--partition-file": partition_file,
            "--output": output,
        }
    )
    with _Stages() as stage:
        with stage("import"):
            from hgpart.formats import write_partition
            from hgpart.partition import check_arguments, partition_graph
            from hgpart.partition.backends import backend as backend_named
            from hgpart.partition_files import full_parts
            from hgpart.pipeline import evaluate_layerwise
            from hgpart.plan import make_plan
            from hgpart.plan import save_plan as write_plan
            from hgpart.report import Report
            from hgpart.shares import part_shares
            from hgpart.work import save_work as write_work
        unit = _unit(unit)
        backend_named(backend)
        check_arguments(k, eps, seed, speeds)
        modelling = _modelling(
            grain, linear, batch_size, bytes_per_element, no_input_vertex, no_output_vertex
        )
        measure = _work(work, profile_device, batch_size)
        module, shape, traced, graph = _traced(stage, model, input_shape)
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        if save_work is not None:
            write_work(done, graph, save_work)  # kept even where eps can't be met
        with stage("partition"):
            found = partition_graph(
                graph,
                done,
                k,
                eps,
                modelling=modelling,
                backend=backend,
                seed=seed,
                speeds=speeds,
                time_limit=time_limit,
                best_effort=best_effort,
            )
        with stage("layer-wise"):
            layerwise = evaluate_layerwise(graph, done, modelling, k, speeds)
        with stage("write"):
            shares = part_shares(graph, found.model, modelling, found.parts, k)
            if partition_file is not None:
                parts = full_parts(graph, found.model, modelling, found.parts)
                write_partition(parts, partition_file)
            if output is not None:
                write_plan(make_plan(found, graph, done, model, shape), output)
    report = Report(
        model=model,
        input_shape=shape,
        graph=graph,
        work=done,
        modelling=modelling,
        k=k,
        eps=eps,
        speeds=found.speeds,
        backend=backend,
        seed=seed,
        hypergraph=found.model.hypergraph,
        feasible=found.feasible,
        evaluation=found.evaluation,
        shares=shares,
        layerwise=layerwise,
        seconds=stage.all_seconds(),
    )
    _show(report, unit, json, csv)


@app.command()
def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Only these.")
    ] = None,
) -> None:
    """List the built-in models with their parameters and multiply-accumulates per sample."""
    from hgpart.report import print_models
    from hgpart.zoo import builtin_models
    from hgpart.zoo.summary import model_summary

    chosen = names or builtin_models()
    print_models(map(model_summary, chosen), chosen, _console())


@app.command()
def trace(model: Model, input_shape: InputShape = None) -> None:
    """Show the layers of a model: their tasks, what they read, and what was kept whole."""
    with _Stages() as stage:
        with stage("import"):
            from hgpart.report import print_trace
            from hgpart.work import flops
        _, shape, _, graph = _traced(stage, model, input_shape)
    print_trace(model, shape, graph, flops(graph), _console())


@app.command()
def export(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the hypergraph goes.")
    ],
    file_format: Annotated[str, typer.Option("--format", help="patoh or hmetis.")] = "patoh",
    grain: Grain = "coarse",
    linear: Linear = "neuron",
    batch_size: BatchSize = 32,
    bytes_per_element: BytesPerElement = None,
    input_shape: InputShape = None,
    no_input_vertex: NoInputVertex = False,
    no_output_vertex: NoOutputVertex = False,
    work: WorkSource = "flops",
    profile_device: ProfileDevice = None,
) -> None:
    """Write the full hypergraph of a model, for other partitioners."""
    _check_outputs({"--output": output})
    with _Stages() as stage:
        with stage("import"):
            from hgpart.blocks import single_blocks
            from hgpart.formats import write_hmetis, write_patoh
            from hgpart.grains import cnn_hypergraph
        writers = {"patoh": write_patoh, "hmetis": write_hmetis}
        if file_format not in writers:
            raise ArgumentError(f"format {file_format!r}: accepted are {' and '.join(writers)}")
        modelling = _modelling(
            grain, linear, batch_size, bytes_per_element, no_input_vertex, no_output_vertex
        )
        measure = _work(work, profile_device, batch_size)
        module, _, traced, graph = _traced(stage, model, input_shape)
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        with stage("hypergraph"):
            blocks = single_blocks(graph, modelling)
            hypergraph = cnn_hypergraph(graph, done, blocks, modelling).hypergraph
        with stage("write"):
            writers[file_format](hypergraph, output)
    print(
        f"{output}: {hypergraph.vertices:,} vertices, {hypergraph.nets:,} nets, "
        f"{len(hypergraph.pins):,} pins"
    )


@app.command()
def evaluate(
    model: Model,
    partition_file: Annotated[
        Path,
        typer.Option(
            "--partition",
            metavar="FILE",
            help="The part of each vertex, in the order of 'hgpart export' with these options.",
        ),
    ],
    k: Annotated[
        int | None,
        typer.Option("--k", "-k", help="Number of devices; as many as the file has, if left out."),
    ] = None,
    eps: Eps = 0.1,
    grain: Grain = "coarse",
    linear: Linear = "neuron",
    batch_size: BatchSize = 32,
    bytes_per_element: BytesPerElement = None,
    input_shape: InputShape = None,
    no_input_vertex: NoInputVertex = False,
    no_output_vertex: NoOutputVertex = False,
    work: WorkSource = "flops",
    profile_device: ProfileDevice = None,
    speeds: Speeds = None,
    unit: Unit = "MB",
    json: JsonFile = None,
    csv: CsvFile = None,
) -> None:
    """Show what a partition costs that another tool made."""
    _check_outputs({"--json": json if json != "-" else None, "--csv": csv})
    with _Stages() as stage:
        with stage("import"):
            from hgpart.formats import read_partition
            from hgpart.metrics import evaluate as evaluate_parts
            from hgpart.partition_files import blocks_of_parts, full_vertices
            from hgpart.pipeline import evaluate_layerwise
            from hgpart.report import Report
            from hgpart.shares import part_shares
        unit = _unit(unit)
        modelling = _modelling(
            grain, linear, batch_size, bytes_per_element, no_input_vertex, no_output_vertex
        )
        measure = _work(work, profile_device, batch_size)
        module, shape, traced, graph = _traced(stage, model, input_shape)
        with stage("read"):
            every = read_partition(partition_file, full_vertices(graph, modelling), k)
            k = k or int(every.max(initial=0)) + 1
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        with stage("evaluate"):
            blocks, parts = blocks_of_parts(graph, done, modelling, every)
            found = evaluate_parts(blocks.hypergraph, parts, k, speeds)
        with stage("layer-wise"):
            layerwise = evaluate_layerwise(graph, done, modelling, k, speeds)
        shares = part_shares(graph, blocks, modelling, parts, k)
    report = Report(
        model=model,
        input_shape=shape,
        graph=graph,
        work=done,
        modelling=modelling,
        k=k,
        eps=eps,
        speeds=speeds,
        backend=None,
        seed=None,
        hypergraph=blocks.hypergraph,
        feasible=found.imbalance <= eps,
        evaluation=found,
        shares=shares,
        layerwise=layerwise,
        seconds=stage.all_seconds(),
    )
    _show(report, unit, json, csv)


# ------------------------------------------------------------------ what commands share


class _Stages:
    """Times the stages of a command, and shows on a terminal which one is running."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.status = Console(stderr=True).status("") if sys.stderr.isatty() else None

    def __enter__(self) -> _Stages:
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()

    @contextmanager
    def __call__(self, name: str, spinner: bool = True) -> Iterator[None]:
        if self.status is not None and spinner:
            self.status.update(name)
            self.status.start()
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if self.status is not None:
            self.status.stop()

    def all_seconds(self) -> dict[str, float]:
        """Seconds of each stage, and since the command began."""
        return {**self.seconds, "total": time.perf_counter() - STARTED}


def _traced(
    stage: _Stages, model: str, input_shape: tuple[int, ...] | None
) -> tuple[nn.Module, tuple[int, ...], TracedModel, ChannelGraph]:
    """Load and trace a model on the meta device: nothing here needs its weights."""
    with stage("import"):
        from hgpart.layering import channel_graph
        from hgpart.tracing import example_inputs, trace
        from hgpart.zoo import load_model
    with stage("load"):
        module, own_shape = load_model(model, device="meta")
        shape = input_shape or own_shape
        if shape is None:
            raise ArgumentError(
                f"{model} does not say the shape of its input: give it, as in "
                "--input-shape 3,224,224"
            )
        example = example_inputs(module, shape)
    with stage("trace"):
        traced = trace(module, example)
    with stage("graph"):
        graph = channel_graph(traced)
    return module, shape, traced, graph


def _modelling(
    grain: str,
    linear: str,
    batch_size: int,
    bytes_per_element: int | None,
    no_input_vertex: bool,
    no_output_vertex: bool,
) -> Modelling:
    from hgpart.blocks import Modelling

    return Modelling(
        grain=grain,
        linear=linear,
        batch_size=batch_size,
        bytes_per_element=bytes_per_element,
        input_vertex=not no_input_vertex,
        output_vertex=not no_output_vertex,
    )


def _work(
    source: str, device: str | None, batch_size: int
) -> Callable[[nn.Module, TracedModel, ChannelGraph], Work]:
    """What --work asks for, checked before the model is traced."""
    from hgpart.work import flops, load_work

    if device is not None and source != "profile":
        raise ArgumentError(f"--profile-device {device}: only --work profile measures on a device")
    if source == "flops":
        return lambda module, traced, graph: flops(graph)
    if source == "profile":
        from hgpart.profiling import profile

        return lambda module, traced, graph: profile(
            module, traced, graph, batch_size=batch_size, device=device or "cpu"
        )
    if not Path(source).is_file():
        raise ArgumentError(f"work {source!r}: accepted are flops, profile and a file that exists")
    return lambda module, traced, graph: load_work(source, graph)


def _unit(unit: str) -> str:
    from hgpart.report import UNITS

    if unit not in UNITS:
        raise ArgumentError(f"unit {unit!r}: accepted are {', '.join(UNITS)}")
    return unit


def _check_outputs(paths: Mapping[str, Path | str | None]) -> None:
    """Refuse what can't be written before the long work, not after it."""
    taken: dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise OutputError(f"{option} {path} is a folder: accepted is a file")
        if target.exists() and not target.is_file():
            continue  # a pipe or a device: written to as it is
        if not target.parent.is_dir():
            raise OutputError(f"{option} {path}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK):
            raise OutputError(f"{option} {path}: the folder {target.parent} is not writable")
        if str(target) in taken:
            raise ArgumentError(f"{taken[str(target)]} and {option} name one file, {path}")
        taken[str(target)] = option


def _show(report: Report, unit: str, json: str | None, csv: Path | None) -> None:
    """Write the files, then print."""
    from hgpart.report import as_csv, as_json, print_report
    from hgpart.writing import replacing

    for path, text in ((json, as_json), (csv, as_csv)):
        if path is not None and path != "-":
            with replacing(path) as file:
                file.write(text(report))
    if json == "-":
        print(as_json(report), end="")
    else:
        print_report(report, _console(), unit)


def _console() -> Console:
    """Standard output: as wide as the terminal, and never cut off where there is none."""
    width = None if sys.stdout.isatty() else UNLIMITED_WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False)


# ------------------------------------------------------------------ how it ends


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status; every error is one line on standard error."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("hgpart", list(arguments) or ["--help"]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except typer.TyperException as error:
        return _failed(error.format_message(), error.exit_code)
    except HgpartError as error:
        return _failed(str(error), error.exit_status)
    except KeyboardInterrupt:
        print("hgpart: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # Standard output is a full disk, or a pipe whose reader has enough, as in hgpart | head.
        # Python would complain once more when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return OutputError.exit_status
        return _failed(f"can't write the output: {error.strerror}", OutputError.exit_status)
    return 0


def _failed(message: str, status: int) -> int:
    print(f"hgpart: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def main() -> None:
    """Run the `hgpart` command with the process's arguments."""
    sys.exit(run(sys.argv[1:]))
