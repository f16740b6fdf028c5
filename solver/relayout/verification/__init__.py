"""The part that must not share a bug with the rest: whether a model is legal, and computes what its original does."""

from __future__ import annotations

from relayout.verification.accounting import check_report
from relayout.verification.verifier import verify

__all__ = ["check_report", "verify"]
