"""`onnx`: every operator as ONNX defines it, which leaves the fewest transposes that standard ONNX needs."""

from __future__ import annotations

from relayout.backend import Backend

__all__ = ["Onnx"]


class Onnx(Backend):
    """Standard ONNX operators without requirements: removes every avoidable transpose (the default)."""

    name = "onnx"
    is_pure = True
