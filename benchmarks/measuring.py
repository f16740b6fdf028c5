"""Run a command in its own process: wall and CPU seconds, peak memory, time limit.

A crash does not end the benchmark, and the peak is that of the command alone. The caller should be small, because a
child's peak memory starts at that of its parent.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from time import perf_counter

__all__ = ["Run", "machine", "median_run", "run"]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a command. `seconds` is wall time, `cpu` user and system time, `peak` bytes of resident memory."""

    seconds: float
    cpu: float
    peak: int
    status: int
    output: str
    errors: str
    timed_out: bool

    @property
    def fault(self) -> str:
        """A short reason for the failure; empty if there was none."""
        if self.timed_out:
            return f"no end after {self.seconds:.0f} s"
        if self.status < 0:
            return f"killed by signal {-self.status}"
        last = self.errors.strip().splitlines()[-1:] or [f"exit status {self.status}"]
        return last[0][:120] if self.status else ""


def run(command: Sequence[str], *, limit: float = 600, environment: Mapping[str, str] | None = None) -> Run:
    """Run `command` to its end, or kill it after `limit` seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        start = perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=errors, env={**os.environ, **(environment or {})}, start_new_session=True
        )
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, kill)
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        seconds = perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (out, errors):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    # Linux counts in KiB, macOS in bytes.
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Run(seconds, used.ru_utime + used.ru_stime, peak, process.returncode, texts[0], texts[1], late.is_set())


def median_run(runs: Sequence[Run]) -> tuple[float, float, int]:
    """The medians of wall seconds, CPU seconds and peak bytes."""
    return median(r.seconds for r in runs), median(r.cpu for r in runs), int(median(r.peak for r in runs))


def machine(*packages: str) -> str:
    """The machine and the versions of these packages, in one line."""
    found = [f"{os.cpu_count()} cores", platform.machine(), platform.system(), f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
