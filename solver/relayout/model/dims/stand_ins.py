"""Stand-ins for onnxruntime's contributed operators in shape inference: operators of ONNX with results of equal types.

ONNX infers nothing for an operator that it does not define. For a quantized operator, ONNX's own operator between
DequantizeLinear and QuantizeLinear stands in, so that its shapes follow from ONNX's rules: broadcasts, pads, dims that
have names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import onnx
from onnx import helper

from relayout.model.inference_placeholders import graphs_in
from relayout.ops.contributed import CONTRIBUTED, Quantized, quantized_form

__all__ = ["StandIns", "stood_for"]

PREFIX = "relayout.stand_in."
_OLDEST_OPSET = 11
"""The first in which the bias of a Gemm is optional."""
# The results that have the type and shape of the first operand.
_LIKE = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), (0,)),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (0, 3)),
}
# The results that have the shape of the first operand and the type of this one.
_CASTS = {"DequantizeLinear": 1, "QuantizeLinear": 2}
_OLDEST_WITH_CAST_LIKE = 15
# The operands of a product that are quantized, with their scales.
_PRODUCTS = {"DynamicQuantizeMatMul": {1: 2}, "MatMulIntegerToFloat": {0: 2, 1: 3}}
# Attributes that ONNX's operator lacks.
_OWN_ATTRIBUTES = ("channels_last", "opset")


class StandIns:
    """The contributed operators of a model, which stand-ins replace in place."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._numbers = count()
        self._replaced: dict[str, onnx.NodeProto] = {}
        self._opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
        if self._opset >= _OLDEST_OPSET and any(opset.domain == CONTRIBUTED for opset in proto.opset_import):
            self._replace(proto.graph)

    def restore(self, graph: onnx.GraphProto) -> None:
        """Put the operators back into `graph`, which was inferred meanwhile, and into the graphs inside it."""
        if not self._replaced:
            return
        for inner in _graphs_inside(graph):
            self.restore(inner)
        nodes = [self._replaced.get(node.name, node) for node in graph.node]
        _set(graph.node, (node for node in nodes if not node.name.startswith(PREFIX)))
        _set(graph.value_info, (info for info in graph.value_info if not info.name.startswith(PREFIX)))

    def _replace(self, graph: onnx.GraphProto) -> None:
        for inner in _graphs_inside(graph):
            self._replace(inner)
        if not any(node.domain == CONTRIBUTED for node in graph.node):
            return
        values = (*graph.input, *graph.value_info)
        ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            written = self._written(node, ranks) if node.domain == CONTRIBUTED else ()
            if not written:
                nodes.append(node)
                continue
            for n, each in enumerate(written):
                each.name = f"{PREFIX}{next(self._numbers)}|{node.op_type}|{node.name}"
                if n == 0:
                    self._replaced[each.name] = node
            nodes += written
        _set(graph.node, nodes)

    def _written(self, node: onnx.NodeProto, ranks: Mapping[str, int]) -> Sequence[onnx.NodeProto]:
        """The nodes that stand in for `node`; none where none would have the same type."""
        form = quantized_form(node.op_type, len(node.input))
        if form is not None:
            return self._quantized(node, form, ranks)
        if node.op_type in _LIKE:
            made = [node.output[m] for m in _LIKE[node.op_type] if m < len(node.output) and node.output[m]]
            return [helper.make_node("Identity", node.input[:1], [result]) for result in made]
        if node.op_type in _CASTS and self._opset >= _OLDEST_WITH_CAST_LIKE and len(node.input) > _CASTS[node.op_type]:
            return [helper.make_node("CastLike", [node.input[0], node.input[_CASTS[node.op_type]]], node.output[:1])]
        if node.op_type in _PRODUCTS:
            scales = _PRODUCTS[node.op_type]
            writer = _Writer(self._numbers)
            operands = [
                writer.add("DequantizeLinear", [node.input[n], node.input[scales[n]]]) if n in scales else node.input[n]
                for n in (0, 1)
            ]
            return [*writer.nodes, helper.make_node("MatMul", operands, node.output[:1])]
        return ()

    def _quantized(self, node: onnx.NodeProto, form: Quantized, ranks: Mapping[str, int]) -> list[onnx.NodeProto]:
        operands = dict(enumerate(node.input))
        attributes = {each.name: each for each in node.attribute}
        scale, zero = operands.get(form.scale, ""), operands.get(form.scale + 1, "")
        is_gemm = form.operator == "Gemm"
        if not zero and (scale or not is_gemm):
            return []  # QuantizeLinear would make uint8 of it
        perms = _perms(attributes, ranks.get(node.input[0])) if _is_set(attributes, "channels_last") else ()
        if perms is None:
            return []
        writer = _Writer(self._numbers)
        # The shape of a product does not depend on its bias.
        read = [
            operands.get(n, "")
            if n in form.plain
            else writer.add("DequantizeLinear", [operands.get(n, ""), operands.get(n + 1, "")])
            for n in (form.data[:2] if is_gemm else form.data)
        ]
        for perm in perms[:1]:
            read = [writer.add("Transpose", read, helper.make_attribute("perm", perm))]
        made = writer.add(form.operator, read, *[a for name, a in attributes.items() if name not in _OWN_ATTRIBUTES])
        for perm in perms[1:]:
            made = writer.add("Transpose", [made], helper.make_attribute("perm", perm))
        operator, read = ("QuantizeLinear", [made, scale, zero]) if zero else ("Identity", [made])
        return [*writer.nodes, helper.make_node(operator, read, node.output[:1])]


class _Writer:
    """Nodes with one result each."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._numbers = numbers

    def add(self, operator: str, operands: Sequence[str], *attributes: onnx.AttributeProto) -> str:
        """Add a node; returns the name of its result."""
        result = f"{PREFIX}{next(self._numbers)}"
        self.nodes.append(helper.make_node(operator, operands, [result]))
        self.nodes[-1].attribute.extend(attributes)
        return result


def stood_for(operator: str, name: str) -> tuple[str, str]:
    """The operator and the name of the node that a node of inference stands in for; those given for any other node."""
    if not name.startswith(PREFIX):
        return operator, name
    _, operator, name = name.split("|", 2)
    return operator, name


def _is_set(attributes: Mapping[str, onnx.AttributeProto], name: str) -> bool:
    return name in attributes and attributes[name].i == 1


def _perms(attributes: Mapping[str, onnx.AttributeProto], rank: int | None) -> tuple[list[int], list[int]] | None:
    """The permutations from channels last to channels second and back; None where the rank is not known."""
    if "kernel_shape" in attributes:
        rank = len(attributes["kernel_shape"].ints) + 2
    if rank is None or rank < 3:
        return None
    return [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]


def _graphs_inside(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            yield from graphs_in(attribute)


def _set(field: Any, entries: Iterable[Any]) -> None:
    """Replace the entries of a repeated field of a protobuf."""
    kept = list(entries)
    del field[:]
    field.extend(kept)
