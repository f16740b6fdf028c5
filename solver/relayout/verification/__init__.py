"""The independent check that a model is legal and computes the same as its original.

It shares no code with the stages that make the model, so that a fault in those is not repeated here.
"""

from __future__ import annotations

from relayout.verification.counterparts import Original
from relayout.verification.verifier import verify

__all__ = ["Original", "verify"]
