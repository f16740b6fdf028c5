"""The data of the model's constants: each is, bit for bit, a relayout of the original's constant that it stands for.

A run shows a wrong constant only if its elements reach an output: not those of a branch that is not taken, of a row
that no index reads, or behind a rounding. So constants are compared with what they are made from, without a run. A
constant that the original computes is computed here, by onnx's reference evaluator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from relayout.layout.metadata_keys import OPERAND_ORDERS_KEY, SOURCE_KEY, TRANSFORM_KEY
from relayout.layout.relaid_constant import AbsentTensor, noted_transform
from relayout.model.dims.lone_nodes import evaluated_alone
from relayout.ops import graphs_of
from relayout.ops.node_reader import constant_tensor
from relayout.report.schema import Finding
from relayout.verification.counterparts import COPY, VIEWS, Counterparts, moved_from
from relayout.verification.numbered_axes import CUMULATIVE, flattens
from relayout.verification.operators_kept import kind_of
from relayout.verification.relaid_data import is_relayout, is_turned
from relayout.verification.requirements import node_label, noted_order

Array = np.ndarray[Any, Any]

_Named = dict[str, dict[ir.Graph | None, ir.Value]]
"""Constants by name, and by the graph that has them."""

# Shapes, axes, pads and indices change with the layout of what they speak of. They act in every run.
_LARGEST_PARAMETER = 16
_BY_AXIS = ("Resize", "Upsample")
"""Operators with a number for each axis, which are permuted with the axes."""
_READ_DATA = frozenset(
    (
        *("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
        *("DequantizeLinear", "QuantizeLinear"),
    )
)
"""Operators whose operands are all data. The step of a quantized result hides a small one, such as a bias, in a run."""
_OF_AXES = {
    **dict.fromkeys(("Expand", "Reshape", "Squeeze", "Tile", "Unsqueeze", "Upsample", "CenterCropPad"), (1,)),
    **dict.fromkeys(("AffineGrid", "GatherND", "ScatterND", "Split", "SplitToSequence", "Trilu"), (1,)),
    **dict.fromkeys(CUMULATIVE, (1,)),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "Col2Im": (1, 2),
    "DFT": (2,),
    "Dropout": (1, 2),
    "ConstantOfShape": (0,),
    "MaxUnpool": (2,),
}
"""The operands that speak of axes, or have a default other than zeros; so do those of reductions."""
_IN_BLOCKS = ("Gather",)
"""Operators that may take whole blocks of an axis, by other numbers."""
_LARGEST_BFLOAT16 = 2.0**127 * (2 - 2.0**-7)
_QUANTIZING = ("DequantizeLinear", "QuantizeLinear")
_QUANTIZES = 19
"""The first opset in which the evaluator has them."""


def check_constants(pairs: Counterparts) -> Iterator[Finding]:
    """Yield a finding for each constant whose data is no relayout of the original's of its name, or may be none.

    Branches may use one name for different constants: that of the original's branch counts. A constant that stands in
    no such branch has the data of one of that name."""
    original, known = pairs.original, _Named()
    for value in original.constants:
        known.setdefault(str(value.name), {})[value.graph] = value
    for graph, value in _stored(original.model.graph):
        known.setdefault(str(value.name), {})[graph] = value
    for graph, value in _stored(pairs.model.model.graph):
        tensor, sources = _tensor(value), _sources(value, pairs.graphs.get(graph), known)
        if tensor is None and constant_tensor(value) is not None and any(_tensor(each) is not None for each in sources):
            message = f"the constant {value.name} has no data, and the original's has"
            yield Finding(rule="constant", node=value.name, expected="data", found="none", message=message)
        if tensor is None or _is_parameter(value, tensor):
            continue
        data = [each for each in map(data_of, sources) if each is not None]
        if len(data) < len(sources) or not data or any(each is tensor for each in data):
            continue
        pairs_of_data = zip(sources, map(array_of, data), strict=True)
        if not any(_agree(value, source, array, tensor.numpy()) for source, array in pairs_of_data):
            yield Finding(
                rule="constant",
                node=value.name,
                expected=f"the elements of {sources[0].name}, with permuted axes or after the steps in {TRANSFORM_KEY}",
                found=_difference(array_of(data[0]), tensor.numpy()),
                message=f"the constant {value.name} has other data than in the original",
            )
    yield from _check_operands(pairs, known)
    yield from _check_noted_orders(pairs)


def _check_operands(pairs: Counterparts, known: _Named) -> Iterator[Finding]:
    """Yield a finding for each constant operand, of those that do not speak of axes, that is another constant than in
    the original, that is gone, or that is new. One that is left out counts as zeros, or as a bound that bounds nothing.
    """
    for node, other in pairs.nodes.items():
        kind = kind_of(node)[1]
        if kind != kind_of(other)[1] or node.op_type in VIEWS or kind.startswith("Reduce") or _counts(node):
            continue
        for n, (mine, theirs) in enumerate(zip_longest(node.inputs, other.inputs)):
            operands = [each for each in (mine, theirs) if each is not None]
            if not operands or n in _OF_AXES.get(kind, ()):
                continue
            if theirs is not None and moved_from(theirs)[-1] in _named_like(mine, known) and not _is_small(mine):
                continue  # compared by name
            if not all(each in pairs.constants for each in operands):
                continue  # the flow of data is compared
            data = [array_of(each) for each in map(data_of, operands) if each is not None]
            if len(data) < len(operands):
                continue
            if kind in _IN_BLOCKS and len({array.size for array in data}) > 1:
                continue
            if mine is not None and theirs is not None:
                agree = is_relayout(data[1], data[0], noted_transform(mine), noted_transform(theirs))
            elif kind == "Clip":
                agree = _bounds_nothing(data[0])
            else:
                agree = not data[0].any()
            if not agree:
                yield Finding(
                    rule="constant",
                    node=node_label(node),
                    operand=n,
                    expected="none" if theirs is None else str(theirs.name),
                    found="none" if mine is None else str(mine.name),
                    message=f"this {node.op_type} reads another constant than in the original",
                )


def note_numbers(pairs: Counterparts) -> Iterator[Finding]:
    """Yield a note where operators have other numbers of axes than in the original, such as the ends of a Slice, which
    are right only where the layout is another: only a run compares these."""
    unseen = [node for node, other in pairs.nodes.items() if _has_other_numbers(node, other, pairs)]
    if unseen:
        message = (
            f"no run compares the numbers that speak of axes with other ones in the original (nodes: {len(unseen)})"
        )
        yield Finding(rule="constant", severity="note", node=node_label(unseen[0]), message=message)


def _has_other_numbers(node: ir.Node, other: ir.Node, pairs: Counterparts) -> bool:
    kind = kind_of(node)[1]
    places = (1,) if kind.startswith("Reduce") else _OF_AXES.get(kind, ())
    if kind != kind_of(other)[1] or kind in VIEWS or not places:
        return False
    for n, (mine, theirs) in enumerate(zip_longest(node.inputs, other.inputs)):
        if n not in places or mine is None or theirs is None or not {mine, theirs} <= pairs.constants:
            continue
        found, expected = data_of(mine), data_of(theirs)
        if found is None or expected is None:
            continue
        own, wanted = (np.sort(array_of(each), axis=None) for each in (found, expected))
        # The number of an axis changes with its place.
        if len(own) != len(wanted) or (_of_extents(kind, n) and not np.array_equal(own, wanted)):
            return True
    return False


def _of_extents(kind: str, n: int) -> bool:
    """Whether an operand has numbers along axes, and not the numbers of axes."""
    is_axes = kind in ("DFT", *CUMULATIVE) or kind.startswith("Reduce") or (kind, n) in (("Slice", 3), ("Pad", 3))
    return not is_axes


def _counts(node: ir.Node) -> bool:
    """Whether a node makes integers of integers alone, which may be extents or numbers of axes."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return kind_of(node)[1] not in _READ_DATA and all(
        value.dtype is not None and value.dtype.is_integer() and value.dtype.bitwidth > 8 for value in values
    )


