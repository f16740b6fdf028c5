"""Shapes of the states of Loops, which onnx's inference leaves open: a body may change them from one round to the next.

A state whose shape the body keeps has that shape in every round, by induction: it is that of the initial state, and if
it is that of the state before a round, then also of the state behind it. Exporters from scripts declare no shape in the
body (onnxscript, jax2onnx).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

import onnx

from relayout.errors import InputError
from relayout.layout.terms import GENERATED
from relayout.model.proto_graphs import STANDARD_DOMAINS, copied, declared_values, graphs_inside

_Dims = list[onnx.TensorShapeProto.Dimension]


def declare_results(graph: onnx.GraphProto, outer: Mapping[str, onnx.ValueInfoProto]) -> bool:
    """Declare the shapes of Loops' results: the extents in which the initial and the last state agree.

    `outer` has the values of the enclosing graphs. Returns whether a shape was declared.
    """
    listed = {value.name: value for value in declared_values(graph)}
    known = _known(graph, outer)
    found = False
    for node in graph.node:
        bodies = graphs_inside([node])
        for inner in bodies:
            found |= declare_results(inner, known)
        if node.op_type != "Loop" or node.domain not in STANDARD_DOMAINS:
            continue
        for name, first, last in zip(node.output, node.input[2:], bodies[0].output[1:], strict=False):
            own = listed.get(name)
            if not name or first not in known or (own and own.type.tensor_type.HasField("shape")):
                continue
            agreed = _agreed(known[first].type, last.type)
            if agreed is not None:
                (own or graph.value_info.add(name=name)).type.CopyFrom(agreed)
                found = True
    return found


def _agreed(one: onnx.TypeProto, other: onnx.TypeProto) -> onnx.TypeProto | None:
    """The type with the extents that both have; None where a rank is unknown or they have different ones."""
    kinds = one.tensor_type, other.tensor_type
    if not all(kind.HasField("shape") for kind in kinds) or len({len(kind.shape.dim) for kind in kinds}) > 1:
        return None
    agreed = copied(one)
    for dim, same in zip(agreed.tensor_type.shape.dim, other.tensor_type.shape.dim, strict=True):
        if (dim.dim_value, dim.dim_param) != (same.dim_value, same.dim_param):
            dim.Clear()
    return agreed


def with_carried_states(
    inferred: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto]
) -> onnx.ModelProto | None:
    """The inferred model with the dims that states keep in every round, declared for the inputs of bodies; None if
    nothing is new. `infer` fills shapes in.

    All dims of initial states are assumed of the states in the bodies. Those that the bodies do not keep then are
    given up, until the bodies keep all others.
    """
    given_up: set[tuple[int, int]] = set()
    while True:
        trial = copied(inferred)
        assumed = _assume(trial.graph, given_up)
        if not assumed:
            return None
        try:
            trial = infer(trial)
        except InputError:
            return None
        kept = set()
        for number, (_, taken, last) in enumerate(_states(trial.graph, {})):
            before, after = _dims(taken.type), _dims(last.type)
            if len(before) == len(after):
                kept |= {(number, place) for place, dim in enumerate(before) if dim == after[place]}
        if assumed <= kept:
            return trial
        given_up |= assumed - kept


def _assume(graph: onnx.GraphProto, given_up: Set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Give the states in bodies the dims of the initial states that they lack; returns these, each as the number of the
    state and the index of the dim."""
    assumed: set[tuple[int, int]] = set()
    for number, (first, taken, _) in enumerate(_states(graph, {})):
        own = taken.type.tensor_type
        dims = _dims(first) if first is not None else []
        new = [
            place
            for place, dim in enumerate(dims)
            if (dim.HasField("dim_value") or (dim.dim_param and not dim.dim_param.startswith(GENERATED)))
            and (number, place) not in given_up
        ]
        if not own.HasField("shape") and new:
            for _ in dims:
                own.shape.dim.add()
        if len(own.shape.dim) != len(dims):
            continue
        for place in new:
            if own.shape.dim[place].WhichOneof("value") is None:
                own.shape.dim[place].CopyFrom(dims[place])
                assumed.add((number, place))
    return assumed


def _states(
    graph: onnx.GraphProto, outer: Mapping[str, onnx.ValueInfoProto]
) -> Iterator[tuple[onnx.TypeProto | None, onnx.ValueInfoProto, onnx.ValueInfoProto]]:
    """The states of the Loops in a graph, outer Loops first: the type of the initial state, where it is known, the
    body's input and its result."""
    known = _known(graph, outer)
    for node in graph.node:
        bodies = graphs_inside([node])
        if node.op_type == "Loop" and node.domain in STANDARD_DOMAINS:
            (body,) = bodies
            for name, taken, last in zip(node.input[2:], body.input[2:], body.output[1:], strict=False):
                yield known[name].type if name in known else None, taken, last
        for inner in bodies:
            yield from _states(inner, known)


def _known(graph: onnx.GraphProto, outer: Mapping[str, onnx.ValueInfoProto]) -> dict[str, onnx.ValueInfoProto]:
    """The values that nodes of a graph read, by name; `outer` has those of the enclosing graphs."""
    stored = [onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer]
    return {**outer, **{value.name: value for value in (*stored, *declared_values(graph))}}


def _dims(kind: onnx.TypeProto) -> _Dims:
    return [*kind.tensor_type.shape.dim]
