"""The command `relayout serve` without its imports: each server is forked from one process that has made them.

That process is the fork server of `multiprocessing`: it has one thread, and imports no more than a server does.
Run as a program, this module is a server in a new process: `python forked_server.py PORT patient|impatient`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_IMPORTS = [
    "relayout.cli.commands",
    "relayout.cli.serve",
    "relayout_api.app",
    "relayout_api.http_protocol",
    "relayout_api.jobs.engine",
    "relayout_api.server",
    "anyio._backends._asyncio",
    "dbos",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.orm",
    "uvicorn",
]


def forked_server(
    folder: Path, environment: Mapping[str, str], port: int, prefix: Sequence[str], *, impatient: bool
) -> ForkServerProcess:
    """A server that runs in `folder`, and writes its log there. With a `prefix`, the fork becomes that command, which
    runs the server in a new process. An `impatient` one waits for less time than its users' does, between its looks at
    the job database, and for an answer of the store."""
    _start_fork_server()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_start, args=(folder, dict(environment), port, list(prefix), impatient))
    process.start()
    return process


@cache
def _start_fork_server() -> None:
    """Start the fork server of this process. A test of `relayout batch` may have left one, with numpy and without
    Ctrl-C."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    forkserver.set_forkserver_preload(_IMPORTS)
    forkserver.ensure_running()


def _start(folder: Path, environment: dict[str, str], port: int, prefix: list[str], impatient: bool) -> None:
    """In the fork: run the server with the folder, environment and streams of a new process."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with open("log", "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if prefix:
        program = [sys.executable, __file__, str(port), "impatient" if impatient else "patient"]
        os.execvp(prefix[0], [*prefix, *program])
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    _serve(port, impatient)


def _serve(port: int, impatient: bool) -> None:
    from relayout.cli import run

    if impatient:
        from relayout_api import store
        from relayout_api.jobs import jobs

        jobs._REOPEN_SECONDS, jobs._TAKE_OVER_SECONDS = 0.3, 0.5
        store._Remote._ask.__kwdefaults__["seconds"] = store._ANSWER_SECONDS = 1.0
    sys.argv = ["relayout", "serve", "--port", str(port)]
    sys.exit(run())


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2] == "impatient")