def _is_small(value: ir.Value | None) -> bool:
    """Whether a constant of this value's type may be a parameter, which is not compared by name."""
    tensor = _tensor(moved_from(value)[-1]) if value is not None else None
    return value is not None and tensor is not None and _may_be_parameter(tensor)


def _bounds_nothing(bound: Array) -> bool:
    """Whether it is the least or the largest number of its type, or infinite."""
    if bound.dtype.kind in "iu":
        limits = np.iinfo(bound.dtype)
        return bool(np.isin(bound, [limits.min, limits.max]).all())
    largest = np.finfo(bound.dtype).max if bound.dtype.kind == "f" else _LARGEST_BFLOAT16
    return bool((np.abs(bound.astype(np.float64)) >= largest).all())


def _named_like(value: ir.Value | None, known: _Named) -> Sequence[ir.Value]:
    """The original's constants that a constant, or the one that it is a view of, may stand for."""
    return [] if value is None else _sources(moved_from(value)[-1], None, known)


def _check_noted_orders(pairs: Counterparts) -> Iterator[Finding]:
    """Yield a finding for each constant whose data is not in the order of axes that a reader notes."""
    for node, other in pairs.nodes.items():
        if OPERAND_ORDERS_KEY not in node.metadata_props:
            continue
        for n, (mine, theirs) in enumerate(zip(node.inputs, other.inputs, strict=False)):
            if mine is None or theirs is None:
                continue
            order, made, source = noted_order(mine, node, n), _tensor(mine), _tensor(theirs)
            if order is None or made is None or source is None:
                continue
            earlier = noted_order(theirs, other, n) or tuple(map(str, range(len(source.shape))))
            if sorted(order) != sorted(earlier) or not is_turned(
                source.numpy(), [earlier.index(axis) for axis in order], made.numpy()
            ):
                yield Finding(
                    rule="layout-annotation",
                    node=node_label(node),
                    operand=n,
                    expected=f"the elements of {theirs.name} in the order {','.join(order)} of its axes",
                    found="another order",
                    message=f"the noted order of this operand ({mine.name}) is not the one that it has",
                )


