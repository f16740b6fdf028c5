"""Tokens of an issuer that runs in this process."""

from __future__ import annotations

import gc
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import anyio
import httpx
import jwt
import pytest
from answering import answering
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from relayout.errors import UsageError
from relayout_api.access.callers import PREFIX, Caller, TooSoonError
from relayout_api.access.guard import Guard
from relayout_api.access.tokens import Tokens

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
PUBLISHED = {"1": KEY}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The address of an issuer of OpenID Connect tokens."""

    class Issuer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = [
                {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"}
                for name, key in PUBLISHED.items()
            ]
            documents = {
                "/.well-known/openid-configuration": {"issuer": address, "jwks_uri": f"{address}/keys"},
                "/keys": {"keys": known},
            }
            body = json.dumps(documents[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Issuer) as address:
        yield address


@pytest.fixture
def signed(issuer: str) -> Callable[..., str]:
    def sign(key: ec.EllipticCurvePrivateKey = KEY, kid: str = "1", **changes: Any) -> str:
        claims = {"iss": issuer, "aud": "relayout", "sub": "ana", "exp": time.time() + 60, "scope": "relayout:legalize"}
        claims |= changes
        return jwt.encode({k: v for k, v in claims.items() if v is not None}, key, "ES256", headers={"kid": kid})

    return sign


def test_a_valid_token_names_its_subject_and_highest_scope(issuer: str, signed: Callable[..., str]) -> None:
    tokens = Tokens(issuer, "relayout")
    caller = tokens.find(signed(), time.monotonic())
    assert caller is not None
    assert (caller.name, caller.scope) == ("token:ana", "legalize")
    both = tokens.find(signed(scope="openid read relayout:admin"), time.monotonic())
    assert both is not None
    assert both.scope == "admin"


def test_scopes_may_be_a_list_under_another_claim(issuer: str, signed: Callable[..., str]) -> None:
    caller = Tokens(issuer, "relayout", "roles").find(signed(scope=None, roles=["read", 7]), time.monotonic())
    assert caller is not None
    assert caller.scope == "read"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\0b"},
        {"sub": "a" * 256},
        {"aud": "another"},
        {"iss": "http://another"},
        {"scope": "openid"},
        {"scope": None},
        {"nbf": time.time() + 3600},
        {"key": OTHER},
    ],
    ids=[
        "expired",
        "endless",
        "nobody's",
        "empty",
        "NUL",
        "long",
        "audience",
        "issuer",
        "scope",
        "no scope",
        "too early",
        "key",
    ],
)
def test_any_other_token_is_nobody(issuer: str, signed: Callable[..., str], changes: dict[str, Any]) -> None:
    assert Tokens(issuer, "relayout").find(signed(**changes), time.monotonic()) is None


def test_a_token_without_a_public_key_signature_is_nobody(issuer: str, signed: Callable[..., str]) -> None:
    tokens = Tokens(issuer, "relayout")
    claims = jwt.decode(signed(), options={"verify_signature": False})
    for forged in (
        jwt.encode(claims, None, "none", headers={"kid": "1"}),
        jwt.encode(claims, "x" * 32, "HS256", headers={"kid": "1"}),
        "not a token",
    ):
        assert tokens.find(forged, time.monotonic()) is None


def test_keys_may_be_rotated(issuer: str, signed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout_api.access.tokens._REFRESH_SECONDS", 0.0)
    tokens = Tokens(issuer, "relayout")
    assert tokens.find(signed(), time.monotonic()) is not None
    monkeypatch.setitem(PUBLISHED, "2", OTHER)
    monkeypatch.delitem(PUBLISHED, "1")
    assert tokens.find(signed(OTHER, kid="2"), time.monotonic()) is not None
    assert tokens.find(signed(), time.monotonic()) is None


def test_a_token_of_a_new_key_is_valid_though_a_stranger_made_up_a_key_just_before(
    issuer: str, signed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service has asked the issuer for the stranger's key when the issuer publishes a new one."""
    tokens = Tokens(issuer, "relayout")

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("served")(scope, receive, send)

    guard = Guard(served, key=None, token=tokens.find, required=True)

    async def ask(*texts: str) -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://x") as client:
            headers = [{"Authorization": f"Bearer {text}"} for text in texts]
            return [(await client.get("/v1/backends", headers=each)).status_code for each in headers]

    assert anyio.run(ask, signed(), signed(kid="made up")) == [200, 401]
    monkeypatch.setitem(PUBLISHED, "2", OTHER)
    assert anyio.run(ask, signed(OTHER, kid="2")) == [200]


