"""From a model to its facts. The model is only read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Set

import onnx_ir as ir

from relayout.candidates.aliases import collect_tensors
from relayout.candidates.axis_names import AxisNames
from relayout.layout.metadata_keys import LAYOUT_KEY
from relayout.model.constants import constant_values
from relayout.model.io import warnings_of
from relayout.model.tensor_sizes import DimSizes, elements_of, tensor_bytes
from relayout.ops import all_nodes, extents_of
from relayout.ops.logical_node import node_name
from relayout.report.inspection.schema import (
    Difference,
    Inspection,
    LayoutChange,
    NodeFacts,
    OperatorCount,
    TransposeFacts,
    ValueFacts,
)
from relayout.report.totals import is_transpose, moved_bytes, totals

# The newer exporter of PyTorch writes the stack trace to the metadata, the older one to the documentation of the node.
_TRACE_KEY = "pkg.torch.onnx.stack_trace"
_TRACE_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)|^\s*(\S+\.py)\((\d+)\)', re.MULTILINE)


def inspected(
    model: ir.Model, name: str, dims: Mapping[str, int], conversion_operators: Set[tuple[str, str]]
) -> Inspection:
    """The facts of a model, which `name` names. `dims` gives sizes to symbolic dims; `conversion_operators` are those
    of backends, which count as conversions beside Transposes."""
    elements = DimSizes(model, dims)
    nodes = list(all_nodes(model.graph))
    labels = {node: node_name(node) for node in nodes}
    layouts = _layouts(model)
    constants = constant_values(model.graph)

    def is_conversion(node: ir.Node) -> bool:
        return is_transpose(node) or (node.domain, node.op_type) in conversion_operators

    def facts(node: ir.Node) -> TransposeFacts:
        source, result = node.inputs[0], node.outputs[0]
        is_constant = source is None or source in constants
        return TransposeFacts(
            name=labels[node],
            operator=_operator(node),
            input=source.name or "" if source is not None else "",
            output=result.name or "",
            perm=_perm(node),
            from_=layouts.get(source) if source is not None else None,
            to=layouts.get(result),
            bytes=0 if is_constant else _bytes(node, elements),
            is_constant=is_constant,
            producer=_producer(source, labels) if source is not None else None,
            readers=_readers(result, labels),
            origin=_origin(node),
        )

    counted = Counter(_operator(node) for node in nodes)
    values = [*model.graph.inputs, *(value for node in nodes for value in node.outputs)]
    return Inspection(
        model=name,
        ir_version=model.ir_version,
        opsets=dict(model.opset_imports),
        producer=" ".join(filter(None, [model.producer_name, model.producer_version])) or None,
        totals=totals(model, dims, conversion_operators),
        operators=tuple(
            OperatorCount(operator=operator, count=count)
            for operator, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
        ),
        nodes=tuple(
            NodeFacts(
                name=labels[node],
                operator=_operator(node),
                inputs=tuple(value.name or "" for value in node.inputs if value is not None),
                outputs=tuple(value.name or "" for value in node.outputs),
                is_conversion=is_conversion(node),
            )
            for node in nodes
        ),
        values=tuple(
            ValueFacts(
                name=value.name or "",
                dtype=value.dtype.name if value.dtype is not None else None,
                shape=extents_of(value),
                layout=layouts.get(value),
                bytes=tensor_bytes(elements_of(value, elements), value.dtype),
                producer=_producer(value, labels),
                readers=_readers(value, labels),
            )
            for value in values
            if value not in constants and value.name
        ),
        transposes=tuple(
            sorted(map(facts, filter(is_conversion, nodes)), key=lambda each: (-each.bytes, each.is_constant))
        ),
        warnings=warnings_of(model),
    )


def _layouts(model: ir.Model) -> dict[ir.Value, str]:
    """The names of each value's axes, outermost first, where the model tells them: noted by an earlier run, or given by
    the operators around the value."""
    tensors = collect_tensors(model.graph, model.opset_imports)
    names = AxisNames(tensors)
    found: dict[ir.Value, str] = {}
    for value, operand in tensors.operands.items():
        noted = value.metadata_props.get(LAYOUT_KEY)
        known = noted or (names.of(operand) if operand is not None else None)
        if known:
            found[value] = known
    return found


def _operator(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain != "" else node.op_type


def _perm(node: ir.Node) -> tuple[int, ...]:
    if "perm" in node.attributes:
        return tuple(node.attributes["perm"].as_ints())
    shape = node.outputs[0].shape
    return tuple(range(len(shape)))[::-1] if is_transpose(node) and shape is not None else ()


def _bytes(node: ir.Node, elements: Callable[[ir.Shape | None], int]) -> int:
    if is_transpose(node):
        return 2 * moved_bytes(node, elements)
    result = node.outputs[0]
    return 2 * tensor_bytes(elements_of(result, elements), result.dtype)


def _producer(value: ir.Value, labels: Mapping[ir.Node, str]) -> str | None:
    """The node by operator and name; `input` for a graph input."""
    node = value.producer()
    if node is None:
        return f"input {value.name}" if value.is_graph_input() else None
    return f"{_operator(node)} '{labels[node]}'" if node in labels else None


def _readers(value: ir.Value, labels: Mapping[ir.Node, str]) -> tuple[str, ...]:
    readers = [f"{_operator(node)} '{labels[node]}'" for node, _ in value.uses() if node in labels]
    outputs = [f"output {value.name}"] if value.is_graph_output() else []
    return tuple(dict.fromkeys([*readers, *outputs]))


def _origin(node: ir.Node) -> str | None:
    """The innermost source line in the exporter's stack trace; without one, the scope in the node's name."""
    lines = _TRACE_LINE.findall(node.metadata_props.get(_TRACE_KEY) or node.doc_string or "")
    if lines:
        file, line, function, older_file, older_line = lines[-1] if lines[-1][0] else lines[0]
        return f"{file or older_file}:{line or older_line}{f' in {function}' if function else ''}"
    scope, slash, _ = (node.name or "").rpartition("/")
    return scope if slash and scope else None


def difference(first: Inspection, second: Inspection) -> Difference:
    """The differences of the second model from the first. Conversions are the same if they change the value of the same
    name in the same way; the value may be their operand or their result."""
    ours, theirs = ({_key(each): each for each in one.transposes} for one in (first, second))
    before, after = ({value.name: value for value in one.values} for one in (first, second))
    counts = {each.operator: each.count for each in first.operators}
    counted = {each.operator: each.count for each in second.operators}
    return Difference(
        first=first.model,
        second=second.model,
        before=first.totals,
        after=second.totals,
        operators=tuple(
            OperatorCount(operator=operator, count=counted.get(operator, 0), before=counts.get(operator, 0))
            for operator in sorted({*counts, *counted})
            if counts.get(operator, 0) != counted.get(operator, 0)
        ),
        removed=tuple(each for key, each in ours.items() if key not in theirs),
        added=tuple(each for key, each in theirs.items() if key not in ours),
        layouts=tuple(
            LayoutChange(value=name, before=_text(value), after=_text(after[name]))
            for name, value in before.items()
            if name in after and _text(value) != _text(after[name])
        ),
    )


def _key(transpose: TransposeFacts) -> tuple[object, ...]:
    return transpose.operator, transpose.input, transpose.output, transpose.perm


def _text(value: ValueFacts) -> str:
    # Inference numbers the symbols that it makes up anew in each model.
    dims = ["?" if dim is None or str(dim).startswith("unk__") else str(dim) for dim in value.shape or ()]
    shape = "?" if value.shape is None else ",".join(dims)
    return f"{value.layout or '-'} [{shape}]"
