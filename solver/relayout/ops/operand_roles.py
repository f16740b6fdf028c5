"""Which operands of an operator are data and which are kernels, and how their layouts are spelled at each rank.

A backend with channels last writes `spell("NSC", rank)` for NWC, NHWC or NDHWC, and `spell("SIO", rank)` for the kernel
of a convolution. Roles go by operator name: `relayout::Conv` has the roles of `Conv`, whatever its layout attributes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout.layout import Layout

if TYPE_CHECKING:
    import onnx_ir as ir

OWN_DOMAIN = "relayout"
"""The domain of operators whose operands lie in stated layouts. Each has a function that says what it computes."""

DATA, KERNEL, OTHER = "data", "kernel", "other"

LAYOUT_ATTRIBUTES = ("data_layout", "kernel_layout", "out_layout")
"""The attributes of an operator of OWN_DOMAIN that say how its operands lie."""

# One letter per operand, inputs then results: d data, k kernel, - neither. Further operands are neither.
_ROLES = {
    "AveragePool": ("d", "d"),
    "BatchNormalization": ("d", "d"),
    "Conv": ("dk", "d"),
    "ConvInteger": ("dk", "d"),
    "ConvTranspose": ("dk", "d"),
    "DeformConv": ("dkd-d", "d"),
    "DepthToSpace": ("d", "d"),
    "GlobalAveragePool": ("d", "d"),
    "GlobalLpPool": ("d", "d"),
    "GlobalMaxPool": ("d", "d"),
    "GridSample": ("d", "d"),
    "GroupNormalization": ("d", "d"),
    "InstanceNormalization": ("d", "d"),
    "LRN": ("d", "d"),
    "LpPool": ("d", "d"),
    "MaxPool": ("d", "dd"),
    "MaxRoiPool": ("d", "d"),
    "MaxUnpool": ("dd", "d"),
    "QLinearConv": ("d--k", "d"),
    "Resize": ("d", "d"),
    "RoiAlign": ("d", "d"),
    "SpaceToDepth": ("d", "d"),
    "Upsample": ("d", "d"),
}
OPERATORS = tuple(_ROLES)
"""The operators whose axes have names."""

# Operators that do not distinguish all their axes, with the names of those that they do: a normalization only its
# channels; a global pool, and a Resize with sizes, none.
_TOLD = {
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN"), "C"),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "Resize", "Upsample"), ""),
}

_OF_LETTER = {"d": DATA, "k": KERNEL, "-": OTHER}
_DOMAINS = ("", "relayout")
_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}
_SPATIAL_PLACE = re.compile(r"\[[^\]]*\]|S")


def has_roles(node: ir.Node) -> bool:
    """Whether `node` is an operator whose axes have names, such as Conv, a pool or BatchNormalization."""
    return node.op_type in _ROLES and node.domain in _DOMAINS


def input_role(node: ir.Node, n: int) -> str:
    """The role of the n-th input of `node`: DATA, KERNEL or OTHER."""
    return _role(node, 0, n)


def result_role(node: ir.Node, n: int) -> str:
    """The role of the n-th result of `node`: DATA or OTHER."""
    return _role(node, 1, n)


def native_role(op_type: str, side: int, n: int) -> str:
    """The role of the n-th input (`side` 0) or result (1) of an operator: DATA, KERNEL or OTHER."""
    axis_names = _ROLES[op_type][side] if op_type in _ROLES else ""
    return _OF_LETTER[axis_names[n]] if n < len(axis_names) else OTHER


def has_role(op_type: str, role: str) -> bool:
    """Whether an operator of ONNX has an operand in this role: a MaxPool has data and no kernel, an Add neither."""
    sides = _ROLES.get(op_type, ())
    return any(_OF_LETTER[letter] == role for side in sides for letter in side)


def tells_apart(node: ir.Node, letter: str) -> bool:
    """Whether `node`, an operator with named axes, distinguishes the axis of this name."""
    return letter in _TOLD.get(node.op_type, letter)


def kernel_input(op_type: str) -> int | None:
    """The index of an operator's kernel: 1 for Conv, 3 for QLinearConv, None for a pool."""
    place = _ROLES[op_type][0].find("k") if op_type in _ROLES else -1
    return place if place >= 0 else None


