"""Requirements of the backend, bound to a node's ports, and the test whether a format meets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import onnx_ir as ir

from relayout.backend.calls import ask, ask_order_cost, conversion_operators_of, is_met_by, supported_by
from relayout.backend.failures import may_be_written
from relayout.backend.interface import Backend, Implementation, TensorType, element_size, rank_of
from relayout.backend.kept_answers import Kept, ask_once
from relayout.backend.members import answers_by_type, is_pure, prices_by_traffic
from relayout.backend.noted_costs import noted_cost
from relayout.candidates.alternatives import (
    FixedLowering,
    FreeLowering,
    NodePorts,
    Port,
    axis_numbers,
    in_source,
    label_of,
    noted_orders,
)
from relayout.candidates.axis_names import KnownNames, OperandNames, filled_names, own_names
from relayout.candidates.backend_conversions import ConversionQuery, native_conversion
from relayout.candidates.dry_run import DryRun, listed_node
from relayout.layout.binding import is_tiled, layout_of
from relayout.layout.conversion import Dims, dims_shape, flat
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom, Extent
from relayout.layout.metadata_keys import CONVERSION_KEY
from relayout.ops import NO_EDIT, Axes, Edit, Free, Listed, OperatorClass, RegionEdge, extents_of
from relayout.ops.logical_node import is_packed, lies_as
from relayout.ops.operand_roles import operand_letters

_kept: Kept[tuple[Implementation, ...]] = Kept()


class Requirement:
    """One implementation, with the layout that it requires of each port; None: no requirement.

    `constants`: the layouts of constant inputs, by index, that bind. `is_empty`: neither a port nor a constant has a
    requirement. `implementation_index`: see `Alternative`. Values that cross into the graphs inside a node have no
    requirements.
    """

    def __init__(self, implementation: Implementation, node: NodePorts, implementation_index: int = 0) -> None:
        self.implementation = implementation
        self.implementation_index = implementation_index
        self._node = node
        layouts: list[Layout | None] = []
        for port in node.ports:
            layout = port.entry(implementation.inputs, implementation.results)
            layouts.append(layout if layout is not None and has_requirement(layout) else None)
        self.layouts = tuple(layouts)
        # The axes of a constant in an iteration space without names are those of the other operands.
        binds = has_requirement if isinstance(node.rule, Free) and not node.rule.axis_names else _binds_constants
        in_problem = {port.index for port in (*node.ports, *node.others) if not port.is_result}
        # Where an operand has a choice of its own, so have the constants.
        given = enumerate(implementation.inputs if not (node.ports and node.others) else ())
        self.constants = {n: layout for n, layout in given if n not in in_problem and binds(layout)}
        self.is_empty = not self.constants and all(layout is None for layout in layouts)
        self.is_tiled = any(layout is not None and is_tiled(layout) for layout in layouts)
        self.boxes = tuple([_boxes(layout) if layout is not None else () for layout in layouts])
        self.shown = tuple([str(layout) if layout is not None else "" for layout in layouts])

    def relaxed(self) -> Requirement:
        """The same implementation without layout requirements."""
        if self.is_empty:
            return self
        own = self.implementation
        anything = [tuple([Layout.any(each.rank) for each in side]) for side in (own.inputs, own.results)]
        own = replace(own, inputs=anything[0], results=anything[1])
        return Requirement(own, self._node, self.implementation_index)


@lru_cache(maxsize=1024)
def has_requirement(layout: Layout) -> bool:
    if layout.rank == 1:
        return layout.alignment(0) > 1 or bool(layout.boxes(0))
    return not layout.is_any


class RequirementChecker:
    """Checks formats against one backend's requirements. Layouts bind to axes by the graph's axis names."""

    def __init__(self, backend: Backend, names: OperandNames) -> None:
        self.backend = backend
        self._names = names
        # Networks repeat their shapes.
        self._met: dict[tuple[Layout, Layout, TensorType, str], bool] = {}
        self.is_shared = answers_by_type(backend)
        """Whether nodes of one class get the same answers."""
        self.is_kept = self.is_shared and is_pure(backend)
        """Whether nodes of one class get the same answers in all graphs."""
        self.prices_by_traffic = all(prices_by_traffic(backend.at(device)) for device in self.devices)
        self._stated: dict[OperatorClass, tuple[Implementation, ...]] = {}
        self._known: dict[NodePorts, tuple[KnownNames, ...]] = {}
        self._conversions = conversion_operators_of(backend)

    @property
    def devices(self) -> tuple[str, ...]:
        """The backend's devices; a backend without named devices has one, whose name is empty."""
        return self.backend.devices() or ("",)

    def implementations(self, node: ir.Node, kind: OperatorClass) -> tuple[Implementation, ...]:
        """The backend's implementations of a node of this class."""
        if not self.is_shared:
            return _bindable(self.backend, node)
        found = self._stated.get(kind)
        if found is None:
            key = kind.key if self.is_kept else None
            found = self._stated[kind] = ask_once(_kept, self.backend, key, lambda: _bindable(self.backend, node))
        return found

    def is_conversion(self, node: ir.Node) -> bool:
        """Whether a node only converts between formats: an operator of the backend's own, or what an earlier run has
        padded or cropped. A Transpose is a view instead."""
        is_resized = node.op_type in ("Pad", "Slice") and CONVERSION_KEY in node.metadata_props
        return is_resized or (bool(self._conversions) and (node.domain, node.op_type) in self._conversions)

    def order_cost(
        self, node: ir.Node, axes: tuple[int, ...], traffic: int, device: str, *, is_rewritten: bool
    ) -> int | None:
        """The cost of an order of the node's axes on `device`, in bytes; None where the device does not support it.

        The noted cost of a node that an earlier run has written is that of the order in which it is, on its device.
        """
        if noted_cost(node, device) is not None:
            return traffic
        return ask_order_cost(self.backend.at(device), node, axes, traffic, is_rewritten=is_rewritten)

    def dry_run(
        self, choice: NodePorts, rule: Free, axes_of: Sequence[Axes | None], lowering: FreeLowering, device: str
    ) -> bool:
        """Whether every operator of the decomposition in this lowering meets the backend's requirements."""
        assert choice.node is not None
        axis_names = list(rule.axis_names or "*" * len(rule.extents))
        for port, axes, known in zip(choice.ports, axes_of, self._names_of(choice), strict=True):
            for axis, name in zip(axes or (), own_names(known, port.operand.view.extents), strict=False):
                axis_names[axis] = name if axis_names[axis] == "*" else axis_names[axis]
        graph = choice.node.graph
        opset = graph.opset_imports.get("", 1) if graph is not None else 1
        written = DryRun(choice.node, rule, lowering, "".join(axis_names), opset)
        return may_be_written(lambda: written.meets_requirements(self.backend, device))

    def runs_listed(self, choice: NodePorts, requirement: Requirement, lowering: FixedLowering) -> bool:
        """Whether the requirement's device runs the node as the alternative of its rule writes it. Without a
        requirement, it must have none of the written node either; one holds for the operands in their places."""
        node, rule, device = choice.node, choice.rule, requirement.implementation.device
        if not isinstance(rule, Listed) or (change := rule.alternatives[lowering.pick][2]) is NO_EDIT:
            return True
        if not requirement.is_empty:
            return isinstance(change, Edit)
        assert node is not None
        written, own = listed_node(node, rule, lowering), self.backend.at(device)
        if supported_by(own, node) and not supported_by(own, written):
            return False
        return may_be_written(lambda: self._runs_in_any_order(written, device))

    def has_no_requirement(self, choice: NodePorts, port_dims: Sequence[Dims], device: str) -> bool:
        """Whether `device` runs the node with operands of these dimensions and requires no layout of them. A dimension
        without factors has extent 1."""
        assert choice.node is not None
        node = choice.node
        shapes: dict[tuple[bool, int], ir.Shape] = {}
        for port, dims in zip(choice.ports, port_dims, strict=True):
            shapes[port.is_result, port.index] = ir.Shape(dims_shape(dims, port.operand.view.extents))
        inputs = [_placeholder(value, shapes.get((False, i))) for i, value in enumerate(node.inputs)]
        outputs = [_placeholder(value, shapes.get((True, i))) for i, value in enumerate(node.outputs)]
        attributes = node.attributes.values()
        permuted = ir.Node("", node.op_type, inputs, attributes, outputs=outputs, name=node.name)  # type: ignore[arg-type]
        return may_be_written(lambda: self._runs_in_any_order(permuted, device))

    def _runs_in_any_order(self, node: ir.Node, device: str) -> bool:
        if device and not self._takes(node, device):
            return False
        stated = ask(self.backend.at(device), node)
        return any(not any(map(has_requirement, (*each.inputs, *each.results))) for each in stated)

    def _takes(self, node: ir.Node, device: str) -> bool:
        is_run = supported_by(self.backend, node)
        return is_run and any(each.device == device for each in ask(self.backend, node))

    def is_met(
        self,
        choice: NodePorts,
        requirement: Requirement,
        port_dims: Sequence[Dims | None],
        axis_names: Sequence[str | None],
    ) -> bool:
        """Whether every port with these dimensions meets the requirement. `axis_names`: the operator's."""
        device = requirement.implementation.device
        places = zip(choice.ports, requirement.layouts, port_dims, axis_names, self._names_of(choice), strict=True)
        return all(
            layout is None or self._meets(port, layout, dims, own, known, device)
            for port, layout, dims, own, known in places
        )

    def constants_meet(
        self,
        choice: NodePorts,
        requirement: Requirement,
        dims: Sequence[Dims | None],
        names: Mapping[int, KnownNames] = MappingProxyType({}),
    ) -> bool:
        """Whether the constant inputs, with these dimensions, meet the layouts that bind (see `Requirement`). `names`:
        those of their axes, by index, by the node's other operands.

        Each reader of a constant names its axes as it needs them, where the other operands do not. A constant takes any
        order at no cost, so these names are always met; axis numbers, alignments and black boxes may not be.
        """
        assert choice.node is not None
        noted = noted_orders(choice.node, is_result=False)
        for index, layout in requirement.constants.items():
            value = choice.node.inputs[index]
            if value is None:
                continue
            extents = extents_of(value)
            own = dims[index] if index < len(dims) else None
            shape = dims_shape(own, extents) if own is not None and extents is not None else extents
            if shape is None or extents is None or len(shape) != layout.rank:
                return False
            current: Layout | None = Layout.any(layout.rank)
            if layout.is_numbered:
                current = _known(own or in_source(len(extents)), axis_numbers(noted[index], len(extents)))
            elif index in names:
                lies = _lies_as(layout, own, extents, filled_names(names[index], extents, layout), is_named=False)
                current = lies[0] if lies is not None else None
            tensor = TensorType(element_size(value), shape)
            backend = self.backend.at(requirement.implementation.device)
            if current is None or not is_met_by(backend, tensor, layout, current, choice.label):
                return False
        return True

    def constant_names(self, choice: NodePorts, rule: Free, axes_of: Sequence[Axes | None]) -> Mapping[int, KnownNames]:
        """The axis names of the constant inputs, by index: those of the same axes of results and other inputs.
        `axes_of`: the axes of each port in the iteration space."""
        in_space: dict[int, tuple[str, int]] = {}
        ports = zip(choice.ports, axes_of, self._names_of(choice), strict=True)
        for port, axes, known in sorted(ports, key=lambda each: not each[0].is_result):
            for axis, name, extent in zip(axes or (), known, port.operand.view.extents, strict=False):
                if name[0] and extent != 1:
                    in_space.setdefault(axis, name)
        in_problem = {port.index for port in choice.ports if not port.is_result}
        return {
            n: tuple([in_space.get(axis, ("", 0)) for axis in axes])
            for n, axes in enumerate(rule.inputs)
            if axes is not None and n not in in_problem
        }

    def converts(self, query: ConversionQuery | None) -> bool:
        """Whether the backend of some device has a native operator for this conversion."""
        devices = [self.backend.at(device) for device in self.devices]
        return any(native_conversion(each, query) is not None for each in devices)

    def axis_names(self, choice: NodePorts, wanted: Sequence[Layout | None]) -> tuple[str | None, ...]:
        """The axis names of each port for reading its layout in `wanted`, as far as the graph determines them."""
        places = zip(choice.ports, wanted, self._names_of(choice), strict=True)
        return tuple(
            [
                filled_names(known, port.operand.view.extents, layout) if layout is not None else None
                for port, layout, known in places
            ]
        )

    def _names_of(self, choice: NodePorts) -> tuple[KnownNames, ...]:
        found = self._known.get(choice)
        if found is None:
            found = self._known[choice] = self._names.of_ports(choice)
        return found

    def _meets(
        self, port: Port, required: Layout, dims: Dims | None, own: str | None, known: KnownNames, device: str
    ) -> bool:
        """Whether the operand with these dimensions meets the layout."""
        extents = port.operand.view.extents
        axis_names = port.names_for(required, filled_names(known, extents, required), own)
        found = _lies_as(required, dims, extents, axis_names, own is not None)
        if found is None:
            return False
        current, shape = found
        tensor = TensorType(element_size(port.operand.tensor.base), shape)
        key = (required, current, tensor, device)
        met = self._met.get(key)
        if met is None:
            met = self._met[key] = is_met_by(self.backend.at(device), tensor, required, current)
        return met


