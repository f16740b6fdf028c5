"""Views that are written, as tensors of their own, for a layout that cuts what it reads otherwise than the view does.

Channels that a Reshape merges of 4 and 3 have no tiles of 2 in the tensor that is reshaped; they have once they are one
axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import onnx_ir as ir

from relayout.backend import Implementation
from relayout.binding import is_tiled
from relayout.choices import NodeChoice
from relayout.rules import Relabel
from relayout.views import Tensors

__all__ = ["StandingApartError", "nearest_regrouped", "regrouped_behind"]


class StandingApartError(Exception):
    """What is asked for has no format, and might have one if these values were no views."""

    def __init__(self, values: frozenset[ir.Value]) -> None:
        self.values = values


def regrouped_behind(choice: NodeChoice, stated: Sequence[Implementation], tensors: Tensors) -> frozenset[ir.Value]:
    """For each operand that is asked for in tiles, the nearest view by which its axes are merged or cut, if any."""
    found = set()
    for port in choice.ports:
        if port.is_result or port.operand.view.is_plain:
            continue
        asked = [implementation.inputs[port.index] for implementation in stated]
        if any(map(is_tiled, asked)):
            found.add(nearest_regrouped(port.operand.value, tensors))
    return frozenset(value for value in found if value is not None)


def nearest_regrouped(value: ir.Value, tensors: Tensors) -> ir.Value | None:
    """The value itself, or the nearest before it, that is a view by which axes are merged or cut; None if none is."""
    node = value.producer()
    while node is not None and isinstance(rule := tensors.rules.get(node), Relabel):
        atoms = list(chain.from_iterable(rule.axes))
        if any(len(group) > 1 for group in rule.axes) or not all(atom.is_whole for atom in atoms):
            return node.outputs[0]
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    return None
