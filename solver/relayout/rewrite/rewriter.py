"""The rewriter's state, and how one node is written in the form that was chosen for it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.choices import FixedForm, NodeChoice, Port
from relayout.errors import InternalError
from relayout.formulation import Formulation, Made
from relayout.graph_codec import SOURCE_KEY
from relayout.layout_functions import DOMAIN, LAYOUT_ATTRIBUTES, Signature, ensure_function
from relayout.memory_format import Atom, Order, order_of, source_order
from relayout.rewrite.constants import Constants, broadcast_shape, input_places
from relayout.rewrite.physical import Dims, Emitter, Physical, dims_shape, same_but_leading_units
from relayout.rules import Axes, Edit, Fixed, Free, Listed, extents_of
from relayout.rules.spatial import native_letters
from relayout.views import Operand, Tensor, captured_values, graphs_of

__all__ = ["Rewriter"]

ORDER_KEY = "relayout.order"
LAYOUT_KEY = "relayout.layout"


class Rewriter:
    """Changes one model in place."""

    def __init__(
        self, model: ir.Model, graph: ir.Graph, formulation: Formulation, assignment: Sequence[int]
    ) -> None:
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
        self.copies: dict[tuple[Tensor, Order], list[Physical]] = {}
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
            form = alternative.form
            assert isinstance(form, tuple)
            for port, format_ in zip(choice.ports, alternative.formats, strict=True):
                if port.is_result:
                    self._register(port.operand.tensor.root, port.operand, format_, form, None)

    def leave_outputs(self) -> None:
        """Each graph output under its own name, in its format."""
        given: set[ir.Value] = set()
        for choice in self.requirements.choices:
            if choice.node is not None:
                continue
            alternative = self.chosen[id(choice)]
            form = alternative.form
            assert isinstance(form, tuple)
            for port, format_ in zip(choice.ports, alternative.formats, strict=True):
                if port.is_result:
                    continue
                dims = _dims_of(port.operand, form)
                found = self._read(port.operand.tensor, format_, dims, stem=self._stem(port.operand))
                self._give_output(port.index, found, given)
                self._place(None)
                self._annotate(self.graph.outputs[port.index], port.operand, form)

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
        alternative = self.chosen[id(choice)]
        rule = self.tensors.rules.get(node)
        form = alternative.form
        if isinstance(rule, Free) and isinstance(form, tuple):
            gather = self._write_free(node, rule, form)
        elif isinstance(rule, Fixed) and isinstance(form, FixedForm):
            gather = self._write_fixed(node, rule, form)
        elif isinstance(rule, Listed) and isinstance(form, int):
            inputs, outputs, edit = rule.alternatives[form]
            self._wire(node, choice, inputs)
            gather = self._edit(node, edit)
            self._give(node, choice, outputs)
        else:
            self._wire(node, choice, (None,) * len(node.inputs))
            gather = None
            self._give(node, choice, (None,) * len(node.outputs))
        if graphs_of(node):
            self._wire_captured(node, choice)
        self._place(node)
        if gather is not None:
            self._gather(node, gather)
        self._copies_after(node, choice)

    def _write_free(self, node: ir.Node, rule: Free, form: Order) -> Axes | None:
        choice = self.by_node[node]
        alternative = self.chosen[id(choice)]
        ports = {(p.is_result, p.index): (p, f) for p, f in zip(choice.ports, alternative.formats, strict=True)}
        whole = tuple(a.axis for a in form) if all(a.is_whole for a in form) else None
        whole = whole if whole is not None and len(whole) == len(rule.extents) else None
        for index, value in enumerate(node.inputs):
            axes = rule.inputs[index] if index < len(rule.inputs) else None
            if value is None:
                continue
            if (False, index) not in ports:
                if axes is not None and self.tensors.is_constant(value):
                    self._replace(node, index, self._constant_in(value, rule, axes, form, whole))
                continue
            port, format_ = ports[False, index]
            if axes is None:
                dims = _dims_of(port.operand, source_order(len(port.operand.view.axes)))
            else:
                dims = _input_dims(port.operand, rule, axes, form, whole)
            # An operand of lower rank may as well have unit dimensions at the front: broadcasting adds them anyway.
            most = _full_rank(rule, form, whole) if axes is not None and rule.broadcasts else 0
            most = most if axes is not None and len(axes) < len(rule.outputs[0] or ()) else 0
            found = self._read(port.operand.tensor, format_, dims, most=most, stem=self._stem(port.operand))
            self._replace(node, index, found.value)
        gather = None
        if whole is not None:
            native = self._operator(node, rule, whole)
            if native and whole != tuple(range(len(whole))):
                gather = self._edit(node, rule.edit(whole))
        for index, value in enumerate(node.outputs):
            if (True, index) not in ports:
                continue
            port, format_ = ports[True, index]
            axes = rule.outputs[index] if index < len(rule.outputs) else None
            if axes is None:
                own = source_order(len(port.operand.view.axes))
            elif whole is not None:
                own = order_of(tuple(axes.index(a) for a in whole if a in axes))
            else:
                own = tuple(Atom(axes.index(a.axis), a.inner, a.outer) for a in form)
            self._register(value, port.operand, format_, own, node)
        return gather

    def _constant_in(self, value: ir.Value, rule: Free, axes: Axes, form: Order, whole: Axes | None) -> ir.Value:
        extents = extents_of(value)
        assert extents is not None
        if whole is not None:
            places = input_places(rule, axes, whole)
            return self.constants.laid(value, [p for p in places if p is not None], broadcast_shape(extents, places))
        # Factors of axes stand apart: split the constant's own axes the same way, unit axes staying one dimension each.
        fine: list[int] = []
        order: list[tuple[int, int]] = []
        starts: dict[tuple[int, int], int] = {}
        for place, axis in enumerate(axes):
            extent = extents[place]
            atoms = sorted((a for a in form if a.axis == axis), key=lambda a: -a.inner)
            for atom in atoms:
                starts[axis, atom.inner] = len(fine)
                whole_extent = rule.extents[axis]
                if extent == 1:
                    fine.append(1)
                else:
                    assert isinstance(whole_extent, int)
                    fine.append((atom.outer or whole_extent) // atom.inner)
            if not atoms and extent != 1:
                raise InternalError(f"constant '{value.name}' has an axis that the node's order lacks")
            if not atoms:
                order.append((axis, 0))
                starts[axis, 0] = len(fine)
                fine.append(1)
        present = set(axes)
        perm = [starts[key] for key in order] + [starts[a.axis, a.inner] for a in form if a.axis in present]
        split = self.constants.laid(value, range(len(extents)), fine)
        shape = [1 if a.axis not in present else fine[starts[a.axis, a.inner]] for a in form]
        return self.constants.laid(split, perm, shape)

    def _operator(self, node: ir.Node, rule: Free, whole: Axes) -> bool:
        """ONNX's own operator where it takes this order, else `relayout::` with the layout in letters; whether it is
        ONNX's own, whose attributes speak of the axes as they lie."""
        if not rule.letters or whole == tuple(range(len(whole))):
            return True
        layout = "".join(rule.letters[a] for a in whole)
        native = native_letters(len(rule.letters))
        if rule.allows(whole) and (layout == native or not self._asked(node)):
            if node.domain == DOMAIN:
                _standard(node)
            return True
        inward = tuple(layout.index(letter) for letter in native)
        outward = tuple(native.index(letter) for letter in layout)
        data_inputs = tuple(axes is not None and len(axes) == len(whole) for axes in rule.inputs)
        data_results = tuple(axes is not None for axes in rule.outputs)
        self._relayout(
            node,
            (("data_layout", layout),),
            tuple(inward if d else None for d in data_inputs),
            tuple(outward if d else None for d in data_results),
        )
        return False

    def _asked(self, node: ir.Node) -> bool:
        """Whether the backend named this layout; then the node says it too, for its own axes alone would not."""
        choice = self.by_node[node]
        place = choice.alternatives.index(self.chosen[id(choice)])
        return any(choice.layouts[place])

    def _write_fixed(self, node: ir.Node, rule: Fixed, form: FixedForm) -> Axes | None:
        choice = self.by_node[node]
        self._wire(node, choice, form.inputs)
        laid = [_in_letters(n, o) for n, o in zip(rule.inputs, form.inputs, strict=True)]
        results = [_in_letters(n, o) for n, o in zip(rule.outputs, form.outputs, strict=True)]
        unchanged = all(
            o is None or o == tuple(range(len(o))) for o in (*form.inputs, *form.outputs)
        )
        if laid == list(rule.native_inputs) and results == list(rule.native_outputs):
            if node.domain == DOMAIN:
                _standard(node)
        elif not unchanged:
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
            self._relayout(
                node,
                tuple(layouts),
                tuple(_perm(lies, reads) for lies, reads in zip(laid, rule.native_inputs, strict=True)),
                tuple(_perm(gives, lies) for lies, gives in zip(results, rule.native_outputs, strict=True)),
            )
        self._give(node, choice, form.outputs)
        return None

    def _relayout(
        self,
        node: ir.Node,
        layouts: tuple[tuple[str, str], ...],
        input_perms: tuple[tuple[int, ...] | None, ...],
        result_perms: tuple[tuple[int, ...] | None, ...],
    ) -> None:
        used = max((i for i, v in enumerate(node.outputs) if v.uses() or v.is_graph_output()), default=0) + 1
        signature = Signature(node.op_type, layouts, input_perms, result_perms[: max(used, 1)])
        _standard(node)
        node.resize_outputs(len(signature.result_perms))
        node.domain = DOMAIN
        node.overload = ensure_function(self.model, signature)
        for name, layout in layouts:
            node.attributes[name] = ir.AttrString(name, layout)

    def _wire(self, node: ir.Node, choice: NodeChoice, orders: Sequence[Axes | None]) -> None:
        """Let each input read its copy; constants are re-laid out."""
        formats = self.chosen[id(choice)].formats
        ports = {p.index: (p, f) for p, f in zip(choice.ports, formats, strict=True) if not p.is_result}
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            order = orders[index] if index < len(orders) else None
            if index not in ports:
                if order is not None and self.tensors.is_constant(value):
                    self._replace(node, index, self.constants.laid(value, order))
                continue
            port, format_ = ports[index]
            own = order_of(order) if order is not None else source_order(len(port.operand.view.axes))
            found = self._read(
                port.operand.tensor, format_, _dims_of(port.operand, own), stem=self._stem(port.operand)
            )
            self._replace(node, index, found.value)

    def _wire_captured(self, node: ir.Node, choice: NodeChoice) -> None:
        captured = captured_values(node)
        formats = self.chosen[id(choice)].formats
        for port, format_ in zip(choice.ports, formats, strict=True):
            if port.is_result or port.index < len(node.inputs):
                continue
            value = captured[port.index - len(node.inputs)]
            dims = _dims_of(port.operand, source_order(len(port.operand.view.axes)))
            found = self._read(port.operand.tensor, format_, dims, stem=self._stem(port.operand))
            if found.value is not value:
                _replace_inside(node, value, found.value)

    def _give(self, node: ir.Node, choice: NodeChoice, orders: Sequence[Axes | None]) -> None:
        for port, format_ in zip(choice.ports, self.chosen[id(choice)].formats, strict=True):
            if port.is_result:
                order = orders[port.index] if port.index < len(orders) else None
                own = order_of(order) if order is not None else source_order(len(port.operand.view.axes))
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
        for key, known in self.copies.items():
            self.copies[key] = [Physical(read, k.dims) if k.value is raw else k for k in known]
        self._place_after(node)


    def _register(
        self, value: ir.Value, operand: Operand, format_: Order, own: Order, node: ir.Node | None
    ) -> None:
        """`value` now holds the operand's tensor with its axes in the order `own`."""
        dims = _dims_of(operand, own)
        self.copies[operand.tensor, format_] = [Physical(value, dims)]
        if own != source_order(len(operand.view.axes)):
            value.shape = ir.Shape(dims_shape(dims, operand.tensor.extents))
            self._annotate(value, operand, own)
        if node is None:
            self._make_copies(operand.tensor, stem=value.name or "")
            self._place(None, front=True)

    def _annotate(self, value: ir.Value, operand: Operand, own: Order) -> None:
        """Say how the value lies. A source that was legal once says of its own values how they lay before: the two
        orders are one after the other."""
        rank = len(operand.view.axes)
        earlier = self.earlier.get(operand.value, tuple(range(rank)))
        order = tuple(earlier[a.axis] for a in own if a.is_whole)
        value.metadata_props.pop(ORDER_KEY, None)
        value.metadata_props.pop(LAYOUT_KEY, None)
        if len(order) != rank or order == tuple(range(rank)):
            return
        value.metadata_props[ORDER_KEY] = ",".join(map(str, order))
        letters = self.requirements.names.in_order(operand, own)
        if letters:
            value.metadata_props[LAYOUT_KEY] = letters

    def _copies_after(self, node: ir.Node, choice: NodeChoice) -> None:
        for port in choice.ports:
            if port.is_result:
                self._make_copies(port.operand.tensor, stem=self._stem(port.operand))
        self._place_after(node)

    def _make_copies(self, tensor: Tensor, stem: str) -> None:
        """One Transpose for each format that is wanted and was not given, in the dimensions of its first reader."""
        for made in self.made.get(tensor, ()):
            source = self.copies[tensor, made.source][0]
            target = self._first_dims(made)
            copy = self.emitter.transpose(source, target, tensor.extents, f"{stem}_laid")
            self.copies[tensor, made.target] = [copy]
            axes = _axes_of(copy.dims, len(tensor.extents))
            if axes is not None:
                root = self.tensors.operands[tensor.root]
                assert root is not None
                self._annotate(copy.value, root, order_of(axes))

    def _first_dims(self, made: Made) -> Dims:
        touch = made.wanted_by[0]
        choice = self.requirements.choices[touch.choice]
        port = choice.ports[touch.port]
        form = self.chosen[id(choice)].form
        return self._wanted_dims(choice, port, form)

    def _wanted_dims(self, choice: NodeChoice, port: Port, form: object) -> Dims:
        identity = source_order(len(port.operand.view.axes))
        if choice.node is None:
            assert isinstance(form, tuple)
            return _dims_of(port.operand, form)
        rule = self.tensors.rules.get(choice.node)
        if port.index >= len(choice.node.inputs):
            return _dims_of(port.operand, identity)
        if isinstance(rule, Free) and isinstance(form, tuple):
            axes = rule.inputs[port.index]
            if axes is None:
                return _dims_of(port.operand, identity)
            whole = tuple(a.axis for a in form) if all(a.is_whole for a in form) else None
            whole = whole if whole is not None and len(whole) == len(rule.extents) else None
            return _input_dims(port.operand, rule, axes, form, whole)
        if isinstance(form, FixedForm):
            order = form.inputs[port.index]
        elif isinstance(rule, Listed) and isinstance(form, int):
            order = rule.alternatives[form][0][port.index]
        else:
            order = None
        return _dims_of(port.operand, order_of(order) if order is not None else identity)

    def _read(
        self, tensor: Tensor, format_: Order, dims: Dims, *, stem: str, most: int = 0
    ) -> Physical:
        """The tensor in this format and with these dimensions, regrouped if nobody had them so yet. Unit dimensions in
        front are let pass up to `most` dimensions."""
        known = self.copies.get((tensor, format_))
        if known is None:
            raise InternalError(f"tensor '{tensor.root.name}' is read in a format that nothing gives")
        for physical in known:
            if physical.dims == dims:
                return physical
            if len(dims) < len(physical.dims) <= most and same_but_leading_units(physical.dims, dims):
                return physical
        regrouped = self.emitter.regroup(known[0], dims, tensor.extents, f"{stem}_view")
        known.append(regrouped)
        return regrouped

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


