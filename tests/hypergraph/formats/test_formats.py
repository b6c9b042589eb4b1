from __future__ import annotations

import io
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import hypergraphs

from hgpart.errors import FormatError, HypergraphError, OutputError
from hgpart.hypergraph.formats import (
    body,
    integers,
    parts,
    read_hmetis,
    read_partition,
    read_patoh,
    write_hmetis,
    write_partition,
    write_patoh,
)
from hgpart.hypergraph.hypergraph import Hypergraph

GOLDEN = Path(__file__).parents[2] / "golden"
READERS = {"patoh": read_patoh, "hmetis": read_hmetis}
WRITERS = {"patoh": write_patoh, "hmetis": write_hmetis}
MOST = 2**63 - 1

# Chunks so small that they end everywhere, and the real ones.
all_chunks = pytest.mark.parametrize("chunk", [32, integers.CHUNK])
both_formats = pytest.mark.parametrize("name", ["patoh", "hmetis"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that every example of a test overwrites."""
    return tmp_path_factory.mktemp("formats") / "file"


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (integers, body, parts):
            patch.setattr(module, "CHUNK", size)
        yield


def make(
    nets: list[list[int]], costs: list[int] | None = None, weights: list[int] | int = 0
) -> Hypergraph:
    """A hypergraph with these pins; unit costs and so many vertices of unit weight if not given."""
    return Hypergraph(
        weights=np.array(weights if isinstance(weights, list) else [1] * weights, dtype=np.int64),
        costs=np.array([1] * len(nets) if costs is None else costs, dtype=np.int64),
        pointers=np.cumsum([0, *map(len, nets)], dtype=np.int64),
        pins=np.array([pin for net in nets for pin in net], dtype=np.int32),
        gathers=np.zeros(len(nets), dtype=np.bool_),
        net_layers=np.zeros(len(nets), dtype=np.int32),
    )


def figure_3_5() -> Hypergraph:
    """The thesis's CNN: 4, 3 and 2 filters, three layers of one vertex; costs grow by layer."""
    nets, costs, weights, first = [[0, 1, 2, 3, 4]], [1], [1], 1
    layers = [4, 3, 2, 1, 1, 1]
    for layer, size in enumerate(layers):
        weights += [layer + 2] * size
        if layer + 1 < len(layers):
            readers = list(range(first + size, first + size + layers[layer + 1]))
            nets += [[producer, *readers] for producer in range(first, first + size)]
            costs += [layer + 2] * size
        first += size
    return make(nets, costs, weights)


def net_pins(hypergraph: Hypergraph) -> list[list[int]]:
    bounds = hypergraph.pointers.tolist()
    return [hypergraph.pins[a:b].tolist() for a, b in pairwise(bounds)]


def assert_same(read: Hypergraph, written: Hypergraph) -> None:
    """Equal in all that a file holds, with the types and defaults that are promised."""
    for field, dtype in [
        ("weights", np.int64),
        ("costs", np.int64),
        ("pointers", np.int64),
        ("pins", np.int32),
    ]:
        array = getattr(read, field)
        assert array.dtype == dtype, field
        assert array.tolist() == getattr(written, field).tolist(), field
    assert read.gathers.dtype == np.bool_
    assert read.gathers.tolist() == [False] * written.nets
    assert read.net_layers.dtype == np.int32
    assert read.net_layers.tolist() == [0] * written.nets


def lines_of(
    name: str, hypergraph: Hypergraph, base: int = 0, costs: bool = True, weights: bool = True
) -> tuple[list[list[int]], list[int]]:
    """The numbers of a file, written down from the format's definition: lines, then weights."""
    nets = [
        [cost] * costs + [pin + base for pin in net]
        for cost, net in zip(hypergraph.costs.tolist(), net_pins(hypergraph), strict=True)
    ]
    if name == "patoh":
        scheme = weights + 2 * costs
        header = [base, hypergraph.vertices, hypergraph.nets, len(hypergraph.pins), scheme]
        header = header[: 4 if scheme == 0 else 5]
    else:
        fmt = costs + 10 * weights
        header = [hypergraph.nets, hypergraph.vertices, fmt][: 2 if fmt == 0 else 3]
    return [header, *nets], hypergraph.weights.tolist() if weights else []


def text_of_lines(lines: list[list[int]]) -> str:
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


# --- writing ---


@both_formats
def test_writes_the_thesis_figure_3_5(name: str, tmp_path: Path) -> None:
    WRITERS[name](figure_3_5(), tmp_path / "file")
    golden = GOLDEN / f"eserol_figure_3_5.{name}"
    assert (tmp_path / "file").read_bytes() == golden.read_bytes()


@both_formats
def test_reads_the_thesis_figure_3_5(name: str) -> None:
    assert_same(READERS[name](GOLDEN / f"eserol_figure_3_5.{name}"), figure_3_5())


@all_chunks
@both_formats
@given(hypergraph=hypergraphs(max_weight=MOST // 12))
def test_writes_what_the_format_says(name: str, chunk: int, hypergraph: Hypergraph) -> None:
    file = io.StringIO()
    with chunks_of(chunk):
        WRITERS[name](hypergraph, file)
    lines, weights = lines_of(name, hypergraph, base=0 if name == "patoh" else 1)
    if name == "patoh":
        assert file.getvalue() == text_of_lines([*lines, weights])
    else:
        assert file.getvalue() == text_of_lines([*lines, *([weight] for weight in weights)])


@all_chunks
@both_formats
@given(hypergraph=hypergraphs(max_weight=MOST // 12))
def test_reads_what_it_wrote(name: str, chunk: int, path: Path, hypergraph: Hypergraph) -> None:
    with chunks_of(chunk):
        WRITERS[name](hypergraph, str(path))
        assert_same(READERS[name](path), hypergraph)


@all_chunks
@both_formats
def test_numbers_of_all_lengths(name: str, chunk: int, path: Path) -> None:
    costs = [0, *(10**digits for digits in range(19)), *(10**digits - 1 for digits in range(18))]
    written = make([[0, 2, 1]] * len(costs), costs, [MOST - 1, 0, 1])
    with chunks_of(chunk):
        WRITERS[name](written, path)
        assert_same(READERS[name](path), written)


@both_formats
def test_a_large_hypergraph_goes_through_many_chunks(name: str, path: Path) -> None:
    rng = np.random.default_rng(2)
    nets = [rng.permutation(3000)[:size].tolist() for size in rng.integers(1, 3000, 500)]
    written = make(
        nets, rng.integers(0, 10**12, 500).tolist(), rng.integers(0, 10**9, 3000).tolist()
    )
    assert len(written.pins) > 2 * integers.CHUNK
    WRITERS[name](written, path)
    assert_same(READERS[name](path), written)


@both_formats
@pytest.mark.parametrize(
    ("hypergraph", "message"),
    [
        (make([[0], [], [1]], weights=2), "net 1 has no pins"),
        (make([[0]], costs=[-4], weights=1), "found cost -4"),
        (make([[0]], weights=[-5]), "found weight -5"),
    ],
)
def test_refuses_to_write_what_no_file_can_hold(
    name: str, hypergraph: Hypergraph, message: str, tmp_path: Path
) -> None:
    with pytest.raises(HypergraphError, match=message):
        WRITERS[name](hypergraph, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@both_formats
def test_an_interrupted_write_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(*arguments: object) -> bytes:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return b"1"

    monkeypatch.setattr(body, "text_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        WRITERS[name](figure_3_5(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@both_formats
def test_an_unwritable_path_is_an_output_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        WRITERS[name](figure_3_5(), tmp_path / "missing" / "file")


# --- reading ---

noise = st.sampled_from(
    ["", "\n", " \t\n", "% a comment 1 2 3\n", "  %" + "long " * 20 + "\n", "\r\n"]
)
blank = st.sampled_from([" ", "  ", "\t"])
line_end = st.sampled_from(["\n", "\r\n", " \n", " % a comment\n"])


@st.composite
def noisy_files(draw: st.DrawFn, name: str) -> tuple[str, Hypergraph]:
    """A file as other tools may write it, and the hypergraph that it holds."""
    hypergraph = draw(hypergraphs())
    costs, weights = draw(st.booleans()), draw(st.booleans())
    base = draw(st.integers(0, 1)) if name == "patoh" else 1
    lines, values = lines_of(name, hypergraph, base, costs, weights)
    while values:  # PaToH weights on any number of lines
        size = draw(st.integers(1, len(values))) if name == "patoh" else 1
        lines, values = [*lines, values[:size]], values[size:]
    text = draw(noise)
    for line in lines:
        text += draw(blank).join(map(str, line)) + draw(line_end) + draw(noise)
    if draw(st.booleans()):
        text = text.rstrip()
    held = make(
        net_pins(hypergraph),
        hypergraph.costs.tolist() if costs else None,
        hypergraph.weights.tolist() if weights else hypergraph.vertices,
    )
    return text, held


@all_chunks
@both_formats
@given(data=st.data())
def test_reads_all_schemes_with_comments_and_blanks(
    name: str, chunk: int, path: Path, data: st.DataObject
) -> None:
    text, held = data.draw(noisy_files(name))
    path.write_bytes(text.encode())
    with chunks_of(chunk):
        assert_same(READERS[name](path), held)


@pytest.mark.parametrize("header", ["0 3 1 2", "0 3 1 2 0", "0 3 1 2 0 1"])
def test_patoh_scheme_is_0_when_omitted(path: Path, header: str) -> None:
    path.write_text(f"{header}\n2 0\n")
    assert_same(read_patoh(path), make([[2, 0]], weights=3))


@pytest.mark.parametrize("header", ["1 3", "1 3 0", "1 3 00"])
def test_hmetis_fmt_is_0_when_omitted(path: Path, header: str) -> None:
    path.write_text(f"{header}\n3 1\n")
    assert_same(read_hmetis(path), make([[2, 0]], weights=3))


@both_formats
def test_no_nets(name: str, path: Path) -> None:
    path.write_text({"patoh": "0 2 0 0 1\n7 8\n", "hmetis": "0 2 10\n7\n8\n"}[name])
    assert_same(READERS[name](path), make([], weights=[7, 8]))


MALFORMED = {
    "patoh": [
        ("", 1, "a file without a number"),
        ("\n% only this\n", 1, "a file without a number"),
        ("0 2 1\n", 1, "'0 2 1'"),
        ("2 2 1 2\n1 2\n", 1, "'2 2 1 2'"),
        ("0 2 1 2 4\n0 1\n", 1, "'0 2 1 2 4'"),
        ("0 2 1 2 1 2\n0 1\n5 5 5 5\n", 1, "'0 2 1 2 1 2'"),
        ("0 2 1 2 1 1 1\n0 1\n5 5\n", 1, "'0 2 1 2 1 1 1'"),
        ("0 2147483648 1 1\n0\n", 1, "2147483648 vertices"),
        ("0 2147483647 1 1\n0\n", 1, "2147483647 vertices without weights"),
        ("\n0 2 1 2\n\n0 2\n", 4, "pin '2'"),
        ("1 2 1 2\n% comment\n0 1\n", 3, "pin '0'"),
        ("0 2 1 2\n0 -1\n", 2, "'-1'"),
        ("0 2 1 2\n0 1.0\n", 2, "'1.0'"),
        ("0 2 1 2\n0 1e3\n", 2, "'1e3'"),
        ("0 2 1 2\n0 +1\n", 2, "'+1'"),
        ("0 2 1 2\n0 one\n", 2, "'one'"),
        ("0 2 1 2\n0 \u0661\n", 2, r"'\\xd9\\xa1'"),
        ("0 2 1 2\n0 1_0\n", 2, "'1_0'"),
        ("0 2 1 2\n0 1\f\n", 2, r"'1\x0c'"),
        ("0 2 1 2\n0 nan" + "n" * 99 + "\n", 2, "'nan" + "n" * 30 + "...'"),
        ("0 2 1 3\n0 1 0\n", 2, "pin '0' twice"),
        ("1 2 2 4\n1 2\n2 2\n", 3, "pin '2' twice"),
        ("0 2 1 3\n0 1\n", 1, "3 pins declared, 2 in the nets"),
        ("0 2 1 1\n0 1\n", 1, "1 pins declared, 2 in the nets"),
        ("0 2 2 2\n0 1\n", 2, "the end of the file after 1 of 2 nets"),
        ("0 2 1000000000000000000 2\n0 1\n", 2, "the end of the file after 1 of 1000000000000"),
        ("0 2 1 2\n0 1\n\n5\n", 4, "'5' after the last of 1 nets"),
        ("0 2 1 2 2\n3 0 1\n5 5\n", 3, "'5' after the last of 1 nets"),
        ("0 2 2 2 2\n3 0 1\n3\n", 3, "a net without pins"),
        ("0 2 1 2 1\n0 1\n5\n", 3, "the end of the file after 1 of 2 weights"),
        ("0 2 1 2 1\n0 1\n", 2, "the end of the file after 0 of 2 weights"),
        ("0 2 1 2 1\n0 1\n5 5\n6 7\n", 4, "'6' after the last of 2 weights"),
        ("0 2 1 2 1\n0 1\n5 -5\n", 3, "'-5'"),
        ("0 2 1 2 1\n0 1\n9223372036854775808 1\n", 3, "'9223372036854775808'"),
        ("0 2 1 2 1\n0 1\n1 99999999999999999999\n", 3, "'99999999999999999999'"),
        ("0 2 1 2 1\n0 1\n9223372036854775807\n1\n", 4, "vertex weights whose sum exceeds"),
        ("0 1 2 2 2\n9223372036854775807 0\n1 0\n", 3, "net costs whose sum exceeds"),
        ("1" * 5000, 1, "'" + "1" * 33 + "...'"),
    ],
    "hmetis": [
        ("", 1, "a file without a number"),
        ("1\n", 1, "'1'"),
        ("1 2 2\n1 2\n", 1, "'1 2 2'"),
        ("1 2 100\n1 2\n", 1, "'1 2 100'"),
        ("1 2 11 1\n1 2\n", 1, "'1 2 11 1'"),
        ("1 2\n0 1\n", 2, "pin '0'"),
        ("1 2\n1 3\n", 2, "pin '3'"),
        ("1 2\n1 2 1\n", 2, "pin '1' twice"),
        ("2 2\n1 2\n", 2, "the end of the file after 1 of 2 nets"),
        ("1 2\n1 2\n2\n", 3, "'2' after the last of 1 nets"),
        ("1 2 1\n4\n", 2, "a net without pins"),
        ("1 2 10\n1 2\n5\n", 3, "the end of the file after 1 of 2 weights"),
        ("1 2 10\n1 2\n5 6\n", 3, "more than one vertex weight"),
        ("1 2 10\n1 2\n5\n6\n7\n", 5, "'7' after the last of 2 weights"),
        ("1 2 10\n1 2\n-5\n6\n", 3, "'-5'"),
        ("1 2 10\n1 2\n9223372036854775807\n6\n", 4, "vertex weights whose sum exceeds"),
        ("1000000000000000000 1000000000\n1 2\n", 2, "the end of the file after 1 of 100000"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "line", "found"),
    [(name, *case) for name, cases in MALFORMED.items() for case in cases],
)
def test_a_malformed_file_is_one_line_that_names_the_line(
    name: str, text: str, line: int, found: str, path: Path
) -> None:
    path.write_bytes(text.encode())
    with pytest.raises(FormatError) as raised:
        READERS[name](path)
    message = str(raised.value)
    assert message.startswith(f"{path}, line {line}: found ")
    assert found in message
    assert "; accepted: " in message
    assert "\n" not in message


@both_formats
def test_every_line_that_is_cut_off_is_missed(name: str, path: Path) -> None:
    lines = (GOLDEN / f"eserol_figure_3_5.{name}").read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_bytes(b"".join(lines[:count]))
        with pytest.raises(FormatError, match=rf"line {max(count, 1)}: found (the end|a file w)"):
            READERS[name](path)


@both_formats
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(FormatError, match=f"^can't read {re.escape(str(missing))}: "):
            READERS[name](missing)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("patoh", f"0 {10**9} {10**18} {10**18} 3\n"),
        ("patoh", f"0 {10**9} 0 0 3\n"),
        ("patoh", f"0 {10**9} 0 0\n"),
        ("hmetis", f"{10**18} {10**9} 11\n1 1\n"),
        ("hmetis", f"0 {10**9}\n"),
    ],
)
def test_a_header_can_not_ask_for_memory(name: str, text: str, path: Path) -> None:
    path.write_text(text)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            READERS[name](path)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@st.composite
def mutated_files(draw: st.DrawFn, name: str) -> bytes:
    """A valid file with some bytes deleted, inserted or cut off."""
    text = draw(noisy_files(name))[0].encode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 8)))
        piece = draw(st.sampled_from([b"", b" ", b"\n", b"0", b"1", b"-", b"99", b"%", b"\xff"]))
        text = text[:start] + piece + text[end:]
    return text if draw(st.booleans()) else text[: draw(st.integers(0, len(text)))]


def assert_valid(hypergraph: Hypergraph) -> None:
    assert min(hypergraph.weights.tolist(), default=0) >= 0
    assert min(hypergraph.costs.tolist(), default=0) >= 0
    assert sum(hypergraph.weights.tolist()) <= MOST
    assert sum(hypergraph.costs.tolist()) <= MOST
    nets = net_pins(hypergraph)
    assert len(nets) == hypergraph.nets == len(hypergraph.gathers) == len(hypergraph.net_layers)
    for net in nets:
        assert len(set(net)) == len(net) > 0
        assert min(net) >= 0
        assert max(net) < hypergraph.vertices


def read_or_refuse(read: Callable[[Path], Hypergraph], path: Path, text: bytes) -> None:
    path.write_bytes(text)
    try:
        hypergraph = read(path)
    except FormatError as error:
        assert "\n" not in str(error).replace(str(path), "")
    else:
        assert_valid(hypergraph)


@all_chunks
@both_formats
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused(
    name: str, chunk: int, path: Path, data: st.DataObject
) -> None:
    with chunks_of(chunk):
        read_or_refuse(READERS[name], path, data.draw(mutated_files(name)))


@all_chunks
@both_formats
@given(text=st.binary(max_size=200) | st.text("0123 \n%-.x", max_size=200).map(str.encode))
@example(text=b"\x80" * 100)
@example(text=b"%" * 100)
def test_any_bytes_are_read_or_refused(name: str, chunk: int, path: Path, text: bytes) -> None:
    with chunks_of(chunk):
        read_or_refuse(READERS[name], path, text)


# --- partition files ---


@all_chunks
@given(assigned=st.lists(st.integers(0, 2**31 - 1)))
def test_partitions_are_one_part_a_line(chunk: int, path: Path, assigned: list[int]) -> None:
    with chunks_of(chunk):
        write_partition(np.array(assigned, dtype=np.int32), path)
        read = read_partition(path, vertices=len(assigned), k=max(assigned, default=0) + 1)
    assert path.read_text() == "".join(f"{part}\n" for part in assigned)
    assert read.dtype == np.int32
    assert read.tolist() == assigned


def test_reads_a_partition_with_blanks_between(path: Path) -> None:
    path.write_text("% PaToH\n0 1 2\t1\r\n\n3 % the last\n")
    assert read_partition(path).tolist() == [0, 1, 2, 1, 3]
    assert read_partition(path, vertices=5, k=4).tolist() == [0, 1, 2, 1, 3]


@pytest.mark.parametrize(
    ("text", "line", "found", "accepted"),
    [
        ("0\n1\n", 2, "the end of the file after 2 of 3 parts", "3 parts, one for each vertex"),
        ("", 1, "the end of the file after 0 of 3 parts", "3 parts, one for each vertex"),
        ("0\n1\n\n1\n0\n", 5, "'0' after the last of 3 parts", "the end of the file"),
        ("0\n1 4\n", 2, "part '4'", "parts from 0 to 3"),
        ("0\n1\n-1\n", 3, "'-1'", f"whole numbers from 0 to {MOST}"),
        ("0\n1\n1.5\n", 3, "'1.5'", f"whole numbers from 0 to {MOST}"),
        ("0\n\x00\n1\n", 2, r"'\x00'", f"whole numbers from 0 to {MOST}"),
    ],
)
def test_a_malformed_partition_is_one_line_that_names_the_line(
    text: str, line: int, found: str, accepted: str, path: Path
) -> None:
    path.write_text(text)
    with pytest.raises(FormatError) as raised:
        read_partition(path, vertices=3, k=4)
    assert str(raised.value) == f"{path}, line {line}: found {found}; accepted: {accepted}"


def test_parts_fit_32_bits_when_k_is_not_known(path: Path) -> None:
    path.write_text(f"{2**31 - 1}\n{2**31}\n")
    with pytest.raises(FormatError, match=r"line 2: found part '2147483648'"):
        read_partition(path)


def test_a_negative_part_is_not_written(path: Path) -> None:
    with pytest.raises(HypergraphError, match="found part -1"):
        write_partition(np.array([0, -1], dtype=np.int32), path)


@all_chunks
@given(text=st.binary(max_size=100) | st.text("0123 \n%-", max_size=100).map(str.encode))
def test_any_bytes_are_a_partition_or_refused(chunk: int, path: Path, text: bytes) -> None:
    path.write_bytes(text)
    try:
        with chunks_of(chunk):
            read = read_partition(path, k=4)
    except FormatError as error:
        assert "\n" not in str(error).replace(str(path), "")
    else:
        assert set(read.tolist()) <= {0, 1, 2, 3}
