"""Merging of the shapes of two inferences of one graph: what either of them knows, with one name for one extent.

Each run of onnx's inference numbers the dims that it names from 0. So a generated name of the second run is another
dim than the same name of the first, and the places where both have a dim show which are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from itertools import chain, count
from typing import NamedTuple

import onnx

from relayout.layout.terms import GENERATED, NAME
from relayout.model.dims.dim_unification import rename
from relayout.model.proto_graphs import dims_in, graphs_inside, subgraphs_of, unused_name

_NUMBER, _GIVEN, _GENERATED, _NEW = range(4)
_Dim = onnx.TensorShapeProto.Dimension


class _Extent(NamedTuple):
    """A number or a name; a lower kind says more."""

    kind: int
    value: int | str


def merge_shapes(better: onnx.GraphProto, graph: onnx.GraphProto, shared: Set[str]) -> dict[str, onnx.ValueInfoProto]:
    """Enter the shapes of `better`, a better-informed inference of `graph`, into `graph` and its subgraphs.

    `better` may lack shapes that only the model declares, and have constants instead of nodes. `shared` has the names
    that mean the same in both. What `graph` knows stays; generated names give way to numbers and to other names.
    Returns the values, of the graph without its subgraphs, of which neither inference alone knew as much.
    """
    pairs = list(_pairs(better, graph))
    fed = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim}
    extents = _Extents(fed, shared, names_in(graph) | shared)
    for informed, own in pairs:
        found = {value.name: value for value in _values(informed)}
        for value in _values(own):
            if value.name in found:
                for known, new in _same_dims(value, found[value.name]):
                    extents.equate(known, new)
    learned: dict[str, onnx.ValueInfoProto] = {}
    for informed, own in pairs:
        for value in _values(own):
            extents.rename(value)
        for value in _values(informed):
            if extents.rename(value, is_new=True) and own is graph:
                learned[value.name] = value
        _enter(informed, own, is_inner=own is not graph)
    return learned


def name_open_dims(graph: onnx.GraphProto) -> None:
    """Give each dim of a result that has neither a number nor a name a generated name, in the graph and those inside
    it: the legal model may have names for such dims, and counts them by their names."""
    unused = unused_names(names_in(graph))
    for each in subgraphs_of(graph):
        for value in _values(each):
            for dim in value.type.tensor_type.shape.dim:
                if not dim.HasField("dim_value") and not dim.dim_param:
                    dim.dim_param = next(unused)


def name_generated_anew(graph: onnx.GraphProto, kept: Set[str], taken: Set[str]) -> None:
    """Rename the dims that inference has named, all but those `kept` from before, where their names are `taken` by
    other dims: inference numbers from 0 what it finds without a name."""
    own = names_in(graph)
    unused = unused_names(own | taken)
    rename(graph, {name: next(unused) for name in sorted((own & taken) - kept) if name.startswith(GENERATED)})


def name_input_dims(graph: onnx.GraphProto) -> None:
    """Give each dim of an input that has neither a number nor a name a name of its own, after the input and the index
    of the dim: values inside that have the same extent are then known to, and a report can state its size. A name that
    looks like those of onnx's inference, as tf2onnx writes them, would be taken for one: `unk__7` becomes `unk_7`."""
    read = names_in(graph)
    taken = set(chain.from_iterable(map(NAME.findall, read)))
    given = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim}
    renamed = {}
    for name in sorted(given.intersection(read)):
        if name.startswith(GENERATED):
            stem = GENERATED.removesuffix("_") + name.removeprefix(GENERATED)
            renamed[name] = unused_name(stem, taken)
    if renamed:
        rename(graph, renamed)
    open_ = [
        (re.sub(r"\W|^(?=\d)", "_", f"{value.name}_dim_{place}", flags=re.ASCII), dim)
        for value in graph.input
        for place, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.WhichOneof("value") is None
    ]
    for stem, dim in open_:
        dim.dim_param = unused_name(stem, taken)


def share_input_shapes(graph: onnx.GraphProto) -> None:
    """Declare each input that is an output too, of the graph and of those inside it, with one shape: the input's, and
    what the output's alone knows. Both are one value of the model, and callers feed the input."""
    for inner in subgraphs_of(graph):
        inputs = {value.name: value for value in inner.input}
        for value in (*inner.value_info, *inner.output):
            fed = inputs.get(value.name)
            if fed is None or not fed.type.HasField("tensor_type"):
                continue
            own, other = fed.type.tensor_type, value.type.tensor_type
            if other.elem_type not in (own.elem_type, onnx.TensorProto.UNDEFINED):
                continue
            if not own.HasField("shape") and other.HasField("shape"):
                own.shape.CopyFrom(other.shape)
            elif len(own.shape.dim) == len(other.shape.dim):
                for dim, known in zip(own.shape.dim, other.shape.dim, strict=True):
                    if dim.WhichOneof("value") is None:
                        dim.CopyFrom(known)
            elif other.HasField("shape"):
                continue
            other.CopyFrom(own)