def _dims_of(operand: Operand, own: Order) -> Dims:
    """The dimensions of the operand with its axes in the order `own`: each as atoms of the root."""
    view = operand.view
    dims: list[Order] = []
    for atom in own:
        if view.extents[atom.axis] == 1:
            dims.append(())
        elif atom.is_whole:
            dims.append(view.axes[atom.axis])
        else:
            group = view.to_root((atom,))
            assert group is not None
            dims.append(group)
    return tuple(dims)


def _full_rank(rule: Free, form: Order, whole: Axes | None) -> int:
    return len(form) if whole is None else len(rule.outputs[0] or ())


def _input_dims(operand: Operand, rule: Free, axes: Axes, form: Order, whole: Axes | None) -> Dims:
    """An input's dimensions when the space is in the order `form`, with unit dimensions for axes that it lacks."""
    if whole is not None:
        places = input_places(rule, axes, whole)
        return tuple(_dims_of(operand, order_of((p,)))[0] if p is not None else () for p in places)
    dims: list[Order] = []
    for atom in form:
        if atom.axis in axes:
            place = axes.index(atom.axis)
            dims += _dims_of(operand, (Atom(place, atom.inner, atom.outer),))
        elif dims:
            dims.append(())
    return tuple(dims)


def _axes_of(dims: Dims, rank: int) -> tuple[int, ...] | None:
    """The root's axis in each dimension, where every dimension is one whole axis."""
    axes = tuple(group[0].axis for group in dims if len(group) == 1 and group[0].is_whole)
    return axes if len(axes) == len(dims) == rank else None


def _in_letters(names: str | None, order: Axes | None) -> str | None:
    return None if names is None or order is None else "".join(names[a] for a in order)


def _perm(source: str | None, target: str | None) -> tuple[int, ...] | None:
    return None if source is None or target is None else tuple(source.index(letter) for letter in target)


def _standard(node: ir.Node) -> None:
    node.domain, node.overload = "", ""
    for name in LAYOUT_ATTRIBUTES:
        node.attributes.pop(name, None)


def _replace_inside(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    for outer in graphs_of(node):
        for graph in (outer, *outer.subgraphs()):
            for inner in graph:
                for index, value in enumerate(inner.inputs):
                    if value is old:
                        inner.replace_input_with(index, new)
            for place, value in enumerate(graph.outputs):
                if value is old:
                    graph.outputs[place] = new
