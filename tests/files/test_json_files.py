"""Fields of JSON files: what is accepted, and on which line what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hgpart.errors import FormatError
from hgpart.files.json_files import JsonObject, quoted, read_json

TEXT = """{
  "format": "test 1",
  "name": "a list of \\"items\\": [",
  "on": true,
  "count": 7,
  "share": 0.5,
  "numbers": [1, 2, 3],
  "nothing": null,
  "items": [
    {"label": "x", "size": 1}, {"label": "y",
      "size": -2},

    {"label": {"size": []}, "size": 3}
  ],
  "last": 1
}
"""


@pytest.fixture
def head(tmp_path: Path) -> JsonObject:
    path = tmp_path / "file.json"
    path.write_text(TEXT)
    return read_json(path, "a test", "test 2", "test 1")


def test_fields_are_read(head: JsonObject) -> None:
    assert head.string("name") == 'a list of "items": ['
    assert head.flag("on") is True
    assert head.whole("count") == 7
    assert head.number("share") == 0.5
    assert head.number("count") == 7.0
    assert type(head.number("count")) is float
    assert head.items("numbers") == [1, 2, 3]
    assert head.wholes("numbers") == [1, 2, 3]
    assert head.numbers("numbers") == [1.0, 2.0, 3.0]
    assert head.objects("items", 3)[2].object("label").items("size") == []
    assert [item.fields["size"] for item in head.objects("items", 3)] == [1, -2, 3]


@pytest.mark.parametrize(
    ("read", "line", "message"),
    [
        (lambda head: head.string("count"), 5, 'found "count": 7; accepted: "count": a text'),
        (lambda head: head.string("no"), 1, 'found no "no"; accepted: "no": a text'),
        (lambda head: head.flag("count"), 5, "true or false"),
        (lambda head: head.flag("nothing"), 8, 'found "nothing": null'),
        (lambda head: head.whole("on"), 4, "a whole number from 0 to 9223372036854775807"),
        (lambda head: head.whole("share"), 6, 'found "share": 0.5'),
        (lambda head: head.whole("count", 8, 9), 5, "a whole number from 8 to 9"),
        (lambda head: head.whole("count", 1, 6), 5, "a whole number from 1 to 6"),
        (lambda head: head.number("on"), 4, "a number"),
        (lambda head: head.items("count"), 5, "a list"),
        (lambda head: head.items("numbers", 2), 7, 'found "numbers": a list of 3; accepted: '),
        (
            lambda head: head.wholes("numbers", 2),
            7,
            'found "numbers[2]": 3; accepted: "numbers": w',
        ),
        (lambda head: head.wholes("items"), 9, "whole numbers"),
        (lambda head: head.numbers("items"), 9, "finite numbers"),
        (lambda head: head.object("count"), 5, 'found "count": 7; accepted: "count": an object'),
        (
            lambda head: head.objects("items", 3)[2].object("label").whole("size"),
            13,
            '"items[2].label.size": a list of 0',
        ),
        (lambda head: head.objects("numbers", 3), 7, "a list of 3 objects"),
        (lambda head: head.objects("items", 2), 9, "a list of 2"),
        (lambda head: head.objects("items", 3)[0].string("size"), 10, 'found "items[0].size": 1'),
        (lambda head: head.objects("items", 3)[1].whole("size"), 11, 'found "items[1].size": -2'),
        (
            lambda head: head.objects("items", 3)[1].whole("weight"),
            10,
            'found no "items[1].weight"',
        ),
        (lambda head: head.objects("items", 3)[2].string("label"), 13, "an object of 1"),
        (lambda head: head.objects("items", 3)[2].string("last"), 13, 'no "items[2].last"'),
    ],
)
def test_a_wrong_field_is_quoted_with_its_line(
    head: JsonObject, read: Callable[[JsonObject], Any], line: int, message: str
) -> None:
    with pytest.raises(FormatError) as raised:
        read(head)
    assert str(raised.value).startswith(f"{head.path}, line {line}: found ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", [r"\ud800", r"a\udfffb", r"\udc00\ud800"])
def test_a_text_is_of_whole_characters(tmp_path: Path, text: str) -> None:
    """Half a character can be read from JSON, and not be written to anywhere else."""
    path = tmp_path / "file.json"
    path.write_text(f'{{"format": "test 1",\n"name": "{text}", "whole": "\\ud83d\\ude00"}}')
    head = read_json(path, "a test", "test 1")
    with pytest.raises(FormatError, match=r"line 2: found \"name\": .* a text of whole characters"):
        head.string("name")
    assert head.string("whole") == "😀"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
def test_a_number_is_finite(tmp_path: Path, number: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(f'{{"format": "test 1",\n"share": {number}}}')
    with pytest.raises(FormatError, match=r'line 2: found "share": .* a finite number'):
        read_json(path, "a test", "test 1").number("share")


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"", 1, "Expecting value"),
        (b"{\n\n,}", 3, "accepted: JSON, a test"),
        (b'{"format": "test 1"', 1, "accepted: JSON, a test"),
        (b"[1]", 1, "found a list of 1; accepted: a JSON object, a test"),
        (b"null", 1, "found null; accepted: a JSON object, a test"),
        (b'{"what": 1}', 1, 'found no "format"; accepted: a test'),
        (b'{\n"format": 1}', 2, 'found "format": 1; accepted: "format": a text'),
        (b'{\n"format": "test 2"}', 2, 'found "format": "test 2"; accepted: "format": "test 1"'),
        (b'{\n"format":\n"\xff"}', 3, "found byte 255; accepted: JSON in UTF-8, a test"),
        (b"\xef\xbb\xbf{}", 1, "BOM"),
        (b"[" * 100_000, 1, "accepted: JSON, a test"),
        (b"9" * 5000, 1, "accepted: JSON, a test"),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, content: bytes, line: int, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(FormatError) as raised:
        read_json(path, "a test", "test 1")
    assert str(raised.value).startswith(f"{path}, line {line}: found ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"can't read .*No such file.*; accepted: a test"):
        read_json(tmp_path / "no.json", "a test", "test 1")
    with pytest.raises(FormatError, match=r"can't read .*directory"):
        read_json(tmp_path, "a test", "test 1")


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "test 1", "\\u0069tems": [{"a": 1}, {"a": 2}]}',
        '{"format": "test 1", "other": {"items": []}, "items": [{"a": 1}, {"a": 2}]}',
        '{"format": "test 1", "\\u0069tems": [{"a": 1}, {"a": 2}], "other": {"items": [3]}}',
        '{"format": "items", "items": 3, "format": "test 1", "items": [{"a": 1}, {"a": 2}]}',
    ],
    ids=["escaped", "nested", "both", "twice"],
)
def test_odd_spelling_costs_a_line_number_at_most(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    items = read_json(path, "a test", "test 1").objects("items", 2)
    assert [item.whole("a") for item in items] == [1, 2]
    with pytest.raises(FormatError, match="line 1: "):
        items[1].whole("b")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
KINDS: list[Callable[[JsonObject, str], Any]] = [
    JsonObject.string,
    JsonObject.flag,
    JsonObject.whole,
    JsonObject.number,
    JsonObject.items,
    JsonObject.wholes,
    lambda head, name: head.objects(name, 2),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(max_size=2), values, max_size=3), values, st.sampled_from(KINDS))
def test_any_value_is_returned_as_it_is_or_refused_in_one_line(
    tmp_path: Path, others: dict[str, Any], value: Any, kind: Callable[[JsonObject, str], Any]
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({**others, "format": "test 1", "field": value}))
    head = read_json(path, "a test", "test 1")
    try:
        found = kind(head, "field")
    except FormatError as error:
        assert str(error).startswith(f"{path}, line 1: found ")
        assert "\n" not in str(error)
    else:
        if kind is KINDS[-1]:
            found = [item.fields for item in found]
        assert found == value


def test_quotes_are_short() -> None:
    assert quoted([1, 2]) == "a list of 2"
    assert quoted({}) == "an object of 0"
    assert quoted("a\nb") == '"a\\nb"'
    assert len(quoted("x" * 100)) == 60
