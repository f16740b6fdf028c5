"""Unification of symbolic dims: one name for dims that a Reshape shows to have one extent.

onnx's inference generates a name for each dim of unknown extent. If `[N, 12, 4, 4]` is reshaped to `[-1, 12, 16]`, the
first dim is N; if it is reshaped to `[-1, 16]` and then to `[-1, 12, 4, 4]`, it is `12*N` and then N again. The cost
model would estimate a generated name on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain
from math import prod

import onnx

from relayout.layout.terms import GENERATED, NAME
from relayout.model.proto_graphs import STANDARD_DOMAINS, declared_values, dims_in, graphs_inside

_Open = tuple[int, str]
_Measure = tuple[str, Fraction]


class MadeUpNames:
    """The names of dims that an exporter or onnx's inference has made up for values inside the graph; no input and no
    output has one. They give way where the extent is that of a dim with a given name, or a formula of given names."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        fed = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim}
        left = {dim.dim_param for value in graph.output for dim in value.type.tensor_type.shape.dim}
        given = fed | {name for name in left if not name.startswith(GENERATED)}
        self._given = given.union(*map(NAME.findall, given))

    def __contains__(self, name: str) -> bool:
        names = NAME.findall(name)
        return bool(names) and self._given.isdisjoint([name, *names])


def unify_names(graph: onnx.GraphProto, equal: Iterable[tuple[str, str]] = ()) -> bool:
    """Give dims that must be equal one name, in the graph and those inside it: those that Reshapes show to be equal,
    and the pairs in `equal`. Of its names the first is taken that is not made up, else the first that is not
    generated. Returns whether a dim has changed its name."""
    made_up = MadeUpNames(graph)
    measures: dict[str, _Measure] = {}
    pairs = ((one, other, Fraction(1)) for one, other in equal)
    for one, other, ratio in chain(_alike(graph, {}), pairs):
        (first, times), (second, more) = _measured(one, measures), _measured(other, measures)
        if first != second:
            measures[second] = first, ratio * times / more
    alike: dict[_Measure, list[str]] = {}
    for name in dict.fromkeys(name for each, (unit, _) in measures.items() for name in (unit, each)):
        alike.setdefault(_measured(name, measures), []).append(name)
    same: dict[str, str] = {}
    for names in alike.values():
        given = [name for name in names if name not in made_up]
        given = given or [name for name in names if not name.startswith(GENERATED)]
        first = [*given, *names][0]
        same |= {name: first for name in names if name not in given and name != first}
    if same:
        rename(graph, same)
    return bool(same)


def _alike(graph: onnx.GraphProto, outer: Mapping[str, _Open]) -> Iterator[tuple[str, str, Fraction]]:
    """The names of the open dim before and after each Reshape, and the ratio of the second to the first.

    `outer` has the open dims of values of the enclosing graphs: the product of the other dims, and the name.
    """
    known = dict(outer)
    for value in declared_values(graph):
        known.pop(value.name, None)
        open_ = _open_dim(value)
        if open_ is not None:
            known[value.name] = open_
    for node in graph.node:
        for inner in graphs_inside([node]):
            yield from _alike(inner, known)
        if node.op_type == "Reshape" and node.domain in STANDARD_DOMAINS:
            before, after = known.get(node.input[0]), known.get(node.output[0])
            if before is not None and after is not None and before[0] > 0 and after[0] > 0:
                yield before[1], after[1], Fraction(before[0], after[0])


def _open_dim(value: onnx.ValueInfoProto) -> _Open | None:
    """The product of the known dims and the name of the only unknown dim; None if there is not exactly one."""
    dims = value.type.tensor_type.shape.dim
    names = [dim.dim_param for dim in dims if not dim.HasField("dim_value")]
    if len(names) != 1 or not names[0]:
        return None
    return prod(dim.dim_value for dim in dims if dim.HasField("dim_value")), names[0]


def _measured(name: str, measures: Mapping[str, _Measure]) -> _Measure:
    """The representative of the dim's class, and the dim's multiple of it."""
    times = Fraction(1)
    while name in measures:
        name, factor = measures[name]
        times *= factor
    return name, times


def number(graph: onnx.GraphProto, numbers: Mapping[str, int]) -> None:
    """Give dims of these names their numbers, in the graph and those inside it."""
    for dim in dims_in(graph) if numbers else ():
        if dim.dim_param in numbers:
            dim.dim_value = numbers[dim.dim_param]


def rename(graph: onnx.GraphProto, same: Mapping[str, str]) -> None:
    """Give dims other names, in the graph and those inside it."""
    for dim in dims_in(graph):
        if dim.dim_param in same:
            dim.dim_param = same[dim.dim_param]
