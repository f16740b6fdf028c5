"""Operators that are left out: what they read, entered as what they give."""

from __future__ import annotations

import onnx_ir as ir

from relayout.choices import LaidForm, NodeChoice
from relayout.leaving_out import pieces_of
from relayout.physical import Physical
from relayout.rewrite.conversions import copies_after
from relayout.rewrite.dims import port_dims
from relayout.rewrite.workshop import Workshop
from relayout.rules import Free

__all__ = ["leave_out"]


def leave_out(shop: Workshop, choice: NodeChoice, node: ir.Node, form: LaidForm) -> None:
    """No node: the values that hold what it reads hold what it gives, by other names of their dimensions."""
    rule = shop.tensors.rules.get(node)
    assert isinstance(rule, Free)
    assert rule.left_out is not None
    source, result = choice.ports
    pieces = pieces_of(rule.left_out, source, result)
    assert pieces is not None
    read, given = shop.chosen[id(choice)].formats
    tensor = source.operand.tensor
    first = shop.copies.first(tensor, read)
    dims = pieces.carried(first.dims)
    if dims is None:
        # Its dimensions are cut otherwise than the pieces are.
        first = shop.copies.read(tensor, read, port_dims(choice, source, form, rule), stem=shop.stem(source.operand))
        dims = pieces.carried(first.dims)
        assert dims is not None
    shop.copies.enter(result.operand.tensor, given, Physical(first.value, dims, first.shape))
    shop.place(node)
    copies_after(shop, node, choice)
