"""Data sets x nets x ways of training in two processes: seconds of an epoch.

python benchmarks/suite.py --minutes 30            goes on from what is there, the cheapest first
python benchmarks/suite.py --only mnist/resnet     of cells, as mnist/resnet18/ddp
python benchmarks/suite.py --table                 runs nothing, prints what is there

Data sets, nets and batches are those of the benchmark suite of M. Jansen's thesis (Universiteit van
Amsterdam and Vrije Universiteit, 2020; chapter 3, appendix A), batches divided by `SCALE` and, of
the largest images, by twice that. With them, after the two experiments of A. Leon's thesis
(Middlebury College, 2019; chapter 4), AlexNet: torchvision's, with 64 first filters where
his has 96.

Images are random, written to disk before, and read in each step by the processes that need them.
An epoch is the median of the measured steps times as many steps as it has: what is read and
computed in a step does not depend on where in the epoch it is. All ways train on the same batches,
of all processes together: where data-parallel workers have b images each, one process has 2 b.

A run is of a data set and a net: `hgpart bench` with all ways in turns. See bench_runs.py for where
it stops and how it goes on. Run it on idle cores.
"""

from __future__ import annotations

import csv
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from bench_runs import ROOT, Cell, Results, Run, options, print_markdown, run_all, say
from PIL import Image
from suite_nets import ALEXNETS, SMALL

NETS = ROOT.joinpath("benchmarks", "suite_nets.py").relative_to(ROOT)
SCALE = 4
WRITTEN = 160  # images of a data set: every fifth of a class is left for testing
MOST_CLASSES = 10  # that these are of

OTHERS = "single", "ddp", "pipeline-1f1b", "pipeline-gpipe"
OURS = "layerwise:greedy:4", "coarse:greedy:4", "sliced:greedy:2", "one-weird-trick"

# Multiply-accumulates of a sample at 224 x 224, in 10^9.
WORK = {
    "resnet18": 1.81,
    "resnet50": 4.09,
    "resnet152": 11.5,
    "vgg11": 7.61,
    "vgg16": 15.5,
    "mobilenet_v2": 0.30,
    "alexnet": 0.71,
}


