"""Ways x k x eps -> Comparison: one row each, what wins, and files of it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hgpart.compare.outcomes import Failed, NotApplicable, Outcome, Row, outcome_of
from hgpart.errors import ArgumentError, PlanError
from hgpart.files.json_files import JsonObject, read_json
from hgpart.files.writing import replacing
from hgpart.hypergraph.modelling import LARGEST_FACTOR, Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.problem.checks import check_request, check_search
from hgpart.partition.problem.problem import Problem
from hgpart.partition.ways import FORMER, Way, way_named, ways
from hgpart.plan import LARGEST_K
from hgpart.work.figures import Work

FORMAT = "hgpart comparison 1"
EPOCH_BATCH_SIZES = (16, 32, 64)  # those of thesis table 5.14

DEFAULT_EPS = 0.1
VERDICT_K = 8
LARGEST = 2**53  # that a float holds exactly
NEAR = 1e-3  # figures that differ by less win together: most would be printed alike

Cell = tuple[str, int, float | None]

# What two comparisons must agree in for one to go on from the other.
SETTINGS = (
    "fingerprint",
    "batch_size",
    "bytes_per_element",
    "linear",
    "input_vertex",
    "output_vertex",
    "slices",
    "work_digest",
    "seed",
)

# Figures in which a way can win; less is better in all of them. How long a rule takes, which
# searches for nothing, is no merit.
LOADS = ("max_over_average", "imbalance")
EPOCHS = {f"epoch_bytes_batch_{batch_size}": batch_size for batch_size in EPOCH_BATCH_SIZES}
CONTESTED = (
    *LOADS,
    "forward_bytes",
    "step_bytes",
    *EPOCHS,
    "largest_device_bytes",
    "messages",
    "largest_parameters",
    "largest_activation_bytes",
)


@dataclass(frozen=True)
class Comparison:
    """What ways of splitting one model cost.

    Attributes
    ----------
    model : str
    input_shape : tuple of int
    fingerprint : str
        Of the model's ChannelGraph.
    batch_size, bytes_per_element, linear, input_vertex, output_vertex
        As in `Modelling`.
    slices : int or None
        Number of slices for the ways that would choose one; None for what is best.
    work_source : str
    seed : int
    dataset_size : int
        Samples of an epoch.
    rows : tuple of Outcome, NotApplicable or Failed
        What was asked for.
    epss : tuple of float
        The imbalances that were allowed.
    work_digest : str
        Of the work of each layer: two measurements differ.
    besides : tuple of Outcome, NotApplicable or Failed
        Rows of a file that was gone on from, which were not asked for now: they are kept in the
        file, and nothing is compared with them.
    """

    model: str
    input_shape: tuple[int, ...]
    fingerprint: str
    batch_size: int
    bytes_per_element: int | None
    work_source: str
    seed: int
    dataset_size: int
    rows: tuple[Row, ...]
    epss: tuple[float, ...] = (DEFAULT_EPS,)
    work_digest: str = ""
    linear: str = "neuron"
    input_vertex: bool = True
    output_vertex: bool = True
    slices: int | None = None
    besides: tuple[Row, ...] = ()

    @property
    def eps(self) -> float:
        """The smallest imbalance that was allowed: like is compared with like within it."""
        return min(self.epss)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The rows of ways that could be used."""
        return tuple(row for row in self.rows if isinstance(row, Outcome))

    @property
    def steps(self) -> tuple[Outcome, ...]:
        """The rows of ways that can divide the comparison's batch."""
        return tuple(row for row in self.outcomes if why_no_step(row, self) is None)

    @property
    def failed(self) -> tuple[Failed, ...]:
        """The rows of ways of which something went wrong."""
        return tuple(row for row in self.rows if isinstance(row, Failed))

    def is_balanced(self, row: Outcome) -> bool:
        """Whether the imbalance is within the smallest eps, whatever the row was allowed."""
        return row.imbalance <= self.eps


def chosen_ways(names: Sequence[str] | None) -> tuple[Way, ...]:
    """Return the ways of these names, all that there are of any model when None.

    Raises
    ------
    ArgumentError
        If there is none of a name; says which are near.
    """
    return tuple(ways().values() if names is None else map(way_named, names))