def _stored(graph: ir.Graph) -> Iterator[tuple[ir.Graph, ir.Value]]:
    """The stored constants of a graph and of those inside it, each with its graph: initializers, and results of
    Constant."""
    yield from ((graph, value) for value in graph.initializers.values())
    for node in graph:
        if node.op_type == "Constant" and node.domain == "":
            yield graph, node.outputs[0]
        for inner in graphs_of(node):
            yield from _stored(inner)


def _sources(value: ir.Value, graph: ir.Graph | None, known: _Named) -> Sequence[ir.Value]:
    """The original's constants that a constant may stand for: by annotation, by name, or as a copy of that name. One
    alone where `graph`, the original's counterpart of its graph, has it."""
    name = str(value.name)
    for each in (value.metadata_props.get(SOURCE_KEY), name, COPY.sub("", name)):
        found = known.get(each, {}) if each is not None else {}
        if found:
            return [found[graph]] if graph in found else [*found.values()]
    return []


def data_of(source: ir.Value) -> ir.TensorProtocol | Array | None:
    """The data of a constant of the original, stored or computed; None where it is absent or cannot be computed."""
    tensor = _tensor(source)
    return tensor if tensor is not None else _computed(source)


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The stored data of a constant; None where it is absent."""
    tensor = constant_tensor(value)
    return None if isinstance(tensor, AbsentTensor) else tensor


def array_of(data: ir.TensorProtocol | Array) -> Array:
    return data if isinstance(data, np.ndarray) else data.numpy()


def _is_parameter(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    if any(kind_of(node)[1] in _READ_DATA for node, _ in value.uses()):
        return False
    return _may_be_parameter(tensor)


def _may_be_parameter(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype.is_integer() and tensor.dtype.bitwidth > 8 and tensor.size <= _LARGEST_PARAMETER


def _agree(value: ir.Value, source: ir.Value, expected: Array, found: Array) -> bool:
    if any(node.op_type in _BY_AXIS and operand > 0 for node, operand in value.uses()):
        return np.array_equal(np.sort(expected, axis=None), np.sort(found, axis=None))
    return is_relayout(expected, found, noted_transform(value), noted_transform(source))


def _difference(expected: Array, found: Array) -> str:
    if expected.shape == found.shape and expected.dtype == found.dtype:
        wrong = int(np.count_nonzero(expected != found))
        return f"{wrong} of {expected.size} elements elsewhere or different"
    return f"{found.dtype} {list(found.shape)} that is no relayout of {expected.dtype} {list(expected.shape)}"


def _computed(value: ir.Value) -> Array | None:
    """The data of a value that the original computes from constants; None where the evaluator lacks an operator."""
    # Each node behind those that it reads.
    nodes: dict[ir.Node, None] = {}
    leaves: dict[str, Array] = {}
    pending = [(value, False)]
    while pending:
        read, is_ready = pending.pop()
        node, tensor = read.producer(), _tensor(read)
        if tensor is not None:
            leaves[str(read.name)] = tensor.numpy()
        elif node is None:
            return None
        elif flattens(node):
            return None  # the evaluator reads it as the operator of a later opset
        elif is_ready:
            nodes[node] = None
        elif node not in nodes:
            pending.append((read, True))
            pending += [(each, False) for each in node.inputs if each is not None]
    graph = value.graph
    if graph is None:
        return None
    try:
        with np.errstate(all="ignore"):
            for node in nodes:
                leaves |= _results(node, leaves, graph.opset_imports)
    except Exception:  # the evaluator may raise anything
        return None
    return leaves[str(value.name)]


def _results(node: ir.Node, arrays: Mapping[str, Array], versions: Mapping[str, int]) -> dict[str, Array]:
    """The results of a node by name. The evaluator lacks the quantizing operators of early opsets, and those of a later
    one compute the same."""
    opsets = {**versions, "": max(versions.get("", 1), _QUANTIZES)} if node.op_type in _QUANTIZING else versions
    names = [str(each.name) for each in node.outputs if each.name]
    feeds = {str(each.name): arrays[str(each.name)] for each in node.inputs if each is not None}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return dict(zip(names, evaluated_alone([ir.serde.serialize_node(node)], feeds, names, imports), strict=True))
