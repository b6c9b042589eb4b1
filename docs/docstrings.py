"""Docstrings -> Markdown, for mkdocstrings: the examples in them, doctests, become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Examples(griffe.Extension):
    """Fences what begins with a prompt, up to the next blank line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change its docstring."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
