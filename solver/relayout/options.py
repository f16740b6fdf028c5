"""The arguments of the doors: what a caller may choose, checked as it comes in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relayout.backend.interface import Backend
from relayout.errors import UsageError
from relayout.formulate.objective import OBJECTIVES

__all__ = ["BackendSpec", "Options", "Progress"]

BackendSpec = str | os.PathLike[str] | Mapping[str, Any] | Backend | type[Backend]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may choose beside the backend.

    `dims` gives sizes to symbolic dims, for pricing only. `explain` asks what would be saved without each requirement
    that holds a conversion in place, and says how many problems may be solved for it.
    """

    objective: str = "bytes"
    input_layouts: Mapping[str, str] | None = None
    output_layouts: Mapping[str, str] | None = None
    dims: Mapping[str, int] | None = None
    time_limit: float | None = None
    engine: str = "auto"
    max_transposes: int | None = None
    explain: int | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(
                "unknown objective", where="objective", expected=" or ".join(OBJECTIVES), found=str(self.objective)
            )
        if self.time_limit is not None and not self.time_limit > 0:
            raise UsageError("the time limit must be positive", where="time_limit", found=str(self.time_limit))
        if self.explain is not None and self.explain < 0:
            raise UsageError("a limit cannot be negative", where="limit", found=str(self.explain))
        for name, size in (self.dims or {}).items():
            if size < 1:
                raise UsageError(
                    "a dim's size must be positive", where=f"dims, {name}", expected="1 or more", found=str(size)
                )
