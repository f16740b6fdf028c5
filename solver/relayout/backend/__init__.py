"""The plugin interface, calls into plugins, and how a backend is found: by name, file, table or object.

The public names are exported here and imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayout.backend.calls import ask
    from relayout.backend.composite import Assignment, Composite, Device, Nodes
    from relayout.backend.interface import (
        Backend,
        Implementation,
        OperatorBody,
        Reordering,
        TensorType,
        Violation,
        axis_count,
        element_size,
        rank_of,
    )
    from relayout.backend.loading import load_backend
    from relayout.backend.registry import find_backends
    from relayout.backend.rewriting import Extents, Rewrite, Writing
    from relayout.layout.metadata_keys import DEVICE_KEY, WRITTEN_KEY
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

_EXPORTS = {
    "relayout.backend.calls": "ask",
    "relayout.backend.composite": "Assignment Composite Device Nodes",
    "relayout.backend.interface": """
        Backend Implementation OperatorBody Reordering TensorType Violation axis_count element_size rank_of
    """,
    "relayout.backend.loading": "load_backend",
    "relayout.backend.registry": "find_backends",
    "relayout.backend.rewriting": "Extents Rewrite Writing",
    "relayout.layout.metadata_keys": "DEVICE_KEY WRITTEN_KEY",
    "relayout.ops.operand_roles": """
        DATA KERNEL OTHER has_roles input_role kernel_input own_layout result_role spatial_letters spell written_node
    """,
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = [
    "DATA",
    "DEVICE_KEY",
    "KERNEL",
    "OTHER",
    "WRITTEN_KEY",
    "Assignment",
    "Backend",
    "Composite",
    "Device",
    "Extents",
    "Implementation",
    "Nodes",
    "OperatorBody",
    "Reordering",
    "Rewrite",
    "TensorType",
    "Violation",
    "Writing",
    "ask",
    "axis_count",
    "element_size",
    "find_backends",
    "has_roles",
    "input_role",
    "kernel_input",
    "load_backend",
    "own_layout",
    "rank_of",
    "result_role",
    "spatial_letters",
    "spell",
    "written_node",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value
