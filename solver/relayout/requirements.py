"""Model x backend -> the implementations of every node, as memory formats of the tensors that it touches.

Candidates are the witness of every requirement, the boundary and the source order, carried through the free rules in
both directions to a fixpoint (capped per tensor; the cap is reported). Nothing here knows costs of conversions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from relayout.backend import Backend, Implementation
from relayout.boundary import Boundary, set_boundary
from relayout.candidates import FORMATS_PER_TENSOR, Space, Spaces, placements
from relayout.choices import FixedForm, Form, NodeChoice, Port, label_of, ports_of
from relayout.contract import Contract, Wish, infeasible, says_something
from relayout.memory_format import Order, normal_form, order_of
from relayout.names import Names
from relayout.rules import Axes, Fixed, Free, Listed, Relabel
from relayout.rules.spatial import native_letters
from relayout.views import Tensors

__all__ = ["Requirements", "collect_requirements"]

Orders = tuple[Axes | None, ...]
_Space = Space[tuple[tuple[Wish, Order], ...]]


@dataclass(slots=True)
class Requirements:
    """Every choice of one graph, with what is needed to read them."""

    tensors: Tensors
    names: Names
    choices: list[NodeChoice]
    warnings: list[str]
    boundary: Boundary


def collect_requirements(
    graph: ir.Graph,
    backend: Backend,
    tensors: Tensors,
    *,
    input_layouts: Mapping[str, str] | None = None,
    output_layouts: Mapping[str, str] | None = None,
) -> Requirements:
    """Every node's alternatives under `backend`, with the graph's inputs and outputs pinned, set, or freed ("any").

    Raises InfeasibleError where a requirement has no alternative at all, UsageError for a boundary layout that does not
    fit, BackendError for nonsense from the backend.
    """
    names = Names(tensors)
    spaces = Spaces(tensors.tensors)
    boundary = set_boundary(graph, tensors, names, input_layouts or {}, output_layouts or {})
    boundary.seed(spaces)
    nodes = _Nodes(Contract(backend, names), tensors, spaces)
    for node in graph:
        if node in tensors.constant_nodes or node in tensors.dead:
            continue
        if not isinstance(tensors.rules.get(node), Relabel):
            nodes.enter(node)
    boundary.spread(spaces)
    nodes.list_free()
    boundary.free(spaces, names)
    choices = [*boundary.inputs, *nodes.choices, *boundary.outputs]
    warnings = []
    if spaces.capped:
        warnings.append(
            f"{len(spaces.capped)} tensors have more than {FORMATS_PER_TENSOR} formats in reach; "
            "the optimum is over the first of them"
        )
    return Requirements(tensors, names, choices, warnings, boundary)


@dataclass(frozen=True, slots=True)
class _Open:
    """A free node whose alternatives are listed when all candidates are known; `axes` are its ports' in the space."""

    choice: NodeChoice
    axes: Orders
    space: _Space
    wishes: list[Wish]


