"""Make a machine-learning graph legal for a backend's layouts, with provably the cheapest conversions.

    legal, report = relayout.legalize("model.onnx", backend="nhwc")
    relayout.verify(legal, backend="nhwc", against="model.onnx").findings

Importing the package imports none of its parts: each public name is imported when it is first asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayout.backend.interface import Backend, Implementation, Reordering, TensorType, load_backend
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
    from relayout.report.schema import Report, Verification
    from relayout.verification.verifier import verify

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
    "verify",
    "write_model",
]

_HOMES = {
    "relayout.backend": ("Backend", "Implementation", "Reordering", "TensorType", "load_backend"),
    "relayout.errors": (
        "BackendError",
        "InfeasibleError",
        "InputError",
        "InternalError",
        "LayoutSyntaxError",
        "OutOfTimeError",
        "RelayoutError",
        "UsageError",
    ),
    "relayout.layout": ("Layout",),
    "relayout.model_io": ("read_model", "write_model"),
    "relayout.report": ("Report", "Verification"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Three functions are named as modules are, and importing such a module binds its name here.

    As properties, which the import system cannot overwrite, the names are the functions whatever was imported first.
    """

    @property
    def explain(self) -> Any:
        return import_module("relayout.explaining").explain

    @explain.setter
    def explain(self, module: ModuleType) -> None:
        pass

    @property
    def legalize(self) -> Any:
        return import_module("relayout.legalize").legalize

    @legalize.setter
    def legalize(self, module: ModuleType) -> None:
        pass

    @property
    def verify(self) -> Any:
        return import_module("relayout.verify").verify

    @verify.setter
    def verify(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
