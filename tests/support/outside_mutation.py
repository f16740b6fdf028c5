"""Wrong models made from outside: mutants of ONNX protobufs, by the kinds of faults that a verifier may overlook.

It uses nothing of relayout: a mutant is a changed protobuf, and onnxruntime says whether it is wrong (`differs`), with
open dims of several sizes, both branches of an If, other values for inputs with a default, and a stand-in for each
operator that the runtime lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
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
        yield from (Mutant(kind, name, mutant, kind in _BROKEN) for name, mutant in found[::step])


Found = Iterator[tuple[str, ModelProto]]
# An input that a caller can no longer override or resize, and a false annotation, break the contract by themselves.
_BROKEN = ("override became a constant", "order of a copy")


def exchanged(items: Sequence[Any], i: int, j: int) -> list[Any]:
    """The items, two of which change places."""
    other = list(items)
    other[i], other[j] = other[j], other[i]
    return other


def _graphs(graph: onnx.GraphProto | onnx.FunctionProto) -> list[Any]:
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


def edits(others: Callable[[str, np.ndarray], Iterator[Edit]], model: ModelProto, *, inner: bool = False) -> Found:
    """A mutant for each other array, with a name, that `others` has for a constant."""
    for i, (name, tensor) in enumerate(_constants(model, inner=inner)):
        for text, data in others(name, numpy_helper.to_array(tensor)):
            mutant = deepcopy(model)
            changed = _constants(mutant, inner=inner)[i][1]
            changed.CopyFrom(numpy_helper.from_array(np.array(data, order="C"), changed.name))
            for value in mutant.graph.value_info:
                if value.name == name:
                    value.type.CopyFrom(helper.make_tensor_type_proto(changed.data_type, data.shape))
            yield text, mutant


def _open_dims(model: ModelProto) -> Found:
    for v, value in enumerate(model.graph.input):
        for d, dim in enumerate(value.type.tensor_type.shape.dim):
            for size in SIZES[:2] if dim.dim_param else ():
                mutant = deepcopy(model)
                mutant.graph.input[v].type.tensor_type.shape.dim[d].dim_value = size
                yield f"{value.name} axis {d} is {size}", mutant
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    is_open = any(dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim)

    def frozen(name: str, data: np.ndarray) -> Iterator[Edit]:
        for place in np.flatnonzero(data <= 0) if name in shapes and is_open else ():
            for size in SIZES[:2]:
                other = data.copy()
                other[place] = size
                yield f"{name}[{place}] is {size}", other

    yield from edits(frozen, model)


def insert(model: ModelProto, place: int, nodes: Sequence[NodeProto]) -> None:
    """Insert nodes in front of the node at this place."""
    copies = deepcopy([*model.graph.node[:place], *nodes, *model.graph.node[place:]])
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _exchanged_at_run_time(model: ModelProto) -> Found:
    """A Transpose with a Reshape back to the shape before: it shows only where both axes are longer than one."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    kinds = {v.name: v.type.tensor_type for v in values}
    ranks = {name: len(kind.shape.dim) for name, kind in kinds.items() if kind.elem_type == TensorProto.FLOAT}
    ranks |= {tensor.name: 0 for tensor in model.graph.initializer}
    for n, node in enumerate(model.graph.node):
        for k, name in enumerate(node.input):
            for i, j in combinations(range(ranks.get(name, 0)), 2) if node.op_type != "If" else ():
                mutant = deepcopy(model)
                mutant.graph.node[n].input[k] = "odd"
                made = [
                    helper.make_node("Transpose", [name], ["odd_turned"], perm=exchanged(range(ranks[name]), i, j)),
                    helper.make_node("Shape", [name], ["odd_shape"]),
                    helper.make_node("Reshape", ["odd_turned", "odd_shape"], ["odd"]),
                ]
                insert(mutant, n, made)
                yield f"axes {i} and {j} of {name} for {node.name}", mutant


def _overrides(model: ModelProto) -> Found:
    kept = {tensor.name for tensor in model.graph.initializer}
    for v, value in enumerate(model.graph.input):
        if value.name in kept:
            mutant = deepcopy(model)
            del mutant.graph.input[v]
            yield f"{value.name} is no input", mutant


def _doubled(name: str, data: np.ndarray) -> Iterator[Edit]:
    if data.dtype == np.float32:
        yield f"{name} doubled", data * 2 + 1


def _reversed(name: str, data: np.ndarray) -> Iterator[Edit]:
    if data.dtype == np.float32 and data.ndim == 1 and not np.array_equal(data, data[::-1]):
        yield f"{name} reversed", data[::-1]


def rewire(model: ModelProto, old: str, new: str) -> None:
    """All readers of one value take another."""
    for reader in model.graph.node:
        reader.input[:] = [new if name == old else name for name in reader.input]


