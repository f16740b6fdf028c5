"""The command `relayout` without its imports: each run is forked from one process that has made them.

`python forked_command.py FOLDER` is that process. It writes a program `relayout` into the folder, which passes its
arguments, environment, working folder and streams to a fork, and ends with the fork's exit status. It imports nothing
of these tests, so that it runs in an environment that has relayout alone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import pkgutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_CLIENT = """#!{python} -IS
import marshal, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    run = marshal.dumps((sys.argv[1:], dict(os.environ), os.getcwd()))
    socket.send_fds(server, [len(run).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(run)
    status = server.recv(4)
os._exit(int.from_bytes(status, "big"))
"""


@contextlib.contextmanager
def forked_command(python: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """A folder with a program `relayout`, which runs the one of `python`'s environment while the context lasts."""
    command = [python, "-W", "ignore", __file__, folder]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        yield folder
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def _import_everything() -> None:
    """Import what some command would import. The kit for authors of backends is left out: it needs pytest."""
    import relayout

    names = [each.name for each in pkgutil.walk_packages(relayout.__path__, "relayout.", onerror=lambda name: None)]
    for name in [*names, "onnxruntime", "typer.rich_utils"]:
        if not name.startswith("relayout.testing"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the caller is gone"
        data += part
    return data


def _run(connection: socket.socket) -> int:
    """In a fork: run the command as the caller would, and return its exit status."""
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    arguments, environment, folder = marshal.loads(_received(connection, int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # The old objects remember whether the streams of the process that was forked can be positioned.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # As of a program in the environment's own folder.
    sys.path[0] = str(Path(sys.executable).parent)
    sys.argv = [f"{sys.path[0]}/relayout", *arguments]
    command = os.fork()
    if command == 0:
        connection.close()
        from relayout.cli import run

        return run()
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    # As a shell has it: a signal is 128 and its number.
    connection.sendall((status if status >= 0 else 128 - status).to_bytes(4, "big"))
    os._exit(0)


def _serve(folder: Path) -> int:
    """Fork for each connection; return in the fork that ran a command, with its exit status."""
    _import_everything()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen()
    program = folder / "relayout"
    program.write_text(_CLIENT.format(python=sys.executable, address=listener.getsockname()))
    program.chmod(0o755)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _run(connection)
        connection.close()
        # Ask for the status of those that have ended, so that none stays as a zombie.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    sys.exit(_serve(Path(sys.argv[1])))
