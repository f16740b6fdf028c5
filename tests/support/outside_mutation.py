"""Wrong models made from outside: mutants of ONNX protobufs, by the kinds of faults that a verifier may overlook.

It shares nothing with `mutation.py`, and uses nothing of relayout: a mutant is a changed protobuf, and onnxruntime says
whether it is wrong (`differs`), with open dims of several sizes, both branches of an If, other values for inputs with
a default, and a stand-in for each operator that the runtime lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from graphs import session
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SIZES = (2, 3, 5, 7)
"""Sizes of open dims. A mutant writes down one of the first two; the oracle draws all."""


@dataclass(frozen=True)
class Mutant:
    """One fault. `breaks_contract`: it is wrong by construction, whatever the outputs are."""

    kind: str
    name: str
    model: ModelProto
    breaks_contract: bool = False


def mutants(model: ModelProto, most: int = 12) -> Iterator[Mutant]:
    """At most `most` mutants of each kind, spread evenly over the places where the kind applies."""
    for kind, found_in in KINDS.items():
        found = list(found_in(model))
        step = max(1, -(-len(found) // most))
        for name, change in found[::step]:
            mutant = ModelProto()
            mutant.CopyFrom(model)
            change(mutant)
            yield Mutant(kind, name, mutant, kind in _BROKEN)


Change = Callable[[ModelProto], None]
Found = Iterator[tuple[str, Change]]
# An input that a caller can no longer override or resize, and a false annotation, break the contract by themselves.
_BROKEN = ("override became a constant", "order of a copy")


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [graph, *(each for one in inner for each in _graphs(one))]


def _constants(model: ModelProto, *, inner: bool = False) -> list[tuple[str, TensorProto]]:
    """Each constant by its name: in the graph and the graphs inside nodes, or only in the latter (`inner`)."""
    found = []
    for graph in _graphs(model.graph)[int(inner) :]:
        found += [(tensor.name, tensor) for tensor in graph.initializer]
        constants = (node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value")
        found += [(node.output[0], node.attribute[0].t) for node in constants]
    return found


Edit = tuple[str, np.ndarray]


def _edits(others: Callable[[str, np.ndarray], Iterator[Edit]], model: ModelProto, *, inner: bool = False) -> Found:
    """A mutant for each other array, with a name, that `others` has for a constant."""
    for i, (name, tensor) in enumerate(_constants(model, inner=inner)):
        for text, data in others(name, numpy_helper.to_array(tensor)):

            def change(mutant: ModelProto, i: int = i, data: np.ndarray = data) -> None:
                tensor = _constants(mutant, inner=inner)[i][1]
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(data), tensor.name))

            yield text, change


def _open_dims(model: ModelProto) -> Found:
    for v, value in enumerate(model.graph.input):
        for d, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                for size in SIZES[:2]:

                    def freeze(mutant: ModelProto, v: int = v, d: int = d, size: int = size) -> None:
                        mutant.graph.input[v].type.tensor_type.shape.dim[d].dim_value = size

                    yield f"{value.name} axis {d} is {size}", freeze
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    is_open = any(dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim)

    def frozen(name: str, data: np.ndarray) -> Iterator[Edit]:
        for place in np.flatnonzero(data <= 0) if name in shapes and is_open else ():
            for size in SIZES[:2]:
                other = data.copy()
                other[place] = size
                yield f"{name}[{place}] is {size}", other

    yield from _edits(frozen, model)


def _exchanged_at_run_time(model: ModelProto) -> Found:
    """A Transpose with a Reshape back to the shape before: it shows only where both axes are longer than one."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    kinds = {v.name: v.type.tensor_type for v in values}
    ranks = {name: len(kind.shape.dim) for name, kind in kinds.items() if kind.elem_type == TensorProto.FLOAT}
    ranks |= {tensor.name: 0 for tensor in model.graph.initializer}
    for n, node in enumerate(model.graph.node):
        for k, name in enumerate(node.input):
            rank = ranks.get(name, 0)
            if rank < 2 or node.op_type == "If":
                continue
            for i, j in itertools.combinations(range(rank), 2):

                def insert(mutant: ModelProto, n: int = n, k: int = k, i: int = i, j: int = j, r: int = rank) -> None:
                    node, perm = mutant.graph.node[n], list(range(r))
                    perm[i], perm[j] = j, i
                    name = node.input[k]
                    made = [
                        helper.make_node("Transpose", [name], ["odd_turned"], perm=perm),
                        helper.make_node("Shape", [name], ["odd_shape"]),
                        helper.make_node("Reshape", ["odd_turned", "odd_shape"], ["odd"]),
                    ]
                    node.input[k] = "odd"
                    nodes = [*mutant.graph.node[:n], *made, *mutant.graph.node[n:]]
                    copies = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
                    del mutant.graph.node[:]
                    mutant.graph.node.extend(copies)

                yield f"axes {i} and {j} of {name} for {node.name}", insert


