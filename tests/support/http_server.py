"""A server process of the service, with limits low enough to reach in a test."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from time import monotonic, sleep

import httpx
from forked_server import forked_server

MAX_BODY = 1 << 20
TIME_LIMIT = 5.0
WORKERS = 2
QUEUE = 16
LIMITS = {
    "RELAYOUT_MAX_BODY_BYTES": str(MAX_BODY),
    "RELAYOUT_BODY_SECONDS": "2",
    "RELAYOUT_TIME_LIMIT": str(TIME_LIMIT),
    "RELAYOUT_WORKERS": str(WORKERS),
    "RELAYOUT_QUEUE": str(QUEUE),
    "RELAYOUT_MEMORY_BYTES": str(2 << 30),
    "RELAYOUT_HEADER_SECONDS": "2",
    "RELAYOUT_GRACE": "1",
}


@dataclass(frozen=True, slots=True)
class Server:
    """The port, process and working folder of a server."""

    port: int
    process: ForkServerProcess
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ended_within(self, seconds: float) -> bool:
        self.process.join(seconds)
        return self.process.exitcode is not None


@contextmanager
def serving(
    folder: Path, prefix: Sequence[str] = (), until: str = "/readyz", *, impatient: bool = False, **settings: str
) -> Iterator[Server]:
    """A server with low limits and warm workers, running in `folder`, which has its home folder and its data.

    `until` is the path that answers 200 when it runs. An `impatient` one soon finds that the job database is back, that
    another server is gone, or that the store does not answer. `settings` are variables of its environment.
    It is forked from a process that has made its imports. With a `prefix`, a command that runs the server's, it is a
    new process; the prefix `env` does no more than that.
    """
    port = free_port()
    (folder / "home").mkdir(exist_ok=True)
    home, data = str(folder / "home"), str(folder / "data")
    environment = {**os.environ, **LIMITS, "HOME": home, "RELAYOUT_DATA": data, **settings}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    process = forked_server(folder, environment, port, prefix, impatient=impatient)
    try:
        server = Server(port, process, folder)
        wait_until_ready(server, until)
        yield server
    finally:
        process.terminate()
        process.join()


def free_port() -> int:
    """A port on which nothing listens. It is below those that systems give to connections, one of which might take it
    before the server does."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def client_of(server: Server, address: str = "127.0.0.1") -> httpx.Client:
    """A client that calls from `address`. Without certificates, which plain HTTP does not read, it is made at once."""
    transport = httpx.HTTPTransport(local_address=address, verify=False)
    return httpx.Client(base_url=server.address, timeout=60, transport=transport)


def wait_until_ready(server: Server, until: str) -> None:
    with client_of(server) as client:
        for _ in range(600):
            # Before the server listens, a connection to its port may come from that same port, and answer itself.
            with contextlib.suppress(httpx.ConnectError, httpx.RemoteProtocolError):
                if client.get(until).status_code == 200:
                    return
            assert not server.ended_within(0.1), server.log()
    raise AssertionError("the server did not get ready in a minute")


def workers_of(server: Server) -> set[int]:
    """The processes of the workers: the children of the template, which is the server's only child."""
    return {worker for template in children(server.pid) for worker in children(template)}


def replaced(client: httpx.Client, cause: str) -> float:
    """The workers that were replaced for a cause, by the server's metrics."""
    start = f'relayout_worker_restarts_total{{cause="{cause}"}} '
    (found,) = [line for line in client.get("/metrics").text.splitlines() if line.startswith(start)]
    return float(found.removeprefix(start))


def children(process: int) -> list[int]:
    """The child processes of a process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def is_running(process: int) -> bool:
    return _state(process) == "R"


def has_ended(process: int) -> bool:
    """Whether a process is gone, or has ended and its parent has not asked for its status yet."""
    return _state(process) in ("", "X", "Z")


def _state(process: int) -> str:
    """The state that Linux gives as a letter; empty where there is no such process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end while it is being read
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def cpu_seconds(process: int) -> float:
    """The CPU time that a process has spent on its own code; 0 where it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until a condition holds. Asked ever more rarely, it takes no time from the processes that it waits for."""
    end, pause = monotonic() + seconds, 0.01
    while monotonic() < end:
        if condition():
            return
        sleep(pause)
        pause = min(pause * 1.5, 0.1)
    raise AssertionError(f"it did not come about in {seconds} s")
