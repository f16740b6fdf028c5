"""The model's values as tensors in memory and views of them.

A relabel node (Transpose, Reshape, Squeeze, ...) makes no tensor: its result is a view of the tensor that it reads. A
tensor's memory format is given in the axes of its **root**: the value that a real node, an input or a constant gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from relayout.layout.memory_format import Box, Extent, MemoryFormat, boxes_of, normal_form, source_order
from relayout.layout.view import View
from relayout.model.constants import gives_constants, known_shape
from relayout.ops import Fixed, Free, Listed, RegionEdge, Relabel, Rule, extents_of, graphs_of, region_edges_of, rule_of
from relayout.ops.operand_roles import OTHER, input_role, result_role

__all__ = ["Operand", "Tensor", "Tensors", "collect_tensors"]

_LEFT_OUT = frozenset({"DepthToSpace", "SpaceToDepth"})


@dataclass(eq=False, slots=True)
class Tensor:
    """One piece of memory: its root value and the root's extents. `constant`: known before the model runs."""

    index: int
    base: ir.Value
    extents: tuple[Extent, ...]
    constant: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """A value as a node reads or gives it: the tensor that holds it and the view that it is of that tensor."""

    tensor: Tensor
    view: View
    value: ir.Value

    def boxes(self, format_: MemoryFormat) -> tuple[Box, ...]:
        """The black boxes of a format of the tensor, on the operand's own axes."""
        boxes = boxes_of(format_)
        if not boxes:
            return ()
        whole = [(axis, atoms[0]) for axis, atoms in enumerate(self.view.axes) if len(atoms) == 1 and atoms[0].is_whole]
        own = {atom.axis: axis for axis, atom in whole}
        return tuple([(own[box[0]], *box[1:]) for box in boxes if box[0] in own])


@dataclass(slots=True)
class Tensors:
    """Every value of the graph, and of the graphs inside it, as an operand; None in `operands`: its rank is unknown, it
    is left alone.

    `rules` holds each node's rule (None: pinned), `passages` what crosses the border of the graphs inside a node;
    `constant_nodes` are the nodes that are computed before the model runs, `shapes` those among them that ask for a
    known shape, with what they give; `dead` are those that no output of the graph hangs on.
    `undone`: the nodes whose result is what stood before operators that might be left out (SpaceToDepth).
    """

    tensors: list[Tensor] = field(default_factory=list)
    operands: dict[ir.Value, Operand | None] = field(default_factory=dict)
    rules: dict[ir.Node, Rule | None] = field(default_factory=dict)
    constant_nodes: set[ir.Node] = field(default_factory=set)
    shapes: dict[ir.Node, np.ndarray] = field(default_factory=dict)
    dead: set[ir.Node] = field(default_factory=set)
    region_edges: dict[ir.Node, tuple[RegionEdge, ...]] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=dict)
    apart: frozenset[ir.Value] = frozenset()
    """Results of relabel nodes that are tensors of their own all the same; the node may be left out."""
    undone: set[ir.Node] = field(default_factory=set)
    behind: dict[ir.Value, Operand | None] = field(default_factory=dict)
    """Values as views of what stands before such operators."""
    constants: set[ir.Value] = field(default_factory=set)

    def add(self, value: ir.Value, *, constant: bool) -> None:
        if constant:
            self.constants.add(value)
        extents = extents_of(value)
        if extents is None:
            self.operands[value] = None
            return
        tensor = Tensor(len(self.tensors), value, extents, constant)
        self.tensors.append(tensor)
        self.operands[value] = Operand(tensor, View.identity(extents), value)

    def is_constant(self, value: ir.Value | None) -> bool:
        return value is None or value in self.constants


def collect_tensors(
    graph: ir.Graph, opsets: Mapping[str, int], apart: frozenset[ir.Value] = frozenset()
) -> Tensors:
    """Walk the graph once, in its topological order, and the graphs inside each node where that node stands. What is
    to stand `apart` is no view."""
    found = Tensors(opsets=dict(opsets), apart=apart)
    _collect_graph(graph, found, found.opsets)
    _find_dead(graph, found, set(graph.outputs))
    return found


