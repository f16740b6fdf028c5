"""The template of the workers: a process that has imported and warmed up everything, and forks at a word.

A fork is ready within milliseconds and shares the template's memory. The template has one thread, so forking is safe.
It dies with the server, and the workers die with it, by the kernel's parent-death signal, even in native code.

The server writes one byte with two descriptors, the socket and the stderr of a new worker. The template answers with
lines of JSON: `{"ready": true}`, `{"pid": …}` for each fork, -1 where the system makes no process, and
`{"ended": pid, "status": …, "peak": bytes}` for each end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback

from relayout_api.workers.limits import die_with_parent

# The unit of ru_maxrss.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    """Serve the control socket, which is standard input, until the server closes it."""
    die_with_parent()
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from relayout_api.workers.tasks import warm

    warm()
    _say(control, ready=True)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        readable, _, _ = select.select([control.fileno(), read], [], [])
        if read in readable:
            os.read(read, 4096)
            _report_ends(control)
        if control.fileno() in readable:
            data, files, _, _ = socket.recv_fds(control, 1, 2)
            if not data:
                return
            _fork(control, files, (read, write))


def _fork(control: socket.socket, files: list[int], pipe: tuple[int, int]) -> None:
    channel, errors = files
    try:
        process = os.fork()
    except OSError:
        # Too many processes, or too little memory. The workers that are there go on.
        process = -1
    if process:
        os.close(channel)
        os.close(errors)
        _say(control, pid=process)
        return
    status = 1
    try:
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (*pipe, control.detach()):
            os.close(each)
        os.dup2(errors, 2)
        os.dup2(errors, 1)
        os.close(errors)
        from relayout_api.workers.worker import work

        work(socket.socket(fileno=channel))
        status = 0
    except BaseException:
        # The server logs what its workers write to stderr.
        traceback.print_exc()
    finally:
        # Not sys.exit: the exit handlers are the template's.
        os._exit(status)


def _report_ends(control: socket.socket) -> None:
    while True:
        try:
            process, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not process:
            return
        code = os.waitstatus_to_exitcode(status)
        _say(control, ended=process, status=code, peak=usage.ru_maxrss * _PEAK_UNIT)


def _say(control: socket.socket, **facts: object) -> None:
    control.sendall(json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    main()
