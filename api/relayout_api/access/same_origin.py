"""The middleware that keeps pages of other sites out of a service without keys on this machine.

A browser sends requests to 127.0.0.1 for any page, and its user's machine is all that such a service asks for. A name
of another site that suddenly means 127.0.0.1 (DNS rebinding) makes the page and the service one origin for the browser.
The header Host tells, because it has that name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from relayout_api.problems import RefusedError, response_of


def is_local(host: str) -> bool:
    """Whether a name or address is one of this machine, which no other can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SameOrigin:
    """Refuses requests for another host than this machine, and those of pages of other origins than `allowed`."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self._app, self._allowed = app, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await response_of(refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> RefusedError | None:
        headers = Headers(scope=scope)
        # HTTP/1.0 has requests without a host; no browser sends them.
        host = headers.get("host")
        if host is not None and not is_local(_name_in(host)):
            return RefusedError(
                "forbidden",
                "a service without keys answers to names of this machine alone",
                where="header Host",
                expected="localhost, 127.0.0.1 or [::1]",
                found=host,
                hint="whoever runs the service can have it ask for keys (RELAYOUT_AUTH=required)",
            )
        origin = headers.get("origin")
        if origin is not None and not self._may(origin, host):
            return _of_a_page("header Origin", origin)
        # A browser leaves out Origin where a page shows an image or loads a script. A link to a page may be followed.
        is_elsewhere = headers.get("sec-fetch-site") == "cross-site"
        is_link = scope["method"] in ("GET", "HEAD") and headers.get("sec-fetch-dest") == "document"
        if origin is None and is_elsewhere and not is_link:
            return _of_a_page("header Sec-Fetch-Site", "cross-site")
        return None

    def _may(self, origin: str, host: str | None) -> bool:
        is_own = host is not None and origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
        return is_own or origin in self._allowed or "*" in self._allowed


def _name_in(host: str) -> str:
    """The name or address in a header Host, without its port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _of_a_page(where: str, found: str) -> RefusedError:
    return RefusedError(
        "forbidden",
        "pages of other sites may not call this service",
        where=where,
        expected="the service's own origin, or one of RELAYOUT_CORS_ORIGINS",
        found=found,
    )