def check_grid(
    ks: Sequence[int], epss: Sequence[float], seed: int, dataset_size: int, jobs: int
) -> None:
    """Raise an ArgumentError for what no model can be compared with."""
    for k in ks:
        for eps in epss:
            check_request(k, eps)
        if k > LARGEST_K:
            raise ArgumentError(f"k is {k}, expected at most {LARGEST_K}")
    check_search(seed)
    if not 1 <= dataset_size <= LARGEST:
        raise ArgumentError(f"dataset size is {dataset_size}, expected 1 to {LARGEST} samples")
    if jobs < 1:
        raise ArgumentError(f"jobs is {jobs}, expected at least 1")


def grid(
    chosen: Iterable[Way], ks: Sequence[int], epss: Sequence[float]
) -> Iterator[tuple[Way, int, float | None]]:
    """Every way for every k, and for every eps where it searches."""
    several = tuple(chosen)
    for k in ks:
        for way in several:
            for eps in epss if way.searches else (None,):
                yield way, k, eps


def compare(
    graph: ChannelGraph,
    work: Work,
    modelling: Modelling,
    cells: Iterable[tuple[Way, int, float | None]],
    seed: int,
    done: Mapping[Cell, Row] | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
    jobs: int = 1,
    slices: int | None = None,
) -> Iterator[Row]:
    """Divide a model in several ways, `jobs` at once; yields rows in the order of the cells.

    Rows that are done already are taken as they are, unless they failed. `on_row` is told
    each row as soon as it is there, in any order and thread. Backends compute in processes of
    their own and the native core without the interpreter's lock, so that two jobs keep two cores
    busy. Where the iterator is closed early, what has not begun never does.
    """

    def run(way: Way, k: int, eps: float | None) -> Row:
        row = (done or {}).get((way.name, k, eps))
        if row is None or isinstance(row, Failed):
            problem = Problem(graph, work, modelling, k, 0.0 if eps is None else eps)
            row = outcome_of(way, problem, seed, slices)
        on_row(row)
        return row

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in [pool.submit(run, *cell) for cell in cells]:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def work_digest(work: Work) -> str:
    """A digest of the work of each layer, for a `Comparison`."""
    return hashlib.sha256(work.per_task.tobytes() + work.unit.encode()).hexdigest()[:16]


def winners(comparison: Comparison, column: str) -> set[Cell]:
    """The rows that are best in a column among those of the same k; less is better.

    A split of which one device does nearly everything moves little, so that all columns but load
    are contested only among the rows within the smallest eps. What is within a thousandth of the
    best wins too.
    """
    best: dict[int, float] = {}
    figures: dict[Cell, float] = {}
    for row in comparison.outcomes:
        figure = _figure(comparison, row, column)
        if figure is None or not (column in LOADS or comparison.is_balanced(row)):
            continue
        figures[cell_of(row)] = figure
        best[row.k] = min(best.get(row.k, figure), figure)
    return {cell for cell, figure in figures.items() if figure <= best[cell[1]] * (1 + NEAR)}


def _figure(comparison: Comparison, row: Outcome, column: str) -> float | None:
    """What a row contests a column with; None where it does not."""
    if column in EPOCHS:
        return row.epoch_bytes(comparison.dataset_size, EPOCHS[column])
    if why_no_step(row, comparison) is not None:
        return None
    if column == "forward_bytes" and row.smallest_batch > 1 and not row.forward_bytes:
        return None  # every device has a copy of the model: never anything to send, no merit
    # An imbalance of 0 has no thousandth.
    figure: float = getattr(row, "max_over_average" if column in LOADS else column)
    return figure


def why_no_step(row: Outcome, comparison: Comparison) -> str | None:
    """Why a step with the comparison's batch can't be divided; None where it can.

    Such a row has the figures of the smallest batch that can be, and those of an epoch.
    """
    if comparison.batch_size >= row.smallest_batch:
        return None
    return (
        f"{row.k} devices, but only {comparison.batch_size} samples in a batch to divide; epochs "
        f"need batches of {row.smallest_batch} or more"
    )


def cell_of(row: Row) -> Cell:
    """Where a row stands in the grid."""
    return row.strategy, row.k, row.eps


