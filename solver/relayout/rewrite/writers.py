"""The writers passed to rewrites: of a node or conversion by a backend, and of a decomposition by a rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.backend.failures import guarded, wrong_answer
from relayout.backend.interface import Backend, rank_of
from relayout.backend.rewriting import Extents, Rewrite
from relayout.candidates.alternatives import FixedLowering, FreeLowering, Port, in_source
from relayout.candidates.dry_run import ChosenOrder
from relayout.candidates.tensors import Tensor
from relayout.errors import BackendError
from relayout.formulate.plan import PlannedConversion, PlannedNode
from relayout.layout.conversion import Dims, dims_shape, flat
from relayout.layout.memory_format import Atom, Extent, MemoryFormat, normal_form
from relayout.layout.metadata_keys import OPERAND_ORDERS_KEY, WRITTEN_FOR_KEY
from relayout.layout.relaid_constant import fault_of
from relayout.model.emit import Physical
from relayout.model.layout_functions import ensure_body
from relayout.ops import Axes, Free, Replacement, extents_of, is_read, regrouped
from relayout.ops.logical_node import lies_as, logical
from relayout.ops.node_reader import constant_tensor
from relayout.ops.operand_roles import OWN_DOMAIN, has_roles, operand_letters
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.copies import stem_of
from relayout.rewrite.operand_dims import base_dims, port_dims


class _Writer:
    """The common part: it emits constants and `nodes`, and collects the defined results. `written_for` is the
    operator in whose place the nodes stand, "" for a conversion."""

    def __init__(self, context: RewriteContext, stem: str, written_for: str = "") -> None:
        self._context = context
        self._stem = stem
        self._written_for = written_for
        self.nodes: list[ir.Node] = []
        self.defined: dict[int, Physical] = {}

    @property
    def opset(self) -> int:
        return self._context.emitter.opset

    def _write(self, backend: Backend, rewrite: Rewrite, where: str, results: Collection[int]) -> None:
        """Run the backend's rewrite. Raises BackendError if it fails or does not define one of these results."""
        with guarded(backend, "a rewrite", where):
            rewrite(self)  # type: ignore[arg-type]  # the subclasses have the rest of the protocol
        for index in results:
            if index not in self.defined:
                expected, found = f"result {index}, by `set_result`", "a rewrite that does not set it"
                raise wrong_answer(backend, "rewrite", where, expected, found)

    def _read(self, tensor: Tensor, format_: MemoryFormat, dims: Dims, shape: Extents | None) -> ir.Value:
        copies, stem = self._context.copies, stem_of(tensor)
        if shape is None:
            return copies.read(tensor, format_, dims, stem=stem).value
        return copies.read_as(tensor, format_, dims, shape, stem=stem).value

    def constant(self, stem: str, array: np.ndarray[Any, Any]) -> ir.Value:
        return self._context.emitter.constant(stem, array)

    def emit(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        shape: Extents,
        domain: str = "",
        version: int = 1,
        like: ir.Value | None = None,
    ) -> ir.Value:
        if domain:
            self._context.model.opset_imports.setdefault(domain, version)
        kind = like if like is not None else next((value for value in inputs if value is not None), None)
        stem = f"{self._stem}_{operator}" if operator else self._stem
        value = self._context.emitter.node(operator, inputs, attributes or {}, kind, shape, stem, domain=domain)
        node = value.producer()
        assert node is not None
        self.nodes.append(node)
        if self._written_for:
            node.metadata_props[WRITTEN_FOR_KEY] = self._written_for
        if domain == OWN_DOMAIN and has_roles(node):
            ensure_body(self._context.model, node)
        return value


def _ports_of(planned: PlannedNode) -> dict[tuple[bool, int], tuple[Port, MemoryFormat]]:
    """The ports with their planned formats, by (whether it is a result, index)."""
    return {(port.is_result, port.index): (port, f) for port, f in zip(planned.ports, planned.formats, strict=True)}


