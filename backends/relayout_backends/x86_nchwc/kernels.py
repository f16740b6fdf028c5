"""Kernels of blocked convolutions with factors: stored ones are multiplied now, computed ones when a model is loaded.

A kernel that is computed from constants (ConstantOfShape, a Cast, a decompression) stays computed, or a model of
kilobytes would become one of megabytes: operators multiply it, which onnxruntime runs once, at any level of
optimization but none.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from relayout_backends.x86_nchwc.absorbing import Vector, has_data
from relayout_backends.x86_nchwc.editing import Editing
from relayout_backends.x86_nchwc.shapes import constant, extents, is_known


def can_be_scaled(kernel: ir.Value | None) -> bool:
    """Whether a kernel can be multiplied before the model runs."""
    return kernel is not None and (has_data(kernel) or (is_known(kernel) and extents(kernel) is not None))


def scaled(editing: Editing, kernel: ir.Value, factor: Vector, block: int, before: ir.Node) -> ir.Value:
    """`kernel`, in the blocks' order, with each output times its factor: a constant, or computed before a node."""
    if has_data(kernel):
        stored = constant(kernel)
        assert stored is not None
        return editing.constant(f"{kernel.name}_scaled", _Scaled(stored, factor, block))
    shape = extents(kernel)
    assert shape is not None
    parts = ir.Shape([len(factor) // block, prod(shape) // len(factor), block])
    shown = editing.view(kernel, parts, before)
    assert shown is not None
    vector = editing.constant(f"{kernel.name}_factor", ir.tensor(factor.astype(np.float32).reshape(-1, 1, block)))
    made = editing.insert(ir.Node("", "Mul", [shown, vector]), before, parts, kernel, f"{kernel.name}_scaled")
    whole = editing.view(made, ir.Shape(shape), before)
    assert whole is not None
    return whole


class _Scaled(ir.LazyTensor):
    """A blocked kernel whose outputs are multiplied when it is read; outputs are its outermost and innermost part."""

    def __init__(self, source: ir.TensorProtocol, factor: Vector, block: int) -> None:
        super().__init__(self._scale, source.dtype, ir.Shape(source.shape.numpy()))
        self.source, self.factor, self.block = source, factor, block

    def _scale(self) -> ir.TensorProtocol:
        array = self.source.numpy()
        parts = array.reshape(len(self.factor) // self.block, -1, self.block)
        scaled = parts * self.factor.reshape(-1, 1, self.block)
        return ir.Tensor(scaled.astype(array.dtype).reshape(array.shape), name=self.name)
