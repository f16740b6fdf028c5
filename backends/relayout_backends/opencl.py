"""`opencl`: Glow's OpenCLTensorLayout: convolutions and pools follow the node's own layout, all else is canonical.

A standard ONNX convolution or pool is NCHW; one of the domain `relayout` has the layout of its attributes. The
canonical backend has this one as its context, so that its look-ups about neighbours call this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation, rank_of
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import DATA, OTHER, input_role, own_layout, result_role, spell
from relayout_backends.canonical import Canonical

if TYPE_CHECKING:
    import onnx_ir as ir

_FOLLOWS_ITS_NODE = ("AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")


class OpenCl(Backend):
    """Glow's OpenCL: convolutions and pools in the node's own layout (NCHW in ONNX), else canonical."""

    name = "opencl"
    is_pure = True
    answers_by_type = True

    def __init__(self, context: Backend | None = None) -> None:
        super().__init__(context)
        self._canonical = Canonical(context=self.context)

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        follows = node.op_type in _FOLLOWS_ITS_NODE
        return super().implementations(node) if follows else self._canonical.implementations(node)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        role = input_role(node, n)
        if role == OTHER or node.op_type not in _FOLLOWS_ITS_NODE:
            return self._canonical.nth_input_layout_requirements(node, n)
        rank = rank_of(node.inputs[n])
        own = own_layout(node, role, rank)
        return own if not own.is_any else spell("NCS" if role == DATA else "OIS", rank)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        role = result_role(node, n)
        if role == OTHER or node.op_type not in _FOLLOWS_ITS_NODE:
            return self._canonical.nth_result_layout_requirements(node, n)
        rank = rank_of(node.outputs[n])
        own = own_layout(node, role, rank, is_result=True)
        return own if not own.is_any else spell("NCS", rank)
