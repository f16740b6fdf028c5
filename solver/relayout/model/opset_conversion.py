"""Models of opset 1 to 6, lifted to opset 7 by onnx's version converter: relayout reads 7 and newer."""

from __future__ import annotations

import onnx

from relayout.errors import InputError
from relayout.model.proto_graphs import (
    copied,
    declared_values,
    graphs_inside,
    nodes_inside,
    opset_of,
    replace_entries,
)
from relayout.model.structure import OLDEST_OPSET


def is_lifted(proto: onnx.ModelProto) -> bool:
    """Whether the model is older than what relayout reads."""
    return 1 <= opset_of(proto.opset_import, OLDEST_OPSET) < OLDEST_OPSET


def lifted(proto: onnx.ModelProto, notes: list[str]) -> onnx.ModelProto:
    """The model in opset 7 if it is older, with a note; else itself.

    Raises InputError where the converter does not know an operator, or the model is invalid.
    """
    if not is_lifted(proto):
        return proto
    version = opset_of(proto.opset_import, OLDEST_OPSET)
    from onnx import version_converter

    try:
        lifted = copied(proto)
        # The converter trusts its input.
        onnx.checker.check_model(lifted)
        for target in range(version + 1, OLDEST_OPSET + 1):
            lifted = onnx.shape_inference.infer_shapes(lifted)
            if target == OLDEST_OPSET:
                _align(lifted.graph)
                _size(lifted.graph)
            lifted = version_converter.convert_version(lifted, target)
            # Some shapes that the converter writes are wrong; inference computes them again.
            lifted.graph.ClearField("value_info")
        for values, declared in ((lifted.graph.input, proto.graph.input), (lifted.graph.output, proto.graph.output)):
            replace_entries(values, declared)
    except Exception as error:  # onnx raises errors of several types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            "unsupported opset",
            where="model, opset_import",
            expected=f"opset {OLDEST_OPSET} or newer, or a model that onnx's version converter lifts to it",
            found=f"opset {version}: {reason[:300]}",
            hint="export it again with a newer opset",
        ) from error
    notes.append(f"opset {version} was converted to opset {OLDEST_OPSET} by onnx's version converter")
    return lifted


def _align(graph: onnx.GraphProto) -> None:
    """Write operators that broadcast by an attribute as those of opset 7, which broadcast as NumPy does.

    `axis`, the axis of the first operand where the second begins, becomes an Unsqueeze of the second. onnx 1.20 reads
    every `axis` as 0, so the bias of a channel would be added along the batch. Raises InputError where a rank is
    unknown.
    """
    stored = [onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer]
    types = {info.name: info.type for info in (*declared_values(graph), *stored)}
    ranks = {n: len(kind.tensor_type.shape.dim) for n, kind in types.items() if kind.tensor_type.HasField("shape")}
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | {*ranks}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if any(_broadcasts(inner) for graph in graphs_inside([node]) for inner in nodes_inside(graph.node)):
            raise InputError("an operator in a nested graph broadcasts by an attribute")
        if _broadcasts(node):
            axis = next((each.i for each in node.attribute if each.name == "axis"), None)
            replace_entries(node.attribute, (a for a in node.attribute if a.name not in ("axis", "broadcast")))
            own, other = (ranks.get(name) for name in node.input)
            if axis is not None and (own is None or other is None):
                raise InputError(f"the ranks that {node.op_type} broadcasts are unknown")
            following = 0 if axis is None or own is None or other is None else own - axis % own - other
            if following > 0 and other is not None:
                name = next(name for n in range(len(taken) + 1) if (name := f"{node.input[1]}_aligned{n}") not in taken)
                taken.add(name)
                axes = [*range(other, other + following)]
                nodes.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [name], axes=axes))
                unsqueezed = copied(types[node.input[1]])
                for _ in axes:
                    unsqueezed.tensor_type.shape.dim.add().dim_value = 1
                graph.value_info.add(name=name, type=unsqueezed)
                node.input[1] = name
        nodes.append(node)
    replace_entries(graph.node, nodes)


def _size(graph: onnx.GraphProto) -> None:
    """Give every unknown dim the size 1: the converter rejects operators with unknown dims, even if nothing is left to
    convert."""
    for info in declared_values(graph):
        for dim in info.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = 1


def _broadcasts(node: onnx.NodeProto) -> bool:
    # The converter knows that of Gemm, which has no axis.
    return node.op_type != "Gemm" and any(each.name == "broadcast" and each.i for each in node.attribute)
