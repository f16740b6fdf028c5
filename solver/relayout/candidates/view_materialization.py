"""Materialization of views that block a tiling, so that their axes can be tiled.

12 channels that a Reshape merges from axes of 4 and 3 have no tiles of 2 in the reshaped tensor. As one axis of a
tensor of their own they have. The node may still be elided if both tensors have the format's factors.
"""

from __future__ import annotations

from itertools import chain

import onnx_ir as ir

from relayout.candidates.tensors import Tensors
from relayout.ops import Relabel

__all__ = ["nearest_regrouped"]


def nearest_regrouped(value: ir.Value, tensors: Tensors) -> ir.Value | None:
    """The nearest view at or before the value that merges or splits axes; None if there is none."""
    node = value.producer()
    while node is not None and isinstance(rule := tensors.rules.get(node), Relabel):
        atoms = list(chain.from_iterable(rule.axes))
        if any(len(group) > 1 for group in rule.axes) or not all(atom.is_whole for atom in atoms):
            return node.outputs[0]
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    return None
