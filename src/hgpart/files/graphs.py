"""networkx graph -> GraphML, for programs that analyse graphs, and DOT, for Graphviz to draw.

networkx writes DOT only by way of pydot, another package, for the few lines that it takes here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx

from hgpart.files.writing import write_text
from hgpart.terminal import printable


def write_graph(graph: nx.DiGraph, path: Path) -> None:
    """Write a graph in the format that its file is named by: ``.dot``, or else GraphML.

    Raises
    ------
    OutputError
        If it can't be written.
    """
    write_text(path, as_dot(graph) if path.suffix == ".dot" else as_graphml(graph))


def as_graphml(graph: nx.DiGraph) -> str:
    """The graph as GraphML: nodes are numbered, and called by their `label`."""
    return "\n".join(nx.generate_graphml(_plain(graph))) + "\n"


def as_dot(graph: nx.DiGraph) -> str:
    """The graph in Graphviz's language; edges say what they have, parts have colours.

    >>> print(as_dot(nx.DiGraph([("stem", "head", {"channels": 3})])), end="")
    digraph {
      node [shape=box, style=filled, fillcolor=white, colorscheme=set312]
      0 [label="stem"]
      1 [label="head"]
      0 -> 1 [channels="3", label="3 channels"]
    }
    """
    graph = _plain(graph)
    lines = ["node [shape=box, style=filled, fillcolor=white, colorscheme=set312]"]
    for node, facts in graph.nodes(data=True):
        colour = {"fillcolor": 1 + facts["part"] % 12} if "part" in facts else {}
        lines.append(f"{node} [{_attributes({**facts, **colour})}]")
    for source, reader, facts in graph.edges(data=True):
        label = ", ".join(f"{value} {name}" for name, value in facts.items())
        lines.append(f"{source} -> {reader} [{_attributes({**facts, 'label': label})}]")
    return "digraph {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def _plain(graph: nx.DiGraph) -> nx.DiGraph:
    """The graph with numbers for nodes, and facts that any format holds."""
    numbered = nx.convert_node_labels_to_integers(graph, label_attribute="label")
    for facts in numbered.nodes.values():
        facts.update({name: _fact(value) for name, value in facts.items()})
    return numbered


def _fact(value: Any) -> str | int:
    if isinstance(value, int):
        return value
    return printable(", ".join(map(str, value)) if isinstance(value, tuple) else value)


def _attributes(facts: dict[str, Any]) -> str:
    escapes = str.maketrans({'"': r"\"", "\\": r"\\"})
    return ", ".join(f'{name}="{str(value).translate(escapes)}"' for name, value in facts.items())
