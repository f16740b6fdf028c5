"""Modules that a run of the command seldom needs, and whose imports take the larger part of a small run.

onnx_ir imports sympy, for arithmetic on symbolic dims, which relayout does not do. Deferred, it is imported when an
attribute of it is first used. The library leaves imports alone; only the command, which owns its process, does this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

__all__ = ["DEFERRED", "defer_slow_imports"]

# The second one uses sympy's names as it is imported.
DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})


class _Deferring(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_slow_imports() -> None:
    """From now on, import the modules named in `DEFERRED` when they are first used."""
    if _Deferring not in sys.meta_path:
        sys.meta_path.insert(0, _Deferring)
