"""A real server process for all tests, and a client that talks to it over a socket."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from command_line import Run, runner
from http_server import Server, client_of, serving


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
