"""Constant propagation of shape arithmetic.

Exporters write the shape of a Reshape, the bounds of a Slice or the sizes of a Resize as little graphs of Shape,
Gather, Mul and Concat. Their numbers make shapes known, and the axes and sizes that the operator table reads. The graph
is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from relayout.errors import InputError
from relayout.layout.terms import GENERATED, term_of
from relayout.model.dims.dim_unification import MadeUpNames, number, rename, unify_names
from relayout.model.dims.lone_nodes import evaluated_alone
from relayout.model.dims.operand_ranks import enter_ranks, enter_scan_inputs
from relayout.model.dims.operator_placeholders import has_values
from relayout.model.dims.rank_completion import known_dims
from relayout.model.dims.shape_merging import merge_shapes, name_open_dims, names_in
from relayout.model.dims.symbolic_values import Symbols
from relayout.model.proto_graphs import (
    STANDARD_DOMAINS,
    branch_taken,
    copied,
    graphs_inside,
    replace_entries,
    static_shape,
    subgraphs_of,
    tensor_of,
    value_names,
)
from relayout.model.tensor_types import is_absent

LARGEST = 1024
LARGEST_VIEW = 1 << 60
ROUNDS = 16
ARITHMETIC = frozenset(
    "Abs Add And Cast Ceil Clip Concat ConstantOfShape Div Equal Expand Flatten Floor Gather Greater Identity Less "
    "Max Min Mod Mul Neg Not OneHot Or Pow Range Reciprocal ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round "
    "Shape Size Slice Split Sqrt Squeeze Sub Tile Transpose Unsqueeze Where".split()
)

_ASKING = frozenset(["Shape", "Size"])
_SCALED = frozenset(["Pad", "Resize", "Upsample"])
"""Operators of no shape arithmetic whose other operands tell extents that onnx leaves open."""


class _Computing(NamedTuple):
    """A node of ARITHMETIC, an If or a Constant, its operator and its operands. All passes look at these: to read a
    field of a protobuf takes as long as five looks into a tuple."""

    node: onnx.NodeProto
    operator: str
    operands: list[str]


Infer = Callable[[onnx.ModelProto], onnx.ModelProto]


class Inferred(NamedTuple):
    """An inferred model, the values of its main graph's computed small tensors by name, whether each value of that
    graph has a rank, and whether equal dims have made one a number, of which onnx's inference does not know yet."""

    proto: onnx.ModelProto
    values: dict[str, np.ndarray]
    is_ranked: bool
    has_new_numbers: bool = False


def infer_with_values(proto: onnx.ModelProto, infer: Infer, *, has_graphs: bool) -> Inferred:
    """The model with all that its shapes and the values of its small tensors tell of each other.

    `infer` fills shapes in; it is called again as long as new values make new shapes known. `has_graphs`: a node may
    have graphs inside.
    """
    _spell_formulas(proto.graph)
    inferred = infer(proto)
    computing = _computing(proto.graph)
    known = _stored(proto.graph, computing)
    stored = set(known)
    if _is_static(inferred.graph, has_graphs):
        found = _compute(computing, _asked_shapes(inferred.graph, computing, known), known, proto.opset_import)
        return Inferred(inferred, {name: known[name] for name in found}, is_ranked=True)
    for _ in range(ROUNDS):
        if not enter_ranks(proto.graph, inferred.graph, {})[0]:
            break
        inferred = infer(proto)
    name_open_dims(inferred.graph)
    hints: dict[str, onnx.ValueInfoProto] = {}
    learned: dict[str, onnx.ValueInfoProto] = {}
    rounds_in_vain, most = 0, known_dims(inferred.graph)
    # Each of a chain of layers that pad by what they compute from extents may take a round, however many they are.
    while rounds_in_vain < ROUNDS:
        # Symbols start from constants, and lead to further ones.
        shapes = _asked_shapes(inferred.graph, computing, known)
        found = _compute(computing, shapes, known, proto.opset_import)
        determined, better = _follow_symbols(inferred, computing, known)
        found |= determined | _compute(computing, shapes, known, proto.opset_import)
        fresh = learned | {hint.name: hint for hint in better}
        is_better = any(hints.get(name) != hint for name, hint in fresh.items())
        if not found and not is_better:
            break
        hints |= fresh
        if not is_better and not _adds_shapes(_shapes(inferred.graph), inferred.graph, found):
            continue
        probe = copied(proto)
        _enter_constants(probe.graph, {n: v for n, v in known.items() if n not in stored}, hints)
        shared = names_in(probe.graph)
        learned = merge_shapes(infer(probe).graph, inferred.graph, shared)
        before, most = most, max(most, known_dims(inferred.graph))
        rounds_in_vain += not found and most == before
    enter_scan_inputs(inferred.graph, {})
    if has_graphs:
        _infer_inside(proto, inferred, infer, {n: v for n, v in known.items() if n not in stored}, hints)
    # The dims of values that had no rank before.
    name_open_dims(inferred.graph)
    before = known_dims(inferred.graph)
    for _ in range(ROUNDS):
        if not _unify(inferred.graph, known) and not _unify(inferred.graph, known, are_settled=True):
            break
    has_new_numbers = known_dims(inferred.graph) > before
    ranked = {
        v.name for v in (*inferred.graph.value_info, *inferred.graph.output) if v.type.tensor_type.HasField("shape")
    }
    is_ranked = all(name in ranked for node in inferred.graph.node for name in node.output if name)
    values = {name: value for name, value in known.items() if name not in stored}
    return Inferred(inferred, values, is_ranked, has_new_numbers)


