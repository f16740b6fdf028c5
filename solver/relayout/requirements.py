"""Model x backend -> the implementations of every node, as memory formats of the tensors that it touches.

Candidates are the witness of every requirement, the boundary and the source order, carried through the free rules in
both directions to a fixpoint (capped per tensor; the cap is reported). Nothing here knows costs of conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import onnx_ir as ir

from relayout.backend import Backend, Implementation
from relayout.binding import bind, is_tiled, names_for
from relayout.boundary import Boundary, set_boundary
from relayout.candidates import FORMATS_PER_TENSOR, Space, Spaces
from relayout.choices import FreeForm, LaidForm, NodeChoice, Port, label_of, ports_of
from relayout.contract import Contract, Wish, element_size, says_something
from relayout.errors import InfeasibleError
from relayout.geometry import Geometry
from relayout.layout import Layout
from relayout.leaving_out import Pieces, pieces_of
from relayout.memory_format import Atom, Order, normal_form, order_of
from relayout.mixing import Mixing
from relayout.names import Names, conventional
from relayout.paths import Dims, one_each
from relayout.placements import placements
from relayout.rules import Axes, Fixed, Free, Listed, Relabel, Rule, Traffic, extents_of
from relayout.rules.named_axes import native_letters, operand_by_operand
from relayout.unmet import unmet
from relayout.views import Tensors

__all__ = ["Requirements", "collect_requirements"]

ANY = Layout.any(0)

Orders = tuple[Axes | None, ...]
_NOTHING: Traffic = ()
_Space = Space[tuple[tuple[Wish, FreeForm | LaidForm, int], ...]]
Pricing = Callable[[ir.Shape], int]
"""How many elements a shape has, symbolic dims priced."""
Offers = Callable[[Implementation], list[LaidForm]]


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
    elements: Pricing | None = None,
) -> Requirements:
    """Every node's alternatives under `backend`, with the graph's inputs and outputs pinned, set, or freed ("any").

    `elements` prices what an alternative moves beyond the operator itself; without it unknown extents count as 1.

    Raises InfeasibleError where a requirement has no alternative at all, UsageError for a boundary layout that does not
    fit, BackendError for nonsense from the backend.
    """
    names = Names(tensors)
    spaces = Spaces(tensors.tensors)
    boundary = set_boundary(graph, tensors, names, input_layouts or {}, output_layouts or {})
    boundary.seed(spaces)
    nodes = _Nodes(Contract(backend, names), names, tensors, spaces, elements or _known_elements)
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
    """A free node whose alternatives are listed when all candidates are known; `axes` are its ports' in the space, and
    `moves` the bytes that it need not move (see `Alternative`)."""

    choice: NodeChoice
    axes: Orders
    space: _Space
    wishes: list[Wish]
    moves: int = 0


class _Nodes:
    """The choices of a graph's nodes. Free nodes enter a space first and list their alternatives last."""

    def __init__(
        self, contract: Contract, names: Names, tensors: Tensors, spaces: Spaces, elements: Pricing
    ) -> None:
        self.choices: list[NodeChoice] = []
        self._contract = contract
        self._names = names
        self._tensors = tensors
        self._spaces = spaces
        self._elements = elements
        self._open: list[_Open] = []

    def enter(self, node: ir.Node) -> None:
        """Ask the backend for this node, and list what is known of it now."""
        choice = self._state(node, self._contract.implementations(node))
        if not choice.alternatives and not isinstance(self._tensors.rules.get(node), Free):
            raise self._refused(choice)

    def _refused(self, choice: NodeChoice) -> InfeasibleError:
        """The error for a node without alternatives. The formats that its operands may have are those known now."""
        node = choice.node
        assert node is not None

        def trial(stated: Sequence[Implementation]) -> NodeChoice:
            spaces = Spaces(dict.fromkeys(port.operand.tensor for port in choice.ports))
            nodes = _Nodes(self._contract, self._names, self._tensors, spaces, self._elements)
            tried = nodes._state(node, stated)
            for tensor in spaces.formats:
                for format_ in self._spaces.formats[tensor]:
                    spaces.add_format(tensor, format_)
            spaces.spread()
            nodes._list_open()
            return tried

        return unmet(choice, self._contract.implementations(node), trial, self._names)

    def _state(self, node: ir.Node, stated: Sequence[Implementation]) -> NodeChoice:
        """Enter the node with what is known of it now, where the backend states these implementations."""
        rule = self._tensors.rules.get(node)
        choice = NodeChoice(label_of(node), node, ports_of(node, self._tensors))
        self.choices.append(choice)
        wishes = [Wish(i, choice.ports, len(node.inputs)) for i in stated if i.rewrite is None]
        for implementation in stated:
            if implementation.rewrite is not None:
                self._rewritten(choice, rule, Wish(implementation, choice.ports, len(node.inputs)))
        if isinstance(rule, Free):
            self._free(choice, rule, wishes)
            return choice
        if isinstance(rule, Fixed):
            offers: Offers = partial(_fixed_form, choice, rule)
            letters = _of_ports(choice.ports, rule.inputs, rule.outputs)
        elif isinstance(rule, Listed):
            listed = [
                LaidForm(_dims_of(i), _dims_of(o), pick) for pick, (i, o, _) in enumerate(rule.alternatives)
            ]
            offers, letters = (lambda _: listed), (None,) * len(choice.ports)
        else:
            as_is = LaidForm((None,) * len(node.inputs), (None,) * len(node.outputs))
            offers, letters = (lambda _: [as_is]), (None,) * len(choice.ports)
        mixing = Mixing(choice, rule.mixes, self._spaces) if isinstance(rule, Fixed | Listed) and rule.mixes else None
        for wish in wishes:
            for form in offers(wish.implementation):
                if self._enter(choice, wish, form, letters) and mixing is not None:
                    mixing.add_base(wish, form)
        return choice

    def list_free(self) -> None:
        """Give every free node the alternatives that its space holds now."""
        self._list_open()
        for each in self._open:
            if not each.choice.alternatives:
                raise self._refused(each.choice)

    def _list_open(self) -> None:
        for each in self._open:
            choice = each.choice
            for ways, formats in each.space.orders.values():
                laid = iter(formats)
                every = [
                    port.format_of(None) if axes is None else next(laid)
                    for port, axes in zip(choice.ports, each.axes, strict=True)
                ]
                for wish, form, extra in ways:
                    implementation = wish.implementation
                    cost = implementation.cost + extra
                    choice.add(every, form, cost, wish.shown, implementation.place, each.moves)

    def _enter(self, choice: NodeChoice, wish: Wish, form: LaidForm, letters: Sequence[str | None]) -> bool:
        """Enter one alternative, if it meets what is asked for."""
        laid = _of_ports(choice.ports, form.inputs, form.outputs)
        is_met = self._contract.is_met(choice, wish, laid, letters)
        return is_met and self._contract.constants_meet(choice, wish, form.inputs) and self._list(choice, wish, form)

    def _list(self, choice: NodeChoice, wish: Wish, form: LaidForm) -> bool:
        laid = _of_ports(choice.ports, form.inputs, form.outputs)
        formats: list[Order] = []
        for port, dims in zip(choice.ports, laid, strict=True):
            format_ = port.format_in(dims)
            if format_ is None:
                return False  # the layout's factors are not those of the tensor behind the operand
            formats.append(format_)
        for port, format_ in zip(choice.ports, formats, strict=True):
            self._spaces.add_format(port.operand.tensor, format_)
        choice.add(formats, form, wish.implementation.cost, wish.shown, wish.implementation.place)
        return True

    def _rewritten(self, choice: NodeChoice, rule: Rule | None, wish: Wish) -> None:
        """Enter what the backend writes itself, where its layouts bind to the operands."""
        implementation = wish.implementation
        dims: list[Dims | None] = []
        for port, layout in zip(choice.ports, wish.layouts, strict=True):
            if layout is None:
                dims.append(None)
                continue
            letters = _rule_letters(rule, port) or self._contract.letters(port, layout)
            extents = port.operand.view.extents
            letters = names_for(layout, letters or conventional(len(extents)), len(extents))
            size = element_size(port.operand.tensor.root)
            order = bind(layout, letters, extents, size, pads=implementation.pads) if letters else None
            if order is None:
                return
            dims.append(one_each(order))
        assert choice.node is not None
        by_port = {(p.is_result, p.index): d for p, d in zip(choice.ports, dims, strict=True)}
        form = LaidForm(
            tuple(by_port.get((False, n)) for n in range(len(choice.node.inputs))),
            tuple(by_port.get((True, n)) for n in range(len(choice.node.outputs))),
            rewrite=implementation.rewrite,
        )
        self._list(choice, wish, form)

    def _free(self, choice: NodeChoice, rule: Free, wishes: list[Wish]) -> None:
        ports = choice.ports
        axes_of = _of_ports(ports, rule.inputs, rule.outputs)
        laid = tuple([(p.operand, axes) for p, axes in zip(ports, axes_of, strict=True) if axes is not None])
        wishes = sorted(wishes, key=lambda wish: wish.implementation.cost)
        geometry = self._spaces.geometry(rule, laid)
        places = _by_place(wishes)
        space: _Space = Space(
            geometry, laid, lambda order: self._accepted_somewhere(choice, rule, axes_of, places, geometry, order)
        )
        pieces = pieces_of(rule.left_out, *ports) if rule.left_out is not None else None
        moves = self._moves(choice) if pieces is not None else 0
        self._open.append(_Open(choice, axes_of, space, wishes, moves))
        self._spaces.add_space(space)
        if pieces is not None:
            self._leave_out(choice, pieces, wishes)
        if rule.letters:
            self._packed(choice, operand_by_operand(rule), wishes)
        for axes in rule.proposed:
            self._spaces.add_order(space, normal_form(order_of(axes), geometry.extents))
        for wish in wishes:
            self._seed(choice, rule, axes_of, wish, space)
        if rule.letters and not space.orders:
            # The node stands in a layout that nobody asks for; ONNX's own is a way to run it.
            native = native_letters(len(rule.letters))
            order = order_of(tuple(rule.letters.index(letter) for letter in native))
            self._spaces.add_order(space, normal_form(order, geometry.extents))

    def _packed(self, choice: NodeChoice, rule: Fixed, wishes: list[Wish]) -> None:
        """Enter what packed layouts ask for where no order of the space says it: both parts of an axis side by side,
        one that is all of its axis, or one of an axis that has another extent in the result."""
        letters = _of_ports(choice.ports, rule.inputs, rule.outputs)
        for wish in wishes:
            if any(layout is not None and is_tiled(layout) for layout in wish.layouts):
                for form in _fixed_form(choice, rule, wish.implementation):
                    self._enter(choice, wish, form, letters)

    def _leave_out(self, choice: NodeChoice, pieces: Pieces, wishes: list[Wish]) -> None:
        """Let the node be no node, at each place where it may run."""
        assert choice.node is not None
        nothing = (ANY,) * len(choice.node.inputs), (ANY,) * len(choice.node.outputs)
        places = dict.fromkeys(wish.implementation.place for wish in wishes)
        free = [Wish(Implementation(*nothing, place=p), choice.ports, len(choice.node.inputs)) for p in places]

        def ways(order: Order) -> tuple[tuple[Wish, LaidForm, int], ...] | None:
            return tuple((wish, pieces.form(order), 0) for wish in free)

        space: _Space = Space(self._spaces.geometry(pieces.rule, pieces.operands), pieces.operands, ways)
        self._open.append(_Open(choice, tuple(axes for _, axes in pieces.operands), space, free))
        self._spaces.add_space(space)

    def _moves(self, choice: NodeChoice) -> int:
        """The bytes that the node reads and writes."""
        assert choice.node is not None
        result = choice.node.outputs[0]
        return 2 * self._elements(result.shape) * element_size(result) if result.shape is not None else 0

    def _seed(self, choice: NodeChoice, rule: Free, axes_of: Orders, wish: Wish, space: _Space) -> None:
        """Consider the orders that the wish names in full: its witnesses."""
        laid = [each for each in zip(choice.ports, axes_of, wish.layouts, strict=True) if each[1] is not None]
        for place, (port, axes, layout) in enumerate(laid):
            if layout is None or "*" in layout.names:
                continue
            extents, size = port.operand.view.extents, element_size(port.operand.tensor.root)
            letters = names_for(layout, _own_letters(rule, axes) or self._contract.letters(port, layout), len(extents))
            if letters is None:
                continue
            own = bind(layout, letters, extents, size, pads=wish.implementation.pads)
            if own is None:
                continue
            assert axes is not None
            if len(axes) == len(rule.extents):
                # What is named says where every axis goes, also those that have no place in this operand.
                named = tuple(Atom(axes[atom.axis], atom.inner, atom.outer) for atom in own)
                self._spaces.add_order(space, normal_form(named, space.geometry.extents))
                continue
            format_ = port.format_in(one_each(own))
            order = space.geometry.extend(place, format_) if format_ is not None else None
            if order is not None:
                self._spaces.add_order(space, order)

    def _accepted_somewhere(
        self,
        choice: NodeChoice,
        rule: Free,
        axes_of: Orders,
        places: list[list[Wish]],
        geometry: Geometry,
        order: Order,
    ) -> tuple[tuple[Wish, FreeForm, int], ...] | None:
        """How the node runs in this order on each device that takes it, at which cost beyond the wish's own; None
        where there is none."""
        dims = geometry.grouped(order)
        if dims is None:
            return None
        answers = [self._accepted(choice, rule, axes_of, wishes, dims) for wishes in places]
        return tuple([answer for answer in answers if answer is not None]) or None

    def _accepted(
        self, choice: NodeChoice, rule: Free, axes_of: Orders, wishes: list[Wish], dims: Dims
    ) -> tuple[Wish, FreeForm, int] | None:
        """The first wish that this order meets, and the order with its unit axes placed; None where there is none.

        An order that ONNX's operator does not take is possible where a backend asks for it by the operator's letters,
        or where the rule knows other operators for it.
        """
        rank = len(rule.extents)
        scrambled = any(len(group) > 1 and group[0].axis in rule.scrambles for group in dims)
        cut = any(not a.is_whole for group in dims for a in group) and not (
            rule.splits or rule.mixes or rule.scrambles or rule.steps
        )
        written: tuple[Wish, FreeForm, int] | None = None
        for wish in wishes:
            if written is not None and wish.implementation.cost >= written[0].implementation.cost + written[2]:
                break
            if wish.is_empty:
                if cut:
                    continue  # pieces that only a backend can ask for
                form = next((f for p in placements(dims, rank) if rule.allows((f := FreeForm(p)).axes)), None)
                if form is not None and not scrambled:
                    cost = self._cost(choice, rule, wish, form)
                    if cost is not None:
                        return wish, form, cost
                if rule.write is not None:
                    rewritten = (FreeForm(place, rewritten=True) for place in placements(dims, rank))
                    form = next((form for form in rewritten if rule.writes(form.axes)), None)
                    if form is not None and written is None and self._suits(choice, rule, axes_of, wish, form):
                        cost = self._cost(choice, rule, wish, form, rule.extra(form.axes))
                        written = (wish, form, cost) if cost is not None else None
                continue
            letters = [_own_letters(rule, axes) for axes in axes_of]
            for place in placements(dims, rank):
                form, extra = FreeForm(place, asked=True, rewritten=scrambled), _NOTHING
                if not rule.allows(form.axes) and not rule.letters:
                    form = FreeForm(place, asked=True, rewritten=True)
                    if rule.write is None or not rule.writes(form.axes):
                        continue
                    extra = rule.extra(form.axes)
                cost = self._cost(choice, rule, wish, form, extra)
                own = [_operand_dims(axes, place) for axes in axes_of]
                inputs = [_operand_dims(axes, place) for axes in rule.inputs]
                if (
                    cost is not None
                    and (not form.rewritten or self._suits(choice, rule, axes_of, wish, form))
                    and self._contract.is_met(choice, wish, own, letters)
                    and self._contract.constants_meet(choice, wish, inputs)
                ):
                    return wish, form, cost
        return written

    def _suits(self, choice: NodeChoice, rule: Free, axes_of: Orders, wish: Wish, form: FreeForm) -> bool:
        """Whether the operators that the rule writes for this form are in layouts that the backend asks for."""
        if rule.write is None:
            return True
        return self._contract.rehearse(choice, rule, axes_of, form, wish.implementation.place)

    def _cost(
        self, choice: NodeChoice, rule: Free, wish: Wish, form: FreeForm, extra: Traffic = _NOTHING
    ) -> int | None:
        """What the node costs in this form beyond its best order; None where the wish's device does not run it so."""
        traffic, own = self._traffic(choice, rule, extra), rule.outputs[0]
        if own is None:
            return traffic
        assert choice.node is not None
        axes = tuple([own.index(axis) for axis in form.axes if axis in own])
        place = wish.implementation.place
        return self._contract.order_cost(choice.node, axes, traffic, place, is_rewritten=form.rewritten)

    def _traffic(self, choice: NodeChoice, rule: Free, traffic: Traffic) -> int:
        """Bytes that are read and written."""
        assert choice.node is not None
        size = element_size(choice.node.outputs[0])
        total = 0
        for axes, times in traffic:
            total += times * self._elements(ir.Shape([rule.extents[a] for a in axes])) * size
        return total


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