def _collect_graph(graph: ir.Graph, found: Tensors, opsets: dict[str, int]) -> None:
    inputs = set(graph.inputs)
    for value in graph.inputs:
        found.add(value, constant=False)
    for value in graph.initializers.values():
        if value not in inputs:
            found.add(value, constant=True)
    for node in graph:
        _collect_node(node, found, opsets)


def _find_dead(graph: ir.Graph, found: Tensors, live: set[ir.Value]) -> None:
    """Enter the nodes that no output hangs on. `live` are the values that are read further on. A view is written anew:
    what the source reckoned its shape from is not read. Nor is a tensor of which only the shape is asked, and known."""
    for node in reversed(graph):
        if live.isdisjoint(node.outputs):
            found.dead.add(node)
            continue
        operand = found.operands.get(node.outputs[0]) if node in found.undone else None
        if operand is not None:
            live.add(operand.tensor.base)
            continue
        is_view = isinstance(found.rules.get(node), Relabel) and node not in found.constant_nodes
        read = () if node in found.shapes else node.inputs[:1] if is_view else node.inputs
        live.update(value for value in read if value is not None)
        for inner in graphs_of(node):
            live.update(inner.outputs)
            _find_dead(inner, found, live)


def _collect_node(node: ir.Node, found: Tensors, opsets: dict[str, int]) -> None:
    _complete_alike(node, found)
    rule = rule_of(node, opsets)
    constant = gives_constants(node, found.constants)
    if constant:
        found.constant_nodes.add(node)
        shape = known_shape(node)
        if shape is not None:
            found.shapes[node] = shape
    elif isinstance(rule, Relabel):
        _complete_rank(node, rule)
        # A stored tensor in a shape that is told only at run time is neither a constant nor a view of what is laid out.
        is_laid = node.outputs[0] not in found.apart and not found.is_constant(node.inputs[0])
        if is_laid and (
            _undoes(node, rule, found) or _enter_view(node, rule, found, _view(node, rule, found.operands))
        ):
            return
        rule = _kept(node, rule, found) if node.outputs[0] in found.apart else None
    elif isinstance(rule, Free) and rule.left_out is not None and _undoes(node, rule.left_out, found):
        return
    for graph in graphs_of(node):
        _collect_graph(graph, found, opsets)
        found.region_edges[node] = ()
    if node in found.region_edges:
        found.region_edges[node] = region_edges_of(node, opsets.get("", 1), found.is_constant)
    if isinstance(rule, Free | Fixed):
        _complete_ranks(node, rule)
    for value in node.outputs:
        found.add(value, constant=constant)
    found.rules[node] = rule if rule is None or _ranks_known(node, rule, found) else None


def _kept(node: ir.Node, rule: Relabel, found: Tensors) -> Free | None:
    """The rule of a relabel node that stands apart: it runs as in the source, or is left out. None where it reads
    nothing that is laid out, or a shape that is computed as the model runs."""
    source, *others = node.inputs
    read, given = (extents_of(value) if value is not None else None for value in (source, node.outputs[0]))
    if read is None or given is None or found.is_constant(source) or not all(map(found.is_constant, others)):
        return None
    axes = tuple(range(len(read) + len(given)))
    return Free(
        (*read, *given), (axes[: len(read)],), (axes[len(read) :],), allows=axes.__eq__, left_out=rule
    )


def _enter_view(node: ir.Node, rule: Relabel, found: Tensors, view: Operand | None) -> bool:
    """Let the node's result be this view, if there is one."""
    if view is None:
        return False
    found.rules[node] = rule
    found.operands[node.outputs[0]] = view
    for unread in node.outputs[1:]:
        found.operands[unread] = None
    return True


