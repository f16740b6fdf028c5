"""Layout-sensitive nodes, with each operand of named axes in its planned layout."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.candidates.alternatives import FixedLowering
from relayout.formulate.plan import PlannedNode
from relayout.layout.conversion import Dims
from relayout.model.layout_functions import DOMAIN, OperandConversion
from relayout.ops import Edit, Fixed, Free
from relayout.ops.named_axes import native_letters, operand_by_operand
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.function_calls import (
    Operator,
    function_call,
    layout_string,
    onnx_operator,
    operand_extents,
    permuted,
)

__all__ = ["fixed_operator", "packed_operator"]


def fixed_operator(context: RewriteContext, planned: PlannedNode, rule: Fixed, lowering: FixedLowering) -> Operator:
    """ONNX's own operator if that has these layouts, else a `relayout::` operator."""
    node = planned.node
    assert node is not None
    if lowering.changes_nothing and node.domain != DOMAIN:
        return None
    extents = operand_extents(planned)

    def written(
        axis_names: Sequence[str | None], natives: Sequence[str | None], own: Sequence[Dims | None], is_result: bool
    ) -> tuple[tuple[str | None, ...], tuple[OperandConversion | None, ...]]:
        """The layouts of the operands of one side, and their conversions to ONNX's order."""
        layouts: list[str | None] = []
        conversions: list[OperandConversion | None] = []
        for index, (names, native, dims) in enumerate(zip(axis_names, natives, own, strict=True)):
            known = extents.get((is_result, index))
            if names is None or native is None or dims is None:
                layouts.append(None)
                conversions.append(None)
                continue
            layouts.append(layout_string(dims, names, known))
            conversions.append(permuted(dims, tuple([native.index(letter) for letter in names]), known))
        return tuple(layouts), tuple(conversions)

    inputs, read = written(rule.inputs, rule.native_inputs, lowering.inputs, False)
    results, given = written(rule.outputs, rule.native_outputs, lowering.outputs, True)
    if (inputs, results) == (rule.native_inputs, rule.native_outputs):
        return onnx_operator(node)
    if lowering.changes_nothing:
        return None
    data, result = inputs[0], results[0]
    assert data is not None
    assert result is not None
    layouts = [("data_layout", data)]
    if rule.kernel is not None:
        kernel = inputs[rule.kernel]
        assert kernel is not None
        layouts.append(("kernel_layout", kernel))
    if result != data:
        layouts.append(("out_layout", result))

    return function_call(context, node, layouts, read, given)


def packed_operator(
    context: RewriteContext, planned: PlannedNode, rule: Free, lowering: FixedLowering
) -> tuple[Operator, Edit | None]:
    """The operator with named axes whose operands are tiled independently, and the remaining edit."""
    operator = fixed_operator(context, planned, operand_by_operand(rule), lowering)
    native = native_letters(len(rule.axis_names))
    # The operator inside the function, its attributes and its constants are in ONNX's order.
    edit = rule.edit(tuple(rule.axis_names.index(letter) for letter in native)) if rule.axis_names != native else None
    return operator, edit
