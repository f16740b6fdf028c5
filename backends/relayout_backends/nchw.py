"""`nchw`: channels first: data NCW, NCHW, NCDHW, kernels OIW, OIHW, OIDHW (IOHW if transposed)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.backend import Backend, rank_of
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import DATA, KERNEL, input_role, is_transposed, result_role, spell

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Nchw"]


class Nchw(Backend):
    """Channels first: convolutions on NCHW data with OIHW kernels, and pools, norms and resizes on NCHW data."""

    name = "nchw"
    answers_by_type = True

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        rank = rank_of(node.inputs[n])
        role = input_role(node, n)
        if role == DATA:
            return spell("NCS", rank)
        if role == KERNEL:
            return spell("IOS" if is_transposed(node) else "OIS", rank)
        return Layout.any(rank)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        rank = rank_of(node.outputs[n])
        return spell("NCS", rank) if result_role(node, n) == DATA else Layout.any(rank)
