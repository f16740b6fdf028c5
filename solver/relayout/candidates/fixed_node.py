"""Lowerings of a node whose operands each have their own layout, without a common iteration space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import onnx_ir as ir

from relayout.backend.interface import Implementation, element_size
from relayout.candidates.alternatives import FixedLowering, NodePorts, Port, axis_numbers, noted_orders
from relayout.candidates.backend_requirements import Requirement, RequirementChecker, has_requirement
from relayout.layout.binding import bind, layout_of, names_for
from relayout.layout.conversion import Dims, one_each
from relayout.layout.layout import Layout
from relayout.layout.memory_format import order_of
from relayout.ops import Axes, Fixed, Free, Listed, Rule, extents_of
from relayout.ops.operand_roles import data_letters, operand_letters

Thing = TypeVar("Thing")


def of_ports(
    ports: Sequence[Port], inputs: Sequence[Thing | None], outputs: Sequence[Thing | None]
) -> tuple[Thing | None, ...]:
    """The entry of each port in `inputs` or `outputs`; None past their end."""
    return tuple([port.entry(inputs, outputs) for port in ports])


def port_axis_names(rule: Rule | None, ports: Sequence[Port]) -> tuple[str | None, ...]:
    """The axis names that the node's rule gives each port; None where it gives none."""
    return of_ports(ports, *_axis_names(rule))


def _axis_names(rule: Rule | None) -> tuple[Sequence[str | None], Sequence[str | None]]:
    """The axis names that a rule gives the inputs and the results; None, or past the end, where it gives none."""
    if isinstance(rule, Fixed):
        return rule.inputs, rule.outputs
    if not isinstance(rule, Free) or not rule.axis_names:
        return (), ()
    letters = rule.axis_names
    named = [
        tuple(["".join(letters[axis] for axis in axes) if axes is not None else None for axes in side])
        for side in (rule.inputs, rule.outputs)
    ]
    return named[0], named[1]


def node_lowerings(choice: NodePorts, rule: Rule | None, implementation: Implementation) -> list[FixedLowering]:
    """The lowerings of a node without an iteration space; none where a layout cannot be bound."""
    if isinstance(rule, Fixed):
        return _fixed_lowerings(choice, rule, implementation)
    if isinstance(rule, Listed):
        sides = [(_dims_of(inputs), _dims_of(outputs)) for inputs, outputs, _ in rule.alternatives]
        return [FixedLowering(*dims, pick) for pick, dims in enumerate(sides)]
    assert choice.node is not None
    return [FixedLowering((None,) * len(choice.node.inputs), (None,) * len(choice.node.outputs))]


def _fixed_lowerings(choice: NodePorts, rule: Fixed, implementation: Implementation) -> list[FixedLowering]:
    """The dimensions that the layouts require, by the operator's axis names; none where one cannot be bound.

    A `relayout` operator has one attribute for the layout of all its data, and one for that of all its results. So a
    layout required of one data operand also holds for the others, and two of them cannot differ.
    """
    assert choice.node is not None
    found: list[list[Dims | None]] = [[], []]
    sides = (
        (rule.inputs, rule.native_inputs, implementation.inputs, choice.node.inputs),
        (rule.outputs, rule.native_outputs, implementation.results, choice.node.outputs),
    )
    for side, (axis_names, natives, layouts, values) in enumerate(sides):
        operands = list(zip(axis_names, natives, layouts, values, strict=False))
        data = [each for n, each in enumerate(operands) if each[0] is not None and (side, n) != (0, rule.kernel)]
        common = next((layout for _, _, layout, value in data if value is not None and has_requirement(layout)), None)
        words: set[str] = set()
        for n, (names, native, layout, value) in enumerate(operands):
            if names is None or native is None or value is None:
                found[side].append(None)
                continue
            is_kernel = (side, n) == (0, rule.kernel)
            unsaid = Layout.from_names(native) if is_kernel or common is None else common
            asked = layout if has_requirement(layout) else unsaid
            extents = extents_of(value) or (None,) * len(names)
            order = bind(asked, names, extents, element_size(value), native=native, pads=implementation.pads)
            if order is None:
                return []
            if not is_kernel:
                words.add(str(layout_of(order, names)))
            found[side].append(one_each(order))
        if len(words) > 1:
            return []
    return [FixedLowering(tuple(found[0]), tuple(found[1]))]


