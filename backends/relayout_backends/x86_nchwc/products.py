"""Products of two tensors of data without transposes: onnxruntime's FusedMatMul accepts either operand transposed.

Attention splits rows of features into heads and permutes them before it multiplies: [N, rows, heads, K] is read as [N,
heads, rows, K]. The operator's `transA` and `transB` swap the last two axes; its `transBatchA` and `transBatchB` take
the last axis but one from in front of the batch: [rows, N, heads, K], which is the same memory for one image. Its
result is in MatMul's order, or with its own last two axes swapped: the product of the transposes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

_DOMAIN = "com.microsoft"
_FORMS = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Whether the last two axes are swapped, and whether the batch follows the first axis."""


def products(node: ir.Node, plain: Implementation) -> Iterator[Implementation]:
    """Yield the implementations of a MatMul or FusedMatMul with permuted operands or result, at their extra cost.

    `plain` is one of a MatMul: the library itself writes a product, and one of the transposes, that MatMul can express.
    It is also that of a product whose order has no cost here: of constants, of matrices, or with a broadcast batch.
    """
    own = tuple((_flag(node, f"trans{name}"), _flag(node, f"transBatch{name}")) for name in "AB")
    is_fused = node.op_type == "FusedMatMul"
    orders = _orders(node, own)
    if orders is None or not is_fused:
        yield plain
    if orders is None:
        return
    left, result = node.inputs[0], node.outputs[0]
    assert left is not None
    rank = len(orders[0])
    results = {False: Layout.any(rank), True: _layout(_order(rank, 1, 0))}
    penalty = multiplying_transposed(volume(result, range(rank)) * volume(left, [orders[0].index(rank - 1)]))
    alpha = node.attributes.get_float("alpha", 1.0)
    for a, b, is_transposed in product(_FORMS, _FORMS, (False, True)):
        operand_order = _transposed(a, b) if is_transposed else _OperandOrder(a, b)
        if operand_order.is_plain and not is_fused:
            continue
        # The kernel is optimized for contiguous rows; columns of the right operand are packed in any case.
        cost = plain.cost + (penalty if operand_order.left[0] else 0)
        layouts = tuple(
            _layout([lies.index(axis) for axis in _order(rank, *form)])
            for form, lies in zip((a, b), orders, strict=True)
        )
        is_own = is_fused and (a, b) == own and not is_transposed
        rewrite = None if is_own else partial(_fused, operand_order=operand_order, alpha=alpha)
        yield Implementation(layouts, (results[is_transposed],), cost, rewrite)


def _flag(node: ir.Node, name: str) -> int:
    return node.attributes.get_int(name, 0)


def _orders(node: ir.Node, own: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]] | None:
    """The axes of each operand of MatMul, in the order of its dims, which have these forms; None where the order has no
    cost. Both are data of one rank, from 3 to 8, with provably the same batch, so that neither is broadcast."""
    left, right, result = node.inputs[0], node.inputs[1], node.outputs[0]
    if left is None or right is None or not is_float(left) or not is_float(right) or is_known(left) or is_known(right):
        return None
    one, other = left.shape, right.shape
    if one is None or other is None or result.shape is None or len(one) != len(other) or not 3 <= len(one) <= 8:
        return None
    first, second = (_order(len(one), *form) for form in own)
    batch = range(len(one) - 2)
    pairs = [(one[first.index(axis)], other[second.index(axis)]) for axis in batch]
    known = all(isinstance(extent, int) or extent.value is not None for extent, _ in pairs)
    return (first, second) if known and all(mine == theirs for mine, theirs in pairs) else None


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


def _order(rank: int, is_swapped: int, is_behind: int) -> list[int]:
    """The axes of an operand in the order of its memory."""
    batch, last = list(range(rank - 2)), [rank - 2, rank - 1]
    if is_swapped:
        last.reverse()
    return [last[0], *batch, last[1]] if is_behind else [*batch, *last]


def _layout(order: Sequence[int]) -> Layout:
    return Layout.from_names("".join(map(str, order)))


def _fused(writing: Writing, *, operand_order: _OperandOrder, alpha: float) -> None:
    (a, batch_a), (b, batch_b) = operand_order.left, operand_order.right
    chosen = {"transA": a, "transBatchA": batch_a, "transB": b, "transBatchB": batch_b, "alpha": alpha}
    shape = writing.shape_of(0, is_result=True)
    operands = [writing.read(index) for index in operand_order.indices]
    writing.set_result(0, writing.emit("FusedMatMul", operands, chosen, shape=shape, domain=_DOMAIN))