def _undoes(node: ir.Node, relabel: Relabel, found: Tensors) -> bool:
    """Whether the node's result is what stood before operators that might be left out, and is entered as that."""
    source, result = node.inputs[0], node.outputs[0]
    view = _view(node, relabel, found.behind) if source in found.behind else None
    if view is None:
        view = _view(node, relabel, found.operands) if node.op_type in _LEFT_OUT else None
        if view is not None:
            found.behind[result] = view
        return False
    extents = view.tensor.extents
    if view.view.to_base(source_order(len(relabel.axes))) != normal_form(source_order(len(extents)), extents):
        found.behind[result] = view
        return False
    found.undone.add(node)
    if view.tensor.base in found.behind and view.view.axes == View.identity(extents).axes:
        found.behind[result] = found.behind[view.tensor.base]
    return _enter_view(node, relabel, found, view)


def _complete_alike(node: ir.Node, found: Tensors) -> None:
    """Give the data and kernels of an operator, which are of one rank, the rank of those that have a shape."""
    inputs = [value for n, value in enumerate(node.inputs) if value is not None and input_role(node, n) != OTHER]
    values = [*inputs, *(value for n, value in enumerate(node.outputs) if result_role(node, n) != OTHER)]
    ranks = {len(value.shape) for value in values if value.shape is not None}
    if len(ranks) != 1:
        return
    for value in values:
        # Of another graph's values it is not known whether this node ever reads them.
        if value.shape is None and value.dtype is not None and value.graph is node.graph:
            value.shape = ir.Shape([None] * min(ranks))
            if value in found.operands:
                found.add(value, constant=found.is_constant(value))


def _complete_ranks(node: ir.Node, rule: Free | Fixed) -> None:
    """Give the results that onnx infers no shape for the rank that the rule knows, so that they are laid out too."""
    for axes, value in zip(rule.outputs, node.outputs, strict=False):
        if axes is not None and value.shape is None:
            value.shape = ir.Shape([None] * len(axes))


def _complete_rank(node: ir.Node, rule: Relabel) -> None:
    """The same for a result whose axes are whole axes of the input, or new ones."""
    source, result = node.inputs[0], node.outputs[0]
    extents = extents_of(source) if source is not None else None
    if result.shape is None and extents is not None and all(len(group) < 2 for group in rule.axes):
        result.shape = ir.Shape([extents[group[0].axis] if group else 1 for group in rule.axes])


def _ranks_known(node: ir.Node, rule: Rule, found: Tensors) -> bool:
    """Whether every operand that the rule lays out has a rank; one without could not follow the others."""
    if isinstance(rule, Relabel):
        return True
    sides = [(rule.inputs, node.inputs), (rule.outputs, node.outputs)] if not isinstance(rule, Listed) else []
    for orders, values in sides:
        for order, value in zip(orders, values, strict=False):
            if order is None or value is None:
                continue
            extents = extents_of(value)
            if (extents is None and (value.uses() or value.is_graph_output())) or (
                extents is not None and len(extents) != len(order)
            ):
                return False
    return True


def _view(node: ir.Node, rule: Relabel, known: Mapping[ir.Value, Operand | None]) -> Operand | None:
    source = node.inputs[0]
    operand = known.get(source) if source is not None else None
    extents = extents_of(node.outputs[0])
    if operand is None or extents is None or len(extents) != len(rule.axes):
        return None
    # A model may declare 1 where it reads a symbol: the axis that has a place keeps it.
    extents = tuple(
        operand.view.extents[group[0].axis] if extent == 1 and len(group) == 1 and group[0].is_whole else extent
        for extent, group in zip(extents, rule.axes, strict=True)
    )
    view = operand.view.then(rule.axes, extents)
    # Where axes split or merge, what is read must be reshaped, and a Reshape can leave one extent open only.
    if view is None or (not view.is_plain and sum(not isinstance(e, int) for e in operand.tensor.extents) > 1):
        return None
    # What the model declares 1 may be an axis of unknown extent: a format would have no place for it.
    placed = {atom.axis for group in view.axes for atom in group}
    if any(extent != 1 and axis not in placed for axis, extent in enumerate(operand.tensor.extents)):
        return None
    return Operand(operand.tensor, view, node.outputs[0])
