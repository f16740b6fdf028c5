"""Dry runs: the operators that a lowering writes are checked against the backend's requirements before it is chosen.

A product of the transposes, or a normalization in its parts, consists of operators with requirements of their own. Only
an order in which all of them are met is an alternative of the node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.backend.calls import ask, is_met_by, supported_by
from relayout.backend.interface import Backend, TensorType, element_size
from relayout.candidates.alternatives import FixedLowering, FreeLowering, axis_numbers, label_of, noted_orders
from relayout.layout.conversion import Dims, dims_shape
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom
from relayout.model.emit import attribute_of
from relayout.ops import Axes, Edit, Free, Listed, Replacement, extents_of, regrouped

Places = Sequence[Axes]


class ChosenOrder:
    """A node in an order of its iteration space: the part of `relayout.ops.DecompositionWriter` that emits nothing."""

    def __init__(self, node: ir.Node, rule: Free, lowering: FreeLowering) -> None:
        self.node, self._rule, self._lowering = node, rule, lowering

    @property
    def axes(self) -> Axes:
        return self._lowering.axes

    def count(self, axes: Collection[int]) -> int:
        return prod(extent for a in axes if isinstance(extent := self._rule.extents[a], int))

    def broadcast(self, axis: int, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self._lowering.broadcast(axis, array)

    def places(self, axis: int) -> np.ndarray[Any, Any]:
        return self._lowering.positions_of(axis, self._rule.extents[axis])

    def numbered(self, order: Axes) -> Axes:
        """An order of the axes of the node's result by the numbers that they have in the source."""
        numbers = axis_numbers(noted_orders(self.node, is_result=True)[0], len(order))
        return tuple([int(numbers[axis]) for axis in order])


class DryRun(ChosenOrder):
    """The decomposition of one node in a scratch graph (see `relayout.ops.DecompositionWriter`).

    `axis_names` are the names of the axes of the iteration space, `*` for an axis without one.
    """

    def __init__(self, node: ir.Node, rule: Free, lowering: FreeLowering, axis_names: str, opset: int) -> None:
        super().__init__(node, rule, lowering)
        self.opset, self._letters = opset, axis_names
        self._nodes: list[ir.Node] = []
        self._orders: dict[ir.Node, Axes] = {}
        self._layouts: dict[ir.Value, Layout] = {}
        assert lowering.rewritten is not None
        lowering.rewritten.write(self)
        ir.Graph([], [], nodes=self._nodes, opset_imports={"": opset})
        for each in self._nodes:
            each.name = node.name  # the graph names what has no name

    def read(self, index: int, dims: Places) -> ir.Value:
        source = self.node.inputs[index]
        assert source is not None
        own = self._rule.inputs[index] or ()
        value = self._value(source.name, source.type, dims, own)
        value.const_value = source.const_value
        return value

    def constant(self, stem: str, array: np.ndarray[Any, Any]) -> ir.Value:
        return ir.val(stem, const_value=ir.Tensor(array, name=stem))

    def emit_dims(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        dims: Places,
        *,
        like: ir.Value | None = None,
        order: Axes = (),
    ) -> ir.Value:
        kind = next((value.type for value in (like, *inputs) if value is not None), None)
        result = self._value(f"{self.node.outputs[0].name}_{operator}", kind, dims)
        made = [attribute_of(name, value) for name, value in attributes.items()]
        node = ir.Node("", operator, inputs, made, outputs=[result], name=self.node.name)
        self._nodes.append(node)
        self._orders[node] = self.numbered(order)
        return result

    def set_result(self, index: int, value: ir.Value, dims: Places) -> None:
        """Nothing to do: the operators' requirements do not depend on the consumers of the results."""

    def meets_requirements(self, backend: Backend, device: str) -> bool:
        """Whether the operands of every operator meet the requirements of the device's backend. A constant takes any
        order at no cost, so that its names are always met."""
        own = backend.at(device)
        return all(
            supported_by(own, node)
            and any(self._meets(node, each.inputs, each.results, own) for each in ask(own, node))
            for node in self._nodes
        )

    def _meets(self, node: ir.Node, inputs: Sequence[Layout], results: Sequence[Layout], backend: Backend) -> bool:
        for value, required in zip((*node.inputs, *node.outputs), (*inputs, *results), strict=True):
            shape = extents_of(value)
            if value is None or shape is None or required.is_any:
                continue
            if value.const_value is not None and not required.is_numbered:
                continue
            # Numbers count the axes of the operator that is written.
            order = self._orders[node]
            numbers = "".join(map(str, order if len(order) == len(shape) else range(len(shape))))
            current = Layout.from_names(numbers) if required.is_numbered else self._layouts[value]
            tensor = TensorType(element_size(value), shape)
            if not is_met_by(backend, tensor, required, current, f"{node.op_type} for {label_of(self.node)}"):
                return False
        return True

    def _value(
        self, name: str | None, kind: ir.TypeProtocol | None, dims: Places, axes: Axes | None = None
    ) -> ir.Value:
        """A value of these dimensions, without axes other than the given ones of the space."""
        atoms = [[atom for place in group for atom in self._lowering.dims[place]] for group in dims]
        groups = [tuple(atom for atom in group if axes is None or atom.axis in axes) for group in atoms]
        value = ir.Value(name=name, shape=ir.Shape(dims_shape(tuple(groups), self._rule.extents)), type=kind)
        names = [self._name(group) for group in groups]
        if len(names) > MAX_RANK:
            return value  # the backend is not asked about it
        known = [name for name in names if name != "*"]
        self._layouts[value] = Layout.parse("".join(names)) if len(set(known)) == len(known) else Layout.any(len(names))
        return value

    def _name(self, group: Sequence[Atom]) -> str:
        """The name of the dimension's axis, if it holds the factors of one axis only, in any order."""
        axes = {atom.axis for atom in group}
        (axis,) = axes if len(axes) == 1 else (None,)
        return "*" if axis is None or self._rule.extents[axis] == 1 else self._letters[axis]


def listed_node(node: ir.Node, rule: Listed, lowering: FixedLowering) -> ir.Node:
    """The node as an alternative of its rule writes it, outside the graph."""
    change = rule.alternatives[lowering.pick][2]
    own = tuple([(n, None) for n in range(len(node.inputs))])
    written = Replacement(own, change.attributes) if isinstance(change, Edit) else change
    inputs = [_scratch_value(node.inputs[n], lowering.inputs[n], dims) for n, dims in written.inputs]
    result = _scratch_value(node.outputs[0], lowering.outputs[0], written.result)
    assert result is not None
    attributes = [attribute_of(*each) for each in {**node.attributes, **written.attributes}.items()]
    return ir.Node(node.domain, node.op_type, inputs, attributes, outputs=[result], name=node.name)


def _scratch_value(value: ir.Value | None, laid: Dims | None, dims: tuple[Axes, ...] | None) -> ir.Value | None:
    """An operand in an alternative's order, in the dimensions of its replacement."""
    if value is None:
        return None
    extents = extents_of(value)
    shape = None if extents is None else regrouped(extents if laid is None else dims_shape(laid, extents), dims)
    known = None if shape is None else ir.Shape(shape)
    return ir.Value(name=value.name, shape=known, type=value.type, const_value=value.const_value)