def verdict(comparison: Comparison) -> str:
    """The best hypergraph partition against the layer-wise split and the best of others: one line.

    At the smallest eps, and at k = 8, or else at the largest k at which there is a hypergraph
    partition and, if possible, a layer-wise split. Of the others only those within eps count.
    """
    return f"{_verdict(comparison)} (eps {comparison.eps:g}, batch {comparison.batch_size})"


def _verdict(comparison: Comparison) -> str:
    balanced = [row for row in comparison.steps if comparison.is_balanced(row)]
    partitions = [row for row in comparison.steps if row.eps == comparison.eps]
    if not partitions:
        return _least(balanced, comparison.eps)
    cuts = {row.k: row for row in comparison.steps if row.strategy == "layerwise"}
    ks = {row.k for row in partitions}
    k = VERDICT_K if VERDICT_K in ks else max(ks & cuts.keys() or ks)
    best = _smallest_traffic(row for row in partitions if row.k == k)
    others = [cuts[k]] if k in cuts else []
    rivals = [row for row in balanced if row.k == k and row.eps is None]
    if rivals and (rival := _smallest_traffic(rivals)) not in others:
        others.append(rival)
    load = f"{best.max_over_average:.2f} max/avg"
    if not others:
        return f"{best.strategy}: {load} at k={k}"
    first, *second = others
    text = (
        f"{best.strategy}: {_traffic_against(best, first)} {first.strategy} at k={k}, "
        f"at {load} against {first.max_over_average:.2f}"
    )
    for row in second:
        text += f"; {_traffic_against(best, row)} {row.strategy} at {row.max_over_average:.2f}"
    return text


def _least(balanced: Sequence[Outcome], eps: float) -> str:
    """What moves least, where nothing was partitioned as a hypergraph."""
    bound = f"{1 + eps:g} max/avg"
    if not balanced:
        return f"nothing is within {bound}"
    ks = {row.k for row in balanced}
    k = VERDICT_K if VERDICT_K in ks else max(ks)
    best = _smallest_traffic(row for row in balanced if row.k == k)
    return f"{best.strategy}: least traffic of those within {bound} at k={k}"


def _smallest_traffic(rows: Iterable[Outcome]) -> Outcome:
    return min(rows, key=lambda row: row.step_bytes)


def _traffic_against(row: Outcome, other: Outcome) -> str:
    ratio = other.step_bytes / max(1, row.step_bytes)
    if ratio >= 1.05:
        return f"{ratio:.1f}x less traffic than"
    ratio = row.step_bytes / max(1, other.step_bytes)
    return f"{ratio:.1f}x the traffic of" if ratio >= 1.05 else "as much traffic as"


# ------------------------------------------------------------------ files


def save_comparison(comparison: Comparison, path: Path | str) -> None:
    """Write a comparison as JSON, one line a row.

    Raises
    ------
    OutputError
        If the file can't be written.
    """
    with replacing(path) as file:
        file.write(comparison_json(comparison))


def comparison_json(comparison: Comparison) -> str:
    """A comparison as JSON, one line a row."""
    head = {
        "format": FORMAT,
        **{
            item.name: getattr(comparison, item.name)
            for item in fields(Comparison)
            if item.name not in ("rows", "besides")
        },
        "verdict": verdict(comparison),
        "row_count": len(comparison.rows) + len(comparison.besides),
        "asked_count": len(comparison.rows),  # the first of them; the others are besides
    }
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in head.items()]
    every = (*comparison.rows, *comparison.besides)
    rows = [f"    {json.dumps(as_record(row, comparison))}" for row in every]
    return "{\n" + ",\n".join(lines) + ',\n  "rows": [\n' + ",\n".join(rows) + "\n  ]\n}\n"


