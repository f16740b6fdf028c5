"""Layout-sensitive nodes, with each operand of named axes in its planned layout."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from relayout.candidates.alternatives import FixedLowering
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Extent
from relayout.model.layout_functions import DOMAIN, OperandConversion, use_onnx_operator
from relayout.ops import Edit, Fixed, Free
from relayout.ops.named_axes import native_letters, operand_by_operand
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.function_calls import call_function, layout_string, permuted

__all__ = ["write_fixed", "write_packed"]

_Extents = dict[tuple[bool, int], tuple[Extent, ...]]


class _Call(Struct, frozen=True):
    """A call of a `relayout::` operator: its layout attributes, and the conversions to ONNX's order."""

    layouts: tuple[tuple[str, str], ...] = ()
    inputs: tuple[OperandConversion | None, ...] = ()
    results: tuple[OperandConversion | None, ...] = ()


def write_packed(
    context: RewriteContext, node: ir.Node, rule: Free, lowering: FixedLowering, extents: _Extents
) -> Edit | None:
    """Write an operator with named axes whose operands are tiled independently; returns the remaining edit."""
    write_fixed(context, node, context.shared(rule, lowering, (), lambda: operand_by_operand(rule)), lowering, extents)
    native = native_letters(len(rule.axis_names))
    # The operator inside the function, its attributes and its constants are in ONNX's order.
    return rule.edit(tuple(rule.axis_names.index(letter) for letter in native)) if rule.axis_names != native else None


def write_fixed(
    context: RewriteContext, node: ir.Node, rule: Fixed, lowering: FixedLowering, extents: _Extents
) -> None:
    """Write the node as ONNX's own operator if that has these layouts, else as a `relayout::` operator."""
    if lowering.changes_nothing and node.domain != DOMAIN:
        return
    call = context.shared(rule, lowering, (*extents.items(),), lambda: _call_of(rule, lowering, extents))
    if call is None:
        if node.domain == DOMAIN:
            use_onnx_operator(node)
    elif not lowering.changes_nothing:
        call_function(context, node, call.layouts, call.inputs, call.results)


def _call_of(rule: Fixed, lowering: FixedLowering, extents: _Extents) -> _Call | None:
    """The call of the operator in the planned layouts; None if ONNX's own operator has these."""

    def layouts_of(axis_names: Sequence[str | None], own: Sequence[Dims | None], is_result: bool) -> list[str | None]:
        return [
            None if names is None or dims is None else layout_string(dims, names, extents.get((is_result, index)))
            for index, (names, dims) in enumerate(zip(axis_names, own, strict=True))
        ]

    inputs = layouts_of(rule.inputs, lowering.inputs, False)
    results = layouts_of(rule.outputs, lowering.outputs, True)
    if inputs == list(rule.native_inputs) and results == list(rule.native_outputs):
        return None
    if lowering.changes_nothing:
        return _Call()
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

    def conversions(
        axis_names: Sequence[str | None], natives: Sequence[str | None], own: Sequence[Dims | None], is_result: bool
    ) -> tuple[OperandConversion | None, ...]:
        found: list[OperandConversion | None] = []
        for index, (names, native, dims) in enumerate(zip(axis_names, natives, own, strict=True)):
            if names is None or native is None or dims is None:
                found.append(None)
            else:
                positions = tuple(native.index(letter) for letter in names)
                found.append(permuted(dims, positions, extents.get((is_result, index))))
        return tuple(found)

    return _Call(
        tuple(layouts),
        conversions(rule.inputs, rule.native_inputs, lowering.inputs, False),
        conversions(rule.outputs, rule.native_outputs, lowering.outputs, True),
    )
