"""The state of a rewrite: the model, its plan, the values emitted so far, and the emitter of new nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import onnx_ir as ir
from msgspec import Struct

from relayout.backend.interface import Backend
from relayout.candidates.alternatives import Alternative, in_source
from relayout.candidates.tensors import Operand
from relayout.formulate.def_use import TensorUse
from relayout.formulate.plan import Plan, PlannedConversion
from relayout.layout.binding import carrying
from relayout.layout.conversion import Dims, dims_shape, flat
from relayout.layout.layout import Layout
from relayout.layout.memory_format import BlackBoxFormat, MemoryFormat, boxes_of
from relayout.layout.metadata_keys import DEVICE_KEY, WRITTEN_KEY
from relayout.layout.view import View
from relayout.model.emit import Emitter, Physical
from relayout.model.unpacking import names_in
from relayout.ops import graphs_of
from relayout.rewrite.annotations import annotation_of, forget, noted_view
from relayout.rewrite.constants import Constants
from relayout.rewrite.copies import Copies, stem_of
from relayout.rewrite.operand_dims import base_dims

_T = TypeVar("_T")

Written = dict[int, Sequence[ir.Node]]
"""The nodes that each conversion of the plan, and each replaced node, became; by the identity of the planned one."""


class Laid(Struct, frozen=True):
    """A tensor in a format: its dimensions in the axes of the operand (`own`) and in those of the base tensor, and the
    shape and annotations if they differ from the source's."""

    own: Dims
    dims: Dims
    shape: ir.Shape | None
    annotations: Mapping[str, str] | None


