"""`x86-nchwc`: onnxruntime's blocked operators on x86-64, and its quantized ones on NHWC data."""

from __future__ import annotations

from relayout_backends.x86_nchwc.backend import X86Nchwc

__all__ = ["X86Nchwc"]
