"""A server process of the service, with limits low enough to reach in a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = ["MAX_BODY", "QUEUE", "TIME_LIMIT", "WORKERS", "Server", "serving"]

MAX_BODY = 1 << 20
TIME_LIMIT = 5.0
WORKERS = 2
QUEUE = 2
LIMITS = {
    "RELAYOUT_MAX_BODY_BYTES": str(MAX_BODY),
    "RELAYOUT_BODY_SECONDS": "2",
    "RELAYOUT_TIME_LIMIT": str(TIME_LIMIT),
    "RELAYOUT_WORKERS": str(WORKERS),
    "RELAYOUT_QUEUE": str(QUEUE),
    "RELAYOUT_MEMORY_BYTES": str(2 << 30),
}


@dataclass(frozen=True, slots=True)
class Server:
    """The port, process and working folder of a server."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ended_within(self, seconds: float) -> bool:
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server with low limits and warm workers, running in `folder`, which is its home folder too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--factory", "relayout_api.app:create_app", "--port", str(port)]
    (folder / "home").mkdir()
    environment = {**os.environ, **LIMITS, "HOME": str(folder / "home")}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        server = Server(port, process, folder)
        wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(server: Server) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{server.address}/readyz", timeout=60).status_code == 200:
                return
        except httpx.ConnectError:
            pass
        assert not server.ended_within(0.1), server.log()
    raise AssertionError("the server did not get ready in a minute")