def is_transposed(node: ir.Node) -> bool:
    """Whether the kernel of `node` has its input channels first, as in ConvTranspose."""
    return node.op_type == "ConvTranspose"


def spatial_letters(rank: int) -> str | None:
    """The names of the spatial axes of a tensor of rank `rank`: W, HW, DHW; None for other ranks."""
    return _SPATIAL.get(rank)


def data_letters(rank: int) -> str | None:
    """ONNX's names of the axes of a data tensor of rank `rank`: NCW, NCHW, NCDHW; None for other ranks."""
    spatial = spatial_letters(rank)
    return None if spatial is None else "NC" + spatial


def operand_letters(node: ir.Node, n: int, rank: int, *, is_result: bool = False) -> str | None:
    """ONNX's axis names of the n-th input, or result, at this rank, in ONNX's order; None where there are none."""
    return _letters(node, _role(node, int(is_result), n), rank)


def _letters(node: ir.Node, role: str, rank: int) -> str | None:
    spatial = spatial_letters(rank)
    if role == OTHER or spatial is None:
        return None
    return ("NC" if role == DATA else "IO" if is_transposed(node) else "OI") + spatial


@lru_cache(maxsize=1024)
def spell(template: str, rank: int) -> Layout:
    """`template` with S replaced by the spatial axis names of `rank`; any layout for a rank without spatial axes.

    >>> str(spell("NSC", 4)), str(spell("N[a=64]SC", 3)), str(spell("SIO", 5)), str(spell("NSC", 2))
    ('NHWC', 'N[a=64]WC', 'DHWIO', '**')
    """
    spatial = spatial_letters(rank)
    if spatial is None:
        return Layout.any(rank)
    return Layout.parse(_SPATIAL_PLACE.sub(lambda place: spatial if place[0] == "S" else place[0], template))


def written_node(node: ir.Node) -> ir.Node:
    """The node of the model that a logical node stands for (see `relayout.ops.logical_node`); any other node itself."""
    return getattr(node, "written", node)


def own_layout(node: ir.Node, role: str, rank: int, *, is_result: bool = False) -> Layout:
    """How a `role` operand of `node` lies in the model; any layout of `rank`, which means ONNX's order, where no
    attribute says so.

    Only operators of the domain `relayout` carry such attributes: `data_layout`, `kernel_layout`, and `out_layout`
    where the result's differs. Of a logical node those of the node in the model count, unless it hides them. Raises
    InputError for an invalid layout.
    """
    if getattr(node, "hides_layouts", False):
        return Layout.any(rank)
    node = written_node(node)
    names = {DATA: ["data_layout"], KERNEL: ["kernel_layout"]}.get(role, [])
    if is_result and role == DATA:
        names.insert(0, "out_layout")
    name = next((name for name in names if name in node.attributes), "")
    if node.domain != "relayout" or not name:
        return Layout.any(rank)
    text = node.attributes[name].as_string()
    try:
        return Layout.parse(text)
    except LayoutSyntaxError as error:
        raise InputError(
            f"the attribute {name} is not a layout",
            where=f"node {node.name or '(no name)'} (relayout::{node.op_type})",
            expected=error.expected,
            found=f"{error.found} in {text!r}, column {error.column}",
        ) from error


def letters_of_role(node: ir.Node, role: str) -> str | None:
    """ONNX's names for the axes of an operand of this role, whatever the operand's layout."""
    data = node.inputs[0] if node.inputs else None
    if role == OTHER or data is None or data.shape is None:
        return None
    return _letters(node, role, _axis_count(own_layout(node, DATA, len(data.shape))))


@lru_cache(maxsize=1024)
def _axis_count(layout: Layout) -> int:
    return sum(1 for i in range(layout.rank) if layout.outer(i) is None)


def _role(node: ir.Node, side: int, n: int) -> str:
    return native_role(node.op_type, side, n) if has_roles(node) else OTHER
