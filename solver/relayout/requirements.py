"""Model x backend -> the implementations of every node, as memory formats of the tensors that it touches.

Candidates are the witness of every requirement, the boundary and the source order, carried through the free rules in
both directions to a fixpoint (capped per tensor; the cap is reported). Nothing here knows costs of conversions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from relayout.answers import ask
from relayout.backend import Backend, Implementation, TensorType
from relayout.candidates import FORMATS_PER_TENSOR, Space, Spaces, placements
from relayout.errors import InfeasibleError, UsageError
from relayout.layout import Layout
from relayout.memory_format import Order, order_of, source_order
from relayout.names import Names, conventional
from relayout.rules import Axes, Fixed, Free, Listed, Relabel
from relayout.views import Operand, Tensors, captured_values, outer_values

MAX_RANK = 8

__all__ = ["Alternative", "FixedForm", "NodeChoice", "Port", "Requirements", "collect_requirements"]


@dataclass(frozen=True, slots=True)
class FixedForm:
    """The order in which each input and result of a named operator lies; None: as in the source."""

    inputs: tuple[Axes | None, ...]
    outputs: tuple[Axes | None, ...]


Form = Order | FixedForm | int | None
"""How an alternative is written: an order of a Free rule's space, a FixedForm, the place in a Listed rule, or as it is."""


@dataclass(frozen=True, slots=True)
class Port:
    """One operand of a node that takes part in the problem. `index` counts the node's inputs, or its outputs."""

    operand: Operand
    is_result: bool
    index: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to run a node: the format of each port's tensor (in the root's axes), its cost in bytes, and its form."""

    formats: tuple[Order, ...]
    form: Form
    cost: int = 0
    is_source: bool = False


@dataclass(slots=True)
class NodeChoice:
    """A node, or a graph input or output (`node` is None), with its ports and alternatives; the source's own is first
    where it is among them. `layouts` says, for each alternative and port, the layout that was asked for, if any."""

    label: str
    node: ir.Node | None
    ports: tuple[Port, ...]
    alternatives: list[Alternative] = field(default_factory=list)
    layouts: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Requirements:
    tensors: Tensors
    names: Names
    choices: list[NodeChoice]
    warnings: list[str]


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
    builder = _Builder(backend, tensors)
    builder.boundary(list(graph.inputs), input_layouts or {}, is_input=True)
    builder.outer(outer_values(graph))
    for node in graph:
        if node not in tensors.constant_nodes and not isinstance(tensors.rules.get(node), Relabel):
            builder.node(node)
    builder.boundary(list(graph.outputs), output_layouts or {}, is_input=False)
    return builder.finish()


class _Wish:
    """One implementation as the backend states it, with the ports that it says something of."""

    __slots__ = ("implementation", "is_empty", "layouts")

    def __init__(self, implementation: Implementation, ports: tuple[Port, ...], inputs: int) -> None:
        """`inputs` is the number of the node's own: of what its subgraphs read besides, nobody says anything."""
        self.implementation = implementation
        layouts: list[Layout | None] = []
        for port in ports:
            stated = implementation.results if port.is_result else implementation.inputs
            layout = stated[port.index] if port.is_result or port.index < inputs else None
            layouts.append(layout if layout is not None and _says_something(layout) else None)
        self.layouts = tuple(layouts)
        self.is_empty = all(layout is None for layout in layouts)


_Space = Space[tuple[_Wish, Order]]


def _says_something(layout: Layout) -> bool:
    if layout.rank == 1:
        return layout.alignment(0) > 1 or bool(layout.boxes(0))
    return not layout.is_any