def comparison_csv(comparison: Comparison) -> str:
    """A comparison as CSV: a header and a line a row, with the fields of the JSON and `why`."""
    records = [as_record(row, comparison) for row in comparison.rows]
    names = dict.fromkeys(name for record in records for name in record)
    text = io.StringIO()
    writer = csv.DictWriter(text, sorted(names, key="why".__eq__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_record(row: Row, comparison: Comparison) -> dict[str, object]:
    """A row with the figures that follow from it, for JSON and CSV."""
    record: dict[str, object] = asdict(row)
    if isinstance(row, Outcome):
        record["step_bytes"] = row.step_bytes
        for name, batch_size in EPOCHS.items():
            record[name] = row.epoch_bytes(comparison.dataset_size, batch_size)
    elif isinstance(row, Failed):
        record["failed"] = True
    return record


def load_comparison(path: Path | str) -> Comparison:
    """Read a file of `save_comparison`.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; says which line.
    """
    head = read_json(path, "a comparison of hgpart compare --json", FORMAT)
    count = head.whole("row_count", 0, 10**6)
    asked = head.whole("asked_count", 0, count) if "asked_count" in head.fields else count
    rows = tuple(_row(record) for record in head.objects("rows", count))
    per_element = head.fields.get("bytes_per_element")
    epss = head.items("epss")
    if not epss or not all(type(eps) in (int, float) and 0 <= eps <= LARGEST for eps in epss):
        raise head.wrong("epss", "one number >= 0 or more")
    return Comparison(
        model=head.string("model"),
        input_shape=tuple(head.wholes("input_shape")),
        fingerprint=head.string("fingerprint"),
        batch_size=head.whole("batch_size", 1, LARGEST_FACTOR),
        bytes_per_element=(
            None if per_element is None else head.whole("bytes_per_element", 1, LARGEST_FACTOR)
        ),
        work_source=head.string("work_source"),
        seed=head.whole("seed"),
        dataset_size=head.whole("dataset_size", 1, LARGEST),
        rows=rows[:asked],
        besides=rows[asked:],
        epss=tuple(map(float, epss)),
        work_digest=head.string("work_digest"),
        linear=head.string("linear"),
        input_vertex=head.flag("input_vertex"),
        output_vertex=head.flag("output_vertex"),
        slices=(
            None if head.fields.get("slices") is None else head.whole("slices", 1, LARGEST_FACTOR)
        ),
    )


def _row(record: JsonObject) -> Row:
    def amount(name: str) -> float:
        value = record.number(name)
        if not 0 <= value <= LARGEST:
            raise record.wrong(name, f"a number from 0 to {LARGEST}")
        return value

    eps = None if record.fields.get("eps") is None else amount("eps")
    name, k = record.string("strategy"), record.whole("k", 1, LARGEST)
    strategy = FORMER.get(name, name)
    if "failed" in record.fields:
        return Failed(strategy, k, eps, record.string("why"))
    if "why" in record.fields:
        return NotApplicable(strategy, k, eps, record.string("why"))
    return Outcome(
        strategy=strategy,
        k=k,
        eps=eps,
        batch_size=record.whole("batch_size", 1, LARGEST_FACTOR),
        max_over_average=amount("max_over_average"),
        imbalance=amount("imbalance"),
        forward_bytes=record.whole("forward_bytes"),
        bytes_per_sample=amount("bytes_per_sample"),
        bytes_per_step=record.whole("bytes_per_step"),
        largest_device_bytes=record.whole("largest_device_bytes"),
        messages=record.whole("messages"),
        largest_parameters=record.whole("largest_parameters"),
        largest_activation_bytes=record.whole("largest_activation_bytes"),
        seconds=amount("seconds"),
        smallest_batch=record.whole("smallest_batch", 1, LARGEST),
        step_seconds=(
            None if record.fields.get("step_seconds") is None else amount("step_seconds")
        ),
    )


def rows_done(path: Path | str, comparison: Comparison) -> dict[Cell, Row]:
    """The rows of a file that `comparison` (as yet without rows) can go on from, failed ones too.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it compares another model, or with other settings.
    """
    if not Path(path).exists():
        return {}
    before = load_comparison(path)
    for name in SETTINGS:
        if getattr(before, name) != getattr(comparison, name):
            measured = (
                ""
                if name != "work_digest"
                else " (pass measured work back, see --work profile,save=FILE)"
            )
            raise PlanError(
                f"{path} can't be resumed: its {name} is {getattr(before, name)}, this "
                f"comparison's {getattr(comparison, name)}{measured}"
            )
    return {cell_of(row): row for row in (*before.rows, *before.besides)}
