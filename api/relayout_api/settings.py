"""The settings of the service: environment variables `RELAYOUT_*`, checked once at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from relayout.errors import UsageError

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits of the service. A field `x` is read from the variable RELAYOUT_X.

    `workers` processes run at once, and `queue` more requests may wait for one. A request has `time_limit` seconds in a
    worker; then the worker is killed. A worker has at most `memory_bytes` of data memory (on Linux). A body has at most
    `max_body_bytes` and arrives within `body_seconds`.
    """

    workers: int = field(default_factory=lambda: max(1, min(os.cpu_count() or 1, 4)))
    queue: int = 16
    time_limit: float = 30.0
    memory_bytes: int = 4 << 30
    max_body_bytes: int = 128 << 20
    body_seconds: float = 60.0

    def __post_init__(self) -> None:
        for option in fields(self):
            value, least = getattr(self, option.name), 0 if option.name == "queue" else 1e-3
            if not least <= value < 1 << 50:
                raise UsageError(
                    "a setting is out of range",
                    where=_variable(option.name),
                    expected="0 or more" if least == 0 else "a positive number",
                    found=str(value),
                )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings from the environment, with defaults for the rest. Raises UsageError, which names the
        variable."""
        given: dict[str, float | int] = {}
        for option in fields(cls):
            text = environment.get(_variable(option.name))
            if text is None:
                continue
            number = float if option.type == "float" else int
            try:
                given[option.name] = number(text)
            except ValueError:
                kind = "a number" if number is float else "a whole number"
                raise UsageError(
                    "a setting is not a number", where=_variable(option.name), expected=kind, found=repr(text)
                ) from None
        return cls(**given)  # type: ignore[arg-type]


def _variable(name: str) -> str:
    return f"RELAYOUT_{name.upper()}"
