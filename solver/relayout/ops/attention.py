"""Operators on heads of attention. Their tensors have the heads second, (batch, heads, positions, numbers), or last in
one dimension with the numbers of a head, (batch, positions, heads x numbers)."""

from __future__ import annotations

from collections.abc import Mapping

from relayout.ops.contributed import CONTRIBUTED
from relayout.ops.node_reader import NoRuleError, Reading
from relayout.ops.registry import row
from relayout.ops.rule import NO_EDIT, Listed, Replacement

_HEADS_THIRD = (0, 2, 1, 3)
_MERGED = ((0,), (1,), (2, 3))
"""The dimensions of that order, with one for the heads and the numbers of a head."""


@row("contract", "Attention", since=23)
def attention(node: Reading) -> Listed:
    """Queries, keys, values and the result have their heads alike. Masks and an earlier run's keys and values do not
    depend on that."""
    return _by_heads(node, 3, {"q_num_heads": 0, "kv_num_heads": 1})


@row("contract", "RotaryEmbedding", since=23)
@row("contract", "RotaryEmbedding", since=1, domain=CONTRIBUTED)
def rotary_embedding(node: Reading) -> Listed:
    """The numbers of a head are rotated in pairs, by angles that depend on the position alone."""
    return _by_heads(node, 1, {"num_heads": 0})


def _by_heads(node: Reading, count: int, heads: Mapping[str, int]) -> Listed:
    """The alternatives of an operator with the heads of its first `count` inputs second. `heads`: the attributes for
    the numbers of heads, each with the input that has so many. They must be known, as the numbers of a head."""
    every = [node.extents(index) for index in range(count)] + [node.result_extents()]
    if any(len(extents) != 4 or not all(isinstance(extents[axis], int) for axis in (1, 3)) for extents in every):
        raise NoRuleError
    if any(node.used(index) for index in range(1, len(node.node.outputs))):
        raise NoRuleError  # its replacement has one result
    operands = len(node.node.inputs)
    rest = (None,) * (operands - count)
    results = (None,) * (len(node.node.outputs) - 1)
    numbers = {name: every[index][1] for name, index in heads.items()}
    inputs = tuple([(index, _MERGED if index < count else None) for index in range(operands)])
    as_it_is = ((None,) * operands, (None,) * len(node.node.outputs), NO_EDIT)
    last = ((_HEADS_THIRD,) * count + rest, (_HEADS_THIRD, *results), Replacement(inputs, numbers, _MERGED))
    return Listed((as_it_is, last))