def unmet_packed(nodes: Iterable[ir.Node], backend: Backend) -> list[ir.Node]:
    """The packed operators that meet no implementation of the backend as they lie."""
    return [node for node in nodes if is_packed(node) and not _met_as_it_lies(backend, node)]


def _bindable(backend: Backend, node: ir.Node) -> tuple[Implementation, ...]:
    """The backend's implementations of a node. A packed operator stays as it is, so of those that it meets only their
    costs count."""
    if not is_packed(node):
        return ask(backend, node)
    inputs, results = tuple([_any_layout(v) for v in node.inputs]), tuple([_any_layout(v) for v in node.outputs])
    return tuple([replace(each, inputs=inputs, results=results) for each in _met_as_it_lies(backend, node)])


def _any_layout(value: ir.Value | None) -> Layout:
    return Layout.any(rank_of(value))


def _met_as_it_lies(backend: Backend, node: ir.Node) -> list[Implementation]:
    """The implementations, other than those by a rewrite, that a packed operator meets without a conversion."""
    stated = ask(backend, node) if supported_by(backend, node) else ()
    return [each for each in stated if each.rewrite is None and _lies_in(backend.at(each.device), node, each)]


def _lies_in(backend: Backend, node: ir.Node, stated: Implementation) -> bool:
    """Whether every operand of the node lies as `stated` requires."""
    sides = ((False, node.inputs, stated.inputs), (True, node.outputs, stated.results))
    for is_result, values, layouts in sides:
        for n, (value, required) in enumerate(zip(values, layouts, strict=True)):
            if value is None or not has_requirement(required):
                continue
            tensor = TensorType(element_size(value), extents_of(value) or ())
            if not is_met_by(backend, tensor, required, _present_layout(node, n, is_result=is_result), label_of(node)):
                return False
    return True


