"""`nhwc`: channels last, as TVM's ConvertLayout has it: data NWC, NHWC, NDHWC, kernels WIO, HWIO, DHWIO.

A depthwise kernel is HWIO too: where TVM writes HWOI for it, one of O and I has extent 1, so the memory is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.backend import Backend, rank_of
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import DATA, KERNEL, input_role, result_role, spell

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Nhwc"]


class Nhwc(Backend):
    """Channels last: convolutions on NHWC data with HWIO kernels, and pools, norms and resizes on NHWC data."""

    name = "nhwc"
    answers_by_type = True

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        rank = rank_of(node.inputs[n])
        role = input_role(node, n)
        if role == DATA:
            return spell("NSC", rank)
        if role == KERNEL:
            return spell("SIO", rank)
        return Layout.any(rank)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        rank = rank_of(node.outputs[n])
        return spell("NSC", rank) if result_role(node, n) == DATA else Layout.any(rank)
