"""Packed operators written out: ONNX's own operator between the conversions of its operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from relayout.errors import UsageError
from relayout.layout.binding import bind
from relayout.layout.conversion import Dims, one_each
from relayout.layout.memory_format import Extent, source_order
from relayout.model.emit import Emitter, Physical
from relayout.model.layout_functions import drop_unused, use_onnx_operator
from relayout.ops import extents_of, nested_graphs
from relayout.ops.logical_node import lies_as, logical
from relayout.ops.operand_roles import operand_letters


def unpack(model: ir.Model, nodes: Iterable[ir.Node]) -> None:
    """Replace each packed operator by ONNX's own, which reads its operands after Reshapes and Transposes, in place.

    The node keeps its name and each result that has consumers. Raises UsageError for a layout that does not fit its
    operand.
    """
    emitter = Emitter(names_in(model), model.opset_imports.get("", 1))
    for node in nodes:
        _unpack(node, emitter)
    for value in emitter.constants:
        model.graph.initializers.add(value)
    drop_unused(model)


def names_in(model: ir.Model) -> set[str]:
    """The names of all values and nodes, including subgraphs: an inner name must not shadow an outer one."""
    names: set[str] = set()
    for graph in nested_graphs(model.graph):
        values = [*graph.inputs, *graph.initializers.values()]
        for node in graph:
            values += node.outputs
            names.add(node.name or "")
        names.update([name for value in values if (name := value.name)])
    return names


def _unpack(node: ir.Node, emitter: Emitter) -> None:
    graph, asked = node.graph, logical(node)
    assert graph is not None
    inputs: list[tuple[int, Dims, tuple[Extent, ...]]] = []
    results: list[tuple[int, Dims, tuple[Extent, ...]]] = []
    for side, found, operands in ((False, inputs, asked.inputs), (True, results, asked.outputs)):
        for n, operand in enumerate(operands):
            dims = _dims(node, n, operand, is_result=side)
            if operand is not None and dims is not None:
                found.append((n, dims, extents_of(operand) or ()))
    use_onnx_operator(node)
    for n, dims, extents in inputs:
        value = node.inputs[n]
        assert value is not None
        plain = emitter.convert(Physical(value, dims), _plain(extents), extents, f"{value.name}_unpacked")
        node.replace_input_with(n, plain.value)
    graph.insert_before(node, _taken(emitter))
    for n, dims, extents in results:
        value = node.outputs[n]
        if not value.name:
            continue
        name, packed_shape, notes = value.name, value.shape, dict(value.metadata_props)
        uses = tuple(value.uses())
        value.shape = ir.Shape(extents)
        value.metadata_props.clear()
        packed = emitter.convert(Physical(value, _plain(extents)), dims, extents, f"{name}_packed").value
        for reader, index in uses:
            reader.replace_input_with(index, packed)
        owner = value.graph
        if value.is_graph_output() and owner is not None:
            owner.outputs[:] = [packed if each is value else each for each in owner.outputs]
        value.name = emitter.fresh(f"{name}_unpacked")
        packed.name, packed.shape = name, packed_shape
        packed.metadata_props.update(notes)
    graph.insert_after(node, _taken(emitter))


def _dims(node: ir.Node, n: int, operand: ir.Value | None, *, is_result: bool) -> Dims | None:
    """The dimensions in the model, in atoms of the axes of the logical `operand`; None if in ONNX's order."""
    layout = lies_as(node, n, is_result=is_result)
    if layout is None or operand is None:
        return None
    extents = extents_of(operand)
    letters = operand_letters(node, n, len(extents), is_result=is_result) if extents is not None else None
    order = bind(layout, letters, extents, 1, pads=True) if letters is not None else None
    if order is None:
        raise UsageError(
            "the layout does not fit the operand",
            where=f"node {node.name or '(no name)'} (relayout::{node.op_type})",
            expected=f"a shape that {layout} can have",
            found=f"{operand.name} of unknown rank" if extents is None else f"{operand.name} of shape {list(extents)}",
        )
    return one_each(order)


def _plain(extents: Sequence[Extent]) -> Dims:
    return one_each(source_order(len(extents)))


def _taken(emitter: Emitter) -> list[ir.Node]:
    emitted, emitter.emitted = emitter.emitted, []
    return emitted
