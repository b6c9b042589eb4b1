"""A part of a placement -> a .pt2 file, or .onnx files, and a JSON of what it receives and sends.

Programs without hgpart read these; the guide "A part for a small device" says what the JSON has.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from hgpart.errors import (
    PlacementError,
    first_line,
    is_out_of_memory,
    not_installed,
    not_one_of,
)
from hgpart.files.writing import replacing, write_text
from hgpart.operators.table import AS_TORCH
from hgpart.placement.exporting.part_stages import (
    ModelPiece,
    PartStages,
    StageMessage,
    TensorType,
    part_stages,
)
from hgpart.placement.placement import Placement

FORMAT = "hgpart part 1"
PT2, ONNX = ".pt2", ".onnx"
OF_TORCH = {"aten", "prim", "prims"}  # namespaces of operators that every program with torch has


def export_part(
    placement: Placement,
    part: int,
    path: Path | str,
    *,
    batch_size: int | None = None,
    model: str = "",
    on_stage: Callable[[int, int], None] = lambda done, stages: None,
) -> PartStages:
    """Write a part's inference pass for programs without hgpart.

    The pass is a sequence of stages, each a module from tensors to tensors; between them the part
    receives and sends. A ``.pt2`` file holds the modules of all stages, as exported programs named
    ``stage_0`` and so on (`torch.export.pt2_archive._package.load_pt2`); with ``.onnx`` each stage
    has a file, ``part2.0.onnx`` and so on. Weights are inside. A JSON beside them, ``part2.json``,
    says what is received, computed and sent, in order, with all shapes and types.

    Parameters
    ----------
    placement : Placement
        Placement of all parts, in evaluation.
    path : path
        File that ends in ``.pt2`` or ``.onnx``.
    batch_size : int, optional
        Samples in each pass. Default: the plan's.
    model : str
        Name of the model, for the JSON.
    on_stage : callable, optional
        Called with the number of stages that are exported, and of all.

    Returns
    -------
    PartStages
        The stages that were written.

    Raises
    ------
    ArgumentError
        If the file has another ending.
    MissingPackageError
        If packages that write ONNX are not installed.
    PlacementError
        For a reason of `part_stages`, or if a stage can't be exported.
    OutputError
        If a file can't be written.

    >>> import hgpart, tempfile
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)).eval()
    >>> placed = hgpart.place(model, k=2, example=torch.randn(2, 3, 8, 8))
    >>> path = Path(tempfile.mkdtemp()) / "part0.pt2"
    >>> stages = hgpart.export_part(placed, 0, path)
    >>> sorted(file.name for file in path.parent.iterdir())
    ['part0.json', 'part0.pt2']
    """
    path = Path(path)
    check_format(path)
    if batch_size is None:
        batch_size = placement.programs.partition.modelling.batch_size
    stages = part_stages(placement, part, batch_size)
    tensors = dict(stages.given)
    written: list[dict[str, str]] = []
    programs: dict[str, ExportedProgram] = {}
    device = placement.devices[part]
    for at, stage in enumerate(stages.stages):
        on_stage(at, len(stages.stages))
        file: dict[str, str] = {}
        if stage.module is not None:
            name = f"stage_{at}"
            types = [tensors[read] for read in stage.reads]
            exported = _exported(stage.module, types, device, f"stage {at} of part {part}")
            made = _results(exported)
            tensors.update(zip(stage.makes, made, strict=True))
            if path.suffix == PT2:
                programs[name] = exported
                file = {"file": path.name, "program": name}
            else:
                of_stage = path.with_suffix(f".{at}{ONNX}")
                _write_onnx(exported, of_stage, stage.reads, stage.makes)
                file = {"file": of_stage.name}
        written.append(file)
    if programs:
        _write_pt2(programs, path)
    on_stage(len(stages.stages), len(stages.stages))
    write_text(json_beside(path), _json(stages, written, tensors, model))
    return stages


def check_format(path: Path) -> None:
    """Raise an error unless a file's ending is known, and what writes it is installed."""
    if path.suffix not in (PT2, ONNX):
        raise not_one_of("file ending", path.suffix, (PT2, ONNX))
    for package in ("onnx", "onnxscript") if path.suffix == ONNX else ():
        if find_spec(package) is None:
            raise not_installed(f"export to {ONNX}", package, "onnx")


def json_beside(path: Path) -> Path:
    """The file that says what is received and sent."""
    return path.with_suffix(".json")