@contextmanager
def publishing(before: Callable[[str], None]) -> Iterator[str]:
    """The address of an issuer of one key, `1`. It calls `before` with the path of each request."""

    class Issuer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            before(self.path)
            key = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key())), "kid": "1", "use": "sig"}
            body = json.dumps({"issuer": address, "jwks_uri": f"{address}/keys", "keys": [key]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Issuer) as address:
        yield address


def test_callers_with_known_keys_do_not_wait_while_the_issuer_is_asked_for_keys_that_are_made_up(
    signed: Callable[..., str],
) -> None:
    hangs, answers = threading.Event(), threading.Event()

    def hang(path: str) -> None:
        if hangs.is_set():
            answers.wait(20)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("served")(scope, receive, send)

    async def ask() -> tuple[int, set[int]]:
        made_up: list[int] = []

        async def get(**changes: Any) -> int:
            answer = await client.get("/v1/backends", headers={"X-API-Key": signed(iss=address, **changes)})
            return answer.status_code

        async def make_up(number: int) -> None:
            made_up.append(await get(kid=f"made up {number}"))

        guard = Guard(served, key=None, token=Tokens(address, "relayout").find, required=True)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://x") as client:
            assert await get() == 200
            hangs.set()
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(make_up, number)
                await anyio.sleep(1.5)
                try:
                    with anyio.fail_after(2):
                        known = await get(sub="bob")
                finally:
                    answers.set()
        return known, set(made_up)

    with publishing(hang) as address:
        assert anyio.run(ask) == (200, {401})


def test_callers_who_make_up_keys_do_not_load_the_issuer(signed: Callable[..., str]) -> None:
    """Of two tokens that arrived before the issuer was asked, it is asked once; one that arrives later has to wait."""
    asked: list[str] = []
    with publishing(asked.append) as address:
        tokens, arrived = Tokens(address, "relayout"), time.monotonic()
        assert [tokens.find(signed(kid=kid), arrived) for kid in ("2", "3")] == [None, None]
        with pytest.raises(TooSoonError) as caught:
            tokens.find(signed(kid="4"), time.monotonic())
    assert 0 < caught.value.seconds <= 1
    assert asked == ["/.well-known/openid-configuration", "/keys"]


def test_an_issuer_that_is_silent_or_another_is_an_error(issuer: str, signed: Callable[..., str]) -> None:
    with pytest.raises(UsageError, match="does not answer"):
        Tokens("http://127.0.0.1:1", "relayout").find(signed(), time.monotonic())
    with pytest.raises(UsageError, match="another name"):
        Tokens(issuer + "/", "relayout").check()


@pytest.mark.parametrize("has_keys", [False, True], ids=["no answer", "keys that are no JSON"])
def test_an_issuer_that_did_not_answer_is_not_asked_again_at_once(signed: Callable[..., str], has_keys: bool) -> None:
    asked = []

    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if not has_keys:
                self.send_error(503)
                return
            document = json.dumps({"issuer": address, "jwks_uri": f"{address}/keys"}) if len(asked) == 1 else "<html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document.encode())

    with answering(Broken) as address:
        tokens = Tokens(address, "relayout")
        for _ in range(3):
            with pytest.raises(UsageError, match="does not answer"):
                tokens.find(signed(), time.monotonic())
    assert len(asked) == 1 + has_keys


def test_tokens_of_known_keys_are_valid_while_the_issuer_does_not_answer(
    issuer: str, signed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(issuer, "relayout")
    assert tokens.find(signed(), time.monotonic()) is not None
    # It is asked for the key of each token that names another, which anybody can send.
    monkeypatch.setattr(tokens._keys, "uri", "http://127.0.0.1:1")
    monkeypatch.setattr("relayout_api.access.tokens._REFRESH_SECONDS", 0.0)
    for _ in range(2):
        with pytest.raises(UsageError, match="does not answer"):
            tokens.find(signed(kid="2"), time.monotonic())
        assert tokens.find(signed(), time.monotonic()) is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aud": "another"}, "a token is not valid: Audience doesn't match"),
        ({"kid": "2"}, "a token is not valid: the issuer publishes no key '2'"),
        ({"scope": "openid"}, "a token has no scope of this service in its claim scope"),
    ],
    ids=["audience", "key", "scope"],
)
def test_the_log_says_why_a_token_is_refused(
    issuer: str,
    signed: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    reason: str,
) -> None:
    caplog.set_level("INFO")
    assert Tokens(issuer, "relayout").find(signed(**changes), time.monotonic()) is None
    assert [message.startswith(reason) for message in caplog.messages if "token" in message] == [True]


def test_callers_with_keys_do_not_wait_for_an_issuer_that_hangs() -> None:
    hung = threading.Event()

    def token(text: str, arrived: float) -> Caller | None:
        hung.wait(20)
        return None

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("served")(scope, receive, send)

    guard = Guard(served, key=lambda text: Caller("ana", "read"), token=token, required=True)

    async def ask() -> int:
        transport = httpx.ASGITransport(guard)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://x") as client,
            anyio.create_task_group() as all_,
        ):
            for number in range(100):
                all_.start_soon(lambda n: client.get("/v1/backends", headers={"X-API-Key": f"token {n}"}), number)
            try:
                with anyio.fail_after(10):
                    await anyio.sleep(0.2)
                    answer = await client.get("/v1/backends", headers={"X-API-Key": f"{PREFIX}1"})
            finally:
                hung.set()
        return answer.status_code

    assert anyio.run(ask) == 200


def test_tokens_that_are_nobodys_take_no_memory() -> None:
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nobody may come here")

    guard = Guard(served, key=lambda text: None, token=lambda text, arrived: None, required=True)

    async def ask(first: int) -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://x") as client:
            await client.get("/v1/backends", headers={"X-API-Key": "first"})
            tracemalloc.start()
            for number in range(first, first + 50):
                answer = await client.get("/v1/backends", headers={"X-API-Key": f"{number} {'x' * 60_000}"})
                assert answer.status_code == 401
            gc.collect()
            memory = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            return memory

    try:
        # Another thread of this process may take memory in one of the rounds.
        assert min(anyio.run(ask, first) for first in (0, 50, 100)) < 1_000_000
    finally:
        tracemalloc.stop()