class RewriteContext:
    """A model that is rewritten in place by a plan. `graph` is the current graph: the main graph or a region."""

    def __init__(self, model: ir.Model, backend: Backend, plan: Plan) -> None:
        self.backend = backend
        self.model = model
        self.graph = model.graph
        self.plan = plan
        self.tensors = plan.tensors
        self.emitter = Emitter(names_in(model), model.opset_imports.get("", 1))
        self.constants = Constants(self.tensors, self.emitter)
        self.copies = Copies(self.emitter, self.plan.tensors.operands.values(), plan.transfers)
        self.insertion_graphs = _insertion_graphs(plan, model.graph)
        self.written: Written = {}
        self._constants: set[ir.Node | None] = set()
        self._first = next(iter(self.graph), None)
        self._shared: dict[tuple[int, Hashable], object] = {}
        # The annotations of an earlier run, read before they are overwritten.
        self._earlier = {
            value: view
            for value, operand in self.tensors.operands.items()
            if operand is not None and (view := noted_view(value, operand.view.extents)) is not None
        }

    def at(self, device: str) -> None:
        """Read and write at this device from here on; "" if there is one device."""
        if device != self.copies.device:
            self._assign_device()
            self.copies.device = device
            self.emitter.at(device)

    def _assign_device(self) -> None:
        """Assign the current device to the emitted nodes that have none. Those that depend on constants alone get one
        from their consumers."""
        for node in self.emitter.emitted:
            if all(map(self._is_constant, node.inputs)):
                self._constants.add(node)
            elif DEVICE_KEY not in node.metadata_props:
                node.metadata_props[DEVICE_KEY] = node.metadata_props[WRITTEN_KEY] = self.copies.device

    def _is_constant(self, value: ir.Value | None) -> bool:
        if value is None or value.const_value is not None or value.producer() in self._constants:
            return True
        return self.tensors.is_constant(value)

    @contextmanager
    def inside(self, graph: ir.Graph) -> Iterator[None]:
        """A context in which a region is the current graph. Values emitted there cannot be read outside."""
        outer = self.graph, self._first
        self.graph, self._first = graph, next(iter(graph), None)
        with self.copies.scope(), self.constants.scope(), self.emitter.scope():
            yield
        self.graph, self._first = outer

    def laid(self, operand: Operand, format_: MemoryFormat, own: Dims) -> Laid:
        """The operand's tensor in this format; `own` are its dimensions in the operand's axes."""
        dims = base_dims(operand, own)
        is_permuted = own != in_source(len(operand.view.axes))
        shape = ir.Shape(dims_shape(dims, operand.tensor.extents), frozen=True) if is_permuted else None
        noted = self._annotations(operand, own, format_, None) if is_permuted or boxes_of(format_) else None
        return Laid(own, dims, shape, noted)

    def place(self, value: ir.Value, operand: Operand, format_: MemoryFormat, laid: Laid) -> None:
        """Register `value` as the operand's tensor in this format, laid so."""
        if laid.shape is not None:
            value.shape = laid.shape
        self.copies.add(operand.tensor, format_, Physical(value, laid.dims))
        if laid.annotations is not None:
            if operand.value in self._earlier:
                self.annotate(value, operand, laid.own, format_)
            else:
                forget(value)
                value.metadata_props.update(laid.annotations)

    def register(self, value: ir.Value, operand: Operand, format_: MemoryFormat, own: Dims) -> None:
        """Register `value` as the operand's tensor in this format; `own` are its dimensions in the operand's axes."""
        self.place(value, operand, format_, self.laid(operand, format_, own))

    def annotate(self, value: ir.Value, operand: Operand, own: Dims, format_: MemoryFormat) -> None:
        """Write the format of the value into its metadata."""
        forget(value)
        value.metadata_props.update(self._annotations(operand, own, format_, self._earlier.get(operand.value)))

    def _annotations(
        self, operand: Operand, own: Dims, format_: MemoryFormat, earlier: View | None
    ) -> Mapping[str, str]:
        boxes = operand.boxes(format_)
        order = BlackBoxFormat(flat(own), boxes) if boxes else flat(own)
        layout = self.plan.names.layout(operand, order)
        if layout is None and boxes and len(order) == len(own):
            layout = carrying(Layout.any(len(own)), order)
        return annotation_of(own, operand.view.extents, earlier, layout)

    def shared(self, alternative: Alternative, of: Hashable, compute: Callable[[], _T]) -> _T:
        """The result of `compute`, which is the same for all nodes that share this alternative and have `of`."""
        # The plan keeps its alternatives alive, so no other has this identity.
        key = id(alternative), of
        if key not in self._shared:
            self._shared[key] = compute()
        return self._shared[key]  # type: ignore[return-value]  # what `compute` made

    def read(self, operand: Operand, format_: MemoryFormat, dims: Dims, *, most: int = 0) -> ir.Value:
        """A value of the operand's tensor in this format, with these dimensions (see `Copies.read`)."""
        return self.copies.read(operand.tensor, format_, dims, stem=stem_of(operand.tensor), most=most).value

    def replace_input(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Replace input `index` of the node by `value`."""
        if node.inputs[index] is not value:
            node.replace_input_with(index, value)

    def insert_before(self, node: ir.Node | None, *, front: bool = False) -> None:
        """Insert the emitted nodes before `node`; without one at the graph's end, or with `front` at its front."""
        emitted, before = self._emitted(), self._first if front else node
        if before is None:
            self.graph.extend(emitted)
        elif emitted:
            self.graph.insert_before(before, emitted)

    def insert_after(self, node: ir.Node) -> None:
        """Insert the emitted nodes after `node`."""
        if emitted := self._emitted():
            self.graph.insert_after(node, emitted)

    def _emitted(self) -> list[ir.Node]:
        if self.copies.device:
            self._assign_device()
        emitted, self.emitter.emitted = self.emitter.emitted, []
        return emitted


def _insertion_graphs(plan: Plan, main: ir.Graph) -> dict[PlannedConversion, ir.Graph]:
    """The graph of a model for each conversion that is not in the main graph.

    It is the producer's graph, so that a Loop does not convert in each iteration. A branch of an If with all consumers
    is preferred.
    """
    region_ops = {inner: node for node in plan.tensors.region_edges for inner in graphs_of(node)}
    if not region_ops:
        return {}

    def graph_of(use: TensorUse) -> ir.Graph:
        planned = plan.nodes[use.choice]
        if planned.node is None:
            return main
        graph = planned.region_port(planned.ports[use.port]).graph or planned.node.graph
        assert graph is not None
        return graph

    def outwards(graph: ir.Graph, end: ir.Graph) -> Iterator[ir.Graph]:
        """This graph and those around it, up to `end` exclusively."""
        while graph is not end:
            yield graph
            outer = region_ops[graph].graph
            assert outer is not None  # only the model's own graph is in no region
            graph = outer

    def site_of(conversion: PlannedConversion) -> ir.Graph:
        producer = graph_of(conversion.producer)
        paths = [list(outwards(graph_of(use), producer)) for use in conversion.serves]
        site = producer
        for graphs in zip(*(reversed(path) for path in paths), strict=False):
            if any(graph is not graphs[0] for graph in graphs) or region_ops[graphs[0]].op_type != "If":
                break
            site = graphs[0]
        return site

    sites = ((each, site_of(each)) for each in plan.conversions)
    return {each: site for each, site in sites if site is not main}
