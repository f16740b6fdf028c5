"""The independent check: whether a model is legal, and whether it computes what its original does. It shares no code
with the stages that make the model, so that a fault in those does not hide here."""

from __future__ import annotations

from relayout.verification.accounting import check_report
from relayout.verification.verifier import verify

__all__ = ["check_report", "verify"]
