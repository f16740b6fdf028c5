"""Callers and what they may do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import Request

PREFIX = "relayout_"
"""How every key starts, so that a scanner of secrets finds one that was published."""

SCOPES = ("read", "legalize", "admin")
"""Each scope includes those before it: `legalize` may send work and see its own jobs, `admin` sees all jobs."""

# The page, probes and readers of an error need these, with or without a key.
_OPEN = re.compile(r"/(|static/.*|jobs/[^/]*|favicon\.ico|healthz|readyz|openapi\.json|problems/.*)")
_WORK = re.compile(r"/v1/(legalize|explain|verify|graph|jobs)(/.*)?")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: a key, the subject of a token, or an address.

    `rate` is in requests a minute and `concurrency` in requests at once; None is without a limit.
    """

    name: str
    scope: str = "admin"
    rate: float | None = None
    concurrency: int | None = None

    def may(self, scope: str) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def may_see(self, owner: str) -> bool:
        """Whether the caller may see the jobs of the caller of this name."""
        return owner == self.name or self.may("admin")


def caller_of(request: Request) -> Caller:
    """The caller of a request: its key or token, else its address."""
    caller: Caller = request.scope["relayout.caller"]
    return caller


def needed_scope(method: str, path: str) -> str | None:
    """The scope that a request needs, or None if everybody may send it."""
    if _OPEN.fullmatch(path):
        return None
    return "legalize" if _WORK.fullmatch(path) and method not in ("GET", "HEAD", "OPTIONS") else "read"


class TooSoonError(Exception):
    """A token names a key that the issuer may have published since it was asked, and it may be asked in `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the issuer may be asked in {seconds:g} s")
        self.seconds = seconds