def _overrides(model: ModelProto) -> Found:
    kept = {tensor.name for tensor in model.graph.initializer}
    for v, value in enumerate(model.graph.input):
        if value.name in kept:
            yield f"{value.name} is no input", lambda mutant, v=v: mutant.graph.input.pop(v)  # type: ignore[misc]


def _doubled(name: str, data: np.ndarray) -> Iterator[Edit]:
    if data.dtype == np.float32:
        yield f"{name} doubled", data * 2 + 1


def _reversed(name: str, data: np.ndarray) -> Iterator[Edit]:
    if data.dtype == np.float32 and data.ndim == 1 and not np.array_equal(data, data[::-1]):
        yield f"{name} reversed", data[::-1]


def _rare(model: ModelProto) -> Found:
    """One element of an integer or boolean output in a thousand."""
    for o, value in enumerate(model.graph.output):
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        if kind.elem_type not in (TensorProto.BOOL, TensorProto.INT64) or not all(shape):
            continue

        def insert(mutant: ModelProto, o: int = o, shape: list[int] = shape, elem: int = kind.elem_type) -> None:
            name = mutant.graph.output[o].name
            mask = np.zeros(shape, bool if elem == TensorProto.BOOL else np.int64)
            mask.reshape(-1)[mask.size // 3 :: 1500] = 1
            for node in mutant.graph.node:
                for k, result in enumerate(node.output):
                    if result == name:
                        node.output[k] = f"{name}_right"
                for k, read in enumerate(node.input):
                    if read == name:
                        node.input[k] = f"{name}_right"
            mutant.graph.initializer.append(numpy_helper.from_array(mask, f"{name}_mask"))
            operator = "Xor" if elem == TensorProto.BOOL else "Add"
            mutant.graph.node.append(helper.make_node(operator, [f"{name}_right", f"{name}_mask"], [name]))

        yield f"{value.name} off", insert


def _rows(name: str, data: np.ndarray) -> Iterator[Edit]:
    if data.dtype.kind not in "fiu" or (data.dtype == np.int64 and data.size < 9):
        return
    for axis, extent in enumerate(data.shape):
        first, last = np.take(data, 0, axis), np.take(data, extent - 1, axis)
        if extent > 1 and not np.array_equal(first, last):
            order = [extent - 1, *range(1, extent - 1), 0]
            yield f"{name}: first and last along {axis}", np.take(data, order, axis)


def _one_percent(name: str, data: np.ndarray) -> Iterator[Edit]:
    if data.dtype == np.float32 and data.size and data.reshape(-1)[data.size // 2]:
        other = data.copy()
        other.reshape(-1)[data.size // 2] *= 1.01
        yield f"{name} off", other


def _attributes(model: ModelProto) -> Found:
    for n, node in enumerate(model.graph.node):
        for a, attribute in enumerate(node.attribute):
            if attribute.type == onnx.AttributeProto.FLOAT and attribute.f:

                def scale(mutant: ModelProto, n: int = n, a: int = a) -> None:
                    mutant.graph.node[n].attribute[a].f *= 1.01

                yield f"{node.name} {attribute.name}", scale


def _rewired(model: ModelProto) -> Found:
    """An operand of one node replaced by another value of the same type and shape that is made before it."""
    infos = {v.name: v.type.SerializeToString() for v in (*model.graph.input, *model.graph.value_info)}
    known = {value.name for value in model.graph.input}
    for n, node in enumerate(model.graph.node):
        for k, name in enumerate(node.input):
            others = [
                other for other in sorted(known) if other != name and name and infos.get(other) == infos.get(name)
            ]
            for other in others[:2] if name in infos else ():

                def rewire(mutant: ModelProto, n: int = n, k: int = k, other: str = other) -> None:
                    mutant.graph.node[n].input[k] = other

                yield f"{node.name} reads {other} for {name}", rewire
        known.update(node.output)


def _annotations(model: ModelProto) -> Found:
    """Another order stated of the result of a Transpose, where the axes exchanged have equal extents."""
    made = {node.output[0] for node in model.graph.node if node.op_type == "Transpose"}
    for v, value in enumerate(model.graph.value_info):
        extents = [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for p, entry in enumerate(value.metadata_props):
            order = entry.value.split(",") if entry.key == "relayout.order" and value.name in made else []
            for i, j in itertools.combinations(range(len(order)), 2):
                if extents[i] == extents[j] and extents[i] != 1:
                    other = list(order)
                    other[i], other[j] = other[j], other[i]

                    def state(mutant: ModelProto, v: int = v, p: int = p, text: str = ",".join(other)) -> None:
                        mutant.graph.value_info[v].metadata_props[p].value = text

                    yield f"{value.name} {entry.value} -> {','.join(other)}", state


_LIKE = dict(
    pair.split()
    for pair in (
        *("Relu Elu", "Elu Relu", "LeakyRelu Elu", "Sigmoid Tanh", "Tanh Sigmoid", "Softmax LogSoftmax", "Add Sub"),
        *("Sub Add", "Mul Add", "Div Mul", "Min Max", "Max Min", "Greater Less", "Equal GreaterOrEqual", "Sqrt Abs"),
        *("MaxPool AveragePool", "GlobalAveragePool GlobalMaxPool", "ReduceMax ReduceMin", "ReduceMean ReduceSum"),
        *("ReduceSum ReduceMean", "Floor Round"),
    )
)
"""Operators with the same operands, attributes and types."""


def _perms(model: ModelProto) -> Found:
    for n, node in enumerate(model.graph.node):
        for a, attribute in enumerate(node.attribute):
            perm = list(attribute.ints) if node.op_type == "Transpose" and attribute.name == "perm" else []
            for i, j in itertools.combinations(range(len(perm)), 2):

                def exchange(mutant: ModelProto, n: int = n, a: int = a, i: int = i, j: int = j) -> None:
                    ints = mutant.graph.node[n].attribute[a].ints
                    ints[i], ints[j] = ints[j], ints[i]

                yield f"{node.name}: {i} and {j} of {perm}", exchange


def _operators(model: ModelProto) -> Found:
    """Another operator of ONNX in the place of one."""
    for n, node in enumerate(model.graph.node):
        if node.domain == "" and node.op_type in _LIKE:

            def replace(mutant: ModelProto, n: int = n, other: str = _LIKE[node.op_type]) -> None:
                mutant.graph.node[n].op_type = other

            yield f"{node.name} is {_LIKE[node.op_type]}", replace


def _left_out(model: ModelProto) -> Found:
    """An attribute left out, where the default is another."""
    for n, node in enumerate(model.graph.node):
        for a, attribute in enumerate(node.attribute):
            if attribute.name in ("axis", "axes", "pads", "strides", "group", "perm", "keepdims", "auto_pad", "alpha"):

                def delete(mutant: ModelProto, n: int = n, a: int = a) -> None:
                    del mutant.graph.node[n].attribute[a]

                yield f"{node.name} without {attribute.name}", delete


def _bypassed(model: ModelProto) -> Found:
    """Readers take the operand of a node instead of its result."""
    for node in model.graph.node:
        if node.input and len(node.output) == 1:

            def bypass(mutant: ModelProto, source: str = node.input[0], result: str = node.output[0]) -> None:
                for reader in mutant.graph.node:
                    reader.input[:] = [source if name == result else name for name in reader.input]

            yield f"{node.name} bypassed", bypass


def _operands(model: ModelProto) -> Found:
    """Two operands of one node exchanged."""
    for n, node in enumerate(model.graph.node):
        for i, j in itertools.combinations(range(len(node.input)), 2):
            if node.input[i] == node.input[j]:
                continue

            def exchange(mutant: ModelProto, n: int = n, i: int = i, j: int = j) -> None:
                read = mutant.graph.node[n].input
                read[i], read[j] = read[j], read[i]

            yield f"{node.name}: {node.input[i]} and {node.input[j]}", exchange


def _branches(model: ModelProto) -> Found:
    """Both branches of an If exchanged."""
    for n, node in enumerate(model.graph.node):
        if node.op_type == "If":

            def exchange(mutant: ModelProto, n: int = n) -> None:
                one, other = (attribute.g for attribute in mutant.graph.node[n].attribute)
                kept = onnx.GraphProto.FromString(one.SerializeToString())
                one.CopyFrom(other)
                other.CopyFrom(kept)

            yield node.name, exchange


def _inserted(made: Callable[[str, str], list[NodeProto]], model: ModelProto) -> Found:
    """Nodes after one that give its result another value under the same name; `made` has them from both names."""
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*model.graph.value_info, *model.graph.output)}
    for n, node in enumerate(model.graph.node):
        for k, name in enumerate(node.output):
            if not ranks.get(name):
                continue

            def insert(mutant: ModelProto, n: int = n, k: int = k, name: str = name) -> None:
                mutant.graph.node[n].output[k] = "odd_before"
                nodes = [*mutant.graph.node[: n + 1], *made("odd_before", name), *mutant.graph.node[n + 1 :]]
                copies = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
                del mutant.graph.node[:]
                mutant.graph.node.extend(copies)

            yield f"{name} of {node.name}", insert


def _reverses(read: str, result: str) -> list[NodeProto]:
    numbers = {"odd_last": [-1], "odd_end": [-(1 << 62)]}
    made = [helper.make_node("Constant", [], [name], value_ints=values) for name, values in numbers.items()]
    return [*made, helper.make_node("Slice", [read, "odd_last", "odd_end", "odd_last", "odd_last"], [result])]


def _rounds(read: str, result: str) -> list[NodeProto]:
    half = helper.make_node("Cast", [read], ["odd_half"], to=TensorProto.FLOAT16)
    return [half, helper.make_node("CastLike", ["odd_half", read], [result])]


KINDS: dict[str, Callable[[ModelProto], Found]] = {
    "open dim written down": _open_dims,
    "axes exchanged at run time": _exchanged_at_run_time,
    "override became a constant": _overrides,
    "constant in a branch": partial(_edits, _doubled, inner=True),
    "vector reversed": partial(_edits, _reversed),
    "rare integers wrong": _rare,
    "rows exchanged": partial(_edits, _rows),
    "constant off by 1 %": partial(_edits, _one_percent),
    "float attribute off": _attributes,
    "consumer rewired": _rewired,
    "order of a copy": _annotations,
    "perm of a Transpose": _perms,
    "another operator": _operators,
    "attribute left out": _left_out,
    "node bypassed": _bypassed,
    "operands exchanged": _operands,
    "branches exchanged": _branches,
    "result reversed": partial(_inserted, _reverses),
    "result rounded": partial(_inserted, _rounds),
}


# --- the oracle ------------------------------------------------------------------------------------------------------


def differs(mutant: ModelProto, original: ModelProto) -> bool:
    """Whether the two differ for some inputs that are legal for the original; also where only the mutant fails."""
    for forced in (None, True, False) if any(node.op_type == "If" for node in original.graph.node) else (None,):
        sessions = [_session(model, forced) for model in (original, mutant)]
        assert sessions[0] is not None
        for feeds in _draws(original):
            try:
                expected = sessions[0].run(None, feeds)
            except Exception:  # a size that the original does not take
                continue
            if sessions[1] is None:
                return True
            names = {each.name for each in sessions[1].get_inputs()}
            names |= {each.name for each in sessions[1].get_overridable_initializers()}
            try:
                found = sessions[1].run(None, {name: data for name, data in feeds.items() if name in names})
            except Exception:
                return True
            if any(not _same(one, other) for one, other in zip(expected, found, strict=True)):
                return True
    return False


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    scale = np.abs(one[np.isfinite(one)]).max(initial=0.0)
    return bool(np.allclose(one, other, rtol=0.0, atol=1e-5 * scale, equal_nan=True))


def _session(model: ModelProto, forced: bool | None) -> Any:
    """The model in onnxruntime with the branch of its Ifs `forced`; None where it does not run."""
    runnable = ModelProto()
    runnable.CopyFrom(model)
    if forced is not None:
        runnable.graph.initializer.append(numpy_helper.from_array(np.array(forced), "odd_forced"))
        for graph in _graphs(runnable.graph):
            for node in graph.node:
                if node.op_type == "If":
                    node.input[0] = "odd_forced"
    for operator in sorted({node.op_type for node in runnable.graph.node if node.domain == "acme"}):
        names = ["a", "b"][: max(len(node.input) for node in runnable.graph.node if node.op_type == operator)]
        body = [helper.make_node("Sin", ["a"], ["c"])]
        if len(names) > 1:
            body = [helper.make_node("Sin", ["a"], ["s"]), helper.make_node("Sub", ["s", "b"], ["c"])]
        opset = [each for each in runnable.opset_import if each.domain == ""]
        runnable.functions.append(helper.make_function("acme", operator, names, ["c"], body, opset))
    try:
        return session(runnable)
    except Exception:
        return None


def _draws(model: ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """Inputs with open dims of several sizes; positive, large and small numbers; integers that reach every row."""
    defaults = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for round_, (size, scale, lift) in enumerate(itertools.product(SIZES, (1.0, 100.0), (0.0, 200.0))):
        generator = np.random.default_rng(100 + round_)
        feeds: dict[str, np.ndarray] = {}
        symbols: dict[str, int] = {}
        for value in model.graph.input:
            if value.name in defaults and round_ % 2 == 0:
                continue
            kind = value.type.tensor_type
            dims = kind.shape.dim
            shape = [dim.dim_value or symbols.setdefault(dim.dim_param, size + 2 * len(symbols)) for dim in dims]
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            if dtype.kind in "iu":
                feeds[value.name] = generator.integers(0, 8, shape).astype(dtype)
            elif dtype.kind == "b":
                feeds[value.name] = generator.random(shape) < 0.5
            else:
                feeds[value.name] = (generator.normal(size=shape) * scale + lift).astype(dtype)
        yield feeds