class _Nodes:
    """The choices of a graph's nodes. Free nodes enter a space first and list their alternatives last."""

    def __init__(self, contract: Contract, tensors: Tensors, spaces: Spaces) -> None:
        self.choices: list[NodeChoice] = []
        self._contract = contract
        self._tensors = tensors
        self._spaces = spaces
        self._open: list[_Open] = []

    def enter(self, node: ir.Node) -> None:
        """Ask the backend for this node, and list what is known of it now."""
        rule = self._tensors.rules.get(node)
        stated = self._contract.implementations(node)
        choice = NodeChoice(label_of(node), node, ports_of(node, self._tensors))
        self.choices.append(choice)
        wishes = [Wish(implementation, choice.ports, len(node.inputs)) for implementation in stated]
        if isinstance(rule, Free):
            self._free(choice, rule, wishes)
        elif isinstance(rule, Fixed):
            self._fixed(choice, rule, wishes)
        elif isinstance(rule, Listed):
            self._offer(choice, [(i, o, n) for n, (i, o, _) in enumerate(rule.alternatives)], wishes)
        else:
            self._offer(choice, [((None,) * len(node.inputs), (None,) * len(node.outputs), None)], wishes)

    def list_free(self) -> None:
        """Give every free node the alternatives that its space holds now."""
        for each in self._open:
            choice = each.choice
            for ways, formats in each.space.orders.values():
                laid = iter(formats)
                every = [
                    port.format_of(None) if axes is None else next(laid)
                    for port, axes in zip(choice.ports, each.axes, strict=True)
                ]
                for wish, form in ways:
                    choice.add(every, form, wish.implementation.cost, wish.shown, wish.implementation.place)
            if not choice.alternatives:
                raise infeasible(choice, [text for wish in each.wishes for text in wish.texts(choice)])

    def _offer(self, choice: NodeChoice, offers: list[tuple[Orders, Orders, Form]], wishes: list[Wish]) -> None:
        """Enter those of a fixed list of alternatives that the backend accepts."""
        broken: list[str] = []
        for wish in wishes:
            for inputs, outputs, form in offers:
                self._enter(choice, wish, (inputs, outputs), form, (None,) * len(choice.ports), broken)
        if not choice.alternatives:
            raise infeasible(choice, broken)

    def _fixed(self, choice: NodeChoice, rule: Fixed, wishes: list[Wish]) -> None:
        broken: list[str] = []
        letters = _of_ports(choice.ports, rule.inputs, rule.outputs)
        for wish in wishes:
            form = _fixed_form(choice, rule, wish.implementation, broken)
            if form is not None:
                self._enter(choice, wish, (form.inputs, form.outputs), form, letters, broken)
        if not choice.alternatives:
            raise infeasible(choice, broken)

    def _enter(
        self,
        choice: NodeChoice,
        wish: Wish,
        sides: tuple[Orders, Orders],
        form: Form,
        letters: Sequence[str | None],
        broken: list[str],
    ) -> None:
        """Enter one alternative, its inputs and outputs in these orders, or say in `broken` what it does not meet."""
        orders = _of_ports(choice.ports, *sides)
        fault = self._contract.fault(choice, wish, orders, letters) or self._contract.constant_fault(
            choice, wish, sides[0]
        )
        if fault is not None:
            broken.append(fault)
            return
        formats = [port.format_of(order) for port, order in zip(choice.ports, orders, strict=True)]
        for port, format_ in zip(choice.ports, formats, strict=True):
            self._spaces.add_format(port.operand.tensor, format_)
        choice.add(formats, form, wish.implementation.cost, wish.shown, wish.implementation.place)

    def _free(self, choice: NodeChoice, rule: Free, wishes: list[Wish]) -> None:
        ports = choice.ports
        axes_of = _of_ports(ports, rule.inputs, rule.outputs)
        laid = tuple([(p.operand, axes) for p, axes in zip(ports, axes_of, strict=True) if axes is not None])
        wishes = sorted(wishes, key=lambda wish: wish.implementation.cost)
        geometry = self._spaces.geometry(rule, laid)
        places = _by_place(wishes)
        space: _Space = Space(
            geometry, laid, lambda order: self._accepted_somewhere(choice, rule, axes_of, places, order)
        )
        self._open.append(_Open(choice, axes_of, space, wishes))
        self._spaces.add_space(space)
        for wish in wishes:
            self._seed(choice, rule, axes_of, wish, space)
        if rule.letters and not space.orders:
            # The node stands in a layout that nobody asks for; ONNX's own is a way to run it.
            native = native_letters(len(rule.letters))
            order = order_of(tuple(rule.letters.index(letter) for letter in native))
            self._spaces.add_order(space, normal_form(order, geometry.extents))

    def _seed(self, choice: NodeChoice, rule: Free, axes_of: Orders, wish: Wish, space: _Space) -> None:
        """Consider the orders that the wish names in full: its witnesses."""
        laid = [each for each in zip(choice.ports, axes_of, wish.layouts, strict=True) if each[1] is not None]
        for place, (port, axes, layout) in enumerate(laid):
            if layout is None:
                continue
            letters = _own_letters(rule, axes) or self._contract.letters(port)
            if letters is None or sorted(layout.names) != sorted(letters):
                continue
            format_ = port.format_of(tuple([letters.index(letter) for letter in layout.names]))
            order = space.geometry.extend(place, format_)
            if order is not None:
                self._spaces.add_order(space, order)

    def _accepted_somewhere(
        self, choice: NodeChoice, rule: Free, axes_of: Orders, places: list[list[Wish]], order: Order
    ) -> tuple[tuple[Wish, Order], ...] | None:
        """How the node runs in this order on each device that takes it; None where there is none."""
        answers = [self._accepted(choice, rule, axes_of, wishes, order) for wishes in places]
        return tuple([answer for answer in answers if answer is not None]) or None

    def _accepted(
        self, choice: NodeChoice, rule: Free, axes_of: Orders, wishes: list[Wish], order: Order
    ) -> tuple[Wish, Order] | None:
        """The first wish that this order meets, and the order with its unit axes placed; None where there is none.

        An order that ONNX's operator does not take is possible where a backend asks for it by the operator's letters.
        """
        rank = len(rule.extents)
        for wish in wishes:
            if wish.is_empty:
                if rule.splits and not all(a.is_whole for a in order):
                    return wish, order
                place = next((p for p in placements(order, rank) if rule.allows(p)), None)
                if place is not None:
                    return wish, order_of(place)
                continue
            letters = [_own_letters(rule, axes) for axes in axes_of]
            for place in placements(order, rank):
                if not rule.allows(place) and not rule.letters:
                    continue
                own = [_in_order(axes, place) for axes in axes_of]
                inputs = [_in_order(axes, place) for axes in rule.inputs]
                if self._contract.fault(choice, wish, own, letters) is None and (
                    self._contract.constant_fault(choice, wish, inputs) is None
                ):
                    return wish, order_of(place)
        return None


