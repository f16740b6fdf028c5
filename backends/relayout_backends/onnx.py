"""`onnx`: every operator as ONNX defines it, which leaves the fewest transposes that standard ONNX needs."""

from __future__ import annotations

from relayout.backend import Backend


class Onnx(Backend):
    """Standard ONNX operators without requirements: removes every avoidable transpose (the default)."""

    name = "onnx"
    is_pure = True
