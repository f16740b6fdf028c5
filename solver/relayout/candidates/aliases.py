"""Alias analysis: which values are tensors in memory, and which are views of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from relayout.candidates.split_axes import SplitAxes
from relayout.candidates.tensors import Operand, Tensor, Tensors
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form, source_order
from relayout.layout.view import View
from relayout.model.constants import gives_constants, known_result
from relayout.ops import (
    Free,
    Listed,
    OperatorClass,
    OperatorClasses,
    RegionEdge,
    Relabel,
    Rule,
    extents_of,
    free,
    graphs_of,
    is_read,
    region_edges_of,
)

_ELIDABLE = frozenset({"DepthToSpace", "SpaceToDepth"})


def collect_tensors(
    graph: ir.Graph,
    opsets: Mapping[str, int],
    materialized: frozenset[ir.Value] = frozenset(),
    *,
    reads_extents: bool = True,
) -> Tensors:
    """Walk the graph and its subgraphs once, in topological order. `materialized` values are not views.

    `reads_extents`: the legal model may read the extent of an axis off another tensor at run time. Then Reshapes that
    split or merge axes of unknown extents are views. It is false where that tensor may be on another device, and in the
    result for a graph in which the legal model does not compute such a tensor.
    """
    found = _Collector(graph, dict(opsets), materialized, reads_extents)
    found.collect_graph(graph)
    found.find_dead(graph, set(graph.outputs))
    if not found.split_axes.are_readable(found.dead):
        return collect_tensors(graph, opsets, materialized, reads_extents=False)
    return Tensors(
        tuple(found.tensors),
        found.operands,
        found.rules,
        found.classes,
        found.region_edges,
        found.constant_nodes,
        found.known,
        found.dead,
        found.cancelling,
        found.materialized,
        found.opsets,
        found.constants,
        reads_extents,
    )


@dataclass(eq=False, slots=True)
class _Collector:
    """The tensors found so far, while the graph is walked."""

    graph: ir.Graph
    opsets: dict[str, int]
    materialized: frozenset[ir.Value]
    reads_extents: bool
    tensors: list[Tensor] = field(default_factory=list)
    operands: dict[ir.Value, Operand | None] = field(default_factory=dict)
    rules: dict[ir.Node, Rule | None] = field(default_factory=dict)
    classes: dict[ir.Node, OperatorClass] = field(default_factory=dict)
    region_edges: dict[ir.Node, tuple[RegionEdge, ...]] = field(default_factory=dict)
    constant_nodes: set[ir.Node] = field(default_factory=set)
    known: dict[ir.Node, np.ndarray] = field(default_factory=dict)
    dead: set[ir.Node] = field(default_factory=set)
    cancelling: set[ir.Node] = field(default_factory=set)
    through_elidable: dict[ir.Value, Operand | None] = field(default_factory=dict)
    """Values as views of the inputs of elidable nodes before them."""
    constants: set[ir.Value] = field(default_factory=set)
    # Nodes of one class share all results that depend on their operands' types alone.
    _views: dict[object, View | None] = field(default_factory=dict)
    _with_ranks: dict[OperatorClass, Rule | None] = field(default_factory=dict)
    _classes: OperatorClasses = field(init=False)
    split_axes: SplitAxes = field(init=False)

    def __post_init__(self) -> None:
        self._classes = OperatorClasses(self.opsets)
        self.split_axes = SplitAxes(self.graph, self.tensors, self.operands, self.rules)

    def add(self, value: ir.Value, *, constant: bool) -> None:
        if constant:
            self.constants.add(value)
        extents = self._classes.extents_of(value)
        if extents is None:
            self.operands[value] = None
            return
        tensor = Tensor(len(self.tensors), value, extents, constant)
        self.tensors.append(tensor)
        self.operands[value] = Operand(tensor, View.identity(extents), value)

    def is_constant(self, value: ir.Value | None) -> bool:
        return value is None or value in self.constants

    def collect_graph(self, graph: ir.Graph) -> None:
        inputs = set(graph.inputs)
        for value in graph.inputs:
            self.add(value, constant=False)
        for value in graph.initializers.values():
            if value not in inputs:
                self.add(value, constant=True)
        for node in graph:
            self._collect_node(node)

    def find_dead(self, graph: ir.Graph, live: set[ir.Value]) -> None:
        """Enter the nodes on which no output depends. `live` are the values with live consumers. A view op is written
        anew, so the operands that define its shape are not live. A known result reads no tensor."""
        for node in reversed(graph):
            if live.isdisjoint(node.outputs):
                self.dead.add(node)
                continue
            operand = self.operands.get(node.outputs[0]) if node in self.cancelling else None
            if operand is not None:
                live.add(operand.tensor.base)
                continue
            is_view = isinstance(self.rules.get(node), Relabel) and node not in self.constant_nodes
            read = () if node in self.known else node.inputs[:1] if is_view else node.inputs
            live.update(value for value in read if value is not None)
            if node in self.region_edges:
                for inner in graphs_of(node):
                    live.update(inner.outputs)
                    self.find_dead(inner, live)

    def _collect_node(self, node: ir.Node) -> None:
        own = self.classes[node] = self._classes.of(node)
        rule = own.rule
        constant = self._find_constant(node)
        if constant:
            self.constant_nodes.add(node)
        elif isinstance(rule, Relabel):
            # A constant reshaped to a shape that is computed at run time is neither a constant nor a view of a tensor.
            is_view = node.outputs[0] not in self.materialized and not self.is_constant(node.inputs[0])
            if is_view and (
                self._cancels(node, rule) or self._enter_view(node, rule, self._view(node, rule, self.operands))
            ):
                return
            if is_view and self._cuts_factors(node, rule):
                self.materialized |= {node.outputs[0]}
            rule = self._materialized_rule(node, rule) if node.outputs[0] in self.materialized else None
        elif isinstance(rule, Free) and rule.elidable_as is not None and self._cancels(node, rule.elidable_as):
            return
        if own.has_graphs:
            for graph in graphs_of(node):
                self.collect_graph(graph)
            self.region_edges[node] = region_edges_of(node, self.opsets.get("", 1), self.is_constant)
        for value in node.outputs:
            self.add(value, constant=constant)
        if rule is own.rule:
            if own not in self._with_ranks:
                self._with_ranks[own] = rule if rule is None or _ranks_known(node, rule) else None
            rule = self._with_ranks[own]
        self.rules[node] = rule

    def _find_constant(self, node: ir.Node) -> bool:
        if not gives_constants(node, self.constants):
            return False
        known = known_result(node)
        # A node that computes with constants alone is left to compute. A Shape would keep its tensor.
        if known is not None and (node.op_type in ("Shape", "Size") or not all(map(self.is_constant, node.inputs))):
            self.known[node] = known
        return True

    def _materialized_rule(self, node: ir.Node, rule: Relabel) -> Free | None:
        """The rule of a view op whose result is materialized: it runs as in the source, or is elided. None where it
        reads a constant, or a shape that is computed at run time, as one does that splits at an unknown extent."""
        source, *others = node.inputs
        if rule.factors:
            return None
        read, given = extents_of(source), extents_of(node.outputs[0])
        if read is None or given is None or self.is_constant(source) or not all(map(self.is_constant, others)):
            return None
        axes = tuple(range(len(read) + len(given)))
        return free((*read, *given), (axes[: len(read)],), (axes[len(read) :],), allows=axes.__eq__, elidable_as=rule)

    def _cuts_factors(self, node: ir.Node, rule: Relabel) -> bool:
        """Whether the node is no view only because its factors do not nest with those of its operand. With one unknown
        extent, that of an axis that stays whole, a Reshape makes it of the operand in any order of axes."""
        read, given = extents_of(node.inputs[0]), extents_of(node.outputs[0])
        if read is None or given is None or rule.factors:
            return False
        unknown = [axis for axis, extent in enumerate(read) if not isinstance(extent, int)]
        return len(unknown) < 2 and all(axis in rule.kept for axis in unknown)

    def _enter_view(self, node: ir.Node, rule: Relabel, view: Operand | None) -> bool:
        """Enter the node's result as this view, if it is one."""
        if view is None:
            return False
        self.rules[node] = rule
        self.operands[node.outputs[0]] = view
        for unread in node.outputs[1:]:
            self.operands[unread] = None
        return True

    def _cancels(self, node: ir.Node, rule: Relabel) -> bool:
        """Whether the node cancels elidable nodes before it; its result is then entered as their input."""
        source, result = node.inputs[0], node.outputs[0]
        if rule.factors:
            return False
        view = self._view(node, rule, self.through_elidable) if source in self.through_elidable else None
        if view is None:
            view = self._view(node, rule, self.operands) if node.op_type in _ELIDABLE else None
            if view is not None:
                self.through_elidable[result] = view
            return False
        extents = view.tensor.extents
        if view.view.to_base(source_order(len(rule.axes))) != normal_form(source_order(len(extents)), extents):
            self.through_elidable[result] = view
            return False
        self.cancelling.add(node)
        if view.tensor.base in self.through_elidable and view.view.axes == View.identity(extents).axes:
            self.through_elidable[result] = self.through_elidable[view.tensor.base]
        return self._enter_view(node, rule, view)

    def _view(self, node: ir.Node, rule: Relabel, known: Mapping[ir.Value, Operand | None]) -> Operand | None:
        source, result = node.inputs[0], node.outputs[0]
        operand = known.get(source) if source is not None else None
        extents = self._classes.extents_of(result)
        if operand is None or extents is None or len(extents) != len(rule.axes):
            return None
        if rule.factors:
            return self._split_view(operand, rule, result, extents)
        key = (id(operand.view), rule.axes, extents)
        if key not in self._views:
            self._views[key] = _composed(operand.view, rule.axes, extents, self.reads_extents)
        view = self._views[key]
        return Operand(operand.tensor, view, result) if view is not None else None

    def _split_view(
        self, operand: Operand, rule: Relabel, result: ir.Value, extents: tuple[Extent, ...]
    ) -> Operand | None:
        """The result of a Reshape that splits axes at extents that are no numbers. The tensor gets an axis for each
        factor, so that all its views have whole axes."""
        groups: list[MemoryFormat] = []
        split: dict[int, list[Extent]] = {}
        for axis, atoms in enumerate(operand.view.axes):
            factors = [extent for own, extent in rule.factors if own == axis]
            if len(factors) == 1:
                groups.append(atoms)
                continue
            parts = operand.view.factors_of(axis, factors)
            if parts is None and len(atoms) == 1 and atoms[0].is_whole:
                split[atoms[0].axis] = factors
                parts = [atoms] * len(factors)
            if parts is None:
                return None
            groups += parts
        if split:
            tensor = operand.tensor
            has_views_through = any(each and each.tensor is tensor for each in self.through_elidable.values())
            if has_views_through or not self.reads_extents or not self.split_axes.may_split(tensor, split):
                return None
            return self._split_view(self.split_axes.split(operand, split), rule, result, extents)
        through = View.of(groups, tuple(extent for _, extent in rule.factors), operand.view.base_extents)
        view = _composed(through, rule.axes, extents, self.reads_extents)
        return Operand(operand.tensor, view, result) if view is not None else None


