"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 45rem)");

// ------------------------------------------------------------------ plots

const pageData = JSON.parse(document.getElementById("figures").textContent);

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
  });
  return {
    data,
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
      legend: { ...legends[layout.meta?.legend]?.(), ...layout.legend },
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
  for (const [name, figure] of Object.entries(pageData.figures)) {
    const { data, layout } = themed(structuredClone(figure));
    Plotly.react(name, data, layout, config);
  }
}

draw();
dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);

// ------------------------------------------------------------------ grids

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Cells as dark as their share of the largest; an empty one is none.
for (const [id, { rows, columns, across, unit, cells }] of Object.entries(pageData.grids)) {
  const head = element("tr", {}, element("td"));
  for (const column of columns) head.append(element("th", { scope: "col" }, column));
  const body = element("tbody");
  rows.forEach((name, row) => {
    const line = element("tr", {}, element("th", { scope: "row" }, name));
    const filled = new Map(cells[row].map(([column, ...cell]) => [column, cell]));
    columns.forEach((column, at) => {
      const cell = element("td");
      if (filled.has(at)) {
        const [shade, figure, details] = filled.get(at);
        cell.style.setProperty("--shade", `${shade}%`);
        cell.className = shade > 50 ? "shaded dark" : "shaded";
        cell.title = `${name}, ${across} ${column}: ${figure} ${unit}, ${details}`;
        cell.append(figure);
      }
      line.append(cell);
    });
    body.append(line);
  });
  document.getElementById(id).append(element("thead", {}, head), body);
}

// ------------------------------------------------------------------ the network

const svg = (name, attributes = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

// Lines over a colour, by plotly's names of its patterns.
const hatchings = {
  "": "",
  "/": "M0 8 L8 0",
  "\\": "M0 0 L8 8",
  x: "M0 8 L8 0 M0 0 L8 8",
  "-": "M0 4 L8 4",
  "|": "M4 0 L4 8",
  "+": "M0 4 L8 4 M4 0 L4 8",
  ".": "M3 4 L5 4",
};

function lookPatterns(looks) {
  return looks.map(([colour, hatching], part) =>
    svg(
      "pattern",
      { id: `part-${part}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 8, height: 8, fill: colour }),
      svg("path", { d: hatchings[hatching], stroke: "#ffffff", "stroke-width": 1.5 }),
    ),
  );
}

const WIDEST = 240; // pixels of the layer with most work
const BAR = 13; // height of a box
const STRIPE = 12; // height of a stripe: room for a number
const TALLEST = 96;
const COLUMN = 7; // least width of a column, while they are few
const LABEL = 17; // room for the label above a box
const LETTER = 6.2; // width, about
const THICKEST = 12;

// Pixels of a box: as wide as its work, as high as its stripes need.
function boxSize({ work, columns, stripes }) {
  const count = stripes.length - 1;
  return {
    bar: Math.max(6, Math.min(28, COLUMN * (columns.length - 1)), WIDEST * work),
    tall: Math.max(BAR, Math.min(TALLEST, STRIPE * count)),
  };
}

// A layer in the colours of its parts, with fine lines where slices and bands meet.
function drawnBox({ name, words, columns, stripes, tiles }, label, looks, { x, y, bar, tall }) {
  const box = svg("g", { class: "box" });
  box.append(svg("title", {}, [name, ...words].join("\n")));
  const left = x - bar / 2;
  const top = y - (tall + LABEL) / 2 + LABEL;
  box.append(svg("text", { x, y: top - 5, "text-anchor": "middle" }, label));
  const numbers = [];
  for (const [across, down, width, height, part] of tiles) {
    const place = { x: left + bar * across, y: top + tall * down };
    const size = { width: bar * width, height: tall * height };
    const fill = part < 0 ? "none" : `url(#part-${part})`;
    box.append(svg("rect", { ...place, ...size, fill }));
    if (part >= 0 && size.width >= 7 + 6 * `${part}`.length && size.height >= 10) {
      const [stroke, , ink] = looks[part];
      const middle = { x: place.x + size.width / 2, y: place.y + size.height / 2 + 3.5 };
      const style = { stroke, style: `fill: ${ink}`, "text-anchor": "middle" };
      numbers.push(svg("text", { class: "number", ...style, ...middle }, part));
    }
  }
  const cuts = [];
  if (bar >= 4 * (columns.length - 1)) {
    for (const at of columns.slice(1, -1)) cuts.push(`M${left + bar * at} ${top} v${tall}`);
  }
  if (tall >= 3 * (stripes.length - 1)) {
    for (const at of stripes.slice(1, -1)) cuts.push(`M${left} ${top + tall * at} h${bar}`);
  }
  box.append(svg("path", { class: "cut", d: cuts.join(" ") }), ...numbers);
  box.append(svg("rect", { class: "outline", x: left, y: top, width: bar, height: tall }));
  return box;
}

function drawNetwork(figure, { boxes, labels, edges, looks }) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", ranksep: 18, nodesep: 14, edgesep: 6, marginx: 12, marginy: 8 });
  boxes.forEach((box, at) => {
    const { bar, tall } = boxSize(box);
    const width = Math.max(bar, LETTER * labels[at].length);
    graph.setNode(at, { bar, tall, width, height: tall + LABEL });
  });
  for (const [from, to, share] of edges) graph.setEdge(from, to, { weight: 1 + Math.round(9 * share) });
  dagre.layout(graph);
  const { width, height } = graph.graph();
  // Lines may go around outside of what dagre takes for the drawing.
  const turns = edges.flatMap(([from, to]) => graph.edge(from, to).points.map(({ x }) => x));
  const left = Math.min(0, ...turns.map((x) => x - THICKEST));
  const wide = Math.max(width, ...turns.map((x) => x + THICKEST)) - left;
  const viewBox = `${left} 0 ${wide} ${height}`;
  const drawing = svg("svg", { width: wide, height, viewBox, "font-size": 11 });
  drawing.append(svg("defs", {}, ...lookPatterns(looks)));
  for (const [from, to, share, bytes] of edges) {
    const [first, ...points] = graph.edge(from, to).points;
    const path = svg("path", {
      class: share ? "edge travels" : "edge",
      d: `M${first.x} ${first.y} L${points.map(({ x, y }) => `${x} ${y}`).join(" L")}`,
      "stroke-width": share ? Math.max(1.5, THICKEST * share) : 1,
    });
    path.append(svg("title", {}, `${boxes[from].name} to ${boxes[to].name}: ${bytes} between parts`));
    drawing.append(path);
  }
  boxes.forEach((box, at) => drawing.append(drawnBox(box, labels[at], looks, graph.node(at))));
  const frame = figure.querySelector(".wide");
  frame.append(drawing);
  frame.scrollLeft = graph.node(0).x - left - frame.clientWidth / 2; // at the first layer
  const legend = figure.querySelector(".legend");
  looks.forEach((_, part) => {
    const swatch = svg("svg", { width: 18, height: 12 });
    swatch.append(svg("rect", { width: 18, height: 12, fill: `url(#part-${part})` }));
    legend.append(element("li", {}, swatch, ` ${part}`));
  });
}

for (const [id, network] of Object.entries(pageData.networks)) {
  drawNetwork(document.getElementById(id), network);
}

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

for (const table of document.querySelectorAll("table:not(.grid)")) {
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
