"""Sections, figures -> one self-contained HTML file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from hgpart.report.page.drawing.figures import Figure
from hgpart.report.page.drawing.grids import ShadedGrid
from hgpart.report.page.drawing.network import Network

PLOTS, LAYOUT = "bundles/plotly-basic.min.js", "bundles/dagre.min.js"
LEAST_WIDTH = 320  # least pixels of a plot; a narrower window scrolls
# Nothing outside the file is asked for, whatever it holds.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def header(
    subject: list[str], lines: list[str], key_figures: Sequence[tuple[str, str]] = ()
) -> str:
    """What the page is about, its answer, key figures with their meanings, and further lines."""
    first, *others = lines
    about = " · ".join(map(escape, subject))
    key = [
        f"<div><dt>{escape(meaning)}</dt><dd>{escape(figure)}</dd></div>"
        for figure, meaning in key_figures
    ]
    return "\n".join(
        [
            f'<header><p class="subject">{about}</p>',
            f"<h1>{escape(first)}</h1>",
            *([f'<dl class="key">{"".join(key)}</dl>'] if key else []),
            *paragraphs(others),
            "</header>",
        ]
    )


def paragraphs(lines: list[str]) -> list[str]:
    """A paragraph for each line of text."""
    return [f"<p>{escape(line)}</p>" for line in lines]


def section(title: str, text: str, *content: str) -> str:
    """A section: its title, a paragraph if there is text, and content that is HTML already."""
    head = f"<section><h2>{escape(title)}</h2>"
    return "\n".join([head, *(paragraphs([text]) if text else []), *content, "</section>"])


class Drawings(dict[str, Figure | ShadedGrid | Network]):
    """What page.js draws, by name; each method adds a drawing, and returns the room for it."""

    def plot(self, name: str, figure: Figure, label: str) -> str:
        """Room for a figure."""
        self[name] = figure
        size = f"height: {figure.height}px; min-width: {LEAST_WIDTH}px"
        return (
            f'<div class="wide"><div class="plot" id="{name}" role="img" '
            f'aria-label="{escape(label)}" style="{size}"></div></div>'
        )

    def grid(self, name: str, grid: ShadedGrid, label: str) -> str:
        """A table of shaded cells."""
        self[name] = grid
        return (
            f'<div class="wide"><table class="grid" id="{name}" aria-label="{escape(label)}">'
            "</table></div>"
        )

    def graph(self, name: str, network: Network, label: str) -> str:
        """Room for a network."""
        self[name] = network
        return (
            f'<figure class="network" id="{name}" role="img" aria-label="{escape(label)}">'
            '<ul class="legend" aria-label="Parts"></ul><div class="wide"></div></figure>'
        )


def page(title: str, body: list[str], drawn: Drawings) -> str:
    """A whole file: the sections, what is drawn in them, and the scripts that draw it."""
    kinds: dict[str, dict[str, Any]] = {"figures": {}, "grids": {}, "networks": {}}
    for name, drawing in drawn.items():
        if isinstance(drawing, Figure):
            kinds["figures"][name] = {"data": drawing.data, "layout": drawing.layout}
        else:
            kind = "grids" if isinstance(drawing, ShadedGrid) else "networks"
            kinds[kind][name] = dataclasses.asdict(drawing)
    bundles = [PLOTS, *([LAYOUT] if kinds["networks"] else [])]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_text('page.css')}</style>",
            "</head>",
            "<body>",
            "<main>",
            "<noscript>The tables are complete as they are; the plots need JavaScript.</noscript>",
            *body,
            "</main>",
            f"<footer>hgpart {version('hgpart')}</footer>",
            f'<script type="application/json" id="figures">{_script_json(kinds)}</script>',
            *(f"<script>{_text(bundle)}</script>" for bundle in bundles),
            f"<script>\n{_text('page.js')}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _script_json(value: Any) -> str:
    """JSON that can't end the script element around it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _text(name: str) -> str:
    return files("hgpart.report.page").joinpath(*name.split("/")).read_text(encoding="utf-8")
