"""Pages of other sites are kept out of a service without keys on this machine."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from http_server import Server
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from relayout_api.access.same_origin import SameOrigin, is_local
from relayout_api.app import create_app
from relayout_api.settings import Settings

OWN = "localhost:8000"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse({})(scope, receive, send)


async def status_of(method: str, headers: dict[str, str], *allowed: str) -> int:
    transport = httpx.ASGITransport(SameOrigin(answer, allowed=allowed))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.request(method, "/v1/jobs", headers={"Host": OWN, **headers})).status_code


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        *(({"Host": host}, 200) for host in ("127.0.0.1", "LOCALHOST:1", "[::1]:8000", "127.0.0.2:8000")),
        *(({"Host": host}, 403) for host in ("evil.example", "localhost.evil.example:8000", "10.0.0.1", "[::1", "")),
        ({"Origin": f"http://{OWN}"}, 200),
        *(({"Origin": origin}, 403) for origin in ("http://evil.example", "http://localhost:3000", "null")),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200),
    ],
)
async def test_only_this_machine_and_its_own_page_may_ask(headers: dict[str, str], status: int) -> None:
    assert await status_of("GET", headers) == status


@pytest.mark.anyio
async def test_origins_that_are_allowed_may_ask_and_a_form_of_another_page_may_not() -> None:
    allowed = {"Origin": "https://example.org", "Sec-Fetch-Site": "cross-site"}
    assert await status_of("POST", allowed) == 403
    assert await status_of("POST", allowed, "https://example.org") == 200
    assert await status_of("POST", allowed, "*") == 200
    assert await status_of("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}) == 403


@pytest.mark.anyio
@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
async def test_a_page_that_is_allowed_may_send_its_key_in_either_header(tmp_path: Path, header: str) -> None:
    app = create_app(Settings(data=tmp_path, auth="required", cors_origins=("https://example.org",)))
    asked = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": header,
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.options("/v1/jobs", headers=asked)).status_code == 200


def test_a_server_without_keys_refuses_a_rebound_name(server: Server, client: httpx.Client) -> None:
    evil = {"Host": f"evil.example:{server.port}", "Origin": f"http://evil.example:{server.port}"}
    refused = client.get("/v1/jobs", headers=evil)
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
    assert refused.headers["content-type"] == "application/problem+json"
    form = client.post("/v1/legalize", files={"model": b"x"}, headers={"Origin": "http://evil.example"})
    assert (form.status_code, form.json()["where"]) == (403, "header Origin")
    assert client.get("/v1/jobs", headers={"Origin": server.address}).status_code == 200


def test_a_local_address_is_one_that_no_other_machine_reaches() -> None:
    assert [is_local(host) for host in ("::1", "127.8.0.1", "0.0.0.0", "relayout.example")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
