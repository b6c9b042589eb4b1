"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 45rem)");

// ------------------------------------------------------------------ plots

const figures = JSON.parse(document.getElementById("figures").textContent);

// Where the legend has room: beside wide plots, above narrow ones in two columns.
const above = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };
const legends = {
  above: () => above,
  aside: () =>
    narrow.matches
      ? { ...above, entrywidth: 0.5, entrywidthmode: "fraction", font: { size: 11 } }
      : { x: 1.02, y: 1 },
};

// The figure in the colours of the page, which CSS chooses.
function themed({ data, layout }) {
  const style = getComputedStyle(document.body);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = (own) => ({
    ...own,
    gridcolor: colour("--line"),
    linecolor: colour("--line"),
    zeroline: false,
    showgrid: data[0]?.type !== "heatmap",
  });
  return {
    data: data.map((trace) =>
      // More is always what stands out from the page.
      trace.type === "heatmap" ? { ...trace, reversescale: !dark.matches } : trace,
    ),
    layout: {
      ...layout,
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      font: { color: colour("--text"), family: style.fontFamily, size: 13 },
      hoverlabel: {
        bgcolor: colour("--panel"),
        bordercolor: colour("--line"),
        font: { color: colour("--text") },
      },
      legend: legends[layout.meta?.legend]?.() ?? {},
      margin: { t: 48, r: 16, b: 56, l: 72 },
      paper_bgcolor: colour("--page"),
      plot_bgcolor: colour("--page"),
      uirevision: "what the reader zoomed or hid stays so",
    },
  };
}

function draw() {
  const config = {
    displaylogo: false,
    displayModeBar: narrow.matches ? false : "hover",
    // None that would send the figures somewhere.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    responsive: true,
  };
  for (const [name, figure] of Object.entries(figures)) {
    const { data, layout } = themed(structuredClone(figure));
    Plotly.react(name, data, layout, config);
  }
}

draw();
dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);

// ------------------------------------------------------------------ tables

// Exact figures as numbers, text as text; undefined where a row has no such cell.
function sortKey(row, column) {
  const cell = row.cells[column];
  if (cell === undefined || cell.colSpan > 1) return undefined;
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.scope === "row" ? cell.firstChild.textContent : undefined;
}

// Rows without a figure stay last, whichever way the others are sorted.
function compared(one, other, direction) {
  if (one === undefined || other === undefined) {
    return (one === undefined) - (other === undefined);
  }
  return direction * (typeof one === "number" ? one - other : one.localeCompare(other));
}

for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button")?.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      for (const each of headings) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((one, other) =>
        compared(sortKey(one, column), sortKey(other, column), ascending ? 1 : -1),
      );
      body.append(...rows);
    });
  });
}

const buttons = [...document.querySelectorAll(".choice button")];

function choose(k) {
  for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.k === k);
  for (const row of document.querySelectorAll("tr[data-k]")) {
    row.hidden = k !== "all" && row.dataset.k !== k;
  }
}

for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.k));
const chosen = buttons.find((button) => button.getAttribute("aria-pressed") === "true");
if (chosen) choose(chosen.dataset.k);
