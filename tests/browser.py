"""Pages of HTML, read as text and opened in a browser without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed (apt-get install chromium)"
)

# What the page does is written into the page, where --dump-dom shows it.
WATCH = """<script>
const problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push(event.blockedURI));
</script>"""
TELL = """<script>
const seen = (() => { %s })();
const output = document.createElement("output");
output.textContent = JSON.stringify({ problems, seen });
document.body.append(output);
</script>"""

# The plots, in this page's own words.
PLOTS = """
const grids = {};
for (const grid of document.querySelectorAll(".grid")) {
  grids[grid.id] = {
    rows: [...grid.tBodies[0].rows].map((row) => row.cells[0].textContent),
    columns: grid.tHead.rows[0].cells.length - 1,
    filled: grid.querySelectorAll("td.shaded").length,
  };
}
const boxes = document.querySelectorAll(".network .box").length;
const plots = {};
for (const plot of document.querySelectorAll(".plot")) {
  plots[plot.id] = {
    lines: plot.querySelectorAll(".scatterlayer .trace").length,
    bars: plot.querySelectorAll(".barlayer .point").length,
    background: plot.layout.paper_bgcolor,
    width: plot.clientWidth,
    buttons: [...plot.querySelectorAll(".modebar-btn")].map((button) => button.dataset.title),
  };
}
"""


class Page(HTMLParser):
    """The tables of a page, what it refers to, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tables, self.policy, self.outside, self.text = {}, None, [], []
        self.cell = None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        has = dict(attributes)
        self.outside += [value for key, value in attributes if key in ("src", "href", "action")]
        if has.get("http-equiv") == "Content-Security-Policy":
            self.policy = has["content"]
        if tag == "table":
            self.rows = self.tables[has["id"]] = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.cell = {**has, "text": ""}
            self.rows[-1].append(self.cell)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        self.text.append(data)
        if self.cell is not None:
            self.cell["text"] += data

    def figures(self, table):
        """The rows below the headings: what the row is of, and each exact figure by its key."""
        return [
            (
                cells[0]["text"].split(" beyond eps ")[0],
                {
                    cell["data-key"]: json.loads(cell.get("data-value", "null"))
                    for cell in cells
                    if "data-key" in cell
                },
            )
            for cells in self.tables[table][1:]
        ]


def browse(html, folder, script, *options):
    """Open a page, let a script look at it, and return what it saw and the page as it then is."""
    path = folder / "page.html"
    changed = html.replace("<head>", f"<head>{WATCH}", 1)
    changed = changed.replace("</body>", f"{TELL % script}</body>", 1)
    path.write_text(changed, encoding="utf-8")
    done = subprocess.run(
        [
            *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}"),
            *("--virtual-time-budget=10000", *options, path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    told = re.search("<output>(.*?)</output>", done.stdout.split("</footer>")[-1], re.DOTALL)
    found = json.loads(HTMLText(told[1]).text)
    return found["seen"], found["problems"] + complaints, Page(done.stdout)


class HTMLText(HTMLParser):
    """The text of a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.text = ""
        self.feed(html)

    def handle_data(self, data):
        self.text += data
