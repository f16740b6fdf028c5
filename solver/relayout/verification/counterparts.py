"""Which node and which value of the original a node and a value of the model stand for, and what a value depends on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from relayout.layout.metadata_keys import SOURCE_KEY
from relayout.verification.subgraph_values import graphs_of, walk

__all__ = ["COPY", "ancestors", "by_name", "source_name"]

COPY = re.compile(r"_laid(_\d+)?$")
"""The end of the name of a copy in another format."""


def by_name(model: ir.Model) -> dict[str, ir.Node]:
    """The nodes by their own names, where these are unique."""
    nodes = list(walk(model.graph))
    counts = Counter(node.name for node in nodes)
    return {str(node.name): node for node in nodes if node.name and counts[node.name] == 1}


def source_name(value: ir.Value) -> str:
    """The name in the original of the value that this one stands for."""
    return value.metadata_props.get(SOURCE_KEY) or str(value.name)


def ancestors(values: Iterable[ir.Value]) -> dict[ir.Value, None]:
    """These values and all that they are computed from, by graphs inside nodes too."""
    found = dict.fromkeys(values)
    pending = list(found)
    while pending:
        node = pending.pop().producer()
        if node is None:
            continue
        bodies = graphs_of(node)
        inner = [read for body in bodies for each in walk(body) for read in each.inputs]
        for read in (*node.inputs, *inner, *(result for body in bodies for result in body.outputs)):
            if read is not None and read not in found:
                found[read] = None
                pending.append(read)
    return found
