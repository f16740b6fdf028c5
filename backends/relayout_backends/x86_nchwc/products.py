"""Products of two tensors of data without transposes: onnxruntime's FusedMatMul accepts either operand transposed.

Attention splits rows of features into heads and permutes them before it multiplies: [N, rows, heads, K] is read as [N,
heads, rows, K]. The operator's `transA` and `transB` swap the last two axes; its `transBatchA` and `transBatchB` take
the last axis but one from in front of the batch: [rows, N, heads, K], which is the same memory for one image. Its
result is in MatMul's order, or with its own last two axes swapped: the product of the transposes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from relayout.backend import Implementation, Writing
from relayout.layout.layout import Layout
from relayout_backends.x86_nchwc.costs import multiplying_transposed
from relayout_backends.x86_nchwc.shapes import is_float, is_known, volume

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["products"]

_DOMAIN = "com.microsoft"
_FORMS = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Whether the last two axes are swapped, and whether the batch follows the first axis."""


def products(node: ir.Node, plain: Implementation) -> Iterator[Implementation]:
    """Yield `plain`, and the implementations with permuted operands or result, at their extra cost."""
    yield plain
    left, right, result = node.inputs[0], node.inputs[1], node.outputs[0]
    if left is None or right is None or not is_float(left) or not is_float(right) or not _same_batch(left, right):
        return
    if is_known(left) or is_known(right) or result.shape is None or left.shape is None:
        return
    rank = len(left.shape)
    results = {False: Layout.any(rank), True: _layout(rank, 1, 0)}
    penalty = multiplying_transposed(volume(result, range(rank)) * volume(left, [rank - 1]))
    for a, b, is_transposed in product(_FORMS, _FORMS, (False, True)):
        operand_order = _transposed(a, b) if is_transposed else _OperandOrder(a, b)
        if operand_order.is_plain:
            continue  # the library itself writes a product, and one of the transposes, that MatMul can express
        # The kernel is optimized for contiguous rows; columns of the right operand are packed in any case.
        cost = plain.cost + (penalty if operand_order.left[0] else 0)
        layouts = (_layout(rank, *a), _layout(rank, *b))
        yield Implementation(layouts, (results[is_transposed],), cost, partial(_fused, operand_order=operand_order))


@dataclass(frozen=True, slots=True)
class _OperandOrder:
    """The order in which FusedMatMul reads its left and right operand, given as indices of the node's operands."""

    left: tuple[int, int]
    right: tuple[int, int]
    indices: tuple[int, int] = (0, 1)

    @property
    def is_plain(self) -> bool:
        return self.left == self.right == (0, 0)


def _transposed(a: tuple[int, int], b: tuple[int, int]) -> _OperandOrder:
    """The product of the transposes, in the other order, of operands in these forms; its result is transposed."""
    return _OperandOrder((1 - b[0], b[1]), (1 - a[0], a[1]), (1, 0))


def _same_batch(left: ir.Value, right: ir.Value) -> bool:
    """Whether both are of the same rank, from 3 to 8, with provably the same batch, so that neither is broadcast."""
    one, other = left.shape, right.shape
    if one is None or other is None or len(one) != len(other) or not 3 <= len(one) <= 8:
        return False
    batch = list(one)[:-2]
    return batch == list(other)[:-2] and all(isinstance(e, int) or e.value is not None for e in batch)


def _layout(rank: int, is_swapped: int, is_behind: int) -> Layout:
    """The order of an operand's axes in memory, by their numbers."""
    batch, last = list(range(rank - 2)), [rank - 2, rank - 1]
    if is_swapped:
        last.reverse()
    order = [last[0], *batch, last[1]] if is_behind else [*batch, *last]
    return Layout.from_names("".join(map(str, order)))


def _fused(writing: Writing, *, operand_order: _OperandOrder) -> None:
    (a, batch_a), (b, batch_b) = operand_order.left, operand_order.right
    chosen = {"transA": a, "transBatchA": batch_a, "transB": b, "transBatchB": batch_b, "alpha": 1.0}
    shape = writing.shape_of(0, is_result=True)
    operands = [writing.read(index) for index in operand_order.indices]
    writing.set_result(0, writing.emit("FusedMatMul", operands, chosen, shape=shape, domain=_DOMAIN))
