"""The cost at which a rewrite was chosen, noted on a node that it wrote, so that a second run charges it again.

A backend states the cost of an implementation for the source's operator. Its rewrite may write operators that do not
show that cost: a blocked convolution of padded channels, an operator with a transposed operand. So the rewrite's last
node has the cost in its metadata, with the operator and the shapes that it is for:

    115605504 Conv [1,64,56,56] [64,64,3,3] -> [1,64,56,56]

Operands that a post-pass adds at the end do not count. A note for another operator or other shapes is ignored: another
tool has changed the node since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from relayout.backend.calls import MAX_COST
from relayout.backend.interface import MOVES
from relayout.layout.metadata_keys import DEVICE_KEY, NODE_COST_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

_VIEWS = MOVES - {"Constant", "Pad", "Slice"}
"""The operators that a second run takes as a part of conversions, so that it charges no cost for them."""

_LARGEST = len(str(MAX_COST))


def note_cost(written: Sequence[ir.Node], cost: int, *, is_told: bool = False) -> None:
    """Note the cost of a rewrite, in bytes of memory traffic, on the last of the nodes that it wrote; one of 0 only if
    it `is_told`, where the backend would charge for the node.

    If a second run charges nothing for any of them, as for views, there is no note.
    """
    last = next((node for node in reversed(written) if node.domain or node.op_type not in _VIEWS), None)
    if (cost or is_told) and last is not None:
        last.metadata_props[NODE_COST_KEY] = f"{cost} {_subject(last, len(last.inputs))}"


def noted_cost(node: ir.Node, device: str = "") -> int | None:
    """The noted cost of `node`, in bytes of memory traffic; None without a note, or if it is for another node, or for
    another device than `device`, where one is given."""
    note = node.metadata_props.get(NODE_COST_KEY)
    if note is None or (device and node.metadata_props.get(DEVICE_KEY, device) != device):
        return None
    cost, _, subject = note.partition(" ")
    operands = len(subject.partition(" -> ")[0].split()) - 1
    if not cost.isdecimal() or len(cost) > _LARGEST or subject != _subject(node, operands):
        return None
    return min(int(cost), MAX_COST)


def _subject(node: ir.Node, operands: int) -> str:
    """The operator and the shapes of its first so many operands and of its results."""
    return " ".join((node.op_type, *_shapes(node.inputs[:operands]), "->", *_shapes(node.outputs)))


def _shapes(values: Iterable[ir.Value | None]) -> list[str]:
    return ["-" if value is None or value.shape is None else _shape(value.shape) for value in values]


def _shape(shape: ir.Shape) -> str:
    return f"[{','.join(str(extent) if isinstance(extent, int) else '?' for extent in shape)}]"
