"""A lazy import of sympy by onnx_ir: most of the time that a small run would take.

onnx_ir needs sympy only for arithmetic on symbolic dims such as `2*height`. While onnx_ir is imported, placeholders
replace sympy and the module of onnx_ir that reads names from sympy. A placeholder imports its module when
an attribute of it is first read. `import sympy` elsewhere is not affected.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec


class _Placeholder(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


class _OnnxIrFinder:
    """Finds onnx_ir once, and loads it with the placeholders in place.

    It has the methods of a finder and of a loader, and not their base classes, whose module takes longer to import
    than the rest of `import relayout`.
    """

    loader: Loader

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "onnx_ir":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        names = {"sympy", "onnx_ir._symbolic_shapes"} - sys.modules.keys()
        placeholders = {name: _Placeholder(name) for name in names}
        sys.modules.update(placeholders)
        try:
            self.loader.exec_module(module)
        finally:
            for name, placeholder in placeholders.items():
                if sys.modules.get(name) is placeholder:
                    del sys.modules[name]


def import_sympy_lazily() -> None:
    """Make the first import of onnx_ir import sympy lazily; no effect after that import."""
    if "onnx_ir" not in sys.modules:
        sys.meta_path.insert(0, _OnnxIrFinder())