def names_in(graph: onnx.GraphProto) -> set[str]:
    """The names of the dims of the graph and of those inside it."""
    return {dim.dim_param for dim in dims_in(graph) if dim.dim_param}


class _Extents:
    """Classes of equal extents, each with at most one number or given name: a contradiction joins no classes.

    `fed` has the names of the graph's inputs, which are given whatever their spelling.
    """

    def __init__(self, fed: Set[str], shared: Set[str], taken: Set[str]) -> None:
        self._fed, self._shared = fed, shared
        self._unused = unused_names(taken)
        self._same: dict[_Extent, _Extent] = {}

    def equate(self, known: _Dim, new: _Dim) -> None:
        one, other = self._extent(known, is_new=False), self._extent(new, is_new=True)
        if one is not None and other is not None:
            # Of two generated names that which was met first stays: declared values come before those that a
            # placeholder has.
            first, second = sorted((self._find(other), self._find(one)), key=lambda extent: extent.kind)
            if first != second and second.kind >= _GENERATED:
                self._same[second] = first

    def rename(self, value: onnx.ValueInfoProto, *, is_new: bool = False) -> bool:
        """Give each dim of the value the number or name of its class; returns whether one is not generated."""
        is_known = False
        for dim in value.type.tensor_type.shape.dim:
            extent = self._extent(dim, is_new=is_new)
            if extent is None or extent.kind < _GENERATED:
                continue
            best = self._find(extent)
            if best.kind == _NEW:
                best = self._same[best] = _Extent(_GENERATED, next(self._unused))
            is_known |= best.kind < _GENERATED
            if isinstance(best.value, int):
                dim.dim_value = best.value
            else:
                dim.dim_param = best.value
        return is_known

    def _extent(self, dim: _Dim, *, is_new: bool) -> _Extent | None:
        if dim.HasField("dim_value"):
            return _Extent(_NUMBER, dim.dim_value)
        if not dim.dim_param:
            return None
        if not dim.dim_param.startswith(GENERATED) or dim.dim_param in self._fed:
            return _Extent(_GIVEN, dim.dim_param)
        return _Extent(_NEW if is_new and dim.dim_param not in self._shared else _GENERATED, dim.dim_param)

    def _find(self, extent: _Extent) -> _Extent:
        while extent in self._same:
            extent = self._same[extent]
        return extent


def _enter(better: onnx.GraphProto, graph: onnx.GraphProto, *, is_inner: bool) -> None:
    """Enter the shapes of `better`, whose names mean the same by now, into `graph` without its subgraphs."""
    found = {value.name: value for value in _values(better)}
    known = found.keys() | {tensor.name for tensor in graph.initializer}
    computed = [tensor for tensor in better.initializer if tensor.name not in known]
    found |= {t.name: onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in computed}
    own, results = list(_values(graph)), {value.name for value in better.output if is_inner}
    for value in own:  # onnx lists an output that has no type among the values inside too
        new = found.get(value.name)
        if new is None:
            continue
        if not new.type.tensor_type.HasField("shape"):
            # A sequence has no shape either, and one that is cleared makes a tensor of it.
            if value.name in results and value.type.HasField("tensor_type"):
                # The declared shape was wrong, and onnx enters none for a result of a graph inside.
                value.type.tensor_type.ClearField("shape")
            continue
        dims = list(_same_dims(value, new))
        if not dims:
            value.type.CopyFrom(new.type)
        for dim, other in dims:
            if other.HasField("dim_value") or not dim.WhichOneof("value"):
                dim.CopyFrom(other)
    listed = {value.name for value in own}
    graph.value_info.extend(value for name, value in found.items() if name not in listed)


def unused_names(taken: Set[str]) -> Iterator[str]:
    """Generated names that are not taken."""
    return (name for n in count() if (name := f"{GENERATED}{n}") not in taken)


def _same_dims(one: onnx.ValueInfoProto, other: onnx.ValueInfoProto) -> Iterator[tuple[_Dim, _Dim]]:
    """The dims of a value in two graphs; none where the ranks differ."""
    dims, others = one.type.tensor_type.shape.dim, other.type.tensor_type.shape.dim
    if len(dims) == len(others):
        yield from zip(dims, others, strict=True)


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.value_info
    yield from graph.output


def _pairs(one: onnx.GraphProto, other: onnx.GraphProto) -> Iterator[tuple[onnx.GraphProto, onnx.GraphProto]]:
    """The two graphs, and those inside them side by side. Only nodes without a graph may be in one alone."""
    yield one, other
    for inner, twin in zip(graphs_inside(one.node), graphs_inside(other.node), strict=True):
        yield from _pairs(inner, twin)
