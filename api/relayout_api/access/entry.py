"""How the settings let callers in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout_api.settings import Settings

if TYPE_CHECKING:
    from relayout_api.access.guard import Finder

__all__ = ["finders"]


def finders(settings: Settings) -> dict[str, Any]:
    """The arguments of `Guard` for these settings."""
    key: Finder | None = None
    token: Finder | None = None
    if settings.auth == "required":
        from relayout_api.access.keys import Keys

        keys = Keys(settings.keys_url)

        def find_key(text: str) -> Any:
            found = keys.find(text)
            return None if found is None else found.caller

        key = find_key
    if settings.oidc_issuer is not None:
        from relayout_api.access.tokens import Tokens

        token = Tokens(settings.oidc_issuer, settings.oidc_audience, settings.oidc_claim).find
    return {"key": key, "token": token, "required": settings.auth == "required"}
