"""What each node of a graph may choose from, by its rule and by what the backend says of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from relayout.backend.interface import Implementation, element_size
from relayout.candidates.alternatives import (
    FixedLowering,
    FreeLowering,
    NodeAlternatives,
    label_of,
    passing_ports,
    ports_of,
)
from relayout.candidates.axis_names import Names
from relayout.candidates.axis_shuffle import Mixing
from relayout.candidates.backend_requirements import Contract, Wish
from relayout.candidates.black_boxes import Givers, in_boxes
from relayout.candidates.elision import Pieces, pieces_of
from relayout.candidates.fixed_node import fixed_forms, laid_forms, of_ports, port_letters, written_form
from relayout.candidates.free_node import FreeNode, Pricing, operand_dims
from relayout.candidates.node_conflict import unmet
from relayout.candidates.propagation import Space, Spaces
from relayout.candidates.subgraph_values import PassingValue, may_pass
from relayout.candidates.tensors import Tensors
from relayout.candidates.view_materialization import nearest_regrouped
from relayout.errors import InfeasibleError
from relayout.layout.binding import is_tiled
from relayout.layout.conversion import Dims
from relayout.layout.layout import Layout
from relayout.layout.memory_format import MemoryFormat
from relayout.ops import Axes, Fixed, Free, Listed, RegionEdge
from relayout.ops.named_axes import operand_by_operand

__all__ = ["NodeChoices"]

_ANY = Layout.any(0)
_Ways = tuple[tuple[Wish, FreeLowering | FixedLowering, int], ...]


@dataclass(frozen=True, slots=True)
class _Open:
    """A free node whose alternatives are listed when all candidates are known; `axes` are its ports' in the space, and
    `moves` the bytes that it need not move (see `Alternative`)."""

    choice: NodeAlternatives
    axes: tuple[Axes | None, ...]
    space: Space[_Ways]
    moves: int = 0


class NodeChoices:
    """The choices of a graph's nodes. Free nodes enter a space first and list their alternatives last."""

    def __init__(
        self, contract: Contract, names: Names, tensors: Tensors, spaces: Spaces, elements: Pricing
    ) -> None:
        self.choices: list[NodeAlternatives] = []
        self._contract = contract
        self._names = names
        self._tensors = tensors
        self._spaces = spaces
        self._elements = elements
        self._open: list[_Open] = []
        # What crosses the border of the graphs inside a node and has a choice of its own.
        self._passing: dict[ir.Node, tuple[RegionEdge, ...]] = {}
        # The choices of nodes of which somebody speaks in black boxes, and what gives these, once that is known.
        self._boxed: list[NodeAlternatives] = []
        self._givers: Givers | None = None
        self.in_the_way: set[ir.Value] = set()
        """Views whose factors are not those of a layout that their readers could take."""

    def enter(self, node: ir.Node) -> None:
        """Ask the backend for this node, and list what is known of it now."""
        stated = self._contract.implementations(node)
        if node in self._tensors.region_edges:
            region_edges = self._tensors.region_edges[node]
            self._passing[node] = region_edges if may_pass(stated) else ()
        self._state(node, stated)
        self._pass(node, goes_in=True)

    def leave(self, node: ir.Node) -> None:
        """Enter what the graphs inside the node only give; they themselves have been entered."""
        self._pass(node, goes_in=False)

    def list_free(self, inputs: Iterable[NodeAlternatives] = ()) -> None:
        """Give every free node the alternatives that its space holds now, and take away those that need a black box
        which neither a node, nor one of the graph's `inputs`, nor a conversion gives. Raises InfeasibleError for a node
        that has none left."""
        self._list_open()
        are_fewer = bool(self._boxed)
        while are_fewer:
            # What is not run gives no box either.
            self._givers = Givers(self._contract, self._tensors, [*inputs, *self.choices])
            are_fewer = sum(self._givers.drop_what_nobody_gives(choice) for choice in self._boxed) > 0
        for choice in self.choices:
            if not choice.alternatives:
                raise self._refused(choice)

    def _refused(self, choice: NodeAlternatives) -> InfeasibleError:
        """The error for a node without alternatives. The formats that its operands may have are those known now."""
        node = choice.node
        assert node is not None
        stated = self._contract.implementations(node)

        def trial(stated: Sequence[Implementation]) -> NodeAlternatives:
            spaces = Spaces(dict.fromkeys(port.operand.tensor for port in choice.ports))
            nodes = NodeChoices(self._contract, self._names, self._tensors, spaces, self._elements)
            tried = nodes._state(node, stated)
            for tensor in spaces.formats:
                for format_ in self._spaces.formats[tensor]:
                    spaces.add_format(tensor, format_)
            spaces.spread()
            nodes._list_open()
            if self._givers is not None:
                self._givers.drop_what_nobody_gives(tried)
            return tried

        return unmet(choice, stated, trial, self._names)

    def _state(self, node: ir.Node, stated: Sequence[Implementation]) -> NodeAlternatives:
        """Enter the node with what is known of it now, where the backend states these implementations."""
        rule = self._tensors.rules.get(node)
        region_edges = self._passing.get(node, ())
        choice = NodeAlternatives(label_of(node), node, ports_of(node, self._tensors, region_edges))
        self.choices.append(choice)
        wishes: list[Wish] = []
        for way, implementation in enumerate(stated):
            wish = Wish(implementation, choice.ports, way if region_edges else 0)
            if any(wish.boxes) and choice not in self._boxed[-1:]:
                self._boxed.append(choice)
            if implementation.rewrite is None:
                wishes.append(wish)
                continue
            form = written_form(choice, rule, wish, self._contract)
            if form is not None:
                self._list(choice, wish, form)
        if isinstance(rule, Free):
            self._free(choice, rule, wishes)
            return choice
        letters = port_letters(rule, choice.ports)
        mixing = Mixing(choice, rule.mixes, self._spaces) if isinstance(rule, Fixed | Listed) and rule.mixes else None
        for wish in wishes:
            for form in laid_forms(choice, rule, wish.implementation):
                if self._enter(choice, wish, form, letters) and mixing is not None:
                    mixing.add_base(wish, form)
        return choice

    def _pass(self, node: ir.Node, *, goes_in: bool) -> None:
        """Enter what goes into the graphs inside the node, or what they only give."""
        for region_edge in self._passing.get(node, ()):
            if region_edge.goes_in != goes_in:
                continue
            ports = passing_ports(node, region_edge, self._tensors)
            choice = NodeAlternatives(f"{label_of(node)} {region_edge.name}", node, ports, region_edge=region_edge)
            self.choices.append(choice)
            axes_of = of_ports(ports, region_edge.rule.inputs, region_edge.rule.outputs)
            laid = tuple([(p.operand, axes) for p, axes in zip(ports, axes_of, strict=True) if axes is not None])
            geometry = self._spaces.geometry(region_edge.rule, laid)
            stated = self._contract.implementations(node)
            value = PassingValue(
                choice, region_edge, stated, geometry=geometry, contract=self._contract, elements=self._elements
            )
            space: Space[_Ways] = Space(geometry, laid, value.ways)
            self._open.append(_Open(choice, axes_of, space))
            self._spaces.add_space(space)
            for order in value.witnesses():
                self._spaces.add_order(space, order)

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
                    boxed = in_boxes(choice, wish, every, _own_dims(each, form))
                    if boxed is not None:
                        cost, device = wish.implementation.cost + extra, wish.implementation.device
                        choice.add(boxed, form, cost, wish.shown, device, each.moves, wish.way)

    def _enter(self, choice: NodeAlternatives, wish: Wish, form: FixedLowering, letters: Sequence[str | None]) -> bool:
        """Enter one alternative, if it meets what is asked for."""
        laid = of_ports(choice.ports, form.inputs, form.outputs)
        is_met = self._contract.is_met(choice, wish, laid, letters)
        return is_met and self._contract.constants_meet(choice, wish, form.inputs) and self._list(choice, wish, form)

    def _list(self, choice: NodeAlternatives, wish: Wish, form: FixedLowering) -> bool:
        laid = of_ports(choice.ports, form.inputs, form.outputs)
        formats: list[MemoryFormat] = []
        for port, dims in zip(choice.ports, laid, strict=True):
            format_ = port.format_in(dims)
            if format_ is None:
                # The layout's factors are not those of the tensor behind the operand.
                regrouped = nearest_regrouped(port.operand.value, self._tensors)
                if regrouped is not None and any(layout is not None and is_tiled(layout) for layout in wish.layouts):
                    self.in_the_way.add(regrouped)
                return False
            formats.append(format_)
        for port, format_ in zip(choice.ports, formats, strict=True):
            self._spaces.add_format(port.operand.tensor, format_)
        boxed = in_boxes(choice, wish, formats, laid)
        if boxed is None:
            return False
        choice.add(boxed, form, wish.implementation.cost, wish.shown, wish.implementation.device, way=wish.way)
        return True

    def _free(self, choice: NodeAlternatives, rule: Free, wishes: list[Wish]) -> None:
        """Enter the node's space, with the orders that somebody asks for."""
        wishes = sorted(wishes, key=lambda wish: wish.implementation.cost)
        axes_of = of_ports(choice.ports, rule.inputs, rule.outputs)
        laid = tuple([(p.operand, axes) for p, axes in zip(choice.ports, axes_of, strict=True) if axes is not None])
        geometry = self._spaces.geometry(rule, laid)
        node = FreeNode(
            choice, rule, wishes, geometry=geometry, contract=self._contract, elements=self._elements
        )
        space: Space[_Ways] = Space(geometry, laid, node.ways, node.proposed)
        pieces = pieces_of(rule.left_out, *choice.ports) if rule.left_out is not None else None
        self._open.append(_Open(choice, axes_of, space, self._moves(choice) if pieces is not None else 0))
        self._spaces.add_space(space)
        if pieces is not None:
            self._leave_out(choice, pieces)
        if rule.letters:
            self._packed(choice, operand_by_operand(rule), wishes)
        for wish in wishes:
            for order in node.witnesses(wish):
                self._spaces.add_order(space, order)
        if rule.letters and not space.orders:
            # The node stands in a layout that nobody asks for; ONNX's own is a way to run it.
            self._spaces.add_order(space, node.native())

    def _packed(self, choice: NodeAlternatives, rule: Fixed, wishes: list[Wish]) -> None:
        """Enter what packed layouts ask for where no order of the space says it: both parts of an axis side by side,
        one that is all of its axis, or one of an axis that has another extent in the result."""
        letters = port_letters(rule, choice.ports)
        for wish in wishes:
            if any(layout is not None and is_tiled(layout) for layout in wish.layouts):
                for form in fixed_forms(choice, rule, wish.implementation):
                    self._enter(choice, wish, form, letters)

    def _leave_out(self, choice: NodeAlternatives, pieces: Pieces) -> None:
        """Let the node be no node. Who runs nothing takes none of a device's operators, so that it may be anywhere."""
        assert choice.node is not None
        nothing = (_ANY,) * len(choice.node.inputs), (_ANY,) * len(choice.node.outputs)
        free = [Wish(Implementation(*nothing, device=device), choice.ports) for device in self._contract.devices]

        def ways(order: MemoryFormat) -> _Ways:
            return tuple((wish, pieces.form(order), 0) for wish in free)

        space: Space[_Ways] = Space(self._spaces.geometry(pieces.rule, pieces.operands), pieces.operands, ways)
        self._open.append(_Open(choice, tuple(axes for _, axes in pieces.operands), space))
        self._spaces.add_space(space)

    def _moves(self, choice: NodeAlternatives) -> int:
        """The bytes that the node reads and writes; a view that stands apart moves nothing."""
        assert choice.node is not None
        result = choice.node.outputs[0]
        if result in self._tensors.materialized:
            return 0
        return 2 * self._elements(result.shape) * element_size(result) if result.shape is not None else 0


def _own_dims(open_: _Open, form: FreeLowering | FixedLowering) -> Sequence[Dims | None]:
    """The dimensions of each port's operand."""
    if isinstance(form, FixedLowering):
        return of_ports(open_.choice.ports, form.inputs, form.outputs)
    return [operand_dims(axes, form.dims) for axes in open_.axes]