class NodeWriter(_Writer):
    """The writer of one node for its backend (see `relayout.backend.rewriting`)."""

    def __init__(self, context: RewriteContext, planned: PlannedNode, node: ir.Node) -> None:
        super().__init__(context, node.outputs[0].name or "value", node.op_type)
        self._planned, self._node = planned, node
        self._ports = _ports_of(planned)

    @property
    def node(self) -> ir.Node:
        return logical(self._node)

    def write(self, backend: Backend, rewrite: Rewrite) -> None:
        """Run the backend's rewrite of the node. Raises BackendError."""
        read = [n for n, value in enumerate(self._node.outputs) if is_read(value)]
        self._write(backend, rewrite, self._planned.label, [n for n in read if (True, n) in self._ports])

    def replace(self, written: Replacement) -> None:
        """Write the node that stands in this one's place in an alternative of its rule."""
        node = self.node
        operands = [
            self.read(n, None if dims is None else regrouped(self.shape_of(n), dims)) if node.inputs[n] else None
            for n, dims in written.inputs
        ]
        attributes = {**node.attributes, **written.attributes}
        shape = regrouped(self.shape_of(0, is_result=True), written.result)
        self.set_result(0, self.emit(node.op_type, operands, attributes, shape=shape, domain=node.domain))

    def shape_of(self, index: int, *, is_result: bool = False) -> tuple[Extent, ...]:
        known = self._ports.get((is_result, index))
        if known is None:
            value = (self._node.outputs if is_result else self._node.inputs)[index]
            extents = extents_of(value) or ()
            dims = None if is_result else self._constant_dims(index)
            return extents if dims is None else dims_shape(dims, extents)
        return dims_shape(self._dims(known[0]), known[0].operand.tensor.extents)

    def read(self, index: int, shape: Extents | None = None) -> ir.Value:
        known = self._ports.get((False, index))
        if known is None:
            value = self._node.inputs[index]
            if value is None:
                raise BackendError(f"{self._planned.label} has no input {index} to read")
            return self._read_constant(value, index, shape)
        port, format_ = known
        return self._read(port.operand.tensor, format_, self._dims(port), shape)

    def _read_constant(self, value: ir.Value, index: int, shape: Extents | None) -> ir.Value:
        """Constant input `index` in the layout that is required of it; without one, in ONNX's order."""
        dims = self._constant_dims(index)
        if dims is not None:
            laid = self._context.constants.relaid(value, dims)
        else:
            laid = value if lies_as(self._node, index) is None else self.relaid_constant(index, ())
        own = extents_of(laid) or ()
        if shape is None or tuple(shape) == own:
            return laid
        if constant_tensor(laid) is not None and all(isinstance(extent, int) for extent in shape):
            return self._context.constants.after_steps(laid, [{"op": "reshape", "shape": [*shape]}])
        return self._context.emitter.shaped(Physical(laid, in_source(len(own))), tuple(shape), own, self._stem).value

    def _constant_dims(self, index: int) -> Dims | None:
        lowering = self._planned.lowering
        assert isinstance(lowering, FixedLowering)
        return lowering.inputs[index]

    def relaid_constant(self, index: int, steps: Sequence[Mapping[str, Any]]) -> ir.Value:
        value = self._node.inputs[index]
        if value is None or not self._context.tensors.is_constant(value):
            raise BackendError(f"{self._planned.label}: input {index} is no constant")
        steps = [*self._to_onnx(index), *steps]
        extents = extents_of(value) or (None,)
        known = tuple([extent for extent in extents if isinstance(extent, int)])
        if fault := fault_of(steps, known if len(known) == len(extents) else None):
            raise BackendError(
                "a rewrite gives a constant steps that do not fit",
                where=f"{self._planned.label}, input {index}",
                expected="a list of steps: transpose with perm, reshape or crop with shape, pad with pads",
                found=fault,
            )
        return self._context.constants.after_steps(value, steps)

    def _to_onnx(self, index: int) -> Sequence[Mapping[str, Any]]:
        """The steps from a constant input as it lies to the order in which ONNX has its axes."""
        layout, operand = lies_as(self._node, index), logical(self._node).inputs[index]
        letters = operand_letters(self._node, index, rank_of(operand))
        if layout is None or letters is None:
            return ()
        return ({"op": "transpose", "perm": [layout.names.index(letter) for letter in letters]},)

    def set_result(self, index: int, value: ir.Value) -> None:
        port, _ = self._ports[True, index]
        dims = self._dims(port)
        self.defined[index] = _physical(value, dims, port.operand.tensor.extents)

    def _dims(self, port: Port) -> Dims:
        return port_dims(self._planned, port)


class ConversionWriter(_Writer):
    """The writer of one conversion for its backend."""

    def __init__(self, context: RewriteContext, conversion: PlannedConversion, source: Dims, target: Dims) -> None:
        super().__init__(context, f"{stem_of(conversion.tensor)}_laid")
        self._conversion = conversion
        base = context.tensors.operands[conversion.tensor.base]
        assert base is not None
        self._source, self._target = base_dims(base, source), base_dims(base, target)

    def write(self, backend: Backend, rewrite: Rewrite, where: str) -> None:
        """Run the backend's rewrite of the conversion. Raises BackendError."""
        self._write(backend, rewrite, where, [0])

    @property
    def node(self) -> ir.Node:
        raise BackendError("a conversion has no node")

    def shape_of(self, index: int, *, is_result: bool = False) -> tuple[Extent, ...]:
        return dims_shape(self._target if is_result else self._source, self._conversion.tensor.extents)

    def read(self, index: int, shape: Extents | None = None) -> ir.Value:
        return self._read(self._conversion.tensor, self._conversion.source, self._source, shape)

    def relaid_constant(self, index: int, steps: Sequence[Mapping[str, Any]]) -> ir.Value:
        raise BackendError("a conversion has no constants")

    def set_result(self, index: int, value: ir.Value) -> None:
        self.defined[index] = _physical(value, self._target, self._conversion.tensor.extents)


