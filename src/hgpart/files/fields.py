"""Fields of records -> the text of JSON and CSV files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any


def json_text(fields: Mapping[str, Any]) -> str:
    """A JSON object: a line for each field, and for each object of a list of them.

    A number that is not finite, such as the loss of a training that diverged, is null.

    >>> print(json_text({"loss": float("nan"), "parts": [{"part": 0}, {"part": 1}]}), end="")
    {
      "loss": null,
      "parts": [
        {"part": 0},
        {"part": 1}
      ]
    }
    """
    lines = [f'  "{name}": {_value(value)}' for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def report_json(fields: Mapping[str, Any]) -> str:
    """The same, with hgpart's version first."""
    return json_text({"hgpart_version": version("hgpart"), **fields})


def csv_text(names: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    r"""A header and a line for each record, with its fields of these names.

    >>> csv_text(("way", "why"), [{"way": "ddp", "seconds": 1}])
    'way,why\nddp,\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _value(value: Any) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        return "[\n" + ",\n".join(f"    {_value(item)}" for item in value) + "\n  ]"
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
