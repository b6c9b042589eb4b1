"""Graphs in files: whatever names a model has, they are read back."""

from __future__ import annotations

import io

import networkx as nx

from hgpart.files.graphs import as_dot, as_graphml

ODD = 'a "quoted"\\ na\nme'
GRAPH = nx.DiGraph()
GRAPH.add_node((ODD, 13), kind="dense", part=13, operators=("conv2d", "relu"))
GRAPH.add_node(("\x1b<b>", 0), kind="dense", part=0, operators=())
GRAPH.add_edge(*GRAPH, bytes=8)


def test_graphml_is_read_back():
    found = nx.read_graphml(io.StringIO(as_graphml(GRAPH)))
    assert dict(found.nodes(data=True)) == {
        "0": {
            "label": r'a "quoted"\ na\nme, 13',
            "kind": "dense",
            "part": 13,
            "operators": "conv2d, relu",
        },
        "1": {"label": r"\x1b<b>, 0", "kind": "dense", "part": 0, "operators": ""},
    }
    assert list(found.edges(data=True)) == [("0", "1", {"bytes": 8})]


def test_dot_quotes_what_it_would_read():
    lines = as_dot(GRAPH).splitlines()
    assert lines[2].startswith('  0 [kind="dense", part="13", operators="conv2d, relu", label=')
    assert lines[2].endswith(r'label="a \"quoted\"\\ na\\nme, 13", fillcolor="2"]')
    assert lines[4] == '  0 -> 1 [bytes="8", label="8 bytes"]'
