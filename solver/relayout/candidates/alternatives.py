"""Decision variables: the ports of a node, and its alternatives as memory formats of the ports' tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from relayout.backend.rewriting import Rewrite
from relayout.candidates.tensors import Operand, Tensors
from relayout.layout.binding import names_for
from relayout.layout.conversion import Dims, flat, one_each
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, boxes_of, normal_form, source_order
from relayout.layout.metadata_keys import OPERAND_ORDERS_KEY
from relayout.model.metadata import black_boxes_on
from relayout.ops import Axes, Decomposition, Edit, Free, RegionEdge, RegionPort, Rule, given_at, graphs_of, read_at
from relayout.ops.logical_node import node_name

Thing = TypeVar("Thing")

OperandDims = tuple[MemoryFormat | None, ...]
"""The dimensions of an operand, each a group of atoms of its axes; None: a unit dimension for a missing axis."""


class Lowering(Protocol):
    """The realization of a node under an alternative."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the node stays unchanged."""

    @property
    def is_elided(self) -> bool:
        """Whether the node is removed and its result aliases its input."""

    def operand_dims(self, port: Port, rule: Rule | None) -> OperandDims:
        """The dimensions of one operand of a node under this rule."""


class FreeLowering(Struct, frozen=True):
    """The dimensions of a free node's iteration space: groups of atoms of its axes, outermost first. `asked`: the
    backend requires the layout. `rewritten`: the decomposition to use, if any."""

    is_elided: ClassVar[bool] = False
    dims: Dims
    asked: bool = False
    rewritten: Decomposition | None = None

    @property
    def axes(self) -> Axes:
        """The axis of each dimension; a tiled axis occurs several times."""
        return tuple(group[0].axis for group in self.dims)

    @property
    def changes_nothing(self) -> bool:
        return not self.rewritten and self.dims == in_source(len(self.dims))

    def operand_dims(self, port: Port, rule: Rule | None) -> OperandDims:
        assert isinstance(rule, Free)
        axes = port.entry(rule.inputs, rule.outputs)
        if axes is None or (is_parameter(rule, axes) and not self.rewritten):
            return in_source(len(port.operand.view.axes))
        found = input_dims(rule, axes, self.dims)
        # Only inputs are broadcast: a result has no unit dimension for an axis that it lacks.
        return tuple([group for group in found if group is not None]) if port.is_result else found

    def positions_of(self, axis: int, extent: Extent) -> np.ndarray[Any, Any]:
        """The position of each index of an axis of known extent along its dimension: source index -> position."""
        assert isinstance(extent, int)
        return _positions(next(group for group in self.dims if group[0].axis == axis), extent)

    def broadcast(self, axis: int, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A vector along an axis as an array that broadcasts in these dimensions, filled up with zeros."""
        groups = [tuple(atom for atom in group if atom.axis == axis) for group in self.dims]
        found = np.zeros([prod(_count(atom, len(array)) for atom in group) for group in groups], array.dtype)
        found[tuple(_positions(group, len(array)) for group in groups)] = array
        return found


def _count(atom: Atom, extent: int) -> int:
    """How many indices a factor of an axis has."""
    return (atom.outer or extent) // atom.inner


def _positions(atoms: MemoryFormat, extent: int) -> np.ndarray[Any, Any]:
    """The position of each index of an axis along a dimension of these factors; 0 where there are none."""
    index = np.arange(extent)
    position = np.zeros(extent, np.int64)
    for atom in atoms:
        size = _count(atom, extent)
        position = position * size + index // atom.inner % size
    return position


class FixedLowering(Struct, frozen=True):
    """The dimensions of each input and result, as groups of atoms of its own axes; None: as in the source.

    `pick` is the alternative of a Listed rule, `rewrite` the backend's own writer of the node. `is_elided`: the node is
    removed and its result aliases its input.
    """

    inputs: tuple[Dims | None, ...]
    outputs: tuple[Dims | None, ...]
    pick: int = 0
    rewrite: Rewrite | None = None
    is_elided: bool = False

    @property
    def changes_nothing(self) -> bool:
        if self.pick or self.rewrite is not None or self.is_elided:
            return False
        return all(dims is None or dims == in_source(len(dims)) for dims in (*self.inputs, *self.outputs))

    def operand_dims(self, port: Port, rule: Rule | None) -> OperandDims:
        own = port.entry(self.inputs, self.outputs)
        return in_source(len(port.operand.view.axes)) if own is None else own


class BoundaryLowering(Struct, frozen=True):
    """A graph input or output has a memory format and no node."""

    is_elided: ClassVar[bool] = False
    format: MemoryFormat

    @property
    def changes_nothing(self) -> bool:
        return (*self.format,) == source_order(len(self.format))

    def operand_dims(self, port: Port, rule: Rule | None) -> OperandDims:
        return one_each(self.format)


def input_dims(rule: Free, axes: Axes, dims: Dims) -> OperandDims:
    """An input's own dimensions when the iteration space has `dims`; `axes` are the input's axes in that space.

    None stands for a unit dimension of an axis that the input lacks. Leading ones are omitted: broadcasting adds them.
    """
    if axes == tuple(range(len(rule.extents))):
        return dims
    found: list[MemoryFormat | None] = []
    for group in dims:
        axis = group[0].axis
        if axis in axes:
            own = [atom for atom in group if atom.axis in axes]
            found.append(tuple([Atom(axes.index(atom.axis), atom.inner, atom.outer) for atom in own]))
        elif axis in rule.broadcasts and found:
            found.append(None)
    return tuple(found)


def is_parameter(rule: Free, axes: Axes) -> bool:
    """Whether an operand of an operator with named axes has only some of these axes. Such an operand is never tiled."""
    return bool(rule.axis_names) and len(axes) < len(rule.extents)


class Port(Struct, frozen=True):
    """One operand or result of a node that takes part in the problem. `index` counts the node's inputs, or outputs.
    `noted_order`: the operand's axes in the source, or their names, as an earlier run has noted them."""

    operand: Operand
    is_result: bool
    index: int
    noted_order: str = ""

    def entry(self, inputs: Sequence[Thing | None], results: Sequence[Thing | None]) -> Thing | None:
        """The port's own among the entries of the node's inputs and results; None past their end."""
        side = results if self.is_result else inputs
        return side[self.index] if self.index < len(side) else None

    def names_for(self, layout: Layout, letters: str | None, own: str | None = None) -> str | None:
        """The names of the operand's axes by which `layout` is bound: numbers for one by numbers; else the operator's
        `own`, those that an earlier run has noted, or `letters`."""
        rank, noted = len(self.operand.view.axes), self.noted_order.replace(",", "")
        is_noted = noted.isalpha() and len(noted) == rank
        return names_for(layout, own or (noted if is_noted else letters), axis_numbers(self.noted_order, rank))

    @property
    def source_format(self) -> MemoryFormat:
        """The format of the operand's tensor when the operand's axes are as in the source."""
        return self.operand.source_format

    def is_source_format(self, format_: MemoryFormat) -> bool:
        """Whether the source graph has the tensor in this format, including annotated black boxes."""
        if not boxes_of(format_):
            return format_ == self.source_format
        return (*format_,) == self.source_format and black_boxes_on(self.operand.tensor.base) == boxes_of(format_)

    def format_in(self, dims: Dims | None) -> MemoryFormat | None:
        """The tensor's format when the operand has these dimensions; None where a factor does not nest in the tensor's
        axes. Factors that together make up an axis count as separate dimensions."""
        if dims is None:
            return self.source_format
        view, atoms = self.operand.view, flat(dims)
        parts = [normal_form((atom,), view.extents) for atom in atoms if not atom.is_whole]
        if any(view.to_base(part) is None for part in parts):
            return None
        return view.to_base(normal_form(atoms, view.extents))


class Alternative(Struct, frozen=True):
    """One implementation of a node: the format of each port's tensor (in the base's axes), its lowering, the layout
    that is required of each port ("": none), its cost in bytes, and its device where there are several.

    `elidable_bytes`: the bytes that an elidable operator reads and writes; they are not conversions and only break
    ties. `implementation_index`: which implementation of the backend it is, for a region op and its region edges.
    `other_devices`: the further devices of an elided node. `is_numbered`: the node is written so that layouts by
    axis numbers count the source's axes, and this implementation or another has such layouts."""

    formats: tuple[MemoryFormat, ...]
    lowering: Lowering
    layouts: tuple[str, ...]
    cost: int = 0
    is_source: bool = False
    device: str = ""
    elidable_bytes: int = 0
    implementation_index: int = 0
    other_devices: tuple[str, ...] = ()
    is_numbered: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """The node's devices. An elided node runs nowhere, so it may have several."""
        return (self.device, *self.other_devices)

    @property
    def is_elided(self) -> bool:
        return self.lowering.is_elided


class NodePorts(Struct, frozen=True, eq=False):
    """A node, or a graph input or output (`node` is None), or a region edge of a node, with its ports.

    A region edge is a value that crosses the border of a graph inside the node. Its ports are its reads and results.
    `rule` is the node's, or the region edge's. A node whose operands have orders of their own has a choice for each of
    them: `others` are the ports of the other choices, and `rule` is that of the operand alone.
    """

    label: str
    node: ir.Node | None
    ports: tuple[Port, ...]
    rule: Rule | None = None
    region_edge: RegionEdge | None = None
    others: tuple[Port, ...] = ()

    @property
    def is_charged(self) -> bool:
        """Whether the node's own cost is that of this choice, and not of another one of the node."""
        first = min((*self.ports, *self.others), key=lambda port: (port.is_result, port.index), default=None)
        return self.region_edge is None and (first is None or first in self.ports)

    def region_port(self, port: Port) -> RegionPort:
        """The input or result of the node, or of a graph inside it, that this port stands for."""
        if self.region_edge is not None:
            return (self.region_edge.gives if port.is_result else self.region_edge.reads)[port.index]
        assert self.node is not None
        own = len(self.node.outputs if port.is_result else self.node.inputs)
        if port.index < own:
            return RegionPort(None, port.index)
        return inner_region_ports(self.node, is_result=port.is_result)[port.index - own]

    def is_unchanged(self, formats: Sequence[MemoryFormat], lowering: Lowering) -> bool:
        """Whether the node is as in the source when the ports' tensors have these formats."""
        return all(map(Port.is_source_format, self.ports, formats)) and lowering.changes_nothing

    def port_name(self, port: Port) -> str:
        """The port's name in messages."""
        return f"{self.label} {'result' if port.is_result else 'input'} {port.index}"


class NodeAlternatives(NodePorts, frozen=True, eq=False):
    """A decision variable: the ports of a node, and the alternatives to choose from."""

    alternatives: tuple[Alternative, ...] = ()


def with_alternatives(node: NodePorts, alternatives: tuple[Alternative, ...]) -> NodeAlternatives:
    """The node with these alternatives."""
    return NodeAlternatives(
        node.label, node.node, node.ports, node.rule, node.region_edge, node.others, alternatives=alternatives
    )


def of_one_operand(node: NodePorts, port: Port) -> NodePorts:
    """The choice of one operand of a node whose operands have orders of their own."""
    assert isinstance(node.rule, Free)
    axes = port.entry(node.rule.inputs, node.rule.outputs)
    assert axes is not None
    own = tuple(range(len(axes)))
    inputs, outputs = (
        tuple([own if (port.is_result, port.index) == (is_result, n) else None for n in range(len(side))])
        for is_result, side in ((False, node.rule.inputs), (True, node.rule.outputs))
    )
    traits = tuple([node.rule.traits[axis] for axis in axes])
    rule = Free(port.operand.view.extents, inputs, outputs, traits, edit=_edited)
    others = tuple([each for each in node.ports if each is not port])
    return NodePorts(node.label, node.node, (port,), rule, others=others)


def without_tiles(rule: Free) -> Free:
    """The rule with whole axes alone."""
    return replace(rule, traits=tuple([replace(own, tileable=False) for own in rule.traits]))


def _edited(order: Axes) -> Edit:
    """The operator reads its attributes by the order of this operand among others."""
    return Edit()


def best_alternatives(given: Iterable[Alternative]) -> tuple[Alternative, ...]:
    """Of those with the same formats, device and implementation the cheapest; then the one with least elidable traffic;
    then the one that changes nothing."""
    found: dict[tuple[object, ...], Alternative] = {}
    for new in given:
        key = (new.formats, new.device, new.implementation_index)
        if key not in found or _rank(new) < _rank(found[key]):
            found[key] = new
    return tuple(found.values())


def _rank(alternative: Alternative) -> tuple[int, int, bool]:
    return alternative.cost, alternative.elidable_bytes, not alternative.is_source


def inner_region_ports(node: ir.Node, *, is_result: bool) -> list[RegionPort]:
    """The outputs of the graphs inside the node, or their inputs where the edge leads into them."""
    graphs = graphs_of(node)
    return [RegionPort(graph, i) for graph in graphs for i in range(len(graph.inputs if is_result else graph.outputs))]


def ports_of(node: ir.Node, tensors: Tensors, region_edges: Sequence[RegionEdge] = ()) -> tuple[Port, ...]:
    """The non-constant operands of the node, and the values into and out of the graphs inside it. The latter are
    numbered after the node's own inputs or results. The values of `region_edges` are excluded."""
    if node not in tensors.region_edges:
        noted, made = (noted_orders(node, is_result=is_result) for is_result in (False, True))
        inputs = _ports(node.inputs, tensors, is_result=False, noted=noted)
        return (*inputs, *_ports(node.outputs, tensors, is_result=True, noted=made))
    ports: list[Port] = []
    for is_result, own in ((False, node.inputs), (True, node.outputs)):
        every = [RegionPort(None, i) for i in range(len(own))] + inner_region_ports(node, is_result=is_result)
        crossing = {port for edge in region_edges for port in (edge.gives if is_result else edge.reads)}
        values = given_at(node, every) if is_result else read_at(node, every)
        taken = {index for index, port in enumerate(every) if port in crossing}
        ports += [port for port in _ports(values, tensors, is_result=is_result) if port.index not in taken]
    return tuple(ports)


def noted_orders(node: ir.Node, *, is_result: bool) -> list[str]:
    """The order of each input or result of a node as an earlier run has noted it on the node, "" without a note.

    The annotation of a value says nothing here: it counts the axes of the value's producer, and the reader may be
    behind a Transpose of the source."""
    count, start = (len(node.outputs), len(node.inputs)) if is_result else (len(node.inputs), 0)
    props = node.metadata_props
    noted = props.get(OPERAND_ORDERS_KEY, "").split(";")[start:] if props else []
    return [*noted, *[""] * count][:count]


def axis_numbers(noted_order: str, rank: int) -> str:
    """The numbers of an operand's axes, in the order in which it lies, by which a layout by numbers is bound."""
    noted, in_source = noted_order.replace(",", ""), "".join(map(str, range(rank)))
    return noted if sorted(noted) == [*in_source] else in_source


def region_edge_ports(node: ir.Node, region_edge: RegionEdge, tensors: Tensors) -> tuple[Port, ...]:
    """The non-constant values that the region edge reads and produces."""
    read, given = read_at(node, region_edge.reads), given_at(node, region_edge.gives)
    return (*_ports(read, tensors, is_result=False), *_ports(given, tensors, is_result=True))


def _ports(
    values: Sequence[ir.Value | None], tensors: Tensors, *, is_result: bool, noted: Sequence[str] = ()
) -> list[Port]:
    found: list[Port] = []
    for index, value in enumerate(values):
        operand = tensors.operands.get(value) if value is not None else None
        if operand is not None and not operand.tensor.constant:
            own = noted[index] if index < len(noted) else ""
            found.append(Port(operand, is_result, index, own))
    return found


def label_of(node: ir.Node) -> str:
    """The node's name in messages: its operator, and its own name or that of its first result."""
    return f"{node.op_type} '{node_name(node)}'"


@cache
def in_source(rank: int) -> Dims:
    """Each axis as one dimension, as in the source."""
    return one_each(source_order(rank))
