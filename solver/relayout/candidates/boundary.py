"""The graph's inputs and outputs: as in the source, in a layout that the caller sets, or left to the solver.

An option names one value, or several separated by commas. These are **coupled**: they have the same order of axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import perm
from typing import cast

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from relayout.candidates.alternatives import (
    Alternative,
    BoundaryLowering,
    NodeAlternatives,
    NodePorts,
    Port,
    best_alternatives,
    with_alternatives,
)
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.black_boxes import boxed
from relayout.candidates.boundary_options import ANY, coupled_names, is_tiled_layout, is_wildcard, misfit, order_named
from relayout.candidates.iteration_space import unit_axis_insertions
from relayout.candidates.propagation import FORMATS_PER_TENSOR, FormatSeed
from relayout.candidates.tensors import Operand, Tensor, Tensors
from relayout.errors import UsageError, option_text
from relayout.layout.conversion import one_each
from relayout.layout.layout import Layout
from relayout.layout.memory_format import BlackBoxFormat, MemoryFormat, source_order, with_units
from relayout.ops.operand_roles import data_letters

Formats = Mapping[Tensor, Mapping[MemoryFormat, None]]
"""The formats of each tensor that are considered."""


class Boundary(Struct, frozen=True, eq=False):
    """The choices of the graph's inputs and outputs; coupled groups are among the inputs.

    `requested` holds the layouts that options set, by side and name, `coupled` the names coupled with each.
    `blocking_views` must be materialized for a requested layout.
    """

    inputs: tuple[NodeAlternatives, ...]
    outputs: tuple[NodeAlternatives, ...]
    requested: Mapping[tuple[str, str], str]
    coupled: Mapping[tuple[str, str], tuple[str, ...]]
    blocking_views: frozenset[ir.Value] = frozenset()

    def seeds(self) -> Iterator[FormatSeed]:
        """The formats that are set; the source's format where the solver chooses."""
        for choice in (*self.inputs, *self.outputs):
            identity = tuple(port.source_format for port in choice.ports)
            for formats in [a.formats for a in choice.alternatives] or [identity]:
                for port, format_ in zip(choice.ports, formats, strict=True):
                    yield FormatSeed(port.operand.tensor, format_)


def coupled_formats(boundary: Boundary, formats: Formats) -> list[FormatSeed]:
    """The formats that coupled inputs and outputs must have because one of them may have such an order."""
    groups = [choice.ports for choice in (*boundary.inputs, *boundary.outputs) if len(choice.ports) > 1]
    pairs = ((port, order) for ports in groups for order in orders_of(ports, formats) for port in ports)
    every = [(port, port.format_in(one_each(order))) for port, order in pairs]
    return [FormatSeed(port.operand.tensor, format_) for port, format_ in every if format_ is not None]


def list_boundary(boundary: Boundary, formats: Formats, names: AxisNames) -> Boundary:
    """The boundary with the alternatives of the solver's choices: all orders that the graph's nodes consider."""

    def listed(choice: NodeAlternatives) -> NodeAlternatives:
        if choice.alternatives:
            return choice
        found = []
        for order in orders_of(choice.ports, formats):
            own = [port.format_in(one_each(order)) for port in choice.ports]
            if None not in own:
                texts = order_texts(choice, order, names)
                found.append(_alternative(choice, cast(list[MemoryFormat], own), order, texts))
        return with_alternatives(choice, best_alternatives(found))

    inputs, outputs = tuple(map(listed, boundary.inputs)), tuple(map(listed, boundary.outputs))
    return replace(boundary, inputs=inputs, outputs=outputs)