def _physical(value: ir.Value, dims: Dims, extents: tuple[Extent, ...]) -> Physical:
    """The value with its dimensions, and its shape if that differs from them."""
    own, shape = extents_of(value), dims_shape(dims, extents)
    if own is None or own == shape:
        return Physical(value, dims)
    if all(isinstance(extent, int) for extent in (*own, *shape)) and prod(own) != prod(shape):  # type: ignore[arg-type]
        raise BackendError(
            "a rewrite defines another tensor than its layout says",
            where=f"value {value.name}",
            expected=f"the elements of {list(shape)}",
            found=f"a tensor of {list(own)}",
        )
    return Physical(value, dims, own)


class SpaceWriter(ChosenOrder, _Writer):
    """The writer of a decomposition of one node (see `relayout.ops.DecompositionWriter`)."""

    def __init__(
        self, context: RewriteContext, planned: PlannedNode, node: ir.Node, rule: Free, lowering: FreeLowering
    ) -> None:
        ChosenOrder.__init__(self, node, rule, lowering)
        _Writer.__init__(self, context, node.outputs[0].name or "value", node.op_type)
        self._planned, self._ports = planned, _ports_of(planned)
        # The names of operands' dims whose extents are not known: inference gives them to results.
        self._names: dict[Axes, str] = {}

    def read(self, index: int, dims: Sequence[Axes]) -> ir.Value:
        axes = self._rule.inputs[index]
        value = self.node.inputs[index]
        assert value is not None
        assert axes is not None
        known = self._ports.get((False, index))
        if known is None:
            return self._context.constants.relaid(value, tuple(self._own(group, axes) or None for group in dims))
        port, format_ = known
        read = self._context.read(port.operand, format_, self._base(port, axes, dims))
        for group, dim in zip(dims, read.shape or (), strict=False):
            is_whole = {self._lowering.dims[place][0].axis for place in group} <= {*axes}
            if is_whole and not isinstance(dim, int) and dim.value is not None:
                same = self._names.setdefault(tuple(group), dim.value) == dim.value
                self._names[tuple(group)] = dim.value if same else ""  # one of them may be broadcast
        return read

    def emit_dims(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        dims: Sequence[Axes],
        *,
        like: ir.Value | None = None,
        order: Axes = (),
    ) -> ir.Value:
        every = tuple(range(len(self._rule.extents)))
        shape = self._named(dims, dims_shape(tuple(self._own(group, every) for group in dims), self._rule.extents))
        made = self.emit(operator, inputs, attributes, shape=shape, like=like)
        node = made.producer()
        assert node is not None
        if self._planned.chosen.is_numbered and [*order] != [*range(len(order))]:
            counted = ",".join(map(str, self.numbered(order)))
            ranks = [rank_of(value) for value in (*node.inputs, *node.outputs)]
            node.metadata_props[OPERAND_ORDERS_KEY] = ";".join([counted * (rank == len(order)) for rank in ranks])
        return made

    def set_result(self, index: int, value: ir.Value, dims: Sequence[Axes]) -> None:
        axes = self._rule.outputs[index]
        port, _ = self._ports[True, index]
        extents = port.operand.tensor.extents
        if axes is None:  # as in the source
            self.defined[index] = Physical(value, port_dims(self._planned, port))
            return
        physical = Physical(value, self._base(port, axes, dims))
        value.shape = ir.Shape(self._named(dims, dims_shape(physical.dims, extents)))
        own = port_dims(self._planned, port)
        self.defined[index] = self._context.emitter.convert(physical, own, extents, f"{self._stem}_view")

    def _named(self, dims: Sequence[Axes], shape: Sequence[Extent]) -> list[Extent]:
        """A shape of these dimensions, in which an extent that is not known has the name that an operand gives it."""
        named = zip(dims, shape, strict=True)
        return [self._names.get(tuple(group)) or None if extent is None else extent for group, extent in named]

    def _base(self, port: Port, axes: Axes, dims: Sequence[Axes]) -> Dims:
        """The dimensions of one operand as groups of atoms of its base tensor's axes."""
        found: list[MemoryFormat] = []
        for group in dims:
            parts = [base_dims(port.operand, ((atom,),))[0] for atom in self._own(group, axes)]
            found.append(normal_form(flat(parts), port.operand.tensor.extents))
        return tuple(found)

    def _own(self, group: Axes, axes: Axes) -> MemoryFormat:
        """The positions of one dimension as atoms of the operand's own axes."""
        return tuple(
            Atom(axes.index(atom.axis), atom.inner, atom.outer)
            for position in group
            for atom in self._lowering.dims[position]
            if atom.axis in axes
        )