def _by_place(wishes: Sequence[Wish]) -> list[list[Wish]]:
    """The wishes of each device apart, in their order."""
    places: dict[str, list[Wish]] = {}
    for wish in wishes:
        places.setdefault(wish.implementation.place, []).append(wish)
    return list(places.values())


def _of_ports(ports: Sequence[Port], inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """What stands for each port among what stands for the node's inputs and outputs; None past their end."""
    found = []
    for port in ports:
        side = outputs if port.is_result else inputs
        found.append(side[port.index] if port.index < len(side) else None)
    return tuple(found)


def _in_order(axes: Axes | None, place: Axes) -> Axes | None:
    """An operand's axes in the order of the space."""
    return tuple(axes.index(a) for a in place if a in axes) if axes is not None else None


def _own_letters(rule: Free, axes: Axes | None) -> str | None:
    return "".join(rule.letters[a] for a in axes) if rule.letters and axes is not None else None


def _fixed_form(choice: NodeChoice, rule: Fixed, implementation: Implementation, broken: list[str]) -> FixedForm | None:
    """The orders that the layouts ask for, by the operator's letters; None where one cannot be bound."""
    orders: list[list[Axes | None]] = [[], []]
    sides = (
        (rule.inputs, rule.native_inputs, implementation.inputs, "input"),
        (rule.outputs, rule.native_outputs, implementation.results, "result"),
    )
    for side, (letters, natives, layouts, word) in enumerate(sides):
        for index, (names, native, layout) in enumerate(zip(letters, natives, layouts, strict=False)):
            if names is None or native is None:
                orders[side].append(None)
                continue
            wanted = _fill(layout.names, native) if says_something(layout) else native
            if wanted is None or sorted(wanted) != sorted(names):
                broken.append(f"{choice.label} {word} {index} requires {layout}")
                return None
            orders[side].append(tuple(names.index(letter) for letter in wanted))
    return FixedForm(tuple(orders[0]), tuple(orders[1]))


def _fill(wanted: str, native: str) -> str | None:
    """A layout with `*` in some places, the open places filled with the letters left over in ONNX's order."""
    if len(wanted) != len(native):
        return None
    rest = iter([letter for letter in native if letter not in wanted])
    filled = "".join(next(rest, "?") if letter == "*" else letter for letter in wanted)
    return filled if sorted(filled) == sorted(native) else None
