"""Make a machine-learning graph legal for a backend's layouts, with provably the cheapest conversions.

    legal, report = relayout.legalize("model.onnx", backend="nhwc")
    relayout.verify(legal, backend="nhwc", against="model.onnx").findings

Each public name is imported when it is first used, and sympy, which onnx_ir imports, when a dim needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from relayout.model.lazy_imports import import_sympy_lazily

if TYPE_CHECKING:
    from relayout.backend import Backend, Implementation, Reordering, TensorType, load_backend
    from relayout.errors import (
        BackendError,
        InfeasibleError,
        InputError,
        InternalError,
        LayoutSyntaxError,
        OutOfTimeError,
        RelayoutError,
        UsageError,
    )
    from relayout.layout.layout import Layout
    from relayout.legalization import explain, legalize
    from relayout.model.io import read_model, write_model
    from relayout.report.render import render_text
    from relayout.report.schema import Report, Verification
    from relayout.verification import verify

_EXPORTS = {
    "relayout.backend": "Backend Implementation Reordering TensorType load_backend",
    "relayout.errors": """
        BackendError InfeasibleError InputError InternalError LayoutSyntaxError OutOfTimeError RelayoutError UsageError
    """,
    "relayout.layout.layout": "Layout",
    "relayout.legalization": "explain legalize",
    "relayout.model.io": "read_model write_model",
    "relayout.report.render": "render_text",
    "relayout.report.schema": "Report Verification",
    "relayout.verification": "verify",
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = [
    "Backend",
    "BackendError",
    "Implementation",
    "InfeasibleError",
    "InputError",
    "InternalError",
    "Layout",
    "LayoutSyntaxError",
    "OutOfTimeError",
    "RelayoutError",
    "Reordering",
    "Report",
    "TensorType",
    "UsageError",
    "Verification",
    "explain",
    "legalize",
    "load_backend",
    "read_model",
    "render_text",
    "verify",
    "write_model",
]


import_sympy_lazily()


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
