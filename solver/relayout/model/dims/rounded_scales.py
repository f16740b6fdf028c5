"""Scales of resizes with which onnx's inference finds the extents that onnxruntime computes.

A resize to the size b of an axis of size a has the scale b/a, in exporters rounded to float32: 129/65 becomes a little
less. onnxruntime multiplies in float32 too, and has 129 again. onnx's inference multiplies exactly, and would have 128.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor

import numpy as np
import onnx
from onnx import numpy_helper

from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.model.proto_graphs import attributes_of
from relayout.ops.operand_roles import OWN_DOMAIN, data_letters

Extents = Sequence[int | None]
"""The extents of a tensor; None where one is not known."""

_SCALES = 2
"""The operand of a Resize that has the scales, since opset 11."""
_EXACT = 1 << 12
"""Multiples of its reciprocal: float32 has their products with extents up to as many exactly."""


def rounded_scales(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> np.ndarray | None:
    """The scales of a Resize of ONNX or of relayout whose products with extents float32 may round; None without any."""
    if node.op_type != "Resize" or node.domain not in ("", OWN_DOMAIN) or len(node.input) <= _SCALES:
        return None
    tensor = constants.get(node.input[_SCALES])
    if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) != 1:
        return None
    scales = numpy_helper.to_array(tensor)
    is_sound = bool(np.isfinite(scales).all()) and bool((scales > 0).all())
    return None if not is_sound or not np.any(scales * _EXACT % 1) else scales


def scales_that_infer(node: onnx.NodeProto, scales: np.ndarray, extents: Extents) -> np.ndarray | None:
    """Scales whose exact products with the `extents` of a Resize's first operand have the integer parts that products
    in float32 have with its own `rounded_scales`; None where those have them too."""
    read = _scaled(node, extents)
    if len(read) != len(scales):
        return None
    made = scales.copy()
    for place, (scale, extent) in enumerate(zip(scales, read, strict=True)):
        computed = int(scale * np.float32(extent)) if extent else 0
        if extent and computed != floor(Fraction(float(scale)) * extent):
            # Half way between two integers, where no rounding matters.
            made[place] = (computed + 0.5) / extent
    return None if np.array_equal(made, scales) else made


def _scaled(node: onnx.NodeProto, extents: Extents) -> Extents:
    """The extents of the axes that have a scale each, in the order of the scales; empty where that is not known."""
    given = attributes_of(node)
    axes = given.get("axes")
    if axes is not None:
        return [extents[axis] for axis in axes] if all(-len(extents) <= axis < len(extents) for axis in axes) else []
    if node.domain != OWN_DOMAIN:
        return extents
    try:
        layout = Layout.parse(given.get("data_layout", b"").decode())
    except (LayoutSyntaxError, UnicodeDecodeError):
        return []
    if len(layout.names) != len(extents):
        return []
    # The extent of an axis that is tiled or padded is another one. A resize scales none of these.
    other = {layout.names[index].upper() for index, _, _ in layout.numbers}
    known = {name: extent for name, extent in zip(layout.names, extents, strict=True) if name not in other}
    return [known.get(letter) for letter in data_letters(len({name.upper() for name in layout.names})) or ""]
