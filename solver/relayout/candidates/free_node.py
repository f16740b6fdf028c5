"""A free node: the supported orders of its iteration space, with the lowering and the cost of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from math import inf, prod

import onnx_ir as ir

from relayout.backend.interface import element_size
from relayout.backend.noted_costs import noted_cost
from relayout.candidates.alternatives import FreeLowering, NodePorts, axis_numbers, is_parameter, noted_orders
from relayout.candidates.axis_names import KnownNames, filled_names
from relayout.candidates.backend_requirements import Requirement, RequirementChecker
from relayout.candidates.fixed_node import of_ports, port_axis_names
from relayout.candidates.iteration_space import indexing_maps, unit_axis_insertions
from relayout.candidates.tensors import Operand
from relayout.layout.binding import bind, names_for
from relayout.layout.conversion import Dims, dims_shape, flat, is_untold, one_each
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Atom, MemoryFormat, has_open_stride, normal_form, order_of
from relayout.ops import Axes, Decomposition, Free, Traffic, extents_of
from relayout.ops.named_axes import native_letters

Pricing = Callable[[ir.Shape], int]
"""The number of elements of a shape, with estimates for symbolic dims."""
Answer = tuple[Requirement, FreeLowering, int]
"""(requirement, lowering that meets it, cost beyond the implementation's own)."""

MostCost = Callable[[Operand, MemoryFormat, MemoryFormat, str], int | None]

_NOTHING: Traffic = ()


def known_elements(shape: ir.Shape) -> int:
    """The number of elements of a shape; an unknown extent counts as 1."""
    return prod(extent for extent in shape if isinstance(extent, int))


class FreeNode:
    """A node with an iteration space, and the backend's requirements, the cheapest first. Answers are cached.

    `keeps_dear`: whether an order of a decomposition is possible that costs more than conversions of all operands to
    ONNX's order and back. `most_cost`: for a backend with prices of its own, the most that a conversion of an operand
    between two formats of its tensor can cost on a device, None where that is not known.
    """

    def __init__(
        self,
        choice: NodePorts,
        rule: Free,
        requirements: Sequence[Requirement],
        *,
        checker: RequirementChecker,
        elements: Pricing,
        keeps_dear: bool = True,
        most_cost: MostCost | None = None,
    ) -> None:
        self._choice = choice
        self._rule = rule
        self._checker = checker
        self._elements = elements
        self._keeps_dear = keeps_dear or not checker.prices_by_traffic
        self._most_cost = most_cost
        self.requirements = requirements
        self.axes = of_ports(choice.ports, rule.inputs, rule.outputs)
        self.operands = operands_on(choice, self.axes)
        self.maps = indexing_maps(rule, self.operands)
        self._letters = port_axis_names(rule, choice.ports)
        self._constant_names = {} if rule.axis_names else checker.constant_names(choice, rule, self.axes)
        self.answers, self.suggested = cache(self._answers), cache(self._suggested)
        self.cheaper = cache(self._cheaper)
        self._is_unreachable = cache(self._reaches_no_order)
        # Only the cheapest requirement that an order meets counts, per device and set of black boxes; and per
        # implementation, where further choices have the same one.
        self._devices: dict[Hashable, list[Requirement]] = {}
        for requirement in requirements:
            key = requirement.implementation.device, requirement.boxes, requirement.implementation_index
            self._devices.setdefault(key, []).append(requirement)

    def _answers(self, order: MemoryFormat) -> tuple[Answer, ...] | None:
        """The requirement, lowering and cost in this order for each device that supports it; None if no device does. An
        operand with an order of its own gives its tiles to the others, whose tensors no open stride cuts."""
        dims = self.maps.grouped(order)
        if dims is None or (self._choice.others and any(map(has_open_stride, order))):
            return None
        answers = [self._answer(requirements, dims) for requirements in self._devices.values()]
        return tuple([answer for answer in answers if answer is not None]) or None

    def _allows_open_strides(self, lowering: FreeLowering) -> bool:
        """Whether the legal model tells in which order each operand lies, and no constant is cut at an open stride: its
        extents are numbers."""
        open_axes = {atom.axis for atom in flat(lowering.dims) if has_open_stride(atom)}
        if not open_axes:
            return True
        for port in self._choice.ports:
            own = tuple([group for group in lowering.operand_dims(port, self._rule) if group is not None])
            if is_untold(own, port.operand.view.extents):
                return False
        data = {port.index for port in self._choice.ports if not port.is_result}
        constants = [axes for index, axes in enumerate(self._rule.inputs) if index not in data and axes is not None]
        is_kept = lowering.rewritten is None
        return all((is_kept and is_parameter(self._rule, axes)) or open_axes.isdisjoint(axes) for axes in constants)

    def answers_by_requirement(self, order: MemoryFormat) -> tuple[Answer, ...] | None:
        """The lowering in this order for each requirement that allows it; None if none does. A region edge is no
        operator: it costs nothing in any order, and is not decomposed."""
        dims = self.maps.grouped(order)
        if dims is None:
            return None
        allowed = [lowering for lowering in self._lowerings(dims) if self._rule.allows(lowering.axes)]

        def is_met(requirement: Requirement, lowering: FreeLowering) -> bool:
            port_dims = [operand_dims(axes, lowering.dims) for axes in self.axes]
            return requirement.is_empty or self._checker.is_met(self._choice, requirement, port_dims, self._letters)

        found = [(each, next((own for own in allowed if is_met(each, own)), None)) for each in self.requirements]
        return tuple([(each, lowering, 0) for each, lowering in found if lowering is not None]) or None

    def native(self) -> MemoryFormat:
        """The order of ONNX's own layout, for a rule that names its axes."""
        axis_names = self._rule.axis_names
        return self._normal(order_of(tuple(axis_names.index(letter) for letter in native_letters(len(axis_names)))))

    def _suggested(self, order: MemoryFormat) -> tuple[MemoryFormat, ...]:
        """Further orders that the rule suggests once the node runs in `order`; those with another axis innermost where
        the backend states that they cost less; and for tiles in which it can only be decomposed, those of whole axes.
        """
        dims, answers = self.maps.grouped(order) or (), self.answers(order) or ()
        orders = self._rule.suggested(tuple([group[0].axis for group in dims]))
        found = [self._normal(flat(dims[position] for position in each)) for each in orders]
        if answers and all(cost and lowering.rewritten is None for _, lowering, cost in answers):
            turned = [self._normal(flat((*dims[:n], *dims[n + 1 :], dims[n]))) for n in range(len(dims) - 1)]
            found += [each for each in turned if self._least_cost(each) < self._least_cost(order)]
        if all(lowering.rewritten is not None for _, lowering, _ in answers):
            found += self.maps.whole_orders(order)
        return tuple(found)

    def _least_cost(self, order: MemoryFormat) -> float:
        return min([cost for _, _, cost in self.answers(order) or ()], default=inf)

    def required_orders(self, requirement: Requirement) -> Iterator[MemoryFormat]:
        """The orders that the requirement names in full."""
        operands = [
            (port, axes, layout, letters, known)
            for port, axes, layout, letters, known in zip(
                self._choice.ports,
                self.axes,
                requirement.layouts,
                self._letters,
                self._checker.axis_names(self._choice, requirement.layouts),
                strict=True,
            )
            if axes is not None
        ]
        for place, (port, axes, layout, letters, known) in enumerate(operands):
            if layout is None or "*" in layout.names:
                continue
            extents, size = port.operand.view.extents, element_size(port.operand.tensor.base)
            names = port.names_for(layout, known, letters)
            pads = requirement.implementation.pads
            own = bind(layout, names, extents, size, pads=pads) if names is not None else None
            if own is None:
                continue
            if len(axes) == len(self._rule.extents):
                # The layout gives the position of every axis, including those of extent 1.
                yield self._normal(tuple(Atom(axes[atom.axis], atom.inner, atom.outer) for atom in own))
                continue
            format_ = port.format_in(one_each(own))
            if format_ is not None:
                yield from self.maps.extend(place, format_)
        yield from self._orders_of_constants(requirement)

    def _orders_of_constants(self, requirement: Requirement) -> Iterator[MemoryFormat]:
        """The orders that the requirement gives by the axis numbers, or the names, of a constant. Axes of the space
        that the constant lacks stay where they are in the source."""
        assert self._choice.node is not None
        noted = noted_orders(self._choice.node, is_result=False)
        for index, layout in requirement.constants.items():
            value = self._choice.node.inputs[index]
            axes = self._rule.inputs[index] if index < len(self._rule.inputs) else None
            names, pads = self._constant_names.get(index, ()), requirement.implementation.pads
            own = order_of_constant(value, layout, names, noted[index], pads=pads)
            if axes is None or own is None:
                continue
            atoms = [Atom(axes[atom.axis], atom.inner, atom.outer) for atom in own]
            if len(axes) < len(self._rule.extents) and all(atom.is_whole for atom in atoms):
                given = iter(atoms)
                atoms = [next(given) if a in axes else Atom(a) for a in range(len(self._rule.extents))]
            if len({atom.axis for atom in atoms}) == len(self._rule.extents):
                yield self._normal(tuple(atoms))

    def _normal(self, order: MemoryFormat) -> MemoryFormat:
        return normal_form(order, self.maps.extents)

    def _answer(self, requirements: Sequence[Requirement], dims: Dims) -> Answer | None:
        """The first requirement that this order meets, with its lowering; None if there is none. An order that ONNX's
        operator does not support is possible if a backend requires it by the operator's axis names, or if the rule has
        a decomposition for it.
        """
        written: Answer | None = None
        for requirement in requirements:
            if written is not None and requirement.implementation.cost >= written[0].implementation.cost + written[2]:
                break
            if not requirement.is_empty:
                met = self._as_required(requirement, dims)
            elif self._is_tiled_unknowingly(dims):
                met = None  # only a backend can require such tiles of the operator itself
            else:
                met = self._as_onnx(requirement, dims)
            if met is None and self._takes_any_order(requirement, dims):
                met = self._as_required(requirement, dims)
            if met is not None and self._allows_open_strides(met[1]):
                return met
            if written is None and (requirement.is_empty or self._is_unreachable(requirement)):
                decomposed = self._decomposed(requirement.relaxed(), dims, may_convert=requirement.is_empty)
                if decomposed is not None and self._allows_open_strides(decomposed[1]):
                    written = decomposed
        return written

    def _is_permuted_asymmetrically(self, dims: Dims) -> bool:
        traits = self._rule.traits
        return any(len(group) > 1 and traits[group[0].axis].permutable_within == "asymmetric" for group in dims)

    def _is_tiled_unknowingly(self, dims: Dims) -> bool:
        """Whether axes are tiled that ONNX's operator supports only whole."""
        knows = any(t.tileable or t.permutable_within or t.tile_multiple for t in self._rule.traits)
        return not knows and any(not a.is_whole for group in dims for a in group)

    def _takes_any_order(self, requirement: Requirement, dims: Dims) -> bool:
        """Whether the backend runs the node in any order of whole axes."""
        is_any = requirement.is_empty and requirement.implementation.any_order
        return is_any and all(atom.is_whole for group in dims for atom in group)

    def _as_onnx(self, requirement: Requirement, dims: Dims) -> Answer | None:
        """The answer with ONNX's own operator, for an implementation without requirements."""
        if self._is_permuted_asymmetrically(dims):
            return None
        lowering = next((lowering for lowering in self._lowerings(dims) if self._rule.allows(lowering.axes)), None)
        if lowering is None or not self._has_no_requirement(requirement, lowering):
            return None
        cost = self._cost(requirement, lowering)
        return (requirement, lowering, cost) if cost is not None else None

    def _has_no_requirement(self, requirement: Requirement, lowering: FreeLowering) -> bool:
        """Whether the backend requires nothing of the node in this lowering. It is asked anew, because the axis order
        of a permuted operand and the rank of a tiled one differ from the source's."""
        axis_names = self._rule.axis_names
        ports = self._choice.ports
        # An input that is broadcast has unit dimensions for axes that it lacks.
        port_dims = [tuple([group or () for group in lowering.operand_dims(port, self._rule)]) for port in ports]
        is_native = not axis_names or lowering.axes == tuple(
            axis_names.index(letter) for letter in native_letters(len(axis_names))
        )
        if is_native and all(
            len(dims) == len(port.operand.view.axes) for dims, port in zip(port_dims, ports, strict=True)
        ):
            return True
        return self._checker.has_no_requirement(self._choice, port_dims, requirement.implementation.device)

    def _reaches_no_order(self, requirement: Requirement) -> bool:
        """Whether the operator supports none of the required orders, so that it has to be decomposed. The requirements
        of the decomposition's operators then count instead."""
        dims = [d for order in self.required_orders(requirement) if (d := self.maps.grouped(order)) is not None]
        is_written = bool(dims) and bool(self._rule.decompositions) and not self._rule.axis_names
        # ONNX's operator may support an order with its unit axes inserted somewhere.
        lowerings = chain.from_iterable(map(self._lowerings, dims))
        return is_written and not any(self._rule.allows(each.axes) for each in lowerings)

    def _lowerings(self, dims: Dims, decomposition: Decomposition | None = None) -> Iterator[FreeLowering]:
        """The lowerings in these dimensions, one for each insertion of the unit axes."""
        for full in unit_axis_insertions(dims, len(self._rule.extents)):
            yield FreeLowering(full, rewritten=decomposition)

    def _decomposed(self, requirement: Requirement, dims: Dims, *, may_convert: bool) -> Answer | None:
        """The answer with a decomposition, for an implementation without requirements. `may_convert`: the node also
        runs as in the source."""
        is_foreign = self._is_tiled_unknowingly(dims)
        for written in self._rule.decompositions:
            if (is_foreign and not written.tiles) or not self._has_constants_for(written):
                continue
            if written.is_whole and not may_convert:
                continue
            lowering = next(
                (lowering for lowering in self._lowerings(dims, written) if written.takes(lowering.axes)), None
            )
            if lowering is None:
                continue
            extra = written.extra(lowering.axes)
            if may_convert and not self._keeps_dear and self._is_dear(requirement, lowering, extra):
                continue
            if not self._meets_by_parts(requirement, lowering):
                continue
            cost = self._cost(requirement, lowering, extra)
            if cost is not None:
                return requirement, lowering, cost
        return None

    def _has_constants_for(self, written: Decomposition) -> bool:
        """Whether the node reads a constant, which is no port, if the decomposition needs one."""
        data = [port for port in self._choice.ports if not port.is_result]
        return not written.needs_constant or len(data) < len(self._rule.inputs)

    def _is_dear(self, requirement: Requirement, lowering: FreeLowering, extra: Traffic) -> bool:
        """Whether this traffic is more than that of converting every operand to ONNX's order, and every result back."""
        operands = [port.operand for port in self._choice.ports]
        moved = sum(2 * self._elements(ir.Shape(o.view.extents)) * element_size(o.tensor.base) for o in operands)
        return self._traffic(lowering, extra, requirement.implementation.device) > moved

    def _cheaper(self, order: MemoryFormat) -> MemoryFormat | None:
        """An order of ONNX's operator that costs less, with the conversions to it and back, than this order, in which
        the node is decomposed; None where there is none, or it is not known."""
        answers, own = self.answers(order) or (), self.maps.formats(order)
        if self._most_cost is None or own is None or len(answers) != 1 or answers[0][1].rewritten is None:
            return None
        nearest = self._nearest(order)
        if nearest is None:
            return None
        other, ((requirement, _, cost),) = nearest
        around = requirement.implementation.cost + cost
        ports = [port for port, axes in zip(self._choice.ports, self.axes, strict=True) if axes is not None]
        for port, format_, converted in zip(ports, own, self.maps.formats(other) or (), strict=True):
            ends = (converted, format_) if port.is_result else (format_, converted)
            device = requirement.implementation.device
            most = self._most_cost(port.operand, *ends, device) if format_ != converted else 0
            if most is None:
                return None
            around += most
        return other if answers[0][0].implementation.cost + answers[0][2] > around else None

    def _nearest(self, order: MemoryFormat) -> tuple[MemoryFormat, tuple[Answer, ...]] | None:
        """The order in which the fewest of the source's innermost axes are moved innermost so that the node runs in it
        without a decomposition, and its one answer."""
        rank = len(self._rule.extents)
        for start in (order, *self.maps.whole_orders(order)):
            for first in reversed(range(rank)):
                outer = [atom for atom in start if atom.axis < first]
                other = self._normal((*outer, *map(Atom, range(first, rank))))
                answers = self.answers(other) or ()
                if len(answers) == 1 and answers[0][1].rewritten is None:
                    return other, answers
        return None

    def _as_required(self, requirement: Requirement, dims: Dims) -> Answer | None:
        """The answer with unit axes inserted so that the requirement is met."""
        rule, permuted = self._rule, self._is_permuted_asymmetrically(dims)
        if rule.axis_names and not self.maps.packs(dims):
            return None
        for place in unit_axis_insertions(dims, len(rule.extents)):
            lowering = FreeLowering(place, asked=True)
            is_itself = not permuted and (rule.allows(lowering.axes) or bool(rule.axis_names))
            for written in (None,) if is_itself else rule.decompositions:
                if written is not None and not (self._has_constants_for(written) and written.takes(lowering.axes)):
                    continue
                lowering = FreeLowering(place, asked=True, rewritten=written)
                cost = self._cost(
                    requirement, lowering, written.extra(lowering.axes) if written is not None else _NOTHING
                )
                by_parts = cost is not None and (written is None or self._meets_by_parts(requirement, lowering))
                if cost is not None and by_parts and self._meets(requirement, place):
                    return requirement, lowering, cost
        return None

    def _meets(self, requirement: Requirement, dims: Dims) -> bool:
        """Whether operands and constants meet the requirement when the iteration space has these dimensions."""
        own = [operand_dims(axes, dims) for axes in self.axes]
        inputs = [operand_dims(axes, dims) for axes in self._rule.inputs]
        is_met = self._checker.is_met(self._choice, requirement, own, self._letters)
        return is_met and self._checker.constants_meet(self._choice, requirement, inputs, self._constant_names)

    def _meets_by_parts(self, requirement: Requirement, lowering: FreeLowering) -> bool:
        """Whether the operators of the lowering's decomposition meet the backend's requirements of them."""
        return self._checker.dry_run(self._choice, self._rule, self.axes, lowering, requirement.implementation.device)

    def _cost(self, requirement: Requirement, lowering: FreeLowering, extra: Traffic = _NOTHING) -> int | None:
        """The node's cost in this lowering beyond its best order; None where the device does not support it."""
        device, own = requirement.implementation.device, self._rule.outputs[0]
        traffic = self._traffic(lowering, extra, device)
        if own is None:
            return traffic
        assert self._choice.node is not None
        axes = tuple([own.index(axis) for axis in lowering.axes if axis in own])
        is_rewritten = lowering.rewritten is not None
        return self._checker.order_cost(self._choice.node, axes, traffic, device, is_rewritten=is_rewritten)

    def _traffic(self, lowering: FreeLowering, traffic: Traffic, device: str) -> int:
        """The bytes read and written, by `Traffic`, and how much more a noted cost is where tiles are padded."""
        assert self._choice.node is not None
        size, noted = element_size(self._choice.node.outputs[0]), noted_cost(self._choice.node, device)
        shape = dims_shape(lowering.dims, self._rule.extents) if traffic or noted else ()
        added = sum(times * self._elements(ir.Shape([shape[p] for p in places])) * size for places, times in traffic)
        if noted:
            own = self._elements(ir.Shape(self._rule.extents))
            added += noted * (self._elements(ir.Shape(shape)) - own) // own if own else 0
        return max(added, 0)  # a size of the caller may leave an axis without elements, and nothing is saved there


def order_of_constant(
    value: ir.Value | None, layout: Layout, names: KnownNames, noted_order: str, *, pads: bool = False
) -> MemoryFormat | None:
    """The order of a constant's axes that a layout requires; None where it does not fit them. `names`: those of the
    axes by other operands, `noted_order` the one of an earlier run."""
    extents = extents_of(value)
    if extents is None:
        return None
    letters = names_for(layout, filled_names(names, extents, layout), axis_numbers(noted_order, len(extents)))
    return bind(layout, letters, extents, element_size(value), pads=pads) if letters is not None else None


def operands_on(node: NodePorts, axes_of: Sequence[Axes | None]) -> tuple[tuple[Operand, Axes], ...]:
    """The operands that have axes of the space, with these."""
    return tuple([(p.operand, axes) for p, axes in zip(node.ports, axes_of, strict=True) if axes is not None])


@lru_cache(maxsize=4096)
def operand_dims(axes: Axes | None, dims: Dims) -> Dims | None:
    """An operand's dimensions when the iteration space has these; `axes` are the operand's in the space."""
    if axes is None:
        return None
    return tuple(
        tuple(Atom(axes.index(atom.axis), atom.inner, atom.outer) for atom in group)
        for group in dims
        if group[0].axis in axes
    )
