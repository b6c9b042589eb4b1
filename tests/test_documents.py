"""What the documents show is what runs; what they refer to is there."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from importlib.metadata import metadata
from pathlib import Path
from types import ModuleType

import pytest
import typer
from documents import NOT_EXECUTED, Session, blocks, commands, program
from toy_times import in_proportion

import hgpart
from hgpart.cli import app
from hgpart.tracing.traced_model import example_inputs

ROOT = Path(__file__).parent.parent
EXECUTED = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
FIGURES = sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("benchmarks/*.md"))
DOCUMENTS = [*EXECUTED, "CHANGELOG.md", "CONTRIBUTING.md", *FIGURES]
COMMANDS = typer.main.get_command(app).commands
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}


def of_page(name: str, *, full: bool) -> bool:
    """Whether a page has blocks to run that take long, or such that do not."""
    runnable = ("console", "python", "sh")
    return any(block.is_full == full for block in blocks(TEXTS[name]) if block.language in runnable)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a folder to import from, 200 columns, and no sign of torchrun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


SLOW = ("docs/guides/python.md", "docs/guides/run-and-train.md")
QUICK = [
    pytest.param(page, marks=pytest.mark.full) if page in SLOW else page
    for page in EXECUTED
    if of_page(page, full=False)
]


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_blocks_do_what_the_page_shows(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    session = Session(name, capfd)
    for block in blocks(TEXTS[name]):
        if not block.is_full:
            session.run(block)


LONG = [page for page in EXECUTED if of_page(page, full=True)]
GUIDES = [page for page in LONG if page.startswith("docs/guides/")]


@pytest.mark.full
@pytest.mark.long
class TestAllBlocksOfGuides:
    """These and the others are classes, so that two workers share them."""

    @pytest.mark.parametrize("name", GUIDES)
    def test_do_what_the_page_shows(
        self, name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if name == "docs/guides/compare.md":  # which columns are shown depends on the width
            monkeypatch.setenv("COLUMNS", "170")
        run_all(name, capfd)


@pytest.mark.full
@pytest.mark.long
class TestAllBlocksOfOthers:
    @pytest.mark.parametrize("name", [page for page in LONG if page not in GUIDES])
    def test_do_what_the_page_shows(self, name: str, capfd: pytest.CaptureFixture[str]) -> None:
        run_all(name, capfd)


def run_all(name: str, capture: pytest.CaptureFixture[str]) -> None:
    make_photos(Path("photos"))
    make_times(Path("known.json"))
    session = Session(name, capture)
    for block in blocks(TEXTS[name]):
        session.run(block)


def make_photos(folder: Path) -> None:
    """Make a reader's own images: a folder for each class."""
    image = pytest.importorskip(
        "PIL.Image", reason="Pillow is not installed: pip install '.[train]'"
    )
    for shade, kind in enumerate(("cats", "dogs")):
        (folder / kind).mkdir(parents=True)
        for number in range(10):
            image.new("L", (8, 8), 100 * shade + number).save(folder / kind / f"{number}.png")


def make_times(file: Path) -> None:
    """Make times of lenet5's layers for stand-ins: figures decide what these print."""
    model, shape = hgpart.load_model("lenet5", device="meta")
    graph = hgpart.channel_graph(hgpart.trace(model, example_inputs(model, shape)))
    hgpart.files.save_layer_times(in_proportion(graph), graph, file)


def test_what_is_not_executed_is_listed() -> None:
    """The list has nothing too much; text that no command prints is a drawing, or a difference."""
    listed = [(name, block) for name in EXECUTED for block in blocks(TEXTS[name])]
    typed = [command for _, block in listed for command, _ in commands(block)]
    assert [
        start for start in NOT_EXECUTED if not any(line.startswith(start) for line in typed)
    ] == []
    drawings = [
        name
        for name, block in listed
        if block.language not in ("console", "diff", "python", "sh") and not block.title
    ]
    assert drawings == ["docs/guides/architecture.md"]