def _operand_dims(axes: Axes | None, dims: Dims) -> Dims | None:
    """An operand's own dimensions when the space has these; `axes` are the operand's in the space."""
    if axes is None:
        return None
    return tuple(
        tuple(Atom(axes.index(atom.axis), atom.inner, atom.outer) for atom in group)
        for group in dims
        if group[0].axis in axes
    )


def _dims_of(orders: Orders) -> tuple[Dims | None, ...]:
    return tuple(one_each(order_of(order)) if order is not None else None for order in orders)


def _known_elements(shape: ir.Shape) -> int:
    return prod(extent for extent in shape if isinstance(extent, int))


def _rule_letters(rule: Rule | None, port: Port) -> str | None:
    """The names that the node's own rule gives the operand's axes."""
    sides = (rule.outputs if port.is_result else rule.inputs) if isinstance(rule, Free | Fixed) else ()
    own = sides[port.index] if port.index < len(sides) else None
    if isinstance(rule, Free):
        return _own_letters(rule, own)  # type: ignore[arg-type]
    return own  # type: ignore[return-value]


def _own_letters(rule: Free, axes: Axes | None) -> str | None:
    return "".join(rule.letters[a] for a in axes) if rule.letters and axes is not None else None


def _fixed_form(choice: NodeChoice, rule: Fixed, implementation: Implementation) -> list[LaidForm]:
    """The dimensions that the layouts ask for, by the operator's letters; none where one cannot be bound."""
    assert choice.node is not None
    found: list[list[Dims | None]] = [[], []]
    sides = (
        (rule.inputs, rule.native_inputs, implementation.inputs, choice.node.inputs),
        (rule.outputs, rule.native_outputs, implementation.results, choice.node.outputs),
    )
    for side, (letters, natives, layouts, values) in enumerate(sides):
        for names, native, layout, value in zip(letters, natives, layouts, values, strict=False):
            if names is None or native is None or value is None:
                found[side].append(None)
                continue
            asked = layout if says_something(layout) else Layout.from_names(native)
            extents = extents_of(value) or (None,) * len(names)
            order = bind(asked, names, extents, element_size(value), native=native, pads=implementation.pads)
            if order is None:
                return []
            found[side].append(one_each(order))
    return [LaidForm(tuple(found[0]), tuple(found[1]))]
