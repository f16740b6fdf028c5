"""Nodes whose operands have named axes, each in the layout that was chosen for it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from relayout.candidates.alternatives import FixedLowering, in_source
from relayout.layout.conversion import Dims
from relayout.layout.memory_format import Extent
from relayout.model.layout_functions import DOMAIN, Turn
from relayout.ops import Edit, Fixed, Free
from relayout.ops.named_axes import native_letters, operand_by_operand
from relayout.rewrite.context import RewriteContext
from relayout.rewrite.function_calls import relayout, standard, turned, word

__all__ = ["write_fixed", "write_packed"]


def write_packed(
    context: RewriteContext, node: ir.Node, rule: Free, form: FixedLowering, extents: dict[tuple[bool, int], tuple[Extent, ...]]
) -> Edit | None:
    """An operator with named axes in pieces that its operands have each for itself; how its text is still to change."""
    write_fixed(context, node, operand_by_operand(rule), form, extents)
    native = native_letters(len(rule.letters))
    # The function's operator reads ONNX's own order, and so do its attributes and constants.
    return rule.edit(tuple(rule.letters.index(letter) for letter in native)) if rule.letters != native else None


def write_fixed(
    context: RewriteContext, node: ir.Node, rule: Fixed, form: FixedLowering, extents: dict[tuple[bool, int], tuple[Extent, ...]]
) -> None:
    """An operator with named axes: ONNX's own where it reads these layouts, else `relayout::`."""

    def words(letters: Sequence[str | None], laid: Sequence[Dims | None], is_result: bool) -> list[str | None]:
        return [
            word(dims, names, extents.get((is_result, index))) if names is not None and dims is not None else None
            for index, (names, dims) in enumerate(zip(letters, laid, strict=True))
        ]

    laid, results = words(rule.inputs, form.inputs, False), words(rule.outputs, form.outputs, True)
    if laid == list(rule.native_inputs) and results == list(rule.native_outputs):
        if node.domain == DOMAIN:
            standard(node)
        return
    if all(d is None or d == in_source(len(d)) for d in (*form.inputs, *form.outputs)):
        return
    data, result = laid[0], results[0]
    assert data is not None
    assert result is not None
    layouts = [("data_layout", data)]
    if rule.kernel is not None:
        kernel = laid[rule.kernel]
        assert kernel is not None
        layouts.append(("kernel_layout", kernel))
    if result != data:
        layouts.append(("out_layout", result))

    def turns(
        letters: Sequence[str | None], natives: Sequence[str | None], laid: Sequence[Dims | None], is_result: bool
    ) -> tuple[Turn | None, ...]:
        found: list[Turn | None] = []
        for index, (names, native, dims) in enumerate(zip(letters, natives, laid, strict=True)):
            if names is None or native is None or dims is None:
                found.append(None)
            else:
                places = tuple(native.index(letter) for letter in names)
                found.append(turned(dims, places, extents.get((is_result, index))))
        return tuple(found)

    relayout(context,
        node,
        tuple(layouts),
        turns(rule.inputs, rule.native_inputs, form.inputs, False),
        turns(rule.outputs, rule.native_outputs, form.outputs, True),
    )