def _present_layout(node: ir.Node, n: int, *, is_result: bool) -> Layout | None:
    """The names and tiles in which an operand lies; None where its axes have no names."""
    own = lies_as(node, n, is_result=is_result)
    if own is not None:
        return Layout.parse(
            "".join(dim if (t := own.tile(i)) is None else f"{dim}[tile:{t}]" for i, dim in enumerate(own.names))
        )
    value = (node.outputs if is_result else node.inputs)[n]
    letters = operand_letters(node, n, rank_of(value), is_result=is_result)
    return Layout.parse(letters) if letters is not None else None


@lru_cache(maxsize=4096)
def _lies_as(
    required: Layout, dims: Dims | None, extents: tuple[Extent, ...], axis_names: str | None, is_named: bool
) -> tuple[Layout, tuple[Extent, ...]] | None:
    """The layout and shape of an operand with these dimensions, to be compared with `required`; None where they cannot
    be. Where no axis names are known, the layout's names stand for the source's order, in which axes of extent 1 may be
    anywhere. `is_named`: the operator reads its axes by name."""
    dims = in_source(len(extents)) if dims is None else dims
    if required.rank != len(dims):
        return None
    if axis_names is None and required.names.strip("*") and not _is_in_place(dims, extents):
        return None
    current = _known(dims, axis_names) if axis_names is not None else Layout.any(len(dims))
    if current is None:
        return None
    if not is_named:
        current = _without_units(current, dims, extents)
    # Black boxes are checked by the formats of the tensors.
    return _carrying(current, required), dims_shape(dims, extents)


