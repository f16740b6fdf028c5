"""A real server process for all tests, and a client that talks to it over a socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from command_line import Run, runner
from http_server import Server, client_of, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Other tests need no browser.
    from chromium import browsing

    with browsing() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page in a new context; the test fails on any error of a script and any violation of the policy."""
    from playwright.sync_api import expect

    context = browser.new_context(**getattr(request, "param", {}))
    page = context.new_page()
    page.set_default_timeout(20_000)
    expect.set_options(timeout=20_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    page.goto(server.address)
    page.wait_for_selector("#backend option", state="attached")
    yield page
    context.close()
    assert errors == []
