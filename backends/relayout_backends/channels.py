"""Backends with one order of axes for all data and one for all kernels, at any rank: bases of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.backend import Backend, rank_of
from relayout.layout.layout import Layout
from relayout.ops.logical_node import is_packed
from relayout.ops.operand_roles import DATA, KERNEL, input_role, is_transposed, result_role, spell, written_node

if TYPE_CHECKING:
    import onnx_ir as ir


class Channels(Backend):
    """Layout templates by role, in which `S` is replaced by the spatial letters of the rank."""

    answers_by_type = True
    data = ""
    kernel = ""
    transposed_kernel = ""
    """The kernel of a transposed convolution."""

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        kernel = self.transposed_kernel if is_transposed(node) else self.kernel
        template = {DATA: self.data, KERNEL: kernel}.get(input_role(node, n))
        rank = rank_of(node.inputs[n])
        return Layout.any(rank) if template is None else spell(template, rank)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        rank = rank_of(node.outputs[n])
        return spell(self.data, rank) if result_role(node, n) == DATA else Layout.any(rank)


class Unpacked(Channels):
    """No requirements, but of an operator that another backend has packed (`NCHWc[tile:4]`): it is written as ONNX's.

    The operators that replace it have no requirements, so that they take part in all choices again.
    """

    data, kernel, transposed_kernel = "NCS", "OIS", "IOS"

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if is_packed(written_node(node)):
            return super().nth_input_layout_requirements(node, n)
        return self.default_nd_layout(rank_of(node.inputs[n]))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if is_packed(written_node(node)):
            return super().nth_result_layout_requirements(node, n)
        return self.default_nd_layout(rank_of(node.outputs[n]))