def _is_in_place(dims: Dims, extents: Sequence[Extent]) -> bool:
    """Whether every axis longer than 1 is whole and in the source's order."""
    return all(group == (Atom(axis),) or extents[group[0].axis] == 1 for axis, group in enumerate(dims))


def _known(dims: Dims, axis_names: str) -> Layout | None:
    """The layout of an operand with these dimensions. Factors permuted within one dimension count as the whole axis."""
    groups = [group if len(group) == 1 else (Atom(group[0].axis),) for group in dims]
    return layout_of(flat(groups), axis_names)


def _without_units(layout: Layout, dims: Dims, extents: tuple[Extent, ...]) -> Layout:
    """The layout, a plain one, with `*` for each dimension of extent 1."""
    units = [extents[group[0].axis] == 1 for group in dims]
    if str(layout) != layout.names or not any(units):
        return layout
    return Layout.parse("".join("*" if unit else name for unit, name in zip(units, layout.names, strict=True)))


@lru_cache(maxsize=1024)
def _boxes(layout: Layout) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The black boxes of each dimension; empty where no dimension has one."""
    boxes = tuple([layout.boxes(i) for i in range(layout.rank)])
    return boxes if any(boxes) else ()


def _carrying(layout: Layout, required: Layout) -> Layout:
    """The layout with the black boxes of the required one."""
    for i in range(required.rank):
        if boxes := required.boxes(i):
            layout = layout.with_boxes(i, boxes)
    return layout


@lru_cache(maxsize=1024)
def _binds_constants(layout: Layout) -> bool:
    """Whether a constant whose axes have no names may miss the layout: it takes any order at no cost, but the numbers
    of its axes are given."""
    return layout.is_numbered or any(layout.alignment(i) > 1 or layout.boxes(i) for i in range(layout.rank))


def _placeholder(value: ir.Value | None, shape: ir.Shape | None) -> ir.Value | None:
    """A placeholder for a value in a query to the backend, with this shape if it has another."""
    if value is None:
        return None
    return ir.Value(name=value.name, shape=shape or value.shape, type=value.type, const_value=value.const_value)


_ANY = Layout.any(0)


def has_no_rewrite(stated: Sequence[Implementation]) -> bool:
    """Whether a node may have several choices, coupled by its implementation: each region edge has one then. If the
    backend rewrites the node, all its values are as in the source."""
    return all(each.rewrite is None for each in stated)


def crossing_requirements(
    choice: NodePorts, region_edge: RegionEdge, stated: Sequence[Implementation]
) -> tuple[Requirement, ...]:
    """The backend's requirements of the node's own operands among the ports of a region edge, by implementation."""
    found = []
    for implementation_index, each in enumerate(stated):
        reads = tuple([each.inputs[s.index] if s.graph is None else _ANY for s in region_edge.reads])
        gives = tuple([each.results[s.index] if s.graph is None else _ANY for s in region_edge.gives])
        # The implementation's cost is charged for the node.
        own = Implementation(reads, gives, device=each.device)
        found.append(Requirement(own, choice, implementation_index))
    return tuple(found)