def _ranks_known(node: ir.Node, rule: Rule) -> bool:
    """Whether every operand of the rule has a known rank; one of unknown rank could not be permuted with the others."""
    if isinstance(rule, Relabel):
        return True
    sides = [(rule.inputs, node.inputs), (rule.outputs, node.outputs)] if not isinstance(rule, Listed) else []
    for orders, values in sides:
        for order, value in zip(orders, values, strict=False):
            if order is None or value is None:
                continue
            extents = extents_of(value)
            if (extents is None and is_read(value)) or (extents is not None and len(extents) != len(order)):
                return False
    return True


def _composed(
    through: View, axes: tuple[MemoryFormat, ...], extents: tuple[Extent, ...], reads_extents: bool
) -> View | None:
    """The result, whose `axes` are in atoms of the operand, as a view of the operand's tensor. None where factors do
    not nest or no Reshape expresses it."""
    # A model may declare extent 1 where its input has a symbol: an axis that has an atom in the view keeps it.
    extents = tuple(
        through.extents[group[0].axis] if extent == 1 and len(group) == 1 and group[0].is_whole else extent
        for extent, group in zip(extents, axes, strict=True)
    )
    view = through.then(axes, extents)
    if view is None or not _can_be_reshaped(view, through.base_extents, reads_extents):
        return None
    # An axis declared as 1 may have an unknown extent in the input: a format has no position for it.
    placed = {atom.axis for group in view.axes for atom in group}
    if any(extent != 1 and axis not in placed for axis, extent in enumerate(through.base_extents)):
        return None
    return view


def _can_be_reshaped(view: View, base_extents: tuple[Extent, ...], reads_extents: bool) -> bool:
    """Whether a Reshape can make the view where axes split or merge: it can infer one extent, and read the others at
    run time where each is a dimension of its own on both sides. So one axis of unknown extent may merge with others.
    Several may if they have names, and one that has a name may split: their extents are read off the base value."""
    unknown = [Atom(axis) for axis, extent in enumerate(base_extents) if not isinstance(extent, int)]
    moved = [atom for atom in unknown if (atom,) not in view.axes]
    if (
        view.is_plain
        or len(unknown) < 2
        or (reads_extents and all(isinstance(base_extents[a.axis], str) for a in moved))
    ):
        return True
    return len(moved) < 2 and all(any(atom in group for group in view.axes) for atom in moved)
