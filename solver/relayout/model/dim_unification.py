"""One name for one extent: what a Reshape leaves open is what it reads, where all the rest is known and as many.

onnx's inference makes up a name for each dim whose number it does not know. `[N, 12, 4, 4]` seen as `[-1, 12, 16]` has
N pictures all the same: who does not know that prices them as if they were others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import onnx

from relayout.model.inference_placeholders import graphs_in

__all__ = ["MADE_UP", "name_alike"]

MADE_UP = "unk__"
"""What the names begin with that onnx's inference makes up."""

_Open = tuple[int, str]


def name_alike(graph: onnx.GraphProto) -> None:
    """Give dims that must be equal the name of the one that is not made up, in the graph and those inside it. What a
    caller feeds keeps the names that it has."""
    fed = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim}
    same: dict[str, str] = {}
    for one, other in _alike(graph, {}):
        kept, gone = _name_of(one, same), _name_of(other, same)
        if gone in fed or not gone.startswith(MADE_UP):
            kept, gone = gone, kept
        if kept != gone and gone not in fed and gone.startswith(MADE_UP):
            same[gone] = kept
    if same:
        _rename(graph, same)


def _alike(graph: onnx.GraphProto, outer: Mapping[str, _Open]) -> Iterator[tuple[str, str]]:
    """The names of an open dim before and after each Reshape. `outer` are the open dims of the values around the graph:
    what their other dims have together, and their name."""
    known = dict(outer)
    for value in (*graph.input, *graph.value_info, *graph.output):
        known.pop(value.name, None)
        open_ = _open_dim(value)
        if open_ is not None:
            known[value.name] = open_
    for node in graph.node:
        for attribute in node.attribute:
            for inner in graphs_in(attribute):
                yield from _alike(inner, known)
        if node.op_type == "Reshape" and node.domain in ("", "ai.onnx"):
            before, after = known.get(node.input[0]), known.get(node.output[0])
            if before is not None and after is not None and before[0] == after[0] > 0:
                yield before[1], after[1]


def _open_dim(value: onnx.ValueInfoProto) -> _Open | None:
    """How many elements a value has beside its only dim of unknown extent, and that one's name; None for others."""
    dims = value.type.tensor_type.shape.dim
    names = [dim.dim_param for dim in dims if not dim.HasField("dim_value")]
    if len(names) != 1 or not names[0]:
        return None
    return prod(dim.dim_value for dim in dims if dim.HasField("dim_value")), names[0]


def _name_of(name: str, same: Mapping[str, str]) -> str:
    while name in same:
        name = same[name]
    return name


def _rename(graph: onnx.GraphProto, same: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in same:
                dim.dim_param = _name_of(dim.dim_param, same)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in graphs_in(attribute):
                _rename(inner, same)