def _spell_formulas(graph: onnx.GraphProto) -> None:
    """Write the formulas of dims as this package does: exporters put parentheses around them, and factors in an order
    of their own."""
    formulas = [name for name in names_in(graph) if "(" in name or "*" in name]
    same = {name: text for name in formulas if (text := str(term_of(name))) != name}
    if same:
        rename(graph, same)


def _is_static(graph: onnx.GraphProto, has_graphs: bool) -> bool:
    """Whether the graph has no subgraphs and every extent is known, so that values add nothing to the shapes."""
    shapes = _shapes(graph)
    names = [value.name for value in graph.input]
    for node in graph.node:
        names += node.output[:]
    if not {*names} - {""} <= shapes.keys():
        return False
    return not has_graphs or not graphs_inside(graph.node)


def _computing(graph: onnx.GraphProto) -> list[_Computing]:
    return [
        _Computing(node, operator, node.input[:])
        for node in graph.node[:]
        if (operator := node.op_type) in ARITHMETIC or operator in ("Constant", "If")
    ]


def _stored(graph: onnx.GraphProto, computing: Sequence[_Computing]) -> dict[str, np.ndarray]:
    read = {name for _, operator, operands in computing if operator in ARITHMETIC for name in operands}
    branches = [inner for node, operator, _ in computing if operator == "If" for inner in graphs_inside([node])]
    read.update(name for branch in branches for graph in subgraphs_of(branch) for name in _read_in(graph))
    read.update(name for node in graph.node[:] if node.op_type in _SCALED for name in node.input[1:])
    read -= {value.name for value in graph.input}
    tensors = [(t.name, t) for t in graph.initializer if t.name in read]
    tensors += [
        (node.output[0], tensor)
        for node, operator, _ in computing
        if operator == "Constant" and node.output[0] in read and (tensor := tensor_of(node)) is not None
    ]
    known: dict[str, np.ndarray] = {}
    for name, tensor in tensors:
        small = math.prod(tensor.dims[:]) <= LARGEST and tensor.data_type != onnx.TensorProto.STRING
        if small and tensor.data_location != onnx.TensorProto.EXTERNAL and not is_absent(tensor):
            known[name] = numpy_helper.to_array(tensor)
    return known


