"""Bearer tokens of an OpenID Connect issuer."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from threading import Lock
from time import monotonic
from typing import Any

import httpx
import jwt

from relayout.errors import UsageError
from relayout_api.access.callers import SCOPES, Caller, TooSoonError

_log = logging.getLogger("relayout_api")

# Signatures with a public key. A secret that is shared with the issuer is none of a service's business.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_SECONDS = 30
_KEYS_LIFETIME_SECONDS = 600
_WAIT_SECONDS = 5
_LONGEST_SUBJECT = 255
# An issuer that did not answer is not asked again before: callers need not wait for it one after the other.
_SILENCE_SECONDS = 5.0
# An issuer that answered is not asked for another key before: those who make up keys do not load it.
_REFRESH_SECONDS = 1.0
# While it is asked, the tokens of other unknown keys are looked at again so often.
_ASKING_SECONDS = 0.25
_LONGEST_NAME_IN_LOG = 80


class Tokens:
    """Checks tokens of one issuer for one audience, with the public keys that the issuer publishes.

    A token's claim `claim` (a string of words, or a list) has its scopes, each as `relayout:read` or `read`. The
    addresses are those of OpenID Connect Discovery 1.0.
    """

    def __init__(self, issuer: str, audience: str, claim: str = "scope") -> None:
        self._issuer, self._audience, self._claim = issuer, audience, claim
        self._keys: jwt.PyJWKClient | None = None
        self._asked_at = -math.inf
        self._asking = Lock()
        self._silence: tuple[float, str] | None = None

    def find(self, token: str, arrived: float) -> Caller | None:
        """The caller whom a token names, or None if it is not valid or has no scope of this service, as the log says.

        A token is refused for its key only where the issuer was asked for its keys after the time `arrived` of
        `time.monotonic`. So nobody can make a token of a new key invalid by naming a key that does not exist before.
        Raises UsageError if the issuer does not answer, or did not a few seconds ago, and TooSoonError if it is being
        asked, or was a moment before the token arrived.
        """
        try:
            name = jwt.get_unverified_header(token).get("kid")
            if name is None:
                raise jwt.InvalidTokenError("it names no key")
            key = self._known(name) or self._asked(name, arrived)
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            # The caller is told no more than that it is not valid. Whoever runs the service may have named another
            # audience than the issuer.
            _log.info("a token is not valid: %s", error)
            return None
        scopes = [scope for scope in SCOPES if scope in _words(claims.get(self._claim))]
        if not scopes:
            _log.info("a token has no scope of this service in its claim %s", self._claim)
            return None
        # OpenID Connect Core 1.0, section 2. It is written to logs and to the job database.
        subject = claims["sub"]
        if not 0 < len(subject) <= _LONGEST_SUBJECT or not subject.isprintable():
            _log.info(
                "a token is not valid: its subject has %d characters, or some that cannot be printed", len(subject)
            )
            return None
        return Caller(f"token:{subject}", scopes[-1])

    def _known(self, name: str) -> jwt.PyJWK | None:
        """The key of this name among those that the issuer published lately; it need not answer now."""
        cache = None if self._keys is None else self._keys.jwk_set_cache
        known = None if cache is None else cache.get()
        signing = [] if known is None else [key for key in known.keys if key.public_key_use in ("sig", None)]
        return next((key for key in signing if key.key_id == name), None)

    def _asked(self, name: str, arrived: float) -> jwt.PyJWK:
        """The key of this name, for which the issuer is asked unless it was since the token arrived.

        Raises as `find`, and PyJWTError where there is none.
        """
        if not self._asking.acquire(blocking=False):
            # Those who make up keys cannot have all threads wait for an issuer that is slow.
            raise TooSoonError(_ASKING_SECONDS)
        try:
            self._refresh(arrived)
        finally:
            self._asking.release()
        found = self._known(name)
        if found is None:
            raise jwt.InvalidTokenError(f"the issuer publishes no key {name[:_LONGEST_NAME_IN_LOG]!r}")
        return found

    def _refresh(self, arrived: float) -> None:
        """Ask the issuer for its keys, unless it was asked since `arrived`. Raises as `find`, and PyJWTError."""
        now = monotonic()
        if self._silence is not None and now < self._silence[0] + _SILENCE_SECONDS:
            raise self._unanswered(self._silence[1])
        if self._asked_at >= arrived:
            return
        if now < self._asked_at + _REFRESH_SECONDS:
            raise TooSoonError(self._asked_at + _REFRESH_SECONDS - now)
        client = self._published()
        self._asked_at = now
        try:
            client.get_jwk_set(refresh=True)
        except (jwt.PyJWKClientConnectionError, ValueError) as error:
            # It does not answer, or its keys are no JSON.
            raise self._silent(error) from error

    def check(self) -> str:
        """The address of the issuer's keys. Raises UsageError if the issuer does not answer."""
        return str(self._published().uri)

    def _published(self) -> jwt.PyJWKClient:
        if self._keys is None:
            address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                document = httpx.get(address, timeout=_WAIT_SECONDS, follow_redirects=True).raise_for_status().json()
                uri, issuer = document["jwks_uri"], document["issuer"]
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                raise self._silent(error) from error
            if issuer != self._issuer:
                raise UsageError(
                    "the issuer has another name",
                    where="RELAYOUT_OIDC_ISSUER",
                    expected=str(issuer),
                    found=self._issuer,
                )
            self._keys = jwt.PyJWKClient(uri, lifespan=_KEYS_LIFETIME_SECONDS, timeout=_WAIT_SECONDS)
        return self._keys

    def _silent(self, error: Exception) -> UsageError:
        self._silence = monotonic(), f"{type(error).__name__}: {error}"
        return self._unanswered(self._silence[1])

    def _unanswered(self, found: str) -> UsageError:
        return UsageError(
            "the issuer of tokens does not answer",
            where="RELAYOUT_OIDC_ISSUER",
            expected=f"OpenID Connect Discovery at {self._issuer}",
            found=found,
        )


def _words(claim: Any) -> set[str]:
    words: Iterable[Any] = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    return {str(word).removeprefix("relayout:") for word in words}
