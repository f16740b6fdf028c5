"""Which operands of an operator are data and which are kernels, and how their layouts are spelled at each rank.

A backend that wants channels last says so once, `spell("NSC", rank)`, and gets NWC, NHWC or NDHWC; the kernel of a
convolution is spelled the same way, `spell("SIO", rank)`. Operators are known by their names, so that `relayout::Conv`
has the roles of `Conv`, whatever layout its attributes say.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from relayout.errors import InputError, LayoutSyntaxError
from relayout.layout import Layout

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["DATA", "KERNEL", "OTHER", "has_roles", "input_role", "is_transposed", "own_layout", "result_role", "spell"]

DATA, KERNEL, OTHER = "data", "kernel", "other"

# One letter an operand, inputs then results: d data, k kernel, - neither. What is left out is neither.
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
_OF_LETTER = {"d": DATA, "k": KERNEL, "-": OTHER}
_DOMAINS = ("", "ai.onnx", "relayout")
_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}


def has_roles(node: ir.Node) -> bool:
    """Whether `node` is an operator whose axes have names, such as Conv, a pool or BatchNormalization."""
    return node.op_type in _ROLES and node.domain in _DOMAINS


def input_role(node: ir.Node, n: int) -> str:
    """DATA, KERNEL or OTHER: what the n-th input of `node` is to it."""
    return _role(node, 0, n)


def result_role(node: ir.Node, n: int) -> str:
    """DATA or OTHER: what the n-th result of `node` is to it."""
    return _role(node, 1, n)


def is_transposed(node: ir.Node) -> bool:
    """Whether the kernel of `node` has its input channels first, as ONNX has it for ConvTranspose."""
    return node.op_type == "ConvTranspose"


@lru_cache(maxsize=256)
def spell(template: str, rank: int) -> Layout:
    """`template` with its S replaced by the spatial letters of `rank`; any layout where ranks have no such letters.

    >>> str(spell("NSC", 4)), str(spell("NSC", 3)), str(spell("SIO", 5)), str(spell("NSC", 2))
    ('NHWC', 'NWC', 'DHWIO', '**')
    """
    return Layout.parse(template.replace("S", _SPATIAL[rank])) if rank in _SPATIAL else Layout.any(rank)


def own_layout(node: ir.Node, role: str, rank: int) -> Layout:
    """The layout that `node` itself has a `role` operand in: as its attributes say, else any, which is as ONNX says.

    Only operators of the domain `relayout` carry such attributes (`data_layout`, `kernel_layout`). Raises InputError
    where one is not a layout.
    """
    name = {DATA: "data_layout", KERNEL: "kernel_layout"}.get(role)
    if name is None or node.domain != "relayout" or name not in node.attributes:
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


def _role(node: ir.Node, side: int, n: int) -> str:
    letters = _ROLES[node.op_type][side] if has_roles(node) else ""
    return _OF_LETTER[letters[n]] if n < len(letters) else OTHER