@pytest.mark.full
@pytest.mark.long
def test_python_is_typed_strictly(tmp_path: Path) -> None:
    """A session may give a name a new type, and Tensor.backward has no types."""
    api = pytest.importorskip("mypy.api", reason="mypy is not installed: pip install '.[lint]'")
    for number, name in enumerate(EXECUTED):
        (tmp_path / f"page_{number}.py").write_text(f"# {name}{program(TEXTS[name])}\n")
        for block in blocks(TEXTS[name]):
            if block.language == "python" and block.title:
                (tmp_path / block.title).write_text(block.text)
    options = ["--strict", "--allow-redefinition", "--untyped-calls-exclude=torch"]
    said, errors, status = api.run(["--config-file=", *options, str(tmp_path)])
    assert status == 0, said + errors


@pytest.mark.parametrize("name", EXECUTED)
def test_commands_can_be_read_as_they_are_typed(name: str) -> None:
    """Before anything is replaced in them."""
    for line in (typed for block in blocks(TEXTS[name]) for typed, _ in commands(block)):
        if match := re.match(r"(?:.* -m )?hgpart ([a-z-]+) (.*)", line):
            typed = shlex.split(match[2], comments=True)
            COMMANDS[match[1]].make_context(match[1], typed)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_in_sentences_have_these_options(name: str) -> None:
    for command, options in re.findall(r"`hgpart ([a-z-]+)( [^`]*)`", TEXTS[name]):
        known = {word for option in COMMANDS[command].params for word in option.opts}
        assert {*re.findall(r"(?<=\s)-[-a-z]+", options)} <= known, (command, options)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_extras_that_are_to_be_installed_exist(name: str) -> None:
    named = re.findall(r"'\.\[([\w,]+)\]'", TEXTS[name])
    assert {*",".join(named).split(",")} - {""} <= {*metadata("hgpart").get_all("Provides-Extra")}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files_and_no_placeholder_is_left(name: str) -> None:
    assert re.findall(r"@[A-Z_0-9]+@", TEXTS[name]) == []
    for link in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", TEXTS[name]):
        assert (ROOT / name).parent.joinpath(link).exists(), link
    for picture in re.findall(r'<img src="([^"]+)"', TEXTS[name]):
        assert (ROOT / name).parent.joinpath(picture).stat().st_size < 150_000, picture
    for module in re.findall(r"`(\w+\.py)`", TEXTS[name]) if name in EXECUTED else ():
        written = {block.title for block in blocks(TEXTS[name])}
        written |= {example.name for example in (ROOT / "examples").iterdir()}
        assert module in written or list((ROOT / "src").rglob(module)), module


def test_messages_that_troubleshooting_explains_are_those_of_hgpart() -> None:
    """Three consecutive words of each stand in a string of the code."""
    page = TEXTS["docs/guides/troubleshooting.md"]
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    text = "\n".join(
        node.value
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    for row in rows:
        words = row.strip("`").split()
        runs = [" ".join(words[first : first + 3]) for first in range(len(words) - 2)]
        assert any(run in text for run in runs), row


def test_the_reference_has_every_public_name_and_every_command() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None and spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    listed = re.findall(r"^::: hgpart\.([\w.]+)$", reference.names(), re.MULTILINE)
    modules = {name for name in hgpart.__all__ if isinstance(getattr(hgpart, name), ModuleType)}
    inner = {f"{name}.{own}" for name in modules for own in getattr(hgpart, name).__all__}
    public = {*hgpart.__all__, *inner, *reference.RECORDS} - modules
    assert sorted(listed) == sorted(public)
    assert len(hgpart.__all__) <= 71
    described = re.findall(r"^## `hgpart ([\w-]+)`$", reference.commands(), re.MULTILINE)
    assert sorted(described) == sorted(COMMANDS)