def _rare(model: ModelProto) -> Found:
    """One element of an integer or boolean output in a thousand."""
    for value in model.graph.output:
        kind, name = value.type.tensor_type, value.name
        shape = [dim.dim_value for dim in kind.shape.dim]
        if kind.elem_type not in (TensorProto.BOOL, TensorProto.INT64) or not all(shape):
            continue
        mutant = deepcopy(model)
        mask = np.zeros(shape, bool if kind.elem_type == TensorProto.BOOL else np.int64)
        mask.reshape(-1)[mask.size // 3 :: 1500] = 1
        for node in mutant.graph.node:
            node.output[:] = [f"{name}_right" if result == name else result for result in node.output]
        rewire(mutant, name, f"{name}_right")
        mutant.graph.initializer.append(numpy_helper.from_array(mask, f"{name}_mask"))
        operator = "Xor" if kind.elem_type == TensorProto.BOOL else "Add"
        mutant.graph.node.append(helper.make_node(operator, [f"{name}_right", f"{name}_mask"], [name]))
        yield f"{name} off", mutant


def _rows(name: str, data: np.ndarray) -> Iterator[Edit]:
    if data.dtype.kind not in "fiu" or (data.dtype == np.int64 and data.size < 9):
        return
    for axis, extent in enumerate(data.shape):
        first, last = np.take(data, 0, axis), np.take(data, extent - 1, axis)
        if extent > 1 and not np.array_equal(first, last):
            order = exchanged(range(extent), 0, extent - 1)
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
                mutant = deepcopy(model)
                mutant.graph.node[n].attribute[a].f *= 1.01
                yield f"{node.name} {attribute.name}", mutant


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
                mutant = deepcopy(model)
                mutant.graph.node[n].input[k] = other
                yield f"{node.name} reads {other} for {name}", mutant
        known.update(node.output)


def _annotations(model: ModelProto) -> Found:
    """Another order stated of the result of a Transpose, where the axes exchanged have equal extents."""
    made = {node.output[0] for node in model.graph.node if node.op_type == "Transpose"}
    for v, value in enumerate(model.graph.value_info):
        extents = [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for p, entry in enumerate(value.metadata_props):
            order = entry.value.split(",") if entry.key == "relayout.order" and value.name in made else []
            for i, j in combinations(range(len(order)), 2):
                if extents[i] == extents[j] and extents[i] != 1:
                    mutant, text = deepcopy(model), ",".join(exchanged(order, i, j))
                    mutant.graph.value_info[v].metadata_props[p].value = text
                    yield f"{value.name} {entry.value} -> {text}", mutant


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
            for i, j in combinations(range(len(perm)), 2):
                mutant = deepcopy(model)
                mutant.graph.node[n].attribute[a].ints[:] = exchanged(perm, i, j)
                yield f"{node.name}: {i} and {j} of {perm}", mutant


def _operators(model: ModelProto) -> Found:
    """Another operator of ONNX in the place of one."""
    for n, node in enumerate(model.graph.node):
        if node.domain == "" and node.op_type in _LIKE:
            mutant = deepcopy(model)
            mutant.graph.node[n].op_type = _LIKE[node.op_type]
            yield f"{node.name} is {_LIKE[node.op_type]}", mutant


def _left_out(model: ModelProto) -> Found:
    """An attribute left out, where the default is another."""
    for n, node in enumerate(model.graph.node):
        for a, attribute in enumerate(node.attribute):
            if attribute.name in ("axis", "axes", "pads", "strides", "group", "perm", "keepdims", "auto_pad", "alpha"):
                mutant = deepcopy(model)
                del mutant.graph.node[n].attribute[a]
                yield f"{node.name} without {attribute.name}", mutant


def _bypassed(model: ModelProto) -> Found:
    """Readers take the operand of a node instead of its result."""
    for node in model.graph.node:
        if node.input and len(node.output) == 1:
            mutant = deepcopy(model)
            rewire(mutant, node.output[0], node.input[0])
            yield f"{node.name} bypassed", mutant


def _operands(model: ModelProto) -> Found:
    """Two operands of one node exchanged."""
    for n, node in enumerate(model.graph.node):
        for i, j in combinations(range(len(node.input)), 2):
            if node.input[i] != node.input[j]:
                mutant = deepcopy(model)
                mutant.graph.node[n].input[:] = exchanged(node.input, i, j)
                yield f"{node.name}: {node.input[i]} and {node.input[j]}", mutant


def _branches(model: ModelProto) -> Found:
    """Both branches of an If exchanged."""
    for n, node in enumerate(model.graph.node):
        if node.op_type == "If":
            mutant = deepcopy(model)
            for attribute, other in zip(mutant.graph.node[n].attribute, reversed(node.attribute), strict=True):
                attribute.g.CopyFrom(other.g)
            yield node.name, mutant


def _inserted(made: Callable[[str, str], list[NodeProto]], model: ModelProto) -> Found:
    """Nodes after one that give its result another value under the same name; `made` has them from both names."""
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*model.graph.value_info, *model.graph.output)}
    for n, node in enumerate(model.graph.node):
        for k, name in enumerate(node.output):
            if ranks.get(name):
                mutant = deepcopy(model)
                mutant.graph.node[n].output[k] = "odd_before"
                insert(mutant, n + 1, made("odd_before", name))
                yield f"{name} of {node.name}", mutant


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
    "constant in a branch": partial(edits, _doubled, inner=True),
    "vector reversed": partial(edits, _reversed),
    "rare integers wrong": _rare,
    "rows exchanged": partial(edits, _rows),
    "constant off by 1 %": partial(edits, _one_percent),
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
    runnable = deepcopy(model)
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
    for round_, (size, scale, lift) in enumerate(product(SIZES, (1.0, 100.0), (0.0, 200.0))):
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
