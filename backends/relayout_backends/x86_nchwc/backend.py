"""`x86-nchwc`: onnxruntime's CPU operators on x86-64: blocked by channels, channels last where they are quantized.

The blocked operators (domain com.microsoft.nchwc) are those that onnxruntime itself puts for convolutions at its
highest level of optimization, one at a time, with a reorder wherever a blocked operator meets another. Here each
convolution, pool, normalization and upsampling may be blocked or plain, and all are decided together, with NHWC as a
third layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation, OperatorBody, Reordering, TensorType, Violation
from relayout.errors import BackendError, UsageError
from relayout.layout.layout import Layout
from relayout_backends.channels import Unpacked
from relayout_backends.x86_nchwc.absorbing import ACTIVATIONS
from relayout_backends.x86_nchwc.blocks import SIZES, Blocks, probe
from relayout_backends.x86_nchwc.checks.contrib import CONVERSIONS, operator_layouts
from relayout_backends.x86_nchwc.convolution import convolutions
from relayout_backends.x86_nchwc.fusion import fuse
from relayout_backends.x86_nchwc.joining import concatenation, slicing, splitting
from relayout_backends.x86_nchwc.normalization import normalization
from relayout_backends.x86_nchwc.ordering import order_cost
from relayout_backends.x86_nchwc.pooling import global_pool, plain_penalty, pool, upsampling
from relayout_backends.x86_nchwc.products import products
from relayout_backends.x86_nchwc.quantized import quantized
from relayout_backends.x86_nchwc.reordering import reordering, scattering
from relayout_backends.x86_nchwc.shapes import is_dequantized

if TYPE_CHECKING:
    import onnx_ir as ir

_BLOCKED: dict[str, Callable[[ir.Node, Blocks], Implementation | None]] = {
    "AveragePool": pool,
    "BatchNormalization": normalization,
    "Concat": concatenation,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "MaxPool": pool,
    "Resize": upsampling,
    "Slice": slicing,
    "Split": splitting,
    "Upsample": upsampling,
}


def _runs_here(block: int) -> bool:
    try:
        return block == probe()
    except BackendError:  # onnxruntime is not installed, or does not load
        return False


class X86Nchwc(Unpacked):
    """Blocked float operators and NHWC integer ones, for onnxruntime on x86-64."""

    name = "x86-nchwc"
    is_pure = True
    flows_down = ACTIVATIONS | {"BatchNormalization"}
    """A blocked convolution does these as a part of it, if they are blocked too."""

    def __init__(self, context: Backend | None = None, *, block: int | str | None = None) -> None:
        """`block`: channels in a block, 8 or 16; by default those of the installed onnxruntime on this machine."""
        super().__init__(context)
        if block is not None and str(block) not in map(str, SIZES):
            expected = " or ".join(map(str, SIZES))
            raise UsageError("unknown size of a block", where="block", expected=expected, found=repr(block))
        self._given = None if block is None else int(block)

    @property
    def blocks(self) -> Blocks:
        """The blocks of the target; the installed onnxruntime is probed on first use. Raises BackendError."""
        return Blocks(self._given if self._given is not None else probe())

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        (plain,) = super().implementations(node)
        if (node.domain, node.op_type) == ("com.microsoft", "FusedMatMul"):
            return tuple(products(node, plain))
        if node.domain != "":
            return (plain,)
        if node.op_type == "QLinearConv":
            return tuple(quantized(node, plain))
        if node.inputs and is_dequantized(node.inputs[0]):
            return (plain,)
        if node.op_type == "MatMul":
            return tuple(products(node, plain))
        if node.op_type == "Conv":
            return tuple(convolutions(node, plain, self.blocks))
        blocked = _BLOCKED.get(node.op_type)
        blocked_implementation = blocked(node, self.blocks) if blocked is not None else None
        if blocked_implementation is None:
            return (plain,)
        return (Implementation(plain.inputs, plain.results, plain.cost + plain_penalty(node)), blocked_implementation)

    def order_cost(self, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> int:
        return order_cost(node, axes, traffic, is_rewritten=is_rewritten)

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        return reordering(tensor, source, target, self.blocks)

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        return scattering(tensor, source, target)

    def check(self, model: ir.Model, device: str = "") -> Iterable[Violation]:
        from relayout_backends.x86_nchwc.checks.blocked import check_blocked

        return check_blocked(model, lambda: self.blocks.size, device)

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        return CONVERSIONS

    def operator_layouts(self, node: ir.Node) -> Implementation | None:
        return operator_layouts(node)

    def operator_body(self, node: ir.Node, opset: int) -> OperatorBody | None:
        from relayout_backends.x86_nchwc.checks.bodies import operator_body

        return operator_body(node, opset, _runs_here)

    def opaque_values(self, model: ir.Model) -> Iterable[ir.Value]:
        from relayout_backends.x86_nchwc.checks.blocked_types import types_of

        return [value for value, kind in types_of(model).items() if kind.is_blocked]

    def finish(self, model: ir.Model, device: str = "") -> bool:
        """Fuse operators into the blocked convolutions before them, as onnxruntime does with its own."""
        return fuse(model, device)
