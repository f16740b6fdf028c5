"""Dims of the results of windows, pads and resizes in terms, such as `(height - 1)//2 + 1`.

onnx's inference generates a new name for each extent that one computes from a dim that is not known before the run.
With the formula equal extents have equal names, and the extent has a size as soon as `height` has one. A window that
keeps the extent keeps the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from relayout.layout.terms import Term, product
from relayout.model.dims.operand_facts import Operands
from relayout.model.dims.sums import Sum, named, plus
from relayout.model.dims.symbolic_vectors import Dims, Vector, added, in_parentheses, integers

_WINDOWS = {"AveragePool": None, "Conv": 1, "ConvInteger": 1, "LpPool": None, "MaxPool": None, "QLinearConv": 3}
"""The operators with windows, each with the index of its kernel."""
KERNELS = {**_WINDOWS, "ConvTranspose": 1}
"""These and the transposed convolution."""

_TO_MULTIPLE = re.compile(r"\((?P<to>\d+) - (?P<of>.+) % (?P=to)\) % (?P=to)", re.ASCII)


def behind_window(read: Operands) -> Dims | None:
    """The shape of the result of a window, or of a transposed convolution; of batch and channels nothing is said."""
    source, place = read.dims(), KERNELS[read.operator]
    kernel = read.dims(place) if place is not None else None
    window = read.attributes.get("kernel_shape") or integers(Vector(kernel[2:] if kernel is not None else (None,)))
    if source is None or not window or len(source) != len(window) + 2:
        return None
    extent = _behind_window if read.operator in _WINDOWS else _behind_transposed
    image = enumerate(source[2:])
    behind = [extent(dim, read.attributes, axis, window) if dim and dim.names else None for axis, dim in image]
    return (None, None, *behind)


def _behind_window(dim: Term, given: Mapping[str, Any], axis: int, window: list[int]) -> Term | None:
    """The extent after a window of these attributes; None where it is not known."""
    stride = (given.get("strides") or [1] * len(window))[axis]
    dilation = (given.get("dilations") or [1] * len(window))[axis]
    padding, kind = given.get("pads") or [0] * 2 * len(window), given.get("auto_pad", b"NOTSET")
    covered = dilation * (window[axis] - 1)
    if kind in (b"SAME_UPPER", b"SAME_LOWER"):
        rest = stride - 1  # rounded up
    elif kind == b"VALID":
        rest = -covered - 1 + stride
    elif kind == b"NOTSET" and not given.get("ceil_mode"):
        rest = padding[axis] + padding[axis + len(window)] - covered - 1 + stride
    else:
        return None
    # (dim + rest) // stride, where what a multiple of the stride adds is added afterwards.
    if stride == 1:
        return plus(dim, rest)
    total = Sum.of([dim])
    if total is None:
        return None
    after, inside = divmod(total.number + rest, stride)
    if inside:
        after, inside = after + 1, inside - stride
    dividend = total._replace(number=inside).term()
    return None if dividend is None else plus(named(f"{in_parentheses(dividend)}//{stride}"), after)


def _behind_transposed(dim: Term, given: Mapping[str, Any], axis: int, window: list[int]) -> Term | None:
    """The extent after a transposed convolution of these attributes; None where it is not known."""
    if given.get("output_shape") or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    stride = (given.get("strides") or [1] * len(window))[axis]
    dilation = (given.get("dilations") or [1] * len(window))[axis]
    padding = given.get("pads") or [0] * 2 * len(window)
    more = (given.get("output_padding") or [0] * len(window))[axis]
    longer = dilation * (window[axis] - 1) + 1 - stride + more - padding[axis] - padding[axis + len(window)]
    return plus(product([dim, Term(Fraction(stride))]), longer)


def resized(read: Operands) -> Dims | None:
    """The shape of a Resize: the sizes that it is given, or the extents that its scales keep or multiply."""
    given = read.attributes
    if given.get("axes") is not None or given.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return None
    if read.has(3):
        return read.terms(3)
    # The scales are the second input up to opset 10, and later the third.
    source, scales = read.dims(), read.terms(1 if len(read.names) < 3 else 2, "scales")
    is_crop = given.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    if source is None or scales is None or len(scales) != len(source) or is_crop:
        return None
    return tuple([_scaled(*pair) for pair in zip(source, scales, strict=True)])


def _scaled(dim: Term | None, scale: Term | None) -> Term | None:
    """An extent times a whole number; None for another scale, with which the product is rounded."""
    is_whole = scale is not None and not scale.names and scale.factor.denominator == 1 and scale.factor >= 1
    return product([dim, scale]) if is_whole else None


def padded(read: Operands) -> Dims | None:
    """The shape of a Pad of all axes, or of those that it lists."""
    source, pads = read.dims(), read.terms(1, "pads")
    if source is None or pads is None:
        return None
    axes = read.numbers(3) if read.has(3) else [*range(len(source))]
    if axes is None or len(pads) != 2 * len(axes) or not all(-len(source) <= axis < len(source) for axis in axes):
        return None
    shape = [*source]
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        shape[axis] = _lengthened(shape[axis], before, behind)
    return tuple(shape)


def _lengthened(dim: Term | None, before: Term | None, behind: Term | None) -> Term | None:
    """An extent with what is added on both sides: numbers, or on one of them what the next multiple of a number needs,
    as windows do."""
    pad = added(before, behind)
    if dim is None or pad is None:
        return None
    if not pad.names or not pad.factor:
        return plus(dim, int(pad.factor))
    if len(pad.names) != 1 or pad.factor != 1:
        return None
    text, own = pad.names[0], in_parentheses(dim)
    found = _TO_MULTIPLE.fullmatch(text)
    if found is not None and found["of"] == own:
        return rounded_up(dim, Fraction(found["to"]))
    return rounded_up(dim, Fraction(2)) if text == f"{own} % 2" else None


def rounded_up(term: Term, to: Fraction) -> Term | None:
    """The least multiple of a whole number that is not below an extent."""
    if not term.names or to.denominator != 1 or to < 2:
        return None
    return Term(to, (f"({term} + {to - 1})//{to}",))
