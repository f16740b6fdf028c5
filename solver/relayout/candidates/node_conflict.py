"""Why one node cannot run: a minimal unsatisfiable subset of its requirements, and a minimum relaxation.

A requirement here is the layout of one operand in all implementations, and it is dropped before there are alternatives.
In `solve.conflict` it is one use of one item, and the nodes have their alternatives: they conflict with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations, islice

import onnx_ir as ir

from relayout.backend.interface import Implementation, element_size
from relayout.candidates.alternatives import NodeAlternatives, NodePorts
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.backend_requirements import has_requirement
from relayout.candidates.messages import contradiction, format_text, operand_name, relaxed, required
from relayout.errors import InfeasibleError
from relayout.layout.binding import unbound
from relayout.layout.layout import Layout
from relayout.ops import extents_of
from relayout.ops.operand_roles import operand_letters
from relayout.solve.conflict import minimal

Trial = Callable[[Sequence[Implementation]], NodeAlternatives]
"""The node with its alternatives if the backend stated these implementations instead."""

_Operand = tuple[bool, int]
"""(whether the operand is a result, its index)."""

# So many sets are tried, smallest first; then a set is shrunk instead.
MOST_TRIED = 200


def unmet(
    choice: NodePorts, stated: Sequence[Implementation], trial: Trial, names: AxisNames, cause: str = ""
) -> InfeasibleError:
    """The error for a node that meets the requirements of none of its implementations. `cause` is the reason where all
    layouts fit their operands."""
    every = _constrained(stated)

    def runs(kept: Iterable[_Operand]) -> NodeAlternatives | None:
        keep = frozenset(kept)
        tried = trial([_restricted(implementation, keep) for implementation in stated])
        return tried if tried.alternatives else None

    conflict = every
    relaxation: tuple[_Operand, ...] = ()
    if runs(()) is not None:
        conflict = _smallest(every, lambda some: runs(some) is None)
        relaxation = _smallest(every, lambda some: runs(set(every) - set(some)) is not None)
    if not every:
        cause = "no layout is required; `order_cost` refuses every order in reach"
    unbound_operands = [_why_unbound(choice, operand, each, names) for operand in conflict for each in stated]
    running = runs(set(every) - set(relaxation)) if relaxation else None
    return contradiction(
        f"no way to run {choice.label} meets the backend's requirements",
        [_required(choice, operand, conflict, stated) for operand in conflict],
        [_relaxed(running, operand, stated, names) for operand in relaxation] if running is not None else [],
        list(filter(None, unbound_operands)) or list(filter(None, [cause])),
    )


def _why_unbound(choice: NodePorts, operand: _Operand, stated: Implementation, names: AxisNames) -> str | None:
    """Why the layout that an implementation states does not fit the operand; None where it does, or none is stated."""
    assert choice.node is not None
    is_result, index = operand
    values = choice.node.outputs if is_result else choice.node.inputs
    value, layout = values[index], _layout(stated, operand)
    extents = extents_of(value)
    if value is None or not has_requirement(layout):
        return None
    if extents is None:
        return f"the rank of {value.name} is not known; a shape in the file (value_info) gives it"
    if layout.is_numbered:
        return None
    ports = [port.operand for port in choice.ports if (port.is_result, port.index) == operand]
    boxes = [f"[{space}:{data}]" for i in range(layout.rank) for space, data in layout.boxes(i)]
    base = ports[0].tensor.base if ports and boxes else None
    if base is not None and not ports[0].view.is_plain:
        return f"{value.name} is a Reshape of {base.name}, and the contents of {boxes[0]} after a Reshape are not known"
    letters = operand_letters(choice.node, index, len(extents), is_result=is_result)
    letters = letters or (names.of(ports[0]) if ports else None)
    if letters is None or len(letters) != len(extents):
        return None
    return unbound(layout, letters, extents, element_size(value), pads=stated.pads)


def _constrained(stated: Sequence[Implementation]) -> tuple[_Operand, ...]:
    """The operands with requirements, inputs before results."""
    found = [(False, n) for one in stated for n, layout in enumerate(one.inputs) if has_requirement(layout)]
    found += [(True, n) for one in stated for n, layout in enumerate(one.results) if has_requirement(layout)]
    return tuple(sorted(set(found)))


def _restricted(implementation: Implementation, kept: frozenset[_Operand]) -> Implementation:
    """The implementation without its requirements of other operands."""
    inputs, results = (
        tuple(layout if (is_result, n) in kept else Layout.any(layout.rank) for n, layout in enumerate(side))
        for is_result, side in ((False, implementation.inputs), (True, implementation.results))
    )
    return replace(implementation, inputs=inputs, results=results)


def _smallest(operands: tuple[_Operand, ...], holds: Callable[[Sequence[_Operand]], bool]) -> tuple[_Operand, ...]:
    """A smallest set of operands for which the monotone predicate `holds`; the first of several. Where the sets are too
    many, one from which no operand can be removed."""
    sets = (some for size in range(1, len(operands)) for some in combinations(operands, size))
    for some in islice(sets, MOST_TRIED):
        if holds(some):
            return some
    return tuple(minimal(operands[::-1], holds))


def _required(
    choice: NodePorts, operand: _Operand, conflict: Sequence[_Operand], stated: Sequence[Implementation]
) -> str:
    layouts = [str(_layout(implementation, operand)) for implementation in stated]
    others = [_name(other) for other in conflict if other != operand]
    return required(f"{choice.label} {_name(operand)}", layouts, others)


def _relaxed(running: NodeAlternatives, operand: _Operand, stated: Sequence[Implementation], names: AxisNames) -> str:
    """The operand's layout in the cheapest alternative after the relaxation. A constant takes any order at no cost, so
    its layout is the required one without extensions; of one by axis numbers, the order itself is refused."""
    cheapest = min(running.alternatives, key=lambda alternative: alternative.cost)
    assert running.node is not None
    asked = [_layout(implementation, operand) for implementation in stated]
    is_numbered = any(layout.is_numbered for layout in asked)
    layout = _own_axis_names(running.node, operand, asked[0])
    if is_numbered:
        layout = "another order"
    for port, format_ in zip(running.ports, cheapest.formats, strict=True):
        if (port.is_result, port.index) == operand:
            layout = format_text(names, port.operand, format_, is_numbered=is_numbered)
    return relaxed(running.label, _name(operand), layout, is_result=operand[0])


def _own_axis_names(node: ir.Node, operand: _Operand, layout: Layout) -> str:
    """The names of the layout's axes in their order, or the operator's own order where it has other names."""
    is_result, index = operand
    names = "".join(name for place, name in enumerate(layout.names) if layout.outer(place) is None)
    native = operand_letters(node, index, len(names), is_result=is_result)
    return names if native is None or sorted(names) == sorted(native) else native


def _name(operand: _Operand) -> str:
    is_result, index = operand
    return operand_name(index, is_result=is_result)


def _layout(implementation: Implementation, operand: _Operand) -> Layout:
    is_result, index = operand
    return (implementation.results if is_result else implementation.inputs)[index]