@dataclass(frozen=True)
class DataSet:
    """Images, how many make an epoch, and batches: theirs on a GPU (table 3.3), by GPipe, ours."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    images: int
    theirs: int
    gpipe: int | None
    batch: int


DATA = (
    DataSet("mnist", SMALL["mnist"], 10, 70_000, 128, 3072, 128 // SCALE),
    DataSet("cifar10", SMALL["cifar10"], 10, 60_000, 64, 2048, 64 // SCALE),
    DataSet("imagenet", (3, 224, 224), 1000, 1_280_000, 32, 384, 32 // SCALE),
    DataSet("highres", (3, 512, 512), 1000, 60_000, 32, 48, 32 // (2 * SCALE)),
)
# An epoch of Leon's is 2,000 steps of 16 images.
ALEXNET_DATA = tuple(
    DataSet(name, (3, size, size), classes, 2000 * 16, 16, None, 16)
    for name, (size, classes, _) in ALEXNETS.items()
)
ALEXNET_WAYS = "single", "ddp", "layerwise", *OURS[1:]
# Leon's seconds of an epoch (tables A.2 and B.2, means) with a CPU and two GPUs: TensorFlow's
# default placement, data parallel, model parallel (padding and pooling on the CPU), and one weird
# trick.
ALEXNET_SECONDS: Mapping[str, Mapping[str, float]] = {
    "tiny_imagenet": {"single": 281.7, "ddp": 304.7, "layerwise": 287.0, "one-weird-trick": 296.7},
    "dogs_vs_cats": {"single": 266.6, "ddp": 314.5, "layerwise": 320.4, "one-weird-trick": 210.5},
}
COLUMNS = (
    *("data", "net", "way", "batch", "turns", "step_seconds", "lower_seconds", "upper_seconds"),
    *("epoch_seconds", "speed_up", "busy_share", "sent_bytes", "why"),
)


def main() -> None:
    parser = options(__doc__, "suite")
    parser.add_argument("--images", default="build/suite_images", metavar="FOLDER")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what it started too
    results, runs = Results(asked.results), [*suite_runs(asked.images)]
    if not asked.table:
        run_all(runs, results, asked, lambda run: write_images(data_of(run), asked.images))
    cells = [cell for run in runs for cell in results.cells(run)]
    write_csv(asked.results.with_suffix(".csv"), cells)
    print_tables(cells)


def suite_runs(images: str) -> Iterator[Run]:
    """All, in the order of the tables."""
    for data in DATA:
        for net in [net for net in WORK if net != "alexnet"]:
            yield run_of(data, net, (*OTHERS, *OURS), images)
    for data in ALEXNET_DATA:
        yield run_of(data, "alexnet", ALEXNET_WAYS, images)


def run_of(data: DataSet, net: str, ways: tuple[str, ...], images: str) -> Run:
    """A net and a data set."""
    is_own = data.name in SMALL or data in ALEXNET_DATA
    work = WORK[net] * (data.shape[1] / 224) ** 2
    if data.name in SMALL and not net.startswith("vgg"):
        work *= 16  # maps are halved two times less often
    return Run(
        name=f"{data.name}/{net}",
        model=f"{NETS}:{data.name}_{net}" if is_own else net,
        ways=ways,
        batch_size=data.batch,
        cost=work * data.batch,
        input_shape=None if is_own else data.shape,
        data=f"imagefolder:{Path(images) / data.name}",
    )


def data_of(run: Run) -> DataSet:
    """What it trains on."""
    return next(one for one in (*DATA, *ALEXNET_DATA) if one.name == run.name.split("/")[0])


def write_images(data: DataSet, images: str) -> None:
    """Random pixels as PNG files, in a folder for each class, if they are not there."""
    folder = ROOT / images / data.name
    if folder.exists():
        return
    begun = folder.with_suffix(".begun")
    generator = np.random.default_rng(0)
    channels, height, width = data.shape
    size = (height, width) if channels == 1 else (height, width, channels)
    for number in range(WRITTEN):
        own = begun / f"{number % min(data.classes, MOST_CLASSES):03}"
        own.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, size, dtype=np.uint8)
        Image.fromarray(pixels).save(own / f"{number:05}.png", compress_level=1)
    begun.rename(folder)
    say(f"{WRITTEN} images of {' x '.join(map(str, data.shape))} written to {folder}")


# ------------------------------------------------------------------ figures


def epoch_seconds(cell: Cell) -> float | None:
    """By extrapolation: its steps, of all images of the data set."""
    if cell.median is None:
        return None
    return cell.median * data_of(cell.run).images / cell.run.batch_size


def speed_up(cell: Cell, cells: Iterable[Cell]) -> float | None:
    """Over one process, of cells of the same run."""
    single = next((one.median for one in cells if one.way == "single"), None)
    return None if single is None or cell.median is None else single / cell.median


def by_run(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Those of a run together."""
    return [[*own] for _, own in groupby(cells, key=lambda cell: cell.run.name)]