def set_boundary(
    graph: ir.Graph, tensors: Tensors, names: AxisNames, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> Boundary:
    """A choice for each input and output, or coupled group of them. If the solver chooses, it has no alternatives yet.

    `inputs` and `outputs` map names to a layout or `any`. An output that is also an input has no choice of its own.
    Raises UsageError for an unknown name, a name that is set twice, a layout that does not fit the tensor, and for
    coupled values that cannot have the same layout.
    """
    ends = _Ends(graph, tensors, names)
    for side, layouts in (("input", inputs), ("output", outputs)):
        for key, wanted in layouts.items():
            ends.set(side, key, wanted)
            if ends.blocking_view is not None:
                return Boundary((), (), {}, {}, frozenset([ends.blocking_view]))
    ends.inputs += [ends.pinned(end) for end in ends.left("input")]
    ends.outputs += [ends.pinned(end) for end in ends.left("output")]
    # In the graph's order, whatever the order of the options.
    sides = (sorted(side, key=lambda choice: choice.ports[0].index) for side in (ends.inputs, ends.outputs))
    first, last = map(tuple, sides)
    return Boundary(first, last, ends.requested, ends.coupled)


class _End(Struct, frozen=True):
    """One input or output, with its index."""

    side: str
    index: int
    value: ir.Value

    @property
    def key(self) -> tuple[str, str]:
        return self.side, self.value.name or ""

    def port(self, operand: Operand) -> Port:
        return Port(operand, self.side == "input", self.index)


class _Ends:
    """The inputs and outputs of a graph, and the choices set so far."""

    def __init__(self, graph: ir.Graph, tensors: Tensors, names: AxisNames) -> None:
        self._tensors, self._names = tensors, names
        self._all = [_End("input", i, value) for i, value in enumerate(graph.inputs)]
        self._all += [_End("output", i, value) for i, value in enumerate(graph.outputs)]
        self._set: dict[_End, str] = {}
        self.inputs: list[NodeAlternatives] = []
        self.outputs: list[NodeAlternatives] = []
        self.requested: dict[tuple[str, str], str] = {}
        self.coupled: dict[tuple[str, str], tuple[str, ...]] = {}
        self.blocking_view: ir.Value | None = None

    def left(self, side: str) -> Iterator[_End]:
        """The ends without an option whose format may be chosen."""
        for end in self._all:
            if end.side == side and end not in self._set and not self._fault(end):
                yield end

    def pinned(self, end: _End) -> NodeAlternatives:
        """The end as in the source."""
        operand = self._operand(end)
        own = NodePorts(_label([end]), None, (end.port(operand),))
        order = source_order(len(operand.view.axes))
        return _single(own, own.ports[0].source_format, order, order_texts(own, order, self._names))

    def set(self, side: str, key: str, wanted: str) -> None:
        """Add the choices of one entry of the option `input_layouts` or `output_layouts`."""
        where = option_text(f"{side}_layouts", key)
        known = [end.value.name or "" for end in self._all]
        asked = enumerate(coupled_names(key, known))
        ends = [end for place, name in asked for end in self._named(name, side, where, first=place == 0)]
        for end in ends:
            if end in self._set:
                raise UsageError(
                    f"the layout of the {end.side} {end.value.name} is set twice",
                    where=where,
                    expected="each input and output in one option",
                    found=self._set[end] if self._set[end] != where else key,
                )
            self._set[end] = where
            self.requested[end.key] = ANY if is_wildcard(wanted) else wanted
            if fault := self._fault(end):
                raise UsageError(
                    f"the layout of this {end.side} cannot be chosen",
                    where=option_text(f"{side}_layouts", end.value.name or ""),
                    expected="a value of known rank that is computed from the graph's inputs",
                    found=fault,
                )
        self._check_ranks(ends, where)
        if len(ends) > 1:
            for end in ends:
                self.coupled[end.key] = tuple(other.value.name or "" for other in ends if other != end)
        choices = [self._free(ends)] if is_wildcard(wanted) else self._in_layout(ends, wanted, where)
        for choice in choices:
            # A coupled group with an input stands before every consumer.
            (self.inputs if any(p.is_result for p in choice.ports) else self.outputs).append(choice)

    def _free(self, ends: Sequence[_End]) -> NodeAlternatives:
        return NodeAlternatives(_label(ends), None, tuple(end.port(self._operand(end)) for end in ends))

    def _in_layout(self, ends: Sequence[_End], wanted: str, where: str) -> Iterator[NodeAlternatives]:
        """Each end in the layout, by its own axis names, else by those of the first coupled end that has names."""
        operands = [self._operand(end) for end in ends]
        lent = next(filter(None, map(self._names.of, operands)), None) or data_letters(len(operands[0].view.axes))
        pads = all(end.side == "input" for end in ends)
        names = [self._names.of(operand) or lent for operand in operands]
        orders = [
            order_named(operand, own, wanted, where, pads=pads) for operand, own in zip(operands, names, strict=True)
        ]
        if len(set(orders)) > 1:
            raise UsageError(
                "coupled values cannot have one layout: their axes have different names",
                where=where,
                expected="the same axis names in the same order",
                found=", ".join(f"{e.value.name} {self._names.of(o)}" for e, o in zip(ends, operands, strict=True)),
                hint="separate options set each by its own axis names; `any` couples them by position",
            )
        for end, operand, order in zip(ends, operands, orders, strict=True):
            own = NodePorts(_label([end]), None, (end.port(operand),))
            format_ = own.ports[0].format_in(one_each(order))
            self.blocking_view = self._tensors.nearest_regrouped(operand.value) if format_ is None else None
            if self.blocking_view is not None:
                return
            why = ""
            if format_ is not None:
                format_ = boxed(format_, own.ports[0], Layout.parse(wanted), one_each(order))
                why = f"the contents of a black box are not known behind the Reshape of {operand.tensor.base.name}"
            if format_ is None:
                raise misfit(self._names.of(operand), wanted, where, why)
            boxes = operand.boxes(format_)
            yield _single(own, format_, BlackBoxFormat(order, boxes) if boxes else order, [wanted])

    def _named(self, name: str, side: str, where: str, *, first: bool) -> list[_End]:
        """The ends of this name (a graph may output a value twice). Only coupled ends may be on the other side."""
        sides = (side,) if first else (side, "output" if side == "input" else "input")
        for one in sides:
            found = [end for end in self._all if end.side == one and end.value.name == name]
            if found:
                return found
        known = sorted({end.value.name or "" for end in self._all if end.side in sides} - {""})
        words = side if first else "input or output"
        raise UsageError(
            f"the graph has no {words} of this name",
            where=where,
            expected=", ".join(known) or f"a graph with {side}s",
            found=name,
        )

    def _check_ranks(self, ends: Sequence[_End], where: str) -> None:
        ranks = [len(self._operand(end).view.axes) for end in ends]
        if len(set(ranks)) > 1:
            raise UsageError(
                "coupled values cannot have one layout: their ranks differ",
                where=where,
                expected="inputs and outputs of one rank",
                found=", ".join(f"{end.value.name} of rank {rank}" for end, rank in zip(ends, ranks, strict=True)),
            )

    def _fault(self, end: _End) -> str:
        """The reason why the end has no choice; empty where it has one."""
        operand = self._tensors.operands.get(end.value)
        if end.side == "output" and end.value.is_graph_input():
            return "an input, which the graph returns unchanged"
        if operand is None:
            return "a value of unknown rank"
        return "a constant" if operand.tensor.constant else ""

    def _operand(self, end: _End) -> Operand:
        operand = self._tensors.operands[end.value]
        assert operand is not None  # None has no choice, see `_fault`
        return operand


def _single(own: NodePorts, format_: MemoryFormat, order: MemoryFormat, layouts: Sequence[str]) -> NodeAlternatives:
    return with_alternatives(own, (_alternative(own, [format_], order, layouts),))


def _alternative(
    own: NodePorts, formats: Sequence[MemoryFormat], order: MemoryFormat, layouts: Sequence[str]
) -> Alternative:
    lowering = BoundaryLowering(order)
    return Alternative(tuple(formats), lowering, tuple(layouts), is_source=own.is_unchanged(formats, lowering))


def _label(ends: Sequence[_End]) -> str:
    return ", ".join(f"{end.side} {end.value.name}" for end in ends)


def orders_of(ports: Sequence[Port], formats: Formats) -> Iterator[MemoryFormat]:
    """The orders, of all axes, in which one of the ports has a format that is considered, the source's first."""
    yield source_order(len(ports[0].operand.view.axes))
    shapes = {port.operand.view.extents for port in ports}
    pads = all(port.is_result for port in ports)
    for port in ports:
        view = port.operand.view
        for format_ in formats[port.operand.tensor]:
            own = view.from_base(format_)
            # Coupled values have the same tiles, so their extents must be equal.
            if own is not None and len(shapes) == 1 and is_tiled_layout(own, view.extents, pads=pads):
                yield with_units(own, view.extents)
            elif own is not None and all(atom.is_whole for atom in own):
                # A unit axis may be anywhere in its own value, but a coupled value may have a longer axis there.
                every = dict.fromkeys(unit_axis_insertions(one_each(own), len(view.extents)))
                for dims in islice(every, FORMATS_PER_TENSOR if len(shapes) > 1 else 1):
                    yield tuple([atom for (atom,) in dims])


def capped_tensors(boundary: Boundary, formats: Formats) -> Iterator[Tensor]:
    """The coupled tensors of several shapes with more orders of their unit axes than `orders_of` gives."""
    for choice in (*boundary.inputs, *boundary.outputs):
        if len({port.operand.view.extents for port in choice.ports}) < 2:
            continue
        for port in choice.ports:
            view, tensor = port.operand.view, port.operand.tensor
            placed = [own for format_ in formats[tensor] if (own := view.from_base(format_)) is not None]
            whole = [len(own) for own in placed if all(atom.is_whole for atom in own)]
            if any(perm(len(view.axes), len(view.axes) - each) > FORMATS_PER_TENSOR for each in whole):
                yield tensor


def order_texts(choice: NodePorts, order: MemoryFormat, names: AxisNames) -> list[str]:
    """The order as text for each port of the choice: by axis names, else by numbers."""
    natural = order == source_order(len(order))
    if any(not atom.is_whole for atom in order):
        return [str(names.layout(port.operand, order) or ANY) for port in choice.ports]
    numbers = "as in the source" if natural else ",".join(str(atom.axis) for atom in order)
    return [names.in_order(port.operand, order) or numbers for port in choice.ports]