class _Builder:
    """Collects the choices in three steps: ask the backend and enter spaces, spread candidates, list alternatives."""

    def __init__(self, backend: Backend, tensors: Tensors) -> None:
        self.backend = backend
        self.tensors = tensors
        self.names = Names(tensors)
        self.spaces = Spaces(tensors.tensors)
        self.choices: list[NodeChoice] = []
        self._pending: list[tuple[NodeChoice, list[Axes | None], _Space, list[_Wish]]] = []
        self._free_boundary: list[NodeChoice] = []


    def boundary(self, values: list[ir.Value], layouts: Mapping[str, str], *, is_input: bool) -> None:
        word = "input" if is_input else "output"
        known = {value.name for value in values}
        for name in layouts:
            if name not in known:
                raise UsageError(
                    f"the graph has no {word} of this name",
                    where=f"--{word}-layout {name}",
                    expected=", ".join(sorted(n for n in known if n)) or f"a graph with {word}s",
                    found=name,
                )
        for place, value in enumerate(values):
            operand = self.tensors.operands.get(value)
            wanted = layouts.get(value.name or "")
            if operand is None or operand.tensor.constant:
                if wanted:
                    raise UsageError(
                        f"the layout of this {word} cannot be chosen",
                        where=f"--{word}-layout {value.name}",
                        expected="a value of known rank that is computed from the graph's inputs",
                        found="a constant" if operand is not None else "a value of unknown rank",
                    )
                continue
            choice = NodeChoice(f"{word} {value.name}", None, (Port(operand, is_input, place),))
            self.choices.append(choice)
            if wanted == "any":
                self._free_boundary.append(choice)
                continue
            axes = self._boundary_axes(operand, wanted, f"--{word}-layout {value.name}")
            format_ = operand.view.to_root(order_of(axes))
            assert format_ is not None
            self.spaces.add_format(operand.tensor, format_)
            choice.alternatives.append(Alternative((format_,), order_of(axes), 0, _changes_nothing(order_of(axes))))
            choice.layouts.append((wanted or self.names.of(operand) or "as in the source",))

    def outer(self, values: list[ir.Value]) -> None:
        """What the graph reads of enclosing graphs comes as they hold it."""
        for place, value in enumerate(values):
            operand = self.tensors.operands.get(value)
            if operand is None or operand.tensor.constant:
                continue
            natural = source_order(len(operand.view.axes))
            format_ = operand.view.to_root(natural)
            assert format_ is not None
            choice = NodeChoice(f"outer value {value.name}", None, (Port(operand, True, place),))
            choice.alternatives.append(Alternative((format_,), natural, 0, True))
            choice.layouts.append(("as in the source",))
            self.choices.append(choice)

    def _boundary_axes(self, operand: Operand, wanted: str | None, where: str) -> Axes:
        rank = len(operand.view.axes)
        if wanted is None:
            return tuple(range(rank))
        layout = Layout.parse(wanted)
        names = self.names.of(operand) or conventional(rank)
        if names is None or sorted(layout.names) != sorted(names):
            raise UsageError(
                "the layout does not fit the tensor",
                where=where,
                expected=f"the letters of {names} in any order" if names else "a tensor whose axes have names",
                found=wanted,
                hint="the letters are those of the operators that use the tensor; `any` lets the solver choose",
            )
        if any(layout.alignment(i) > 1 or layout.boxes(i) for i in range(layout.rank)):
            raise InfeasibleError(
                "no conversion provides alignment or black boxes", conflict=(f"{where}: requires {layout}",)
            )
        return tuple(names.index(letter) for letter in layout.names)


    def node(self, node: ir.Node) -> None:
        rule = self.tensors.rules.get(node)
        wishes = self._ask(node)
        if isinstance(rule, Free):
            self._free(node, rule, wishes)
        elif isinstance(rule, Fixed):
            self._fixed(node, rule, wishes)
        elif isinstance(rule, Listed):
            self._listed(node, rule, wishes)
        else:
            self._pinned(node, wishes)

    def _ask(self, node: ir.Node) -> tuple[Implementation, ...]:
        """What the backend says; nobody can wish anything of a tensor with more dimensions than layouts have."""
        values = (v for v in (*node.inputs, *node.outputs) if v is not None and v.shape is not None)
        if any(len(v.shape) > MAX_RANK for v in values if v.shape is not None):
            nothing = Layout.any(0)
            return (Implementation((nothing,) * len(node.inputs), (nothing,) * len(node.outputs)),)
        return ask(self.backend, node)

    def _ports(self, node: ir.Node, *, skip_constants: bool = True) -> tuple[Port, ...]:
        ports: list[Port] = []
        operands = self.tensors.operands
        for is_result, values in ((False, node.inputs), (True, node.outputs)):
            for index, value in enumerate(values):
                operand = operands.get(value) if value is not None else None
                if operand is not None and not (skip_constants and operand.tensor.constant):
                    ports.append(Port(operand, is_result, index))
        return (*ports, *self._captured(node))

    def _captured(self, node: ir.Node) -> tuple[Port, ...]:
        """Values of the main graph that the node's subgraphs read: pinned, with an index past the node's inputs."""
        outer = captured_values(node)
        return tuple(
            Port(operand, False, len(node.inputs) + place)
            for place, value in enumerate(outer)
            if (operand := self.tensors.operands.get(value)) is not None and not operand.tensor.constant
        )

    def _source_format(self, port: Port) -> Order:
        format_ = port.operand.view.to_root(source_order(len(port.operand.view.axes)))
        assert format_ is not None
        return format_

    def _pinned(self, node: ir.Node, stated: tuple[Implementation, ...]) -> None:
        ports = self._ports(node)
        choice = NodeChoice(label_of(node), node, ports)
        orders: tuple[Axes | None, ...] = (None,) * len(ports)
        self._offer(choice, [(orders, None)], stated)

    def _listed(self, node: ir.Node, rule: Listed, stated: tuple[Implementation, ...]) -> None:
        ports = self._ports(node)
        offers: list[tuple[tuple[Axes | None, ...], Form]] = []
        for index, (inputs, outputs, _) in enumerate(rule.alternatives):
            orders = tuple((outputs if p.is_result else inputs)[p.index] for p in ports)
            offers.append((orders, index))
        self._offer(NodeChoice(label_of(node), node, ports), offers, stated)

    def _offer(
        self, choice: NodeChoice, offers: list[tuple[tuple[Axes | None, ...], Form]], stated: tuple[Implementation, ...]
    ) -> None:
        """Enter those of a fixed list of alternatives that the backend accepts."""
        broken: list[str] = []
        for implementation in stated:
            wish = self._wish(choice, implementation)
            for orders, form in offers:
                fault = self._first_fault(choice, wish, orders)
                if fault is not None:
                    broken.append(fault)
                    continue
                formats = []
                for port, order in zip(choice.ports, orders, strict=True):
                    own = source_order(len(port.operand.view.axes)) if order is None else order_of(order)
                    format_ = port.operand.view.to_root(own)
                    assert format_ is not None
                    self.spaces.add_format(port.operand.tensor, format_)
                    formats.append(format_)
                self._add(choice, formats, form, wish)
        if not choice.alternatives:
            raise _infeasible(choice, broken)
        self.choices.append(choice)

    def _add(self, choice: NodeChoice, formats: list[Order], form: Form, wish: _Wish) -> None:
        """Enter an alternative; of two with the same formats the cheaper stays, then the one that changes nothing."""
        natural = _changes_nothing(form) and all(
            f == self._source_format(port) for port, f in zip(choice.ports, formats, strict=True)
        )
        alternative = Alternative(tuple(formats), form, wish.implementation.cost, natural)
        shown = tuple([str(layout) if layout is not None else "" for layout in wish.layouts])
        for place, known in enumerate(choice.alternatives):
            if known.formats == alternative.formats:
                if (alternative.cost, not natural) < (known.cost, not known.is_source):
                    choice.alternatives[place], choice.layouts[place] = alternative, shown
                return
        choice.alternatives.append(alternative)
        choice.layouts.append(shown)

    def _wish(self, choice: NodeChoice, implementation: Implementation) -> _Wish:
        assert choice.node is not None
        return _Wish(implementation, choice.ports, len(choice.node.inputs))

    def _first_fault(self, choice: NodeChoice, wish: _Wish, orders: tuple[Axes | None, ...]) -> str | None:
        for port, layout, order in zip(choice.ports, wish.layouts, orders, strict=True):
            if layout is not None and not self._meets(port, layout, order, self.names.of(port.operand)):
                return f"{_place(choice, port)} requires {layout}"
        return None

    def _meets(self, port: Port, required: Layout, order: Axes | None, letters: str | None) -> bool:
        """Whether the operand, its axes in `order`, meets the layout. Where no letters are known, the source's order is
        what the requirement's letters mean."""
        rank = len(port.operand.view.axes)
        axes = order if order is not None else tuple(range(rank))
        if required.rank != rank:
            return False
        if letters is None:
            if axes != tuple(range(rank)):
                return False
            current = Layout.any(rank)
        else:
            current = Layout.from_names("".join(letters[a] for a in axes))
        tensor = self._tensor_type(port.operand, axes)
        return self.backend.is_satisfied_by(tensor, required, current)

    def _tensor_type(self, operand: Operand, axes: Axes) -> TensorType:
        dtype = operand.tensor.root.dtype
        size = max(1, dtype.bitwidth // 8) if dtype is not None and dtype.bitwidth else 4
        return TensorType(size, tuple(operand.view.extents[a] for a in axes))


    def _free(self, node: ir.Node, rule: Free, stated: tuple[Implementation, ...]) -> None:
        ports = self._ports(node)
        choice = NodeChoice(label_of(node), node, ports)
        self.choices.append(choice)
        axes_of = [(rule.outputs if p.is_result else rule.inputs)[p.index] for p in ports]
        laid = tuple([(p.operand, axes) for p, axes in zip(ports, axes_of, strict=True) if axes is not None])
        wishes = sorted(
            [self._wish(choice, implementation) for implementation in stated], key=lambda w: w.implementation.cost
        )
        space: _Space = Space(rule, laid, lambda order: self._accepted(choice, rule, axes_of, wishes, order))
        self._pending.append((choice, axes_of, space, wishes))
        self.spaces.add_space(space)
        for wish in wishes:
            self._seed_wish(choice, rule, axes_of, wish, space)

    def _seed_wish(
        self, choice: NodeChoice, rule: Free, axes_of: list[Axes | None], wish: _Wish, space: _Space
    ) -> None:
        for port, axes, layout in zip(choice.ports, axes_of, wish.layouts, strict=True):
            if layout is None or axes is None:
                continue
            letters = self._letters(rule, port, axes)
            if letters is None or sorted(layout.names) != sorted(letters):
                continue
            own = order_of(tuple(letters.index(letter) for letter in layout.names))
            format_ = port.operand.view.to_root(own)
            order = space.extend(port.operand, axes, format_) if format_ is not None else None
            if order is not None:
                self.spaces.add_order(space, order)

    def _letters(self, rule: Free, port: Port, axes: Axes | None) -> str | None:
        if rule.letters and axes is not None:
            return "".join(rule.letters[a] for a in axes)
        return self.names.of(port.operand)

    def _accepted(
        self, choice: NodeChoice, rule: Free, axes_of: list[Axes | None], wishes: list[_Wish], order: Order
    ) -> tuple[_Wish, Order] | None:
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
            for place in placements(order, rank):
                if self._meets_all(choice, rule, axes_of, wish, place) and (rule.allows(place) or rule.letters):
                    return wish, order_of(place)
        return None

    def _meets_all(
        self, choice: NodeChoice, rule: Free, axes_of: list[Axes | None], wish: _Wish, place: Axes
    ) -> bool:
        for port, axes, layout in zip(choice.ports, axes_of, wish.layouts, strict=True):
            if layout is None:
                continue
            own = tuple(axes.index(a) for a in place if a in axes) if axes is not None else None
            if not self._meets(port, layout, own, self._letters(rule, port, axes)):
                return False
        return True


    def _fixed(self, node: ir.Node, rule: Fixed, stated: tuple[Implementation, ...]) -> None:
        ports = self._ports(node)
        choice = NodeChoice(label_of(node), node, ports)
        broken: list[str] = []
        for implementation in stated:
            form = self._fixed_form(choice, rule, implementation, broken)
            if form is None:
                continue
            wish = self._wish(choice, implementation)
            formats: list[Order] = []
            for port, layout in zip(ports, wish.layouts, strict=True):
                own = (form.outputs if port.is_result else form.inputs)[port.index]
                letters = (rule.outputs if port.is_result else rule.inputs)[port.index]
                if layout is not None and not self._meets(port, layout, own, letters or self.names.of(port.operand)):
                    broken.append(f"{_place(choice, port)} requires {layout}")
                    break
                format_ = port.operand.view.to_root(
                    order_of(own) if own is not None else source_order(len(port.operand.view.axes))
                )
                assert format_ is not None
                formats.append(format_)
            else:
                for port, format_ in zip(ports, formats, strict=True):
                    self.spaces.add_format(port.operand.tensor, format_)
                self._add(choice, formats, form, wish)
        if not choice.alternatives:
            raise _infeasible(choice, broken)
        self.choices.append(choice)

    def _fixed_form(
        self, choice: NodeChoice, rule: Fixed, implementation: Implementation, broken: list[str]
    ) -> FixedForm | None:
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
                wanted = _fill(layout.names, native) if _says_something(layout) else native
                if wanted is None or sorted(wanted) != sorted(names):
                    broken.append(f"{choice.label} {word} {index} requires {layout}")
                    return None
                orders[side].append(tuple(names.index(letter) for letter in wanted))
        return FixedForm(tuple(orders[0]), tuple(orders[1]))


    def finish(self) -> Requirements:
        self.spaces.spread()
        for choice, axes_of, space, wishes in self._pending:
            self._list(choice, axes_of, space, wishes)
        for choice in self._free_boundary:
            (port,) = choice.ports
            for format_ in self.spaces.formats[port.operand.tensor]:
                own = port.operand.view.from_root(format_)
                place = next(placements(own, len(port.operand.view.axes)), None) if own is not None else None
                if place is not None:
                    choice.alternatives.append(
                        Alternative((format_,), order_of(place), 0, _changes_nothing(order_of(place)))
                    )
                    choice.layouts.append(("any",))
        warnings = []
        if self.spaces.capped:
            warnings.append(
                f"{len(self.spaces.capped)} tensors have more than {FORMATS_PER_TENSOR} formats in reach; "
                "the optimum is over the first of them"
            )
        return Requirements(self.tensors, self.names, self.choices, warnings)

    def _list(self, choice: NodeChoice, axes_of: list[Axes | None], space: _Space, wishes: list[_Wish]) -> None:
        for (wish, form), formats in space.orders.values():
            laid = iter(formats)
            every = [
                self._source_format(port) if axes is None else next(laid)
                for port, axes in zip(choice.ports, axes_of, strict=True)
            ]
            self._add(choice, every, form, wish)
        if not choice.alternatives:
            broken = [
                f"{_place(choice, port)} requires {layout}"
                for wish in wishes
                for port, layout in zip(choice.ports, wish.layouts, strict=True)
                if layout is not None
            ]
            raise _infeasible(choice, broken)


def _changes_nothing(form: Form) -> bool:
    if isinstance(form, FixedForm):
        return all(order is None or order == tuple(range(len(order))) for order in (*form.inputs, *form.outputs))
    if isinstance(form, tuple):
        return form == source_order(len(form))
    return not form


def _fill(wanted: str, native: str) -> str | None:
    """A layout with `*` in some places, the open places filled with the letters left over in ONNX's order."""
    if len(wanted) != len(native):
        return None
    rest = iter([letter for letter in native if letter not in wanted])
    filled = "".join(next(rest, "?") if letter == "*" else letter for letter in wanted)
    return filled if sorted(filled) == sorted(native) else None


def _infeasible(choice: NodeChoice, broken: list[str]) -> InfeasibleError:
    return InfeasibleError(
        f"no way to run {choice.label} meets the backend's requirements",
        conflict=tuple(dict.fromkeys(broken)),
        hint="alignment and black boxes are only met by tensors that have them already",
    )


def _place(choice: NodeChoice, port: Port) -> str:
    return f"{choice.label} {'result' if port.is_result else 'input'} {port.index}"


def label_of(node: ir.Node) -> str:
    """The node as messages name it: its operator, and its own name or its first result's."""
    return f"{node.op_type} '{node.name or (node.outputs[0].name if node.outputs else '')}'"