def _exported(
    module: fx.GraphModule, types: list[TensorType], device: torch.device, said: str
) -> ExportedProgram:
    """A stage's module as torch.export's program.

    Raises
    ------
    PlacementError
        If torch can't export it, or it calls an operator that programs without hgpart lack.
    """
    example = tuple(torch.zeros(kind.shape, dtype=kind.dtype, device=device) for kind in types)
    try:
        exported = torch.export.export(module, example)
        if any(node.target in AS_TORCH for node in exported.graph.nodes):
            exported = exported.run_decompositions(dict(AS_TORCH))
    except Exception as error:
        raise _refused(said, error) from error
    for node in exported.graph.nodes:
        namespace = getattr(node.target, "namespace", "aten")
        if node.op == "call_function" and namespace not in OF_TORCH:
            raise PlacementError(
                f"{said} calls {node.target}, which is not an operator of torch: programs that "
                "only have torch lack it; accepted are models without it"
            )
    exported.example_inputs = None  # else they are written to the file
    return exported


def _refused(said: str, error: Exception) -> Exception:
    if is_out_of_memory(error):
        return error
    return PlacementError(f"{said} can't be exported: {type(error).__name__}: {first_line(error)}")


def _results(exported: ExportedProgram) -> Iterator[TensorType]:
    """Shapes and types of what an exported program returns."""
    nodes = {node.name: node for node in exported.graph.nodes}
    for name in exported.graph_signature.user_outputs:
        value = nodes[str(name)].meta["val"]
        yield TensorType(tuple(value.shape), value.dtype)


def _write_pt2(programs: dict[str, ExportedProgram], path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    with replacing(path, "wb") as file:
        try:
            package_pt2(file, exported_programs=programs)
        except OSError:
            raise
        except Exception as error:
            raise _refused("the part", error) from error


def _write_onnx(
    exported: ExportedProgram, path: Path, reads: tuple[str, ...], makes: tuple[str, ...]
) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about torch
            program = torch.onnx.export(
                exported, input_names=reads, output_names=makes, dynamo=True, verbose=False
            )
        assert program is not None
        content = program.model_proto.SerializeToString()
    except Exception as error:
        raise _refused(path.name, error) from error
    with replacing(path, "wb") as file:
        file.write(content)


def _json(
    stages: PartStages, files: list[dict[str, str]], tensors: dict[str, TensorType], model: str
) -> str:
    """All that a program needs to know of a part."""
    content = {
        "format": FORMAT,
        "model": model,
        "part": stages.part,
        "parts": stages.k,
        "batch_size": stages.batch_size,
        "dtype": _said(stages.dtype),
        "tensors": {
            name: {"shape": kind.shape, "dtype": _said(kind.dtype), "bytes": kind.nbytes}
            for name, kind in tensors.items()
        },
        "inputs": [_piece("input", piece) for piece in stages.inputs],
        "results": [_piece("result", piece) for piece in stages.results],
        "stages": [
            {
                "receives": [_message("from", item, tensors) for item in stage.receives],
                **file,
                "reads": stage.reads,
                "makes": stage.makes,
                "sends": [_message("to", item, tensors) for item in stage.sends],
                "frees": stage.frees,
            }
            for stage, file in zip(stages.stages, files, strict=True)
        ],
    }
    return _in_lines(content) + "\n"


def _piece(what: str, piece: ModelPiece) -> dict[str, Any]:
    of = {what: piece.of, "tensor": piece.tensor}
    return {**of, "shape": piece.shape, "extent": piece.extent}


def _message(end: str, message: StageMessage, tensors: dict[str, TensorType]) -> dict[str, Any]:
    transfer = message.transfer
    return {
        "message": transfer.number,
        end: transfer.sender if end == "from" else transfer.receiver,
        "layer": transfer.layer,
        "tensors": message.tensors,
        "bytes": sum(tensors[name].nbytes for name in message.tensors),
        "counted": transfer.counted,
    }


def _said(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _in_lines(value: Any, indent: str = "") -> str:
    """JSON in which each list or object is on one line if it fits."""
    text = json.dumps(value)
    if len(indent) + len(text) <= 120 or not isinstance(value, dict | list | tuple):
        return text
    inner = f"{indent} "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {_in_lines(own, inner)}" for name, own in value.items()]
    else:
        items = [_in_lines(own, inner) for own in value]
    return f"{text[0]}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{text[-1]}"