def _read_in(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that shape arithmetic reads, and those of the graph's results."""
    yield from (name for _, _, operands in _computing(graph) for name in operands)
    yield from (value.name for value in graph.output)


def _infer_inside(
    proto: onnx.ModelProto,
    inferred: onnx.ModelProto,
    infer: Infer,
    values: Mapping[str, np.ndarray],
    hints: Mapping[str, onnx.ValueInfoProto],
) -> None:
    """Enter into `inferred` the shapes that follow from values which are computed in the graphs inside nodes. `values`
    and `hints` are what is known of the main graph.

    A branch that does not run may contradict the shapes that a value makes known. Then nothing is entered.
    """
    for _ in range(ROUNDS):
        inside = list(_values_inside(inferred.graph, values, _shapes(inferred.graph), proto.opset_import))
        if not any(_adds_shapes(each.shapes, each.graph, each.computed) for each in inside):
            return
        probe = copied(proto)
        graphs = list(subgraphs_of(probe.graph))
        # The innermost first: the nodes of a graph that are kept are copied, with the graphs inside them.
        for graph, each in reversed([*zip(graphs[1:], inside, strict=True)]):
            _enter_constants(graph, each.found, {})
        _enter_constants(probe.graph, values, hints)
        shared = names_in(probe.graph)
        try:
            informed = infer(probe)
        except InputError:
            return
        before = inferred.SerializeToString(deterministic=True)
        merge_shapes(informed.graph, inferred.graph, shared)
        if inferred.SerializeToString(deterministic=True) == before:
            return


class _Inside(NamedTuple):
    """A graph inside a node, the values that its nodes compute, the names of those and of all computed around it, and
    the known shapes."""

    graph: onnx.GraphProto
    found: dict[str, np.ndarray]
    computed: Set[str]
    shapes: Mapping[str, tuple[int, ...]]


def _values_inside(
    graph: onnx.GraphProto,
    computed: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    opsets: Sequence[onnx.OperatorSetIdProto],
    stored: Mapping[str, np.ndarray] = {},
) -> Iterator[_Inside]:
    """Each graph inside the graph's nodes, at every depth. `computed`, `stored` and `shapes` are known of the values
    around it."""
    read = [
        each for inner in graphs_inside(graph.node) for nested in subgraphs_of(inner) for each in _computing(nested)
    ]
    stored = {**stored, **_stored(graph, read)}
    for inner in graphs_inside(graph.node):
        own = value_names(inner)
        seen = {name: shape for name, shape in shapes.items() if name not in own} | _shapes(inner)
        around, constant = ({n: v for n, v in each.items() if n not in own} for each in (computed, stored))
        computing = _computing(inner)
        constant |= _stored(inner, computing)
        known = constant | around
        found = {name: known[name] for name in _compute(computing, seen, known, opsets)}
        around |= found
        yield _Inside(inner, found, around.keys(), seen)
        yield from _values_inside(inner, around, seen, opsets, constant)


def _asked_shapes(
    graph: onnx.GraphProto, computing: Sequence[_Computing], known: Mapping[str, np.ndarray]
) -> dict[str, tuple[int, ...]]:
    """The shapes that are known in full, where a Shape or Size asks for one: most models have neither."""
    return _shapes(graph) if _asks_for_shapes(computing, known) else {}


def _compute(
    computing: Sequence[_Computing],
    shapes: Mapping[str, tuple[int, ...]],
    known: dict[str, np.ndarray],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> set[str]:
    """Compute every value whose inputs are known, into `known`; return the new names."""
    found: set[str] = set()
    for node, operator, names in computing:
        # Most nodes compute no constant: their first operand tells it, and Shape and Size are few.
        asks = operator in _ASKING
        if not asks and not (names and (names[0] in known or not names[0])):
            continue
        if operator == "If":
            values = _of_branch(node, shapes, known, opsets)
            found.update(values.keys() - known.keys())
            known.update(values)
            continue
        if operator not in ARITHMETIC or node.output[0] in known or not _is_arithmetic(node):
            continue
        if asks and names[0] in shapes and names[0] not in known:
            if math.prod(shapes[names[0]]) > LARGEST_VIEW:
                continue
            # The operator reads only the shape, so an array without memory suffices.
            operands = [np.broadcast_to(np.zeros((), np.float32), shapes[names[0]])]
        elif names and all(name in known or not name for name in names):
            operands = [known[name] for name in names if name]
            if operator in ("ConstantOfShape", "Expand", "OneHot", "Range", "Tile") and _grows(node, operands):
                continue
        else:
            continue
        results = _run(node, operands, opsets)
        if results is not None and all(r.size <= LARGEST for r in results):
            known.update(zip(node.output, results, strict=False))
            found.update(name for name in node.output if name)
    return found


def _of_branch(
    node: onnx.NodeProto,
    shapes: Mapping[str, tuple[int, ...]],
    known: Mapping[str, np.ndarray],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, np.ndarray]:
    """The values of an If whose condition is known that the branch which runs computes from known ones."""
    branch = branch_taken(node, known)
    if branch is None:
        return {}
    own, computing = value_names(branch), _computing(branch)
    inner = {name: value for name, value in known.items() if name not in own} | _stored(branch, computing)
    _compute(computing, {name: shape for name, shape in shapes.items() if name not in own}, inner, opsets)
    results = zip(node.output, branch.output, strict=True)
    return {name: inner[value.name] for name, value in results if name and value.name in inner}


def _asks_for_shapes(computing: Sequence[_Computing], known: Mapping[str, np.ndarray]) -> bool:
    return any(operator in _ASKING and node.output[0] not in known for node, operator, _ in computing)


def _unify(graph: onnx.GraphProto, known: Mapping[str, np.ndarray], *, are_settled: bool = False) -> bool:
    """Give dims that must be equal one name, and those that are a number that number; whether a dim has changed.
    `are_settled` is as in `Symbols`."""
    made_up = MadeUpNames(graph)
    if not any(name.startswith(GENERATED) or name in made_up for name in names_in(graph)):
        return unify_names(graph)
    symbols = Symbols(graph, known, are_settled=are_settled)
    numbers = symbols.numbers()
    number(graph, numbers)
    is_renamed = unify_names(graph, symbols.equal_dims())
    return is_renamed or bool(numbers)


def _follow_symbols(
    model: onnx.ModelProto, computing: Sequence[_Computing], known: dict[str, np.ndarray]
) -> tuple[set[str], list[onnx.ValueInfoProto]]:
    """Enter the constants that dims of partly unknown shapes determine into `known`; return their names, and the shapes
    of Reshapes that become better known."""
    if not _asks_for_shapes(computing, known):
        return set(), []
    symbols = Symbols(model.graph, known, model.opset_import)
    found = {name: array for name, array in symbols.constants().items() if name not in known}
    known.update(found)
    return set(found), list(symbols.better_shapes())


def _is_arithmetic(node: onnx.NodeProto) -> bool:
    """Whether onnx's reference implementation is sure to compute this node of ARITHMETIC as any runtime does."""
    if node.domain not in STANDARD_DOMAINS or not has_values(node):
        return False
    # Several axes of an attribute it enters one after the other.
    return node.op_type != "Unsqueeze" or all(len(attribute.ints) < 2 for attribute in node.attribute)


def _grows(node: onnx.NodeProto, operands: list[np.ndarray]) -> bool:
    if node.op_type == "Range":
        start, limit, delta = (float(o.reshape(-1)[0]) for o in operands)
        return delta == 0 or abs(limit - start) > LARGEST * abs(delta)
    shape = operands[1 if node.op_type == "OneHot" else -1].ravel().tolist()
    base = operands[0].size if node.op_type in ("OneHot", "Tile") else 1
    return base * math.prod(shape) > LARGEST or any(extent < 0 for extent in shape)


def _run(
    node: onnx.NodeProto, operands: list[np.ndarray], opsets: Sequence[onnx.OperatorSetIdProto]
) -> list[np.ndarray] | None:
    try:
        arrays = _computed(node, operands)
        if arrays is None:
            feeds = dict(zip([name for name in node.input if name], operands, strict=True))
            arrays = evaluated_alone([node], feeds, [name for name in node.output if name], opsets)
    except Exception:  # a division by zero, a type that the reference lacks: then the value is just not known
        return None
    return None if any(array.dtype.kind in "OSU" for array in arrays) else arrays  # strings are of no use here


def _computed(node: onnx.NodeProto, operands: list[np.ndarray]) -> list[np.ndarray] | None:
    """The results of the operators that exporters write most. The reference evaluator, which has all, is slow to
    import and to call."""
    axes = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
    if node.op_type == "ConstantOfShape":
        return _filled(node, *operands)
    if node.op_type == "Slice" and len(operands) == len(node.input) > 2:
        return [operands[0][_slices(operands[0].ndim, *operands[1:])]]
    if node.op_type == "Concat" and axes:
        return [np.concatenate(operands, axes[0])]
    if node.op_type == "Gather" and operands[1].size:
        return [np.asarray(np.take(operands[0], operands[1], axes[0] if axes else 0))]
    if node.op_type == "Pow":
        return [_power(*operands)]
    if node.attribute:
        return None
    if node.op_type == "Identity":
        return operands
    if node.op_type == "Shape":
        return [np.array(operands[0].shape, np.int64)]
    return None


def _slices(
    rank: int, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray | None = None, steps: np.ndarray | None = None
) -> tuple[slice, ...]:
    """The index that a Slice with these operands is."""
    found = [slice(None)] * rank
    of_axis = zip(
        starts.tolist(),
        ends.tolist(),
        range(len(starts)) if axes is None else axes.tolist(),
        [1] * len(starts) if steps is None else steps.tolist(),
        strict=True,
    )
    for start, end, axis, step in of_axis:
        found[axis] = slice(start, end, step)
    return tuple(found)


def _power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Squares and square roots of whole numbers that are whole numbers. Runtimes round other powers differently, and a
    Cast to an integer would make another size of that. Raises ArithmeticError for those."""
    if exponent.size != 1 or exponent.item() not in (0.5, 2):
        raise ArithmeticError
    wide = base.astype(np.float64)
    found = wide**2 if exponent.item() == 2 else np.sqrt(wide)
    if not (np.abs(wide) < 1 << 20).all() or not (found == found.round()).all():
        raise ArithmeticError
    return found.astype(base.dtype)


def _filled(node: onnx.NodeProto, shape: np.ndarray) -> list[np.ndarray]:
    """The result of a ConstantOfShape."""
    values = [numpy_helper.to_array(attribute.t) for attribute in node.attribute] or [np.zeros(1, np.float32)]
    return [np.full(shape, values[0].item(), values[0].dtype)]


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes that are known in full."""
    found = {tensor.name: tuple(tensor.dims[:]) for tensor in graph.initializer}
    # Each type is read once: a network has few of them.
    of_type: dict[bytes, tuple[int, ...] | None] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type
        written = kind.SerializeToString()
        if written not in of_type:
            of_type[written] = static_shape(kind)
        shape = of_type[written]
        if shape is not None:
            found[value.name] = shape
    return found


def _adds_shapes(shapes: Mapping[str, tuple[int, ...]], graph: onnx.GraphProto, found: Set[str]) -> bool:
    """Whether a node that reads one of these values has a result that is not among the known `shapes`."""
    return any(
        name not in shapes for node in graph.node if not found.isdisjoint(node.input) for name in node.output if name
    )


def _enter_constants(
    graph: onnx.GraphProto, values: Mapping[str, np.ndarray], hints: Mapping[str, onnx.ValueInfoProto]
) -> None:
    """Make these computed values constants of the graph, and declare the shapes of these hints."""
    kept = []
    for node in graph.node:
        is_known = bool(node.output) and all(not name or name in values for name in node.output)
        if is_known and not graphs_inside([node]):
            continue
        if is_known:
            # It stays for the graphs inside, which `merge_shapes` pairs.
            node.output[:] = [""] * len(node.output)
        kept.append(node)
    computed = {name for node in kept for name in node.output}
    replace_entries(graph.node, kept)
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in values.items() if name not in computed
    )
    # Inference never replaces a dim that it named before, nor an entry without a shape, so these are removed. It does
    # not know the results of other domains' operators; these stay as declared.
    declared = {name for node in kept if node.domain not in STANDARD_DOMAINS for name in node.output}
    told = values.keys() | hints.keys()
    stable = [
        value
        for value in graph.value_info
        if value.name not in told and (value.name in declared or not _has_generated_dim(value))
    ]
    replace_entries(graph.value_info, (*stable, *hints.values()))
    for value in graph.output:
        dims, hint = value.type.tensor_type.shape.dim, hints.get(value.name)
        if hint is not None and not value.type.tensor_type.HasField("shape"):
            value.type.CopyFrom(hint.type)
            continue
        hinted = hint.type.tensor_type.shape.dim if hint is not None else ()
        for place, dim in enumerate(dims):
            if dim.dim_param.startswith(GENERATED) or dim.WhichOneof("value") is None:
                dim.Clear()
                if len(hinted) == len(dims) and not hinted[place].dim_param.startswith(GENERATED):
                    dim.MergeFrom(hinted[place])


def _has_generated_dim(value: onnx.ValueInfoProto) -> bool:
    """Whether onnx's inference generated the name of a dim."""
    return any(dim.dim_param.startswith(GENERATED) for dim in value.type.tensor_type.shape.dim)
