"""JSON file -> checked fields: every error names the file, the line and what would be accepted.

Not with pydantic: it knows no lines, and most checks here are of several fields at once, or of a
number of devices or layers that stands elsewhere, which it reports as the whole record. Machine
files took 104 lines of schema and 72 of adapter, for 70 of reading here.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgpart.errors import FormatError
from hgpart.files.reading import malformed, read_bytes

LARGEST_INT64 = 2**63 - 1


@dataclass(frozen=True)
class JsonObject:
    """An object of a JSON file.

    Attributes
    ----------
    path : Path or str
        The file.
    text : str
        Its text; the object stands at ``text[start:end]``.
    where : str
        Prefix that says where the object's fields are, as in ``layers[3].``.
    """

    path: Path | str
    text: str
    start: int
    end: int
    fields: dict[str, Any]
    where: str = ""

    def string(self, name: str) -> str:
        """Return a field that is a text."""
        value = str(self._typed(name, (str,), "a text"))
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise self.wrong(name, "a text of whole characters")
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        return bool(self._typed(name, (bool,), "true or false"))

    def whole(self, name: str, low: int = 0, high: int = LARGEST_INT64) -> int:
        """Return a field that is a whole number from `low` to `high`."""
        accepted = f"a whole number from {low} to {high}"
        value = int(self._typed(name, (int,), accepted))
        if not low <= value <= high:
            raise self.wrong(name, accepted)
        return value

    def number(self, name: str) -> float:
        """Return a field that is a finite number."""
        value = self._typed(name, (int, float), "a number")
        if not abs(value) <= sys.float_info.max:  # NaN, infinities, integers too long for a float
            raise self.wrong(name, "a finite number")
        return float(value)

    def items(self, name: str, length: int | None = None) -> list[Any]:
        """Return a field that is a list, of a length where one is given."""
        accepted = "a list" if length is None else f"a list of {length}"
        value: list[Any] = self._typed(name, (list,), accepted)
        if length is not None and len(value) != length:
            raise self.wrong(name, accepted)
        return value

    def wholes(self, name: str, high: int = LARGEST_INT64) -> list[int]:
        """Return a field that is a list of whole numbers from 0 to `high`."""
        value = self.items(name)
        for at, item in enumerate(value):
            if type(item) is not int or not 0 <= item <= high:
                raise self.wrong(name, f"whole numbers from 0 to {high}", at)
        return value

    def numbers(self, name: str) -> list[float]:
        """Return a field that is a list of finite numbers."""
        value = self.items(name)
        for at, item in enumerate(value):
            if type(item) not in (int, float) or not abs(item) <= sys.float_info.max:
                raise self.wrong(name, "finite numbers", at)
        return [float(item) for item in value]

    def object(self, name: str) -> JsonObject:
        """Return a field that is an object."""
        value = self._typed(name, (dict,), "an object")
        start, end = self._extent(self._place(name))
        return JsonObject(self.path, self.text, start, end, value, f"{self.where}{name}.")

    def objects(self, name: str, length: int) -> list[JsonObject]:
        """Return a field that is a list of objects."""
        values = self.items(name, length)
        if not all(isinstance(value, dict) for value in values):
            raise self.wrong(name, f"a list of {length} objects")
        objects = []
        end = self.text.find("[", self._place(name))
        for at, value in enumerate(values):
            start, end = self._extent(end)
            where = f"{self.where}{name}[{at}]."
            objects.append(JsonObject(self.path, self.text, start, end, value, where))
        return objects

    def wrong(self, name: str, accepted: str, *at: int) -> FormatError:
        """Make the error for a field that is missing or wrong, or an item (of an item) in it."""
        line = self.text.count("\n", 0, self._place(name)) + 1
        where = f"{self.where}{name}"
        value: Any = self.fields.get(name)
        for index in at:
            where, value = f"{where}[{index}]", value[index]
        said = f'"{where}": {quoted(value)}' if name in self.fields else f'no "{where}"'
        return malformed(self.path, line, said, f'"{name}": {accepted}')

    def _place(self, name: str) -> int:
        field = re.compile(rf"{re.escape(json.dumps(name))}\s*:")  # a text has no colon behind it
        match = field.search(self.text, self.start, self.end)
        return match.start() if match else self.start

    def _extent(self, behind: int) -> tuple[int, int]:
        """Where the next object behind a place begins and ends."""
        try:
            start = self.text.index("{", behind)
            return start, json.JSONDecoder().raw_decode(self.text, start)[1]
        except ValueError:  # the name is spelled with escapes, or stands elsewhere, too
            return self.start, self.end

    def _typed(self, name: str, kinds: tuple[type, ...], accepted: str) -> Any:
        if type(self.fields.get(name)) not in kinds:  # a bool is not a whole number here
            raise self.wrong(name, accepted)
        return self.fields[name]


def read_json(path: Path | str, what: str, *kinds: str, most: int | None = None) -> JsonObject:
    """Read a file that is one JSON object, of `most` bytes at most.

    Its field "format" is one of `kinds`.

    Raises
    ------
    FormatError
        If it can't be read, is not JSON, or is of another kind; `what` says what it should be.
    """
    try:
        text = read_bytes(path, most).decode()
        content = json.loads(text)
    except OSError as error:
        reason = error.strerror or error
        raise FormatError(f"can't read {path}: {reason}; accepted: {what}") from error
    except json.JSONDecodeError as error:
        raise malformed(path, error.lineno, error.msg, f"JSON, {what}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        said = f"byte {error.object[error.start]}"
        raise malformed(path, line, said, f"JSON in UTF-8, {what}") from None
    except (ValueError, RecursionError) as error:  # endless digits, endless brackets
        raise malformed(path, 1, str(error)[:60], f"JSON, {what}") from None
    if not isinstance(content, dict):
        raise malformed(path, 1, quoted(content), f"a JSON object, {what}")
    head = JsonObject(path, text, 0, len(text), content)
    if "format" not in content:  # JSON of something else, whose fields would say nothing here
        raise malformed(path, 1, 'no "format"', what)
    if head.string("format") not in kinds:
        raise head.wrong("format", " or ".join(map(json.dumps, kinds)))
    return head


def quoted(value: Any) -> str:
    """Quote what was found in a file, shortened to fit one line."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
