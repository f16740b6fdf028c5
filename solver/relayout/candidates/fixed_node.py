"""The dimensions in which a node's operands lie when each is asked for by itself, not as part of one space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from relayout.backend.interface import Implementation, element_size
from relayout.candidates.alternatives import FixedLowering, NodePorts, Port
from relayout.candidates.axis_names import conventional
from relayout.candidates.backend_requirements import Contract, Wish, says_something
from relayout.layout.binding import bind, layout_of, names_for
from relayout.layout.conversion import Dims, one_each
from relayout.layout.layout import Layout
from relayout.layout.memory_format import order_of
from relayout.ops import Axes, Fixed, Free, Listed, Rule, extents_of

__all__ = ["fixed_forms", "laid_forms", "of_ports", "port_letters", "written_form"]

Thing = TypeVar("Thing")


def of_ports(
    ports: Sequence[Port], inputs: Sequence[Thing | None], outputs: Sequence[Thing | None]
) -> tuple[Thing | None, ...]:
    """What stands for each port among what stands for the node's inputs and outputs; None past their end."""
    found = []
    for port in ports:
        side = outputs if port.is_result else inputs
        found.append(side[port.index] if port.index < len(side) else None)
    return tuple(found)


def port_letters(rule: Rule | None, ports: Sequence[Port]) -> tuple[str | None, ...]:
    """The names that the node's own rule gives the axes of each port; None where it gives none."""
    if isinstance(rule, Fixed):
        return of_ports(ports, rule.inputs, rule.outputs)
    if isinstance(rule, Free) and rule.letters:
        orders = of_ports(ports, rule.inputs, rule.outputs)
        return tuple("".join(rule.letters[a] for a in axes) if axes is not None else None for axes in orders)
    return (None,) * len(ports)


def laid_forms(choice: NodePorts, rule: Rule | None, implementation: Implementation) -> list[FixedLowering]:
    """The lowerings of a node without an iteration space; none where a layout cannot be bound."""
    if isinstance(rule, Fixed):
        return fixed_forms(choice, rule, implementation)
    if isinstance(rule, Listed):
        sides = [(_dims_of(inputs), _dims_of(outputs)) for inputs, outputs, _ in rule.alternatives]
        return [FixedLowering(*dims, pick) for pick, dims in enumerate(sides)]
    assert choice.node is not None
    return [FixedLowering((None,) * len(choice.node.inputs), (None,) * len(choice.node.outputs))]


def fixed_forms(choice: NodePorts, rule: Fixed, implementation: Implementation) -> list[FixedLowering]:
    """The dimensions that the layouts ask for, by the operator's letters; none where one cannot be bound.

    One word says how all data that an operator reads lies, and one how all that it gives does: what is asked of one is
    asked of those that nothing is said of, and no two can be in two layouts.
    """
    assert choice.node is not None
    found: list[list[Dims | None]] = [[], []]
    sides = (
        (rule.inputs, rule.native_inputs, implementation.inputs, choice.node.inputs),
        (rule.outputs, rule.native_outputs, implementation.results, choice.node.outputs),
    )
    for side, (letters, natives, layouts, values) in enumerate(sides):
        operands = list(zip(letters, natives, layouts, values, strict=False))
        data = [each for n, each in enumerate(operands) if each[0] is not None and (side, n) != (0, rule.kernel)]
        common = next((layout for _, _, layout, value in data if value is not None and says_something(layout)), None)
        words: set[str] = set()
        for n, (names, native, layout, value) in enumerate(operands):
            if names is None or native is None or value is None:
                found[side].append(None)
                continue
            is_kernel = (side, n) == (0, rule.kernel)
            unsaid = Layout.from_names(native) if is_kernel or common is None else common
            asked = layout if says_something(layout) else unsaid
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


def written_form(choice: NodePorts, rule: Rule | None, wish: Wish, contract: Contract) -> FixedLowering | None:
    """The form of what the backend writes itself; None where its layouts do not bind to the operands."""
    assert choice.node is not None
    implementation = wish.implementation
    dims: dict[tuple[bool, int], Dims] = {}
    for port, layout, own in zip(choice.ports, wish.layouts, port_letters(rule, choice.ports), strict=True):
        if layout is None:
            continue
        extents = port.operand.view.extents
        known = own or contract.letters(port, layout) or conventional(len(extents))
        letters = names_for(layout, known, len(extents))
        size = element_size(port.operand.tensor.base)
        order = bind(layout, letters, extents, size, pads=implementation.pads) if letters else None
        if order is None:
            return None
        dims[port.is_result, port.index] = one_each(order)
    return FixedLowering(
        tuple(dims.get((False, n)) for n in range(len(choice.node.inputs))),
        tuple(dims.get((True, n)) for n in range(len(choice.node.outputs))),
        rewrite=implementation.rewrite,
    )


def _dims_of(orders: tuple[Axes | None, ...]) -> tuple[Dims | None, ...]:
    return tuple(one_each(order_of(order)) if order is not None else None for order in orders)
