"""The work of `relayout serve keys`: make, list and revoke keys in the service's database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from relayout_api.access.keys import Keys
from relayout_api.settings import Settings


def add(name: str, scope: str, rate: float | None, concurrency: int | None, days: int | None) -> str:
    """Make a key; return it. Raises UsageError."""
    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with _keys() as keys:
        return keys.add(name, scope, rate=rate, concurrency=concurrency, expires=expires)


def listed() -> list[tuple[str, ...]]:
    """A row for each key: its name, scope, limits and dates. Raises UsageError."""
    now = datetime.now(UTC)
    with _keys() as keys:
        known = keys.all()
    return [
        (
            key.name,
            key.scope,
            "-" if key.rate is None else f"{key.rate:g}",
            "-" if key.concurrency is None else str(key.concurrency),
            f"{key.made:%Y-%m-%d}",
            "-" if key.expires is None else f"{key.expires:%Y-%m-%d}" + ("" if key.is_valid(now) else " (expired)"),
        )
        for key in known
    ]


def revoke(name: str) -> None:
    """Delete a key. Raises UsageError."""
    with _keys() as keys:
        keys.revoke(name)


def _keys() -> Keys:
    return Keys(Settings.from_environment().keys_url)
