"""Views that block a tiling: they are materialized, so that their axes can be tiled.

Channels that a Reshape merges of 4 and 3 have no tiles of 2 in the tensor that is reshaped; they have once they are one
axis. The node may then be elided: where both tensors have the format's factors, it is a view still.
"""

from __future__ import annotations

from itertools import chain

import onnx_ir as ir

from relayout.candidates.tensors import Tensors
from relayout.ops import Relabel

__all__ = ["nearest_regrouped"]


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
