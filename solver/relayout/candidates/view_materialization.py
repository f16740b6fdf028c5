"""Views that are tensors of their own, for a layout that cuts what it reads otherwise than the view does.

Channels that a Reshape merges of 4 and 3 have no tiles of 2 in the tensor that is reshaped; they have once they are one
axis. Its node may then be left out: in the formats that the two tensors have pieces for, it is a view still.
"""

from __future__ import annotations

from itertools import chain

import onnx_ir as ir

from relayout.candidates.tensors import Tensors
from relayout.ops import Relabel

__all__ = ["StandingApartError", "nearest_regrouped"]


class StandingApartError(Exception):
    """A layout that is asked for, or that a node could take, has no format, and might have one if these values were no
    views."""

    def __init__(self, values: frozenset[ir.Value]) -> None:
        self.values = values


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
