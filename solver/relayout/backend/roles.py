"""Roles, ranks and layouts of operands, for plugins: the operator table's own helpers."""

from __future__ import annotations

from relayout.ops.operand_roles import (
    DATA,
    KERNEL,
    OTHER,
    has_roles,
    input_role,
    kernel_input,
    own_layout,
    result_role,
    spatial_letters,
    spell,
    written_node,
)

__all__ = [
    "DATA",
    "KERNEL",
    "OTHER",
    "has_roles",
    "input_role",
    "kernel_input",
    "own_layout",
    "result_role",
    "spatial_letters",
    "spell",
    "written_node",
]
