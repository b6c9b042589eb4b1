"""Transformers in parts: native beside the cut between layers, tensor and data parallelism.

python benchmarks/transformer_bytes.py [--models a,b] [--k 4,8,16] [--batch-sizes 1,32] [--effort E]
                                  [--jsonl FILE]
python benchmarks/transformer_bytes.py --table FILE

Bytes of a forward pass are by hgpart's metrics, at eps 0.1 (max/avg of ways that do not search is
what it is); those of `spatial`, bands of tokens, without gradients of weights, as in inference.
`formula` is Megatron-LM's: two all-reduces a block, each of which sends its map k - 1 times as
partial sums and k - 1 times as result. A cell that FILE has is not run again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hgpart
from hgpart.errors import HgpartError
from hgpart.layers.channel_graph import WHOLE, ChannelGraph
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named

EPS = 0.1
DECODER = "gpt2"  # Hugging Face's, by its default configuration
WAYS = "layerwise", "coarse", "fine", "sliced", "tensor-parallel", "spatial", "data-parallel"
BLOCKS = {  # blocks, tokens and width, where all blocks are alike
    "timm:vit_base_patch16_224": (12, 197, 768),
    "timm:deit_small_patch16_224": (12, 197, 384),
    DECODER: (12, 1024, 768),
}
MODELS = (
    *BLOCKS,
    "timm:xcit_nano_12_p16_224",
    "timm:swin_tiny_patch4_window7_224",
    "timm:maxvit_tiny_tf_224",
    "timm:efficientformer_l1",
    "timm:levit_128s",
    "timm:coatnet_0_rw_224",
    "timm:efficientvit_b0",
    "timm:convnext_tiny",
)
Cell = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--k", default="4,8,16")
    parser.add_argument("--batch-sizes", default="1,32")
    parser.add_argument("--effort", type=float, default=0.05)
    parser.add_argument("--jsonl", type=Path, default=Path("benchmarks/results/transformers.jsonl"))
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.table is not None:
        print("\n".join(table(read(asked.table))))
        return
    done = {(cell["model"], cell["k"], cell["batch_size"]) for cell in read(asked.jsonl)}
    for name in asked.models.split(","):
        graph = layers_of(name)
        for k in map(int, asked.k.split(",")):
            for batch_size in map(int, asked.batch_sizes.split(",")):
                if (name, k, batch_size) not in done:
                    cell = run(name, graph, k, batch_size, Search(effort=asked.effort))
                    with asked.jsonl.open("a") as file:
                        print(json.dumps(cell), file=file)
                    print(*table([cell])[2:], sep="\n", flush=True)


def layers_of(name: str) -> ChannelGraph:
    """The layers of a model for its own images, or of the decoder for 1,024 tokens."""
    if name != DECODER:
        model, shape = hgpart.load_model(name, device="meta")
    else:
        from transformers import GPT2Config

        with TemporaryDirectory() as folder:
            config = Path(folder) / "config.json"
            GPT2Config(architectures=["GPT2LMHeadModel"], use_cache=False).to_json_file(config)
            model, _ = hgpart.load_model(f"hf:{config}", device="meta")
        shape = ("input_ids=1024:int64:50257",)
    return hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))


def read(path: Path) -> list[Cell]:
    """The cells of a file that may not be there."""
    return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []


def run(name: str, graph: ChannelGraph, k: int, batch_size: int, search: Search) -> Cell:
    """The volume in bytes and the max/avg of each way."""
    work = hgpart.flops(graph)
    modelling = hgpart.Modelling(batch_size=batch_size)
    problem = Problem(graph, work, modelling, k, EPS)
    ways: dict[str, tuple[int, float] | str] = {}
    for way in map(way_named, WAYS):
        training = way.name != "spatial"
        own = replace(problem, modelling=replace(modelling, training=training))
        try:
            found = way.partition(way.problem(own), search)
            ways[way.name] = found.evaluation.volume, 1 + found.evaluation.imbalance
        except HgpartError as error:
            ways[way.name] = str(error)
    formula = None
    if name in BLOCKS:
        blocks, tokens, width = BLOCKS[name]
        formula = blocks * 2 * 2 * (k - 1) * tokens * width * 4 * batch_size
    return {
        "model": name,
        "k": k,
        "batch_size": batch_size,
        "whole": whole_share(graph),
        "ways": ways,
        "formula": formula,
    }


def whole_share(graph: ChannelGraph) -> float:
    """The share of multiply-accumulates in layers that are kept whole."""
    macs = [layer.macs * layer.tasks for layer in graph.layers]
    whole = [each for each, layer in zip(macs, graph.layers, strict=True) if layer.kind == WHOLE]
    return sum(whole) / sum(macs)


def table(cells: list[Cell]) -> list[str]:
    """Markdown: MB, with max/avg in brackets where it exceeds 1 + eps."""
    lines = [
        "| model | whole % | k | batch | " + " | ".join(WAYS) + " | formula |",
        "|---|" + "---:|" * (len(WAYS) + 4),
    ]
    for cell in cells:
        shown = []
        for way in WAYS:
            value = cell["ways"].get(way)
            if value is None or isinstance(value, str):
                shown.append("")
            else:
                balance = f" ({value[1]:.2f})" if value[1] > 1 + EPS + 1e-9 else ""
                shown.append(f"{value[0] / 1e6:,.4g}{balance}")
        formula = "" if cell["formula"] is None else f"{cell['formula'] / 1e6:,.4g}"
        row = cell["model"], f"{100 * cell['whole']:.1f}", cell["k"], cell["batch_size"]
        lines.append("| " + " | ".join(map(str, (*row, *shown, formula))) + " |")
    return lines


if __name__ == "__main__":
    main()
