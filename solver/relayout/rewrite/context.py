"""The state of a rewrite: the model, its plan, the values emitted so far, and the emitter of new nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.candidates.alternatives import Lowering, in_source
from relayout.candidates.tensors import Operand
from relayout.formulate.plan import Plan, PlannedConversion
from relayout.layout.binding import carrying
from relayout.layout.conversion import Dims, dims_shape
from relayout.layout.layout import Layout
from relayout.layout.memory_format import BlackBoxFormat, MemoryFormat, boxes_of
from relayout.model.emit import Emitter, Physical
from relayout.model.unpacking import names_in
from relayout.ops import Rule
from relayout.rewrite.annotations import annotate, noted_view
from relayout.rewrite.constants import Constants
from relayout.rewrite.conversion_sites import insertion_graphs
from relayout.rewrite.copies import Copies, stem_of
from relayout.rewrite.operand_dims import base_dims, flat

__all__ = ["RewriteContext", "Written"]

_T = TypeVar("_T")

Written = dict[int, Sequence[ir.Node]]
"""The nodes that each conversion of the plan, and each replaced node, became; by the identity of the planned one."""


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
        self.copies = Copies(self.emitter, self.plan.tensors.operands.values())
        self.insertion_graphs = insertion_graphs(plan, model.graph)
        self.written: Written = {}
        self._first = next(iter(self.graph), None)
        self._laid: dict[tuple[int, Dims], tuple[Dims, ir.Shape | None]] = {}
        self._shared: dict[tuple[int, int, Hashable], tuple[object, ...]] = {}
        # The annotations of an earlier run, read before they are overwritten.
        self._earlier = {
            value: view
            for value, operand in self.tensors.operands.items()
            if operand is not None and (view := noted_view(value, operand.view.extents)) is not None
        }

    def insertion_graph(self, conversion: PlannedConversion) -> ir.Graph:
        """The graph that the conversion is emitted in."""
        return self.insertion_graphs.get(conversion, self.model.graph)

    @contextmanager
    def inside(self, graph: ir.Graph) -> Iterator[None]:
        """A context in which a region is the current graph. Values emitted there cannot be read outside."""
        outer = self.graph, self._first
        self.graph, self._first = graph, next(iter(graph), None)
        with self.copies.scope(), self.constants.scope():
            yield
        self.graph, self._first = outer

    def register(self, value: ir.Value, operand: Operand, format_: MemoryFormat, own: Dims) -> None:
        """Register `value` as the operand's tensor in this format; `own` are its dimensions in the operand's axes."""
        # Values of one class share a view. It is alive as long as the plan, so its identity is a key.
        key = id(operand.view), own
        if key not in self._laid:
            dims = base_dims(operand, own)
            shape = ir.Shape(dims_shape(dims, operand.tensor.extents), frozen=True)
            self._laid[key] = dims, None if own == in_source(len(operand.view.axes)) else shape
        dims, permuted = self._laid[key]
        is_permuted = permuted is not None
        if is_permuted:
            value.shape = permuted
        self.copies.add(operand.tensor, format_, Physical(value, dims))
        if is_permuted or boxes_of(format_):
            self.annotate(value, operand, own, format_)

    def annotate(self, value: ir.Value, operand: Operand, own: Dims, format_: MemoryFormat) -> None:
        """Write the format of the value into its metadata."""
        rank, earlier, boxes = len(operand.view.axes), self._earlier.get(operand.value), operand.boxes(format_)
        order = BlackBoxFormat(flat(own), boxes) if boxes else flat(own)
        layout = self.plan.names.layout(operand, order)
        if layout is None and boxes and len(order) == len(own):
            layout = carrying(Layout.any(len(own)), order)
        annotate(value, own, rank, earlier, layout)

    def shared(self, rule: Rule, lowering: Lowering, of: Hashable, compute: Callable[[], _T]) -> _T:
        """The result of `compute`, which is the same for all nodes of this rule, lowering and `of`."""
        key = id(rule), id(lowering), of
        if key not in self._shared:
            # As long as they are kept, no other rule or lowering has their identities.
            self._shared[key] = compute(), rule, lowering
        return self._shared[key][0]  # type: ignore[return-value]  # what `compute` made

    def read(self, operand: Operand, format_: MemoryFormat, dims: Dims, *, most: int = 0) -> ir.Value:
        """A value of the operand's tensor in this format, with these dimensions (see `Copies.read`)."""
        return self.copies.read(operand.tensor, format_, dims, stem=stem_of(operand.tensor), most=most).value

    def replace_input(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Replace input `index` of the node by `value`."""
        if node.inputs[index] is not value:
            node.replace_input_with(index, value)

    def insert_before(self, node: ir.Node | None, *, front: bool = False) -> None:
        """Insert the emitted nodes before `node`; without one at the graph's end, or with `front` at its front."""
        emitted, self.emitter.emitted = self.emitter.emitted, []
        if not emitted:
            return
        if node is not None:
            self.graph.insert_before(node, emitted)
        elif front and self._first is not None:
            self.graph.insert_before(self._first, emitted)
        else:
            self.graph.extend(emitted)

    def insert_after(self, node: ir.Node) -> None:
        """Insert the emitted nodes after `node`."""
        emitted, self.emitter.emitted = self.emitter.emitted, []
        if emitted:
            self.graph.insert_after(node, emitted)
