"""What `explain` says of other places, checked by really moving layers there.

python benchmarks/explaining.py [--moves 9] [--effort 0.05] [--out FILE]

For each plan, some layers are drawn. The move to the best other place is made by hand, and what
`explain` says of it is compared with a count that shares no code with it: net by net from the
written-out pins, and vertex by vertex. All other places of the layer are tried in the same way:
none within eps may be cheaper. Of a few small plans the bytes are also counted in a run, by `hgpart
verify`.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hgpart
from hgpart.explanation.explaining import LayerExplanation, explained
from hgpart.partition import Partition

# model, devices, and what else is asked for
PLANS = (
    ("vgg16", 4, {}),
    ("vgg16", 4, {"grain": "fine"}),
    ("vgg16", 8, {"slices": 8}),
    ("resnet50", 8, {}),
    ("resnet50", 4, {"grain": "fine"}),
    ("resnet50", 4, {"slices": 4}),
    ("mobilenet_v2", 4, {}),
    ("mobilenet_v2", 4, {"grain": "fine"}),
    ("mobilenet_v2", 8, {"slices": 8}),
    ("unet", 4, {}),
    ("unet", 4, {"slices": 2, "bands": 4}),
    ("timm:vit_tiny_patch16_224", 4, {}),
    ("timm:vit_tiny_patch16_224", 4, {"slices": 4}),
)
RUN = (("lenet5", None, 3), ("mobilenet_v2", (3, 64, 64), 2), ("resnet18", (3, 64, 64), 3))
FIELDS = ("model", "k", "asked", "layer", "move", "bytes_said", "bytes_counted")
FIELDS += ("imbalance_said", "imbalance_counted", "cheapest", "run_bytes")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--moves", type=int, default=9)
    parser.add_argument("--effort", type=float, default=0.05)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/explaining.csv"))
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name, k, asked in PLANS:
        shape = hgpart.load_model(name, device="meta")[1]
        partition = plan_of(name, shape, k, asked, 32, options.effort)
        start = time.process_time()
        explanation = explained(partition)
        spent = time.process_time() - start
        said = ",".join(f"{key}={value}" for key, value in asked.items())
        own = rows_of(partition, drawn(explanation.layers, options.moves))
        rows += [{"model": name, "k": k, "asked": said, **row} for row in own]
        wrong = sum(not is_equal(row) for row in own)
        print(
            f"{name} k={k} {said}: {len(own)} moves, {wrong} differ; all {len(explanation.layers)} "
            f"layers explained in {spent:.1f} CPU s",
            flush=True,
        )
    rows += runs(options.effort)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} moves, {sum(map(is_equal, rows))} with equal figures")
    sys.exit(not all(map(is_equal, rows)))


def plan_of(
    name: str, shape: object, k: int, asked: dict[str, object], size: int, effort: float
) -> Partition:
    """A plan of the native solver."""
    model, _ = hgpart.load_model(name, device="meta")
    graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    modelling = hgpart.Modelling(batch_size=size, **asked)
    work = hgpart.flops(graph)
    return hgpart.partition_graph(graph, work, k, 0.1, modelling=modelling, effort=effort)


def drawn(layers: tuple[LayerExplanation, ...], count: int) -> list[LayerExplanation]:
    """Layers that have another place, those that are divided or send anything among them."""
    movable = [layer for layer in layers if layer.best is not None]
    generator = np.random.default_rng(0)
    weights = np.array(
        [1 + 9 * (len(layer.shares) > 1 or layer.sent_bytes > 0) for layer in movable]
    )
    chosen = generator.choice(
        len(movable), min(count, len(movable)), replace=False, p=weights / weights.sum()
    )
    return [movable[at] for at in sorted(chosen.tolist())]


def rows_of(partition: Partition, layers: list[LayerExplanation]) -> list[dict[str, object]]:
    rows = []
    for layer in layers:
        assert layer.best is not None
        move = layer.best
        parts = moved(partition, layer.index, move.source, move.target)
        others = [
            moved(partition, layer.index, source, target)
            for source in (None, *layer.parts)
            for target in range(partition.k)
        ]
        allowed = [
            counted(partition, other)
            for other in others
            if (other != partition.parts).any()
            and imbalance(partition, other) <= max(0.1, imbalance(partition, partition.parts))
        ]
        rows.append(
            {
                "layer": layer.name,
                "move": f"{'all' if move.source is None else move.source} to {move.target}",
                "bytes_said": move.volume,
                "bytes_counted": counted(partition, parts),
                "imbalance_said": move.imbalance,
                "imbalance_counted": imbalance(partition, parts),
                "cheapest": min(allowed),
            }
        )
    return rows


def is_equal(row: dict[str, object]) -> bool:
    said, balance = row["bytes_said"], float(str(row["imbalance_said"]))
    known = {row["bytes_counted"], row["cheapest"], row.get("run_bytes") or said}
    return known == {said} and abs(balance - float(str(row["imbalance_counted"]))) < 1e-12


def moved(partition: Partition, layer: int, source: int | None, target: int) -> np.ndarray:
    parts = partition.parts.copy()
    own = partition.model.vertex_layers == layer
    parts[own if source is None else own & (parts == source)] = target
    return parts


def counted(partition: Partition, parts: np.ndarray) -> int:
    """Bytes that travel: of each net its cost, for each part of its pins but one."""
    nets = partition.model.hypergraph
    owners = np.repeat(np.arange(nets.nets), np.diff(nets.pointers))
    pairs = np.unique(owners * partition.k + parts[nets.pins])
    connected = np.bincount(pairs // partition.k, minlength=nets.nets)
    return int((nets.costs * (connected - 1)).sum())


def imbalance(partition: Partition, parts: np.ndarray) -> float:
    loads = np.bincount(parts, partition.model.weights.astype(float), partition.k)
    return float(loads.max() * partition.k / loads.sum() - 1)


def runs(effort: float) -> list[dict[str, object]]:
    """Small plans whose moved parts are run, and their messages counted."""
    rows = []
    for name, asked_shape, k in RUN:
        shape = asked_shape or hgpart.load_model(name, device="meta")[1]
        partition = plan_of(name, shape, k, {}, 4, effort)
        for layer in drawn(explained(partition).layers, 2):
            (row,) = rows_of(partition, [layer])
            assert layer.best is not None
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "moved.json"
                hgpart.files.save_plan(hgpart.Plan(layer.best.partition, name, shape), path)
                command = ["hgpart", "verify", "--plan", str(path), "--batch-size", "4"]
                command += ["--dtype", "float32", "--json", "-"]
                printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            bytes_of_run = json.loads(printed)["forward_bytes"]
            rows.append({"model": name, "k": k, "asked": "run", **row, "run_bytes": bytes_of_run})
            print(f"{name} k={k} run: {layer.name}, {bytes_of_run} bytes counted", flush=True)
    return rows


if __name__ == "__main__":
    main()
