"""The import of onnxruntime, with its telemetry disabled: no other module of the library imports it."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["import_onnxruntime"]


def import_onnxruntime() -> Any:
    """Import onnxruntime and return the module. Raises ImportError if it is not installed.

    The wheels for Linux send telemetry unless `ORT_DISABLE_TELEMETRY` is set when the library is loaded: they write the
    names of a model's nodes into a database in the home folder, for upload. A value set by the user is kept.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime
