"""`canonical`: Glow's CanonicalTensorLayout for ONNX operators: four dimensions are NHWC, unless an operator takes any.

Glow's rule: an elementwise operator, or one on the list of those that take any layout, has no requirements; for every
other one the operands of rank 4 must be NHWC. Operators that Glow does not have have no requirements either. A filter's
NHWC has the output channels first: OHWI.

GatherND and ScatterND use axes by index only, so NHWC data has no meaning for them: they keep ONNX's layout. So does a
node that runs in no order but the source's, such as a reduction over axes that are known at run time only, and a Gather
whose indices have several axes.

Operators on Glow's list whose axes have names in ONNX (BatchNormalization, InstanceNormalization, SpaceToDepth) may run
in ONNX's own layout or channels last. Convolutions and pools in one and three dimensions are channels last, as in Glow,
where their layouts are implicit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation, rank_of
from relayout.layout.layout import Layout, default_layout
from relayout.ops.operand_roles import DATA, KERNEL, has_roles, input_role, result_role, spell

if TYPE_CHECKING:
    import onnx_ir as ir

# Glow's operators that are neither elementwise nor on its list, by ONNX's names; without those with named axes.
_STRICT = frozenset(
    [
        *("ArgMax", "ArgMin", "Gather", "GatherElements", "Gemm", "LayerNormalization", "LogSoftmax"),
        *("NonMaxSuppression", "ReduceL2", "ReduceProd", "ReduceSumSquare", "Scatter", "ScatterElements", "Softmax"),
        "TopK",
    ]
)
_NAMED_ACCEPTS_ANY = ("BatchNormalization", "InstanceNormalization", "SpaceToDepth")


class Canonical(Backend):
    """Glow's canonical layout: 4-D operands are NHWC unless the operator accepts any layout; kernels are OHWI."""

    name = "canonical"
    is_pure = True
    answers_by_type = True

    def default_nd_layout(self, rank: int) -> Layout:
        return default_layout(rank, canonical=True)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return self._requirement(node, input_role(node, n), rank_of(node.inputs[n]))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return self._requirement(node, result_role(node, n), rank_of(node.outputs[n]))

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        stated = super().implementations(node)
        return [*stated, _channels_last(node)] if has_roles(node) and accepts_any_layout(node) else stated

    def _requirement(self, node: ir.Node, role: str, rank: int) -> Layout:
        if accepts_any_layout(node):
            return Layout.any(rank)
        if role == KERNEL:
            return spell("OSI", rank)
        if role == DATA:
            return spell("NSC", rank)
        if has_roles(node):
            return Layout.any(rank)
        # Where the outermost backend has no requirement the layout is canonical: so Glow's OpenCL layouts become NHWC.
        default = self.context.default_nd_layout(rank)
        return default_layout(rank, canonical=True) if default.is_any else default


def accepts_any_layout(node: ir.Node) -> bool:
    """Glow's acceptsAnyLayout for an ONNX node; an operator of another domain is as its own model defines it."""
    if has_roles(node):
        return node.op_type in _NAMED_ACCEPTS_ANY
    if node.domain != "" or node.op_type not in _STRICT:
        return True
    # The axes of the indices stay side by side in the result, and NHWC may separate them.
    return _is_pinned(node) or (node.op_type == "Gather" and any(rank_of(value) > 1 for value in node.inputs[1:]))


def _is_pinned(node: ir.Node) -> bool:
    """Whether the axes of a node of a model cannot be permuted."""
    from relayout.ops import rule_of

    return node.graph is not None and rule_of(node, node.graph.opset_imports) is None


def _channels_last(node: ir.Node) -> Implementation:
    def layout(role: str, rank: int) -> Layout:
        return spell("NSC", rank) if role == DATA else Layout.any(rank)

    return Implementation(
        tuple(layout(input_role(node, n), rank_of(value)) for n, value in enumerate(node.inputs)),
        tuple(layout(result_role(node, n), rank_of(value)) for n, value in enumerate(node.outputs)),
    )
