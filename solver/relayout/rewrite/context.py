"""What all who write the legal model share: the model, what was chosen, the tensors that there are, and new nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from relayout.backend.interface import Backend
from relayout.candidates.alternatives import NodeAlternatives, in_source
from relayout.candidates.tensors import Operand, Tensor
from relayout.formulate.formulation import Formulation, PlannedConversion
from relayout.layout.binding import carrying
from relayout.layout.conversion import Dims, dims_shape
from relayout.layout.layout import Layout
from relayout.layout.memory_format import Boxed, MemoryFormat, boxes_of
from relayout.model.emit import Emitter, Physical
from relayout.rewrite.annotations import annotate, noted_view
from relayout.rewrite.constants import Constants
from relayout.rewrite.conversion_sites import Homes
from relayout.rewrite.copies import Copies
from relayout.rewrite.operand_dims import base_dims, flat

__all__ = ["RewriteContext"]


class RewriteContext:
    """A model that is being rewritten in place; `graph` is the one at hand, the model's own or one inside it."""

    def __init__(
        self,
        model: ir.Model,
        backend: Backend,
        formulation: Formulation,
        assignment: Sequence[int],
    ) -> None:
        self.backend = backend
        self.model = model
        self.graph = model.graph
        self.requirements = formulation.requirements
        self.tensors = self.requirements.tensors
        self.emitter = Emitter(_names(model), model.opset_imports.get("", 1))
        self.constants = Constants(self.tensors, self.emitter)
        self.chosen = {
            id(choice): choice.alternatives[picked]
            for choice, picked in zip(self.requirements.choices, assignment, strict=True)
        }
        self.by_node: dict[ir.Node, NodeAlternatives] = {}
        self.passing: dict[ir.Node, list[NodeAlternatives]] = {}
        for choice in self.requirements.choices:
            if choice.node is not None and choice.region_edge is None:
                self.by_node[choice.node] = choice
            elif choice.node is not None:
                self.passing.setdefault(choice.node, []).append(choice)
        self.copies = Copies(self.emitter, self.tensors.operands.values())
        self.made: dict[Tensor, list[PlannedConversion]] = {}
        homes = Homes(self.requirements, model.graph)
        self.home: dict[PlannedConversion, ir.Graph] = {}
        for made in formulation.conversions(assignment):
            self.made.setdefault(made.tensor, []).append(made)
            self.home[made] = homes.of(made)
        self._first = next(iter(self.graph), None)
        self.earlier = {
            value: view
            for value, operand in self.tensors.operands.items()
            if operand is not None and (view := noted_view(value, operand.view.extents)) is not None
        }

    @contextmanager
    def inside(self, graph: ir.Graph) -> Iterator[None]:
        """Work on a graph inside the one at hand. What is made there of what is around it is not for others to read."""
        around = self.graph, self._first
        self.graph, self._first = graph, next(iter(graph), None)
        with self.copies.apart(), self.constants.apart():
            yield
        self.graph, self._first = around

    def register(self, value: ir.Value, operand: Operand, format_: MemoryFormat, own: Dims) -> None:
        """`value` now holds the operand's tensor with these dimensions of its own axes."""
        dims = base_dims(operand, own)
        is_turned = own != in_source(len(operand.view.axes))
        if is_turned:
            value.shape = ir.Shape(dims_shape(dims, operand.tensor.extents))
        self.copies.enter(operand.tensor, format_, Physical(value, dims))
        if is_turned or boxes_of(format_):
            self.annotate(value, operand, own, format_)

    def annotate(self, value: ir.Value, operand: Operand, own: Dims, format_: MemoryFormat) -> None:
        """Say how the value lies."""
        rank, earlier, boxes = len(operand.view.axes), self.earlier.get(operand.value), operand.boxes(format_)
        order = Boxed(flat(own), boxes) if boxes else flat(own)
        layout = self.requirements.names.layout(operand, order)
        if layout is None and boxes and len(order) == len(own):
            layout = carrying(Layout.any(len(own)), order)
        annotate(value, own, rank, earlier, layout)

    def stem(self, operand: Operand) -> str:
        return operand.tensor.base.name or "value"

    def replace(self, node: ir.Node, index: int, value: ir.Value) -> None:
        if node.inputs[index] is not value:
            node.replace_input_with(index, value)

    def place(self, node: ir.Node | None, *, front: bool = False) -> None:
        """Put what was emitted before `node`; without one at the graph's end, or its front."""
        emitted, self.emitter.emitted = self.emitter.emitted, []
        if not emitted:
            return
        if node is not None:
            self.graph.insert_before(node, emitted)
        elif front and self._first is not None:
            self.graph.insert_before(self._first, emitted)
        else:
            self.graph.extend(emitted)

    def place_after(self, node: ir.Node) -> None:
        emitted, self.emitter.emitted = self.emitter.emitted, []
        if emitted:
            self.graph.insert_after(node, emitted)


def _names(model: ir.Model) -> set[str]:
    """Every value's and node's name, in subgraphs too: an inner name must not hide an outer one."""
    names: set[str] = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        names.update(v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name)
        for node in graph:
            names.add(node.name or "")
            names.update(v.name for v in node.outputs if v.name)
    return names
