"""The rewriter's state, and how one node is written in the form that was chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import onnx_ir as ir

from relayout.backend import Backend, TensorType
from relayout.binding import layout_of
from relayout.choices import FreeForm, LaidForm, NodeChoice, Port, in_source
from relayout.contract import element_size
from relayout.errors import InternalError
from relayout.formulation import Formulation, Made
from relayout.graph_codec import SOURCE_KEY
from relayout.layout_functions import DOMAIN, LAYOUT_ATTRIBUTES, Signature, Turn, ensure_function
from relayout.memory_format import Atom, Extent, Order, with_units
from relayout.paths import Dims, dims_shape
from relayout.physical import Emitter, Physical
from relayout.rewrite.constants import Constants, input_dims
from relayout.rewrite.copies import Copies
from relayout.rewrite.dims import own_dims, port_dims, root_dims
from relayout.rewrite.ways import ConversionWay, NodeWay, SpaceWay
from relayout.rules import NO_EDIT, Axes, Edit, Fixed, Free, Listed, extents_of
from relayout.rules.spatial import native_letters
from relayout.views import Operand, Tensor, captured_values, graphs_of

__all__ = ["Rewriter", "replace_inside"]

ORDER_KEY = "relayout.order"
ATOMS_KEY = "relayout.atoms"
"""The same where axes are cut: dimensions with commas between, each the atoms that make it up with `+` between, an atom
as axis:inner:outer."""
LAYOUT_KEY = "relayout.layout"


class Rewriter:
    """Changes one model in place."""

    def __init__(
        self,
        model: ir.Model,
        graph: ir.Graph,
        backend: Backend,
        formulation: Formulation,
        assignment: Sequence[int],
    ) -> None:
        self.backend = backend
        self.model = model
        self.graph = graph
        self.requirements = formulation.requirements
        self.tensors = self.requirements.tensors
        self.emitter = Emitter(_names(model), model.opset_imports.get("", 1))
        self.constants = Constants(self.tensors, self.emitter)
        self.chosen = {
            id(choice): choice.alternatives[picked]
            for choice, picked in zip(self.requirements.choices, assignment, strict=True)
        }
        self.by_node = {choice.node: choice for choice in self.requirements.choices if choice.node is not None}
        self.copies = Copies(self.emitter)
        self.made: dict[Tensor, list[Made]] = {}
        for made in formulation.conversions(assignment):
            self.made.setdefault(made.tensor, []).append(made)
        self.first = next(iter(self.graph), None)
        self.earlier = {
            value: order
            for value, operand in self.tensors.operands.items()
            if operand is not None and (order := _noted_order(value, len(operand.view.axes))) is not None
        }


    def enter_inputs(self) -> None:
        """Each graph input in its format, with the copies that somebody wants."""
        for choice in self.requirements.choices:
            if choice.node is not None:
                continue
            alternative = self.chosen[id(choice)]
            for port, format_ in zip(choice.ports, alternative.formats, strict=True):
                if port.is_result:
                    own = own_dims(choice, port, alternative.form, None)
                    self._register(port.operand.tensor.root, port.operand, format_, _present(own), None)

    def leave_outputs(self) -> None:
        """Each graph output under its own name, in its format."""
        given: set[ir.Value] = set()
        for choice in self.requirements.choices:
            if choice.node is not None:
                continue
            alternative = self.chosen[id(choice)]
            for port, format_ in zip(choice.ports, alternative.formats, strict=True):
                if port.is_result:
                    continue
                own = own_dims(choice, port, alternative.form, None)
                dims = root_dims(port.operand, own)
                found = self.copies.read(port.operand.tensor, format_, dims, stem=self._stem(port.operand))
                self._give_output(port.index, found, given)
                self._place(None)
                self._annotate(self.graph.outputs[port.index], port.operand, _present(own))

    def _give_output(self, place: int, found: Physical, given: set[ir.Value]) -> None:
        old = self.graph.outputs[place]
        value = found.value
        if value is old and value not in given:
            given.add(value)
            return
        if value.is_graph_input() or value.is_initializer() or value in given or value.is_graph_output():
            value = self.emitter.node("Identity", [value], {}, value, extents_of(value) or (), f"{old.name}_given")
        name = old.name
        if old is not value:
            old.name = self.emitter.fresh(f"{name}_source")
            value.name = name
            value.doc_string = value.doc_string or old.doc_string
        self.graph.outputs[place] = value
        given.add(value)


    def write(self, node: ir.Node) -> None:
        """Write one node of the source in its chosen form; relabels and constants are written where they are read."""
        choice = self.by_node.get(node)
        if choice is None:
            return
        form = self.chosen[id(choice)].form
        rule = self.tensors.rules.get(node)
        gather = None
        if isinstance(form, LaidForm) and form.rewrite is not None:
            self._write_by(choice, node, form)
            return
        if isinstance(form, FreeForm):
            assert isinstance(rule, Free)
            if form.rewritten:
                self._write_by_rule(choice, node, rule, form)
                return
            gather = self._write_free(choice, node, rule, form)
        else:
            assert isinstance(form, LaidForm)
            extents = _extents(choice)
            self._wire(choice, node)
            if isinstance(rule, Fixed):
                self._write_fixed(node, rule, form, extents)
            elif isinstance(rule, Listed):
                gather = self._edit(node, rule.alternatives[form.pick][2])
            self._give(choice, node)
        if graphs_of(node):
            self._wire_captured(node, choice)
        self._place(node)
        if gather is not None:
            self._gather(node, gather)
        self._copies_after(node, choice)

    def _write_by(self, choice: NodeChoice, node: ir.Node, form: LaidForm) -> None:
        """In the backend's own words."""
        assert form.rewrite is not None
        way = NodeWay(self, choice, node, form)
        form.rewrite(way)
        self._replace_node(choice, node, way.given)

    def _write_by_rule(self, choice: NodeChoice, node: ir.Node, rule: Free, form: FreeForm) -> None:
        """In other operators of ONNX's."""
        assert rule.write is not None
        way = SpaceWay(self, choice, node, rule, form)
        rule.write(way)
        self._replace_node(choice, node, way.given)

    def _replace_node(self, choice: NodeChoice, node: ir.Node, given: dict[int, Physical]) -> None:
        """What was emitted stands for the node."""
        alternative = self.chosen[id(choice)]
        rule = self.tensors.rules.get(node)
        for port, format_ in zip(choice.ports, alternative.formats, strict=True):
            if not port.is_result:
                continue
            physical = given.get(port.index)
            if physical is None:
                if node.outputs[port.index].uses() or node.outputs[port.index].is_graph_output():
                    raise InternalError(f"{choice.label}: its rewrite gives no result {port.index}")
                continue
            self.copies.enter(port.operand.tensor, format_, physical)
            own = _present(own_dims(choice, port, alternative.form, rule))
            if physical.shape is None and own != in_source(len(port.operand.view.axes)):
                self._annotate(physical.value, port.operand, own)
        self._place(node)
        self._copies_after(node, choice)

    def _write_free(self, choice: NodeChoice, node: ir.Node, rule: Free, form: FreeForm) -> Axes | None:
        """The node itself, its operands with the dimensions of the form."""
        alternative = self.chosen[id(choice)]
        ports = {(p.is_result, p.index): (p, f) for p, f in zip(choice.ports, alternative.formats, strict=True)}
        hidden = self._hidden_shape(node, rule, form, ports)
        for index, value in enumerate(node.inputs):
            axes = rule.inputs[index] if index < len(rule.inputs) else None
            if value is None:
                continue
            if (False, index) not in ports:
                if axes is not None and self.tensors.is_constant(value):
                    self._replace(node, index, self.constants.laid(value, input_dims(rule, axes, form.dims)))
                continue
            port, format_ = ports[False, index]
            tensor, stem = port.operand.tensor, self._stem(port.operand)
            dims = port_dims(choice, port, form, rule)
            if hidden is not None and axes is not None:
                self._replace(node, index, self.copies.read_as(tensor, format_, dims, hidden, stem=stem).value)
                continue
            # An operand of lower rank may as well have unit dimensions at the front: broadcasting adds them anyway.
            result_axes = rule.outputs[0] or ()
            most = len(form.dims) if axes is not None and rule.broadcasts and len(axes) < len(result_axes) else 0
            self._replace(node, index, self.copies.read(tensor, format_, dims, most=most, stem=stem).value)
        gather = None
        if hidden is None and form.dims != in_source(len(form.dims)) and self._operator(choice, node, rule, form):
            strides = {g[0].axis: g[0].inner for g in reversed(form.dims) if g[0].axis in rule.steps and len(g) == 1}
            stepped = rule.edit_steps is not None and any(stride > 1 for stride in strides.values())
            edit = rule.edit_steps(form.axes, strides) if stepped and rule.edit_steps else rule.edit(form.axes)
            gather = self._edit(node, edit)
        for index, value in enumerate(node.outputs):
            if (True, index) not in ports:
                continue
            port, format_ = ports[True, index]
            if hidden is not None and rule.outputs[index] is not None:
                value.shape = ir.Shape(hidden)
                self.copies.enter(port.operand.tensor, format_, Physical(value, port_dims(choice, port, form, rule), hidden))
            else:
                self._register(value, port.operand, format_, _present(own_dims(choice, port, form, rule)), node)
        return gather

    def _hidden_shape(
        self, node: ir.Node, rule: Free, form: FreeForm, ports: dict[tuple[bool, int], tuple[Port, Order]]
    ) -> tuple[Extent, ...] | None:
        """Where an element-wise node reads only tensors that a shape hides, all the same one, it works on them as they
        are: elements at equal places meet. None elsewhere."""
        axes = tuple(range(len(rule.extents)))
        elementwise = rule.splits == rule.broadcasts == axes and rule.edit(form.axes) is NO_EDIT
        if not elementwise or all(a.is_whole for group in form.dims for a in group):
            return None
        found: set[tuple[Extent, ...] | None] = set()
        for index, value in enumerate(node.inputs):
            own = rule.inputs[index] if index < len(rule.inputs) else None
            if value is None or own is None or own == ():
                continue
            if (False, index) not in ports:
                return None
            port, format_ = ports[False, index]
            if own != axes or port.operand.view.extents != rule.extents:
                return None
            found.add(self.copies.hidden(port.operand.tensor, format_))
        shared = next(iter(found)) if len(found) == 1 else None
        return shared if all(own in (axes, None) for own in rule.outputs) else None

    def _operator(self, choice: NodeChoice, node: ir.Node, rule: Free, form: FreeForm) -> bool:
        """ONNX's own operator where it takes this order, else `relayout::` with the layout in letters; whether it is
        ONNX's own, whose attributes speak of the axes as they lie."""
        if not rule.letters:
            return True
        data = choice.ports[0].operand.view.extents
        layout = _word(form.dims, rule.letters, data if len(data) == len(rule.letters) else None)
        native = native_letters(len(rule.letters))
        if rule.allows(form.axes) and (layout == native or not form.asked):
            if node.domain == DOMAIN:
                _standard(node)
            return True
        assert layout is not None  # only what a backend's layout names is written so
        places = tuple(native.index(letter) for letter in rule.letters)

        extents = _extents(choice)

        def turn(axes: Axes | None, index: int, *, is_result: bool) -> Turn | None:
            if axes is None or len(axes) != len(places):
                return None
            return _turn(form.dims, places, extents.get((is_result, index)))

        self._relayout(
            node,
            (("data_layout", layout),),
            tuple(turn(axes, index, is_result=False) for index, axes in enumerate(rule.inputs)),
            tuple(turn(axes, index, is_result=True) for index, axes in enumerate(rule.outputs)),
        )
        return False

    def _write_fixed(
        self, node: ir.Node, rule: Fixed, form: LaidForm, extents: dict[tuple[bool, int], tuple[Extent, ...]]
    ) -> None:
        """An operator with named axes: ONNX's own where it reads these layouts, else `relayout::`."""

        def words(letters: Sequence[str | None], laid: Sequence[Dims | None], is_result: bool) -> list[str | None]:
            return [
                _word(dims, names, extents.get((is_result, index))) if names is not None and dims is not None else None
                for index, (names, dims) in enumerate(zip(letters, laid, strict=True))
            ]

        laid, results = words(rule.inputs, form.inputs, False), words(rule.outputs, form.outputs, True)
        if laid == list(rule.native_inputs) and results == list(rule.native_outputs):
            if node.domain == DOMAIN:
                _standard(node)
            return
        if all(d is None or d == in_source(len(d)) for d in (*form.inputs, *form.outputs)):
            return
        data, result = laid[0], results[0]
        assert data is not None
        assert result is not None
        layouts = [("data_layout", data)]
        if rule.kernel is not None:
            kernel = laid[rule.kernel]
            assert kernel is not None
            layouts.append(("kernel_layout", kernel))
        if result != data:
            layouts.append(("out_layout", result))

        def turns(
            letters: Sequence[str | None], natives: Sequence[str | None], laid: Sequence[Dims | None], is_result: bool
        ) -> tuple[Turn | None, ...]:
            found: list[Turn | None] = []
            for index, (names, native, dims) in enumerate(zip(letters, natives, laid, strict=True)):
                if names is None or native is None or dims is None:
                    found.append(None)
                else:
                    places = tuple(native.index(letter) for letter in names)
                    found.append(_turn(dims, places, extents.get((is_result, index))))
            return tuple(found)

        self._relayout(
            node,
            tuple(layouts),
            turns(rule.inputs, rule.native_inputs, form.inputs, False),
            turns(rule.outputs, rule.native_outputs, form.outputs, True),
        )

    def _relayout(
        self,
        node: ir.Node,
        layouts: tuple[tuple[str, str], ...],
        inputs: tuple[Turn | None, ...],
        results: tuple[Turn | None, ...],
    ) -> None:
        used = max((i for i, v in enumerate(node.outputs) if v.uses() or v.is_graph_output()), default=0) + 1
        turned = [turn.outward() if turn is not None else None for turn in results[: max(used, 1)]]
        signature = Signature(node.op_type, layouts, inputs, tuple(turned))
        _standard(node)
        node.resize_outputs(len(signature.results))
        node.domain = DOMAIN
        node.overload = ensure_function(self.model, signature)
        for name, layout in layouts:
            node.attributes[name] = ir.AttrString(name, layout)

    def _wire(self, choice: NodeChoice, node: ir.Node) -> None:
        """Let each input read its copy; constants are re-laid out."""
        form = self.chosen[id(choice)].form
        formats = self.chosen[id(choice)].formats
        rule = self.tensors.rules.get(node)
        assert isinstance(form, LaidForm)
        ports = {p.index: (p, f) for p, f in zip(choice.ports, formats, strict=True) if not p.is_result}
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if index in ports:
                port, format_ = ports[index]
                dims = port_dims(choice, port, form, rule)
                found = self.copies.read(port.operand.tensor, format_, dims, stem=self._stem(port.operand))
                self._replace(node, index, found.value)
                continue
            own = form.inputs[index] if index < len(form.inputs) else None
            if own is not None and self.tensors.is_constant(value):
                self._replace(node, index, self.constants.laid(value, own))

    def _wire_captured(self, node: ir.Node, choice: NodeChoice) -> None:
        captured = captured_values(node)
        formats = self.chosen[id(choice)].formats
        for port, format_ in zip(choice.ports, formats, strict=True):
            if port.is_result or port.index < len(node.inputs):
                continue
            value = captured[port.index - len(node.inputs)]
            dims = root_dims(port.operand, in_source(len(port.operand.view.axes)))
            found = self.copies.read(port.operand.tensor, format_, dims, stem=self._stem(port.operand))
            if found.value is not value:
                replace_inside(node, value, found.value)

    def _give(self, choice: NodeChoice, node: ir.Node) -> None:
        alternative = self.chosen[id(choice)]
        for port, format_ in zip(choice.ports, alternative.formats, strict=True):
            if port.is_result:
                own = _present(own_dims(choice, port, alternative.form, None))
                self._register(node.outputs[port.index], port.operand, format_, own, node)

    def _edit(self, node: ir.Node, edit: Edit) -> Axes | None:
        for name, setting in edit.attributes.items():
            if setting is None:
                node.attributes.pop(name, None)
            else:
                node.attributes[name] = ir.convenience.convert_attribute(name, setting)
        for index, array in edit.constants.items():
            if index >= len(node.inputs):
                node.resize_inputs(index + 1)
            self._replace(node, index, self.emitter.constant(f"{node.outputs[0].name}_{index}", array))
        return edit.gather

    def _gather(self, node: ir.Node, order: Axes) -> None:
        """The node's result is a vector over axes: read it back in the source's order."""
        raw = node.outputs[0]
        places = self.emitter.integers(f"{raw.name}_axes", order)
        extents = extents_of(raw)
        read = self.emitter.node("Gather", [raw, places], {"axis": 0}, raw, extents or (), f"{raw.name}_in_order")
        self.copies.replace(raw, read)
        self._place_after(node)


    def _register(
        self, value: ir.Value, operand: Operand, format_: Order, own: Dims, node: ir.Node | None
    ) -> None:
        """`value` now holds the operand's tensor with these dimensions of its own axes."""
        dims = root_dims(operand, own)
        self.copies.enter(operand.tensor, format_, Physical(value, dims))
        if own != in_source(len(operand.view.axes)):
            value.shape = ir.Shape(dims_shape(dims, operand.tensor.extents))
            self._annotate(value, operand, own)
        if node is None:
            self._make_copies(operand.tensor, stem=value.name or "")
            self._place(None, front=True)

    def _annotate(self, value: ir.Value, operand: Operand, own: Dims) -> None:
        """Say how the value lies. A source that was legal once says of its own values how they lay before: the two
        orders are one after the other."""
        rank = len(operand.view.axes)
        earlier = self.earlier.get(operand.value, tuple(range(rank)))
        for key in (ORDER_KEY, ATOMS_KEY, LAYOUT_KEY):
            value.metadata_props.pop(key, None)
        laid = tuple(tuple(Atom(earlier[a.axis], a.inner, a.outer) for a in group) for group in own)
        if laid == in_source(rank):
            return
        if all(len(group) == 1 and group[0].is_whole for group in laid):
            value.metadata_props[ORDER_KEY] = ",".join(str(group[0].axis) for group in laid)
        else:
            value.metadata_props[ATOMS_KEY] = ",".join("+".join(map(_atom_text, group)) for group in laid)
        layout = self.requirements.names.layout(operand, _flat(own))
        if layout is not None and layout.rank == len(own):
            value.metadata_props[LAYOUT_KEY] = str(layout)

    def _copies_after(self, node: ir.Node, choice: NodeChoice) -> None:
        for port in choice.ports:
            if port.is_result:
                self._make_copies(port.operand.tensor, stem=self._stem(port.operand))
        self._place_after(node)

    def _make_copies(self, tensor: Tensor, stem: str) -> None:
        """One Transpose for each format that is wanted and was not given, in the dimensions of its first reader."""
        for made in self.made.get(tensor, ()):
            if self._made_by_backend(made, stem):
                continue
            source = self._plainest(made)
            copy = self.emitter.convert(source, self._first_dims(made), tensor.extents, f"{stem}_laid")
            self.copies.enter(tensor, made.target, copy)
            axes = _axes_of(copy.dims, len(tensor.extents))
            if axes is not None:
                root = self.tensors.operands[tensor.root]
                assert root is not None
                self._annotate(copy.value, root, tuple((Atom(axis),) for axis in axes))

    def _plainest(self, made: Made) -> Physical:
        return self.copies.first(made.tensor, made.source)

    def _made_by_backend(self, made: Made, stem: str) -> bool:
        """Write the conversion with the backend's own operator, where it has one."""
        backend = self.backend.at(made.place)
        if type(backend).conversion is Backend.conversion:
            return False
        root = self.tensors.operands[made.tensor.root]
        assert root is not None
        layouts = [self.requirements.names.layout(root, order) for order in self._in_full(made)]
        source, target = layouts
        if source is None or target is None:
            return False
        tensor = TensorType(
            element_size(made.tensor.root), tuple(dims_shape(_singly(self._in_full(made)[0]), made.tensor.extents))
        )
        reordering = backend.conversion(tensor, source, target)
        if reordering is None or reordering.rewrite is None:
            return False
        way = ConversionWay(self, made, *(_singly(order) for order in self._in_full(made)), stem=stem)
        reordering.rewrite(way)
        self.copies.enter(made.tensor, made.target, way.given[0])
        return True

    def _in_full(self, made: Made) -> tuple[Order, Order]:
        """Both formats with their unit axes, as layouts have them."""
        extents = made.tensor.extents
        return with_units(made.source, extents), with_units(made.target, extents)

    def _first_dims(self, made: Made) -> Dims:
        touch = made.wanted_by[0]
        choice = self.requirements.choices[touch.choice]
        rule = self.tensors.rules.get(choice.node) if choice.node is not None else None
        return port_dims(choice, choice.ports[touch.port], self.chosen[id(choice)].form, rule)

    def _stem(self, operand: Operand) -> str:
        return operand.tensor.root.name or "value"


    def _replace(self, node: ir.Node, index: int, value: ir.Value) -> None:
        if node.inputs[index] is not value:
            node.replace_input_with(index, value)

    def _place(self, node: ir.Node | None, *, front: bool = False) -> None:
        """Put what was emitted before `node`; without one at the graph's end, or its front."""
        emitted, self.emitter.emitted = self.emitter.emitted, []
        if not emitted:
            return
        if node is not None:
            self.graph.insert_before(node, emitted)
        elif front and self.first is not None:
            self.graph.insert_before(self.first, emitted)
        else:
            self.graph.extend(emitted)

    def _place_after(self, node: ir.Node) -> None:
        emitted, self.emitter.emitted = self.emitter.emitted, []
        if emitted:
            self.graph.insert_after(node, emitted)

    def clean_up(self) -> None:
        """Enter the new constants, and drop what nothing reads any more."""
        for value in self.emitter.constants:
            self.graph.register_initializer(value)
        for node in reversed(list(self.graph)):
            if not any(v.uses() or v.is_graph_output() for v in node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del self.graph.initializers[name]
        for source, copies in self.constants.replaced.items():
            # A weight that exists in one layout only keeps its name.
            gone = source.producer() is None and source.name and source.name not in self.graph.initializers
            if gone and len(copies) == 1 and copies[0].name in self.graph.initializers:
                copies[0].name = source.name
                copies[0].metadata_props.pop(SOURCE_KEY, None)
                if copies[0].const_value is not None:
                    copies[0].const_value.name = source.name


def _names(model: ir.Model) -> set[str]:
    """Every value's and node's name, in subgraphs too: an inner name must not hide an outer one."""
    names: set[str] = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        names.update(v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name)
        for node in graph:
            names.add(node.name or "")
            names.update(v.name for v in node.outputs if v.name)
    return names


def _noted_order(value: ir.Value, rank: int) -> Axes | None:
    """The order that an earlier run noted; None where there is none, or what is there is none of ours."""
    axes = value.metadata_props.get(ORDER_KEY, "").split(",")
    order = tuple(int(axis) for axis in axes if axis.isdecimal())
    return order if sorted(order) == list(range(rank)) and len(axes) == rank else None


def _axes_of(dims: Dims, rank: int) -> tuple[int, ...] | None:
    """The root's axis in each dimension, where every dimension is one whole axis."""
    axes = tuple(group[0].axis for group in dims if len(group) == 1 and group[0].is_whole)
    return axes if len(axes) == len(dims) == rank else None


def _present(own: Sequence[Order | None]) -> Dims:
    return tuple(group for group in own if group is not None)


def _flat(dims: Dims) -> Order:
    return tuple(chain.from_iterable(dims))


def _atom_text(atom: Atom) -> str:
    return str(atom.axis) if atom.is_whole else f"{atom.axis}:{atom.inner}:{atom.outer}"


def _singly(order: Order) -> Dims:
    return tuple((atom,) for atom in order)


def _word(dims: Dims, letters: str, extents: tuple[Extent, ...] | None) -> str | None:
    """The layout of these dimensions. Factors that change places within one dimension are the axis itself."""
    groups = [group if len(group) == 1 else (Atom(group[0].axis),) for group in dims]
    layout = layout_of(_flat(tuple(groups)), letters, extents)
    return str(layout) if layout is not None else None


def _extents(choice: NodeChoice) -> dict[tuple[bool, int], tuple[Extent, ...]]:
    """Each operand's extents as in the source, constants' too."""
    assert choice.node is not None
    found: dict[tuple[bool, int], tuple[Extent, ...]] = {}
    for index, value in enumerate(choice.node.inputs):
        extents = extents_of(value) if value is not None else None
        if extents is not None:
            found[False, index] = extents
    for port in choice.ports:
        found[port.is_result, port.index] = port.operand.view.extents
    return found


def _turn(dims: Dims, places: Sequence[int], extents: tuple[Extent, ...] | None) -> Turn:
    """From an operand that has `dims` to ONNX's order, where axis i of the source is axis `places[i]`."""
    lies = tuple(
        (Atom(places[group[0].axis]),)
        if len(group) > 1
        else tuple(Atom(places[atom.axis], atom.inner, atom.outer) for atom in group)
        for group in dims
    )
    native: list[Extent] = [None] * len(places)
    for axis, place in enumerate(places):
        native[place] = extents[axis] if extents is not None else None
    return Turn.inward(lies, tuple(native))


def _standard(node: ir.Node) -> None:
    node.domain, node.overload = "", ""
    for name in LAYOUT_ATTRIBUTES:
        node.attributes.pop(name, None)


def replace_inside(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Let the graphs inside a node read `new` where they read `old`."""
    for outer in graphs_of(node):
        for graph in (outer, *outer.subgraphs()):
            for inner in graph:
                for index, value in enumerate(inner.inputs):
                    if value is old:
                        inner.replace_input_with(index, new)
            for place, value in enumerate(graph.outputs):
                if value is old:
                    graph.outputs[place] = new