def write_csv(path: Path, cells: Iterable[Cell]) -> None:
    """A line for each cell that was tried."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for own in by_run(cells):
            for cell in own:
                if cell.median is not None or cell.reason is not None:
                    writer.writerow(record(cell, own))


def record(cell: Cell, own: Iterable[Cell]) -> dict[str, object]:
    """What the CSV has of it."""
    data, net = cell.run.name.split("/")
    found: dict[str, object] = {"data": data, "net": net, "batch": cell.run.batch_size}
    if cell.median is not None:
        found |= {name: short(value) for name, value in (cell.row or {}).items()}
        found |= {"step_seconds": short(cell.median), "speed_up": short(speed_up(cell, own))}
        found["epoch_seconds"] = short(epoch_seconds(cell))
    return found | {"way": cell.way, "turns": cell.turns, "why": cell.reason}


def short(value: object) -> object:
    """A number of four digits."""
    return f"{value:.4g}" if isinstance(value, float) else value


# ------------------------------------------------------------------ tables


def print_tables(cells: list[Cell]) -> None:
    """Print the tables of benchmarks/suite.md."""
    print_batches()
    rows = [own for own in by_run(cells) if own[0].run.name.split("/")[1] != "alexnet"]
    print(
        "\nSeconds of an epoch, by extrapolation (times one process); - was not run, the reasons "
        "are below:\n"
    )
    ways = *OTHERS, *OURS
    print_markdown(
        ["data, net", *(f"`{way}`" for way in ways)],
        [[own[0].run.name, *(figure(cell, own) for cell in own)] for own in rows],
    )
    print("\nWhere the fastest way is not hgpart's:\n")
    print_markdown(
        ["data, net", "fastest", "s", "waits", "MB", "best of hgpart", "s", "waits", "MB", "ratio"],
        [found for own in rows if (found := lost(own))],
    )
    print("\nAlexNet, seconds of an epoch of 32,000 images (times the baseline):\n")
    print_markdown(
        ["data", "way", "two GPUs, 2019", "two cores, by extrapolation"],
        [
            [own[0].run.name.split("/")[0], f"`{cell.way}`", their_figure(cell), figure(cell, own)]
            for own in by_run(cells)
            if own[0].run.name.endswith("/alexnet")
            for cell in own
        ],
    )
    print_reasons(cells)


def print_batches() -> None:
    """What trains at once, theirs and ours."""
    print("Images of a step, of all processes together:\n")
    print_markdown(
        ["data", "pixels", "classes", "images", "one GPU", "GPipe on four", "here"],
        [
            [
                *(data.name, " x ".join(map(str, data.shape)), f"{data.classes}"),
                *(f"{data.images:,}", f"{data.theirs}", f"{data.gpipe or '-'}", f"{data.batch}"),
            ]
            for data in (*DATA, *ALEXNET_DATA)
        ],
    )


def figure(cell: Cell, own: Sequence[Cell]) -> str:
    """Seconds of an epoch; it is said if others of the run had more turns."""
    seconds, gain = epoch_seconds(cell), speed_up(cell, own)
    if seconds is None:
        return "-"
    ratio = "" if gain is None else f" ({gain:.2f})"
    most = max(one.turns for one in own)
    turns = "" if cell.turns == most else f", {cell.turns} of {most} turns"
    return f"{seconds:,.0f}{ratio}{turns}"


def their_figure(cell: Cell) -> str:
    """Seconds that the thesis has."""
    theirs = ALEXNET_SECONDS[data_of(cell.run).name]
    seconds = theirs.get(cell.way)
    return "-" if seconds is None else f"{seconds:.0f} ({theirs['single'] / seconds:.2f})"


def lost(own: list[Cell]) -> list[str] | None:
    """The fastest way beside the best of hgpart's, if it is another one's."""
    measured = [cell for cell in own if cell.median is not None]
    ours = [cell for cell in measured if cell.way in OURS]
    if not ours:
        return None
    first, best = (min(some, key=lambda cell: cell.median) for some in (measured, ours))
    if first is best:
        return None
    about = [text for cell in (first, best) for text in waits_and_sends(cell)]
    return [own[0].run.name, *about, f"{best.median / first.median:.2f}"]


def waits_and_sends(cell: Cell) -> list[str]:
    """Why it takes as long as it does: a step's seconds, what of them is waiting, what travels."""
    assert cell.row is not None
    sent = cell.row["sent_bytes"]
    return [
        *(f"`{cell.way}`", f"{cell.median:.3g}", f"{100 * cell.row['waiting_share']:.0f} %"),
        "-" if sent is None else f"{sent / 1e6:,.0f}",
    ]


def print_reasons(cells: Iterable[Cell]) -> None:
    """Each reason with its cells."""
    reasons: dict[str, list[str]] = {}
    left = 0
    for cell in cells:
        if cell.reason is not None:
            reasons.setdefault(cell.reason, []).append(cell.name)
        left += cell.reason is None and cell.median is None
    print(f"\n{left} cells have had no turn yet." if left else "")
    for reason, names in reasons.items():
        print(f"- {reason}: {', '.join(f'`{name}`' for name in names)}")


if __name__ == "__main__":
    main()
