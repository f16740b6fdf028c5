"""A free node: in which orders of its axes it runs, how it is written there, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain

import onnx_ir as ir

from relayout.backend.interface import element_size
from relayout.candidates.alternatives import FreeLowering, NodePorts
from relayout.candidates.backend_requirements import Contract, Wish
from relayout.candidates.fixed_node import of_ports, port_letters
from relayout.candidates.iteration_space import IndexingMaps
from relayout.candidates.unit_axes import placements
from relayout.layout.binding import bind, names_for
from relayout.layout.conversion import Dims, dims_shape, one_each
from relayout.layout.memory_format import Atom, MemoryFormat, normal_form, order_of
from relayout.ops import Axes, Free, Traffic
from relayout.ops.named_axes import native_letters

__all__ = ["FreeNode", "Pricing", "operand_dims"]

Pricing = Callable[[ir.Shape], int]
"""How many elements a shape has, symbolic dims priced."""
Way = tuple[Wish, FreeLowering, int]
"""Whom the node obliges, in which form, and what that costs beyond the wish's own cost."""

_NOTHING: Traffic = ()


class FreeNode:
    """One node whose rule gives it a space of axes, with what the backend asks of it, the cheapest wish first."""

    __slots__ = (
        "_answers",
        "_axes",
        "_choice",
        "_contract",
        "_devices",
        "_elements",
        "_letters",
        "_maps",
        "_reach",
        "_rule",
    )

    def __init__(
        self,
        choice: NodePorts,
        rule: Free,
        wishes: Sequence[Wish],
        *,
        maps: IndexingMaps,
        contract: Contract,
        elements: Pricing,
    ) -> None:
        self._choice = choice
        self._rule = rule
        self._maps = maps
        self._contract = contract
        self._elements = elements
        self._axes = of_ports(choice.ports, rule.inputs, rule.outputs)
        self._letters = port_letters(rule, choice.ports)
        self._reach: dict[Wish, bool] = {}
        self._answers: dict[MemoryFormat, tuple[Way, ...] | None] = {}
        # Of what is asked of one order the cheapest counts, on each device and with each set of black boxes.
        self._devices: dict[tuple[str, Hashable], list[Wish]] = {}
        for wish in wishes:
            self._devices.setdefault((wish.implementation.device, wish.boxes), []).append(wish)

    def ways(self, order: MemoryFormat) -> tuple[Way, ...] | None:
        """How the node runs in this order on each device that takes it; None where there is none."""
        if order not in self._answers:
            dims = self._maps.grouped(order)
            answers = [self._accepted(wishes, dims) for wishes in self._devices.values()] if dims is not None else []
            self._answers[order] = tuple([answer for answer in answers if answer is not None]) or None
        return self._answers[order]

    def native(self) -> MemoryFormat:
        """The order of ONNX's own layout, for a rule that names its axes."""
        letters = self._rule.letters
        return self._normal(order_of(tuple(letters.index(letter) for letter in native_letters(len(letters)))))

    def proposed(self, order: MemoryFormat) -> Iterator[MemoryFormat]:
        """The orders that the rule proposes beside one that the node runs in."""
        dims = self._maps.grouped(order) or ()
        for places in self._rule.suggested(tuple([group[0].axis for group in dims])):
            yield self._normal(tuple(chain.from_iterable(dims[place] for place in places)))

    def witnesses(self, wish: Wish) -> Iterator[MemoryFormat]:
        """The orders that the wish names in full."""
        laid = [
            (port, axes, layout, letters)
            for port, axes, layout, letters in zip(
                self._choice.ports, self._axes, wish.layouts, self._letters, strict=True
            )
            if axes is not None
        ]
        for place, (port, axes, layout, letters) in enumerate(laid):
            if layout is None or "*" in layout.names:
                continue
            extents, size = port.operand.view.extents, element_size(port.operand.tensor.base)
            names = names_for(layout, letters or self._contract.letters(port, layout), len(extents))
            own = bind(layout, names, extents, size, pads=wish.implementation.pads) if names is not None else None
            if own is None:
                continue
            if len(axes) == len(self._rule.extents):
                # What is named says where every axis goes, also those that have no place in this operand.
                yield self._normal(tuple(Atom(axes[atom.axis], atom.inner, atom.outer) for atom in own))
                continue
            format_ = port.format_in(one_each(own))
            if format_ is not None:
                yield from self._maps.extend(place, format_)

    def _normal(self, order: MemoryFormat) -> MemoryFormat:
        return normal_form(order, self._maps.extents)

    def _accepted(self, wishes: Sequence[Wish], dims: Dims) -> Way | None:
        """The first wish that this order meets, and the order with its unit axes placed; None where there is none.

        An order that ONNX's operator does not take is possible where a backend asks for it by the operator's letters,
        or where the rule knows other operators for it.
        """
        written: Way | None = None
        for wish in wishes:
            if written is not None and wish.implementation.cost >= written[0].implementation.cost + written[2]:
                break
            if wish.is_empty and self._is_cut(dims):
                continue  # pieces that only a backend can ask for
            way = self._unasked(wish, dims) if wish.is_empty else self._asked(wish, dims)
            if way is not None:
                return way
            if written is None and (wish.is_empty or self._is_out_of_reach(wish)):
                written = self._written(wish.lifted(), dims)
        return written

    def _is_scrambled(self, dims: Dims) -> bool:
        traits = self._rule.traits
        return any(len(group) > 1 and traits[group[0].axis].permutable_within == "asymmetric" for group in dims)

    def _is_cut(self, dims: Dims) -> bool:
        """Whether axes lie in pieces of which ONNX's operator knows nothing."""
        knows = any(t.tileable or t.permutable_within or t.tile_multiple for t in self._rule.traits)
        return not knows and any(not a.is_whole for group in dims for a in group)

    def _unasked(self, wish: Wish, dims: Dims) -> Way | None:
        """The node as ONNX's own operator, for a wish that asks for no layout."""
        if self._is_scrambled(dims):
            return None
        forms = (FreeLowering(place) for place in placements(dims, len(self._rule.extents)))
        form = next((form for form in forms if self._rule.allows(form.axes)), None)
        if form is None or not self._is_unasked(wish, form):
            return None
        cost = self._cost(wish, form)
        return (wish, form, cost) if cost is not None else None

    def _is_unasked(self, wish: Wish, form: FreeLowering) -> bool:
        """Whether nothing is asked of the node as it then stands: what is turned has other axes by the same names, and
        what is in pieces has another rank."""
        letters = self._rule.letters
        laid = [operand_dims(axes, form.dims) for axes in self._axes]
        is_native = not letters or form.axes == tuple(letters.index(letter) for letter in native_letters(len(letters)))
        if is_native and all(d is None or len(d) == len(a) for d, a in zip(laid, self._axes, strict=True) if a):
            return True
        return self._contract.asks_nothing(self._choice, laid, wish.implementation.device)

    def _is_out_of_reach(self, wish: Wish) -> bool:
        """Whether the operator takes none of the orders that the wish names, so that it has to be written in others:
        then what they are asked counts, and not what it would have been."""
        if wish not in self._reach:
            dims = [d for order in self.witnesses(wish) if (d := self._maps.grouped(order)) is not None]
            is_written = bool(dims) and bool(self._rule.decompositions) and not self._rule.letters
            self._reach[wish] = is_written and not any(self._taken(each) for each in dims)
        return self._reach[wish]

    def _taken(self, dims: Dims) -> bool:
        """Whether ONNX's operator takes an order, wherever its unit axes stand."""
        return any(self._rule.allows(FreeLowering(place).axes) for place in placements(dims, len(self._rule.extents)))

    def _written(self, wish: Wish, dims: Dims) -> Way | None:
        """The node as the operators that its rule writes, for a wish that asks for no layout."""
        for written in self._rule.decompositions:
            forms = (FreeLowering(place, rewritten=written) for place in placements(dims, len(self._rule.extents)))
            form = next((form for form in forms if written.takes(form.axes)), None)
            if form is None or not self._suits(wish, form):
                continue
            cost = self._cost(wish, form, written.extra(form.axes))
            if cost is not None:
                return wish, form, cost
        return None

    def _asked(self, wish: Wish, dims: Dims) -> Way | None:
        """The node with its unit axes where they meet what the wish asks for."""
        rule, scrambled = self._rule, self._is_scrambled(dims)
        for place in placements(dims, len(rule.extents)):
            form = FreeLowering(place, asked=True)
            is_itself = not scrambled and (rule.allows(form.axes) or bool(rule.letters))
            for written in (None,) if is_itself else rule.decompositions:
                if written is not None and not written.takes(form.axes):
                    continue
                form = FreeLowering(place, asked=True, rewritten=written)
                cost = self._cost(wish, form, written.extra(form.axes) if written is not None else _NOTHING)
                suits = cost is not None and (written is None or self._suits(wish, form))
                if cost is not None and suits and self._meets(wish, place):
                    return wish, form, cost
        return None

    def _meets(self, wish: Wish, dims: Dims) -> bool:
        """Whether operands and constants meet the wish when the node's axes have these dimensions."""
        own = [operand_dims(axes, dims) for axes in self._axes]
        inputs = [operand_dims(axes, dims) for axes in self._rule.inputs]
        is_met = self._contract.is_met(self._choice, wish, own, self._letters)
        return is_met and self._contract.constants_meet(self._choice, wish, inputs)

    def _suits(self, wish: Wish, form: FreeLowering) -> bool:
        """Whether the operators that the rule writes for this form are in layouts that the backend asks for."""
        return self._contract.rehearse(self._choice, self._rule, self._axes, form, wish.implementation.device)

    def _cost(self, wish: Wish, form: FreeLowering, extra: Traffic = _NOTHING) -> int | None:
        """What the node costs in this form beyond its best order; None where the wish's device does not run it so."""
        traffic, own = self._traffic(form, extra), self._rule.outputs[0]
        if own is None:
            return traffic
        assert self._choice.node is not None
        axes = tuple([own.index(axis) for axis in form.axes if axis in own])
        device, is_rewritten = wish.implementation.device, form.rewritten is not None
        return self._contract.order_cost(self._choice.node, axes, traffic, device, is_rewritten=is_rewritten)

    def _traffic(self, form: FreeLowering, traffic: Traffic) -> int:
        """Bytes that are read and written."""
        assert self._choice.node is not None
        size = element_size(self._choice.node.outputs[0])
        laid = dims_shape(form.dims, self._rule.extents) if traffic else []
        return sum(times * self._elements(ir.Shape([laid[p] for p in places])) * size for places, times in traffic)


def operand_dims(axes: Axes | None, dims: Dims) -> Dims | None:
    """An operand's own dimensions when the space has these; `axes` are the operand's in the space."""
    if axes is None:
        return None
    return tuple(
        tuple(Atom(axes.index(atom.axis), atom.inner, atom.outer) for atom in group)
        for group in dims
        if group[0].axis in axes
    )
