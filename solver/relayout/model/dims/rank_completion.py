"""Ranks, and element types, that ONNX's shape inference does not infer, but the operators do.

ONNX infers nothing behind an operator that it does not define. A value without a rank has no memory format, so its
neighbours would be pinned needlessly, and a convolution that reads it could not be made legal. The extents remain
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from relayout.layout.terms import NAME
from relayout.model.dims.shape_merging import unused_names
from relayout.model.operator_schema import type_variables
from relayout.ops import Fixed, Free, Relabel, all_nodes, extents_of, graphs_of, nested_graphs, rule_of
from relayout.ops.elementwise import BROADCAST, UNARY
from relayout.ops.node_reader import constant_tensor
from relayout.ops.operand_roles import OTHER, input_role, is_transposed, kernel_input, result_role

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_ELEMENTWISE = frozenset([*UNARY, *BROADCAST, "Clip"])


def complete_ranks(graph: ir.Graph, opsets: Mapping[str, int]) -> list[ir.Value]:
    """Set the ranks that rules of operators infer, for every value of the graph and its subgraphs: forward, then
    backward and forward again while that finds more.

    Returns the values of the graph, without its subgraphs, that have got an element type or a rank.
    """
    values, inside = [*graph.inputs], list[ir.Graph]()
    for node in graph:
        # A result that a node leaves out has no name: with a type it would stand for each operand that is left out.
        values += [value for value in node.outputs if value.name]
        inside += graphs_of(node)
    before = [(value, value.type, value.shape) for value in values if _is_unknown(value)]
    if not before:
        for inner in inside:
            complete_ranks(inner, opsets)
        return []
    _complete_forward(graph, opsets)
    while unknown := _unknown(graph):
        for node in reversed(graph):
            if any(value is not None and _is_unknown(value) for value in node.inputs):
                _complete_types(node, opsets)
                _complete_operands(node)
                _complete_argument(node)
        _complete_forward(graph, opsets)
        if _unknown(graph) == unknown:
            break
    return [value for value, *known in before if value.type is not None and known != [value.type, value.shape]]


def name_completed(model: ir.Model) -> None:
    """Give each dim of a result that has neither a number nor a name a generated name, as `name_open_dims` does."""
    results = [value for node in all_nodes(model.graph) for value in node.outputs]
    open_ = [value for value in results if None in _names(value)]
    if not open_:
        return
    inputs = [value for graph in nested_graphs(model.graph) for value in graph.inputs]
    texts = {name for value in (*results, *inputs) for name in _names(value) if name is not None}
    unused = unused_names({name for text in texts for name in NAME.findall(text)})
    for value in open_:
        assert value.shape is not None
        value.shape = value.shape.copy()
        for axis, dim in enumerate(value.shape):
            if not isinstance(dim, int) and dim.value is None:
                value.shape[axis] = next(unused)


def _names(value: ir.Value) -> list[str | None]:
    return [dim.value for dim in value.shape or () if not isinstance(dim, int)]


def known_dims(graph: onnx.GraphProto) -> int:
    """How much the graph, without its subgraphs, declares: a point for each rank, one for each dim with a name, and two
    for each with a number, as inference may find the number of a dim that it has named."""
    shapes = [value.type.tensor_type for value in (*graph.value_info, *graph.output)]
    ranked = [kind.shape.dim for kind in shapes if kind.HasField("shape")]
    points = {None: 0, "dim_param": 1, "dim_value": 2}
    return len(ranked) + sum(points[dim.WhichOneof("value")] for dims in ranked for dim in dims)


def state_completed(values: Iterable[ir.Value], graph: onnx.GraphProto) -> bool:
    """Declare the types and ranks of these values in `graph`, so that onnx's inference knows them. Returns whether a
    value had no element type before."""
    declared = {value.name: value for value in (*graph.input, *graph.output, *graph.value_info)}
    has_new_types = False
    for value in values:
        stated = onnx.ValueInfoProto()
        ir.serde.serialize_value_into(stated, value)
        info = declared.get(stated.name) or graph.value_info.add(name=stated.name)
        has_new_types |= info.type.WhichOneof("value") is None
        info.type.CopyFrom(stated.type)
    return has_new_types


def _unknown(graph: ir.Graph) -> int:
    return sum(_is_unknown(value) for node in graph for value in node.outputs)


def _is_unknown(value: ir.Value) -> bool:
    return value.shape is None or value.type is None


def _complete_forward(graph: ir.Graph, opsets: Mapping[str, int]) -> None:
    known = dict(opsets)
    for node in graph:
        if [value for value in (*node.inputs, *node.outputs) if value is not None and value.shape is None]:
            _complete_types(node, known)
            _complete_operands(node)
            _complete_elementwise(node)
            _complete_reshape(node)
            rule = rule_of(node, known)
            if isinstance(rule, Relabel):
                _complete_view(node, rule)
        else:
            rule = None
        for inner in graphs_of(node):
            complete_ranks(inner, opsets)
        if node.op_type == "If" and not node.domain:
            _complete_branching(node)
        if isinstance(rule, Free | Fixed):
            for axes, value in zip(rule.outputs, node.outputs, strict=False):
                if axes is not None and value.shape is None:
                    value.shape = ir.Shape([None] * len(axes))


def _complete_branching(node: ir.Node) -> None:
    """Give the results of an If whose condition is known the shapes of the branch that runs. PyTorch's exporter writes
    such an If for `tile`, with another branch that has no rank."""
    condition = constant_tensor(node.inputs[0]) if node.inputs[0] is not None else None
    if condition is None or condition.size != 1:
        return
    branch = node.attributes["then_branch" if condition.numpy().item() else "else_branch"].as_graph()
    for result, value in zip(node.outputs, branch.outputs, strict=True):
        if result.shape is None and result.type is not None and value.shape is not None:
            result.shape = ir.Shape(value.shape)


def drop_untyped_ranks(nodes: Iterable[ir.Node]) -> None:
    """Undo the completion where a result has no type: ONNX cannot store a shape without one."""
    for node in nodes:
        for value in node.outputs:
            if value.type is None:
                value.shape = None


def _complete_types(node: ir.Node, opsets: Mapping[str, int]) -> None:
    """Give operands without a type that of another operand, where the operator requires one type of both: the data of a
    convolution have the type of its kernel."""
    variables = type_variables(node.op_type, node.domain, opsets.get(node.domain, 1))
    operands = [
        (variable, value)
        for side, values in zip(variables, (node.inputs, node.outputs), strict=True)
        for variable, value in zip(side, values, strict=False)
        if variable and value is not None
    ]
    known = {variable: value.type for variable, value in operands if value.type is not None}
    for variable, value in operands:
        # A value of another graph may never be read by this node.
        if value.type is None and variable in known and (value.graph is node.graph or value.producer() is node):
            value.type = known[variable]


def _complete_operands(node: ir.Node) -> None:
    """Give the data and weights of an operator, which are of one rank, the rank of those that have a shape."""
    inputs = [value for n, value in enumerate(node.inputs) if value is not None and input_role(node, n) != OTHER]
    values = [*inputs, *(value for n, value in enumerate(node.outputs) if result_role(node, n) != OTHER)]
    ranks = {len(value.shape) for value in values if value.shape is not None}
    if len(ranks) != 1:
        return
    for value in values:
        # A value of another graph may never be read by this node.
        if value.shape is None and value.dtype is not None and value.graph is node.graph:
            value.shape = ir.Shape([None] * min(ranks))
            _complete_channels(node, value)


def _complete_elementwise(node: ir.Node) -> None:
    """Give the result of an elementwise operator the rank of its widest operand, and of the only one all extents."""
    if node.domain or node.op_type not in _ELEMENTWISE or node.outputs[0].shape is not None:
        return
    shapes = [value.shape for value in node.inputs if value is not None]
    known = [shape for shape in shapes if shape is not None]
    if known and len(known) == len(shapes) and node.outputs[0].type is not None:
        widest = max(known, key=len)
        node.outputs[0].shape = ir.Shape(widest if node.op_type in UNARY else [None] * len(widest))


def _complete_argument(node: ir.Node) -> None:
    """Give the operand of an elementwise operator of one operand the extents of its result."""
    value, result = node.inputs[0], node.outputs[0]
    if node.domain or node.op_type not in UNARY or value is None or value.type is None or value.graph is not node.graph:
        return
    if value.shape is None and result.shape is not None:
        value.shape = ir.Shape(result.shape)


def _complete_channels(node: ir.Node, value: ir.Value) -> None:
    """Give the data of a convolution, whose extents are unknown, the channels that the kernel has, and those of a pool
    the channels on its other side."""
    if node.op_type in _POOLS and not node.domain:
        other = node.inputs[0] if value is node.outputs[0] else node.outputs[0]
        known = other.shape if other is not None else None
        if known is not None and len(known) > 1 and isinstance(known[1], int):
            assert value.shape is not None
            value.shape[1] = known[1]
        return
    index = kernel_input(node.op_type)
    kernel = node.inputs[index] if index is not None and index < len(node.inputs) else None
    if kernel is None or kernel is value or kernel.shape is None or node.domain or node.op_type == "DeformConv":
        return
    is_result = value.producer() is node
    # A kernel is O, I / group, ... and that of ConvTranspose I, O / group, ...
    axis = 0 if is_result is not is_transposed(node) else 1
    channels, group = kernel.shape[axis], node.attributes.get_int("group", 1)
    if isinstance(channels, int):
        assert value.shape is not None
        value.shape[1] = channels * (group if axis == 1 else 1)


def _complete_reshape(node: ir.Node) -> None:
    """Give a Reshape's result as many dims as its target has numbers: onnx does so from opset 14 on."""
    if node.op_type != "Reshape" or node.domain or node.outputs[0].shape is not None:
        return
    extents = extents_of(node.inputs[1])
    if extents is not None and len(extents) == 1 and isinstance(extents[0], int):
        node.outputs[0].shape = ir.Shape([None] * extents[0])


def _complete_view(node: ir.Node, rule: Relabel) -> None:
    """Give a view op's result its shape where its axes are whole axes of the input, or new ones."""
    source, result = node.inputs[0], node.outputs[0]
    extents = extents_of(source)
    are_whole = not rule.factors and all(len(group) < 2 for group in rule.axes)
    if result.shape is None and extents is not None and are_whole:
        result.shape = ir.Shape([extents[group[0].axis] if group else 1 for group in rule.axes])
