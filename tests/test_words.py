"""Docstrings and local names are plain English."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hgpart

ROOT = Path(hgpart.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
SECTION = re.compile(r"^(Parameters|Attributes|Returns|Raises)\n-+\n", re.MULTILINE)
# A first word that makes an entry the second half of a sentence: "Of the file.", "That there are."
FRAGMENT = re.compile(r"(As|By|Of|That|Which|Who|Whose)\b")


@cache
def trees() -> dict[str, ast.Module]:
    """Files, parsed."""
    return {
        str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in FILES
    }


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Files, and all that stands in them."""
    return [(path, node) for path, tree in trees().items() for node in ast.walk(tree)]


@cache
def docstrings() -> list[tuple[str, str]]:
    """Files and names of what has a docstring, with the docstring."""
    return [
        (f"{path}: {getattr(node, 'name', 'module')}", text)
        for path, node in nodes()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (text := ast.get_docstring(node))
    ]


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Names of a docstring's entries, with their descriptions; sections end at an empty line."""
    for section in SECTION.finditer(text):
        body = text[section.end() :].partition("\n\n")[0]
        for entry in re.split(r"\n(?=\S)", body):
            name, _, description = entry.partition("\n")
            yield name, " ".join(description.split())


def test_no_docstring_begins_with_the_second_half_of_a_sentence() -> None:
    assert [name for name, text in docstrings() if FRAGMENT.match(text)] == []


def test_an_entry_of_a_docstring_is_a_noun_phrase_or_a_sentence() -> None:
    fragments = [
        f"{place}: {name}"
        for place, text in docstrings()
        for name, description in entries(text)
        if FRAGMENT.match(description) or not (description or "shape" in name)
    ]
    assert fragments == []


def test_local_names_say_what_a_thing_is() -> None:
    stored = Counter(
        f"{path}: {node.id}"
        for path, node in nodes()
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in ("each", "found", "many", "one")
    )
    assert stored == {}


def test_no_items_are_joined_to_save_a_line() -> None:
    joined = [
        f"{path}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)
    ]
    assert joined == []


def test_a_class_name_is_used_once() -> None:
    names = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