def rewritten_lowering(
    choice: NodePorts, rule: Rule | None, requirement: Requirement, checker: RequirementChecker
) -> FixedLowering | None:
    """The lowering with the backend's own rewrite; None where its layouts do not bind to the operands."""
    assert choice.node is not None
    implementation = requirement.implementation
    of_constants = _constant_dims(choice, rule, implementation)
    if of_constants is None:
        return None
    dims: dict[tuple[bool, int], Dims] = {(False, n): each for n, each in of_constants.items()}
    own_names = port_axis_names(rule, choice.ports)
    layouts = [
        layout
        or _onnx_order(choice.node, port, own)
        or _source_numbers(implementation, port.noted_order, len(port.operand.view.axes))
        for port, layout, own in zip(choice.ports, requirement.layouts, own_names, strict=True)
    ]
    places = zip(choice.ports, layouts, own_names, checker.axis_names(choice, layouts), strict=True)
    for port, layout, own, letters in places:
        if layout is None:
            continue
        extents = port.operand.view.extents
        axis_names = port.names_for(layout, letters or data_letters(len(extents)), own)
        size = element_size(port.operand.tensor.base)
        order = bind(layout, axis_names, extents, size, pads=implementation.pads) if axis_names else None
        if order is None:
            return None
        dims[port.is_result, port.index] = one_each(order)
    return FixedLowering(
        tuple(dims.get((False, n)) for n in range(len(choice.node.inputs))),
        tuple(dims.get((True, n)) for n in range(len(choice.node.outputs))),
        rewrite=implementation.rewrite,
    )


def _constant_dims(choice: NodePorts, rule: Rule | None, implementation: Implementation) -> dict[int, Dims] | None:
    """The dimensions of each constant input of which a layout is required; None where one cannot be bound."""
    node = choice.node
    assert node is not None
    in_problem = {port.index for port in choice.ports if not port.is_result}
    axis_names, noted = _axis_names(rule)[0], noted_orders(node, is_result=False)
    dims: dict[int, Dims] = {}
    for n, (value, layout) in enumerate(zip(node.inputs, implementation.inputs, strict=True)):
        extents = extents_of(value) if value is not None and n not in in_problem else None
        if extents is not None and not has_requirement(layout):
            layout = _source_numbers(implementation, noted[n], len(extents)) or layout
        if extents is None or not has_requirement(layout):
            continue
        rank = len(extents)
        own = axis_names[n] if n < len(axis_names) else None
        letters = names_for(layout, own or data_letters(rank), axis_numbers(noted[n], rank))
        order = bind(layout, letters, extents, element_size(value), pads=implementation.pads) if letters else None
        if order is None:
            return None
        dims[n] = one_each(order)
    return dims


def _source_numbers(implementation: Implementation, noted_order: str, rank: int) -> Layout | None:
    """The source's layout, by numbers, of an operand that lies otherwise; None where it lies so. A rewrite that
    requires an order by numbers reads the other operands as in the source, too."""
    in_source = "".join(map(str, range(rank)))
    is_turned = implementation.is_numbered and axis_numbers(noted_order, rank) != in_source
    return Layout.from_names(in_source) if is_turned else None


def _onnx_order(node: ir.Node, port: Port, own: str | None) -> Layout | None:
    """ONNX's layout of an operand that lies otherwise: a rewrite reads it as ONNX has it; None where it lies so."""
    letters = operand_letters(node, port.index, len(own), is_result=port.is_result) if own is not None else None
    return Layout.from_names(letters) if letters is not None and letters != own else None


def _dims_of(orders: tuple[Axes | None, ...]) -> tuple[Dims | None, ...]:
    return tuple(one_each(order_of(order)) if order is not None else None for order in orders)
