"""The limits of a worker process."""

from __future__ import annotations

import ctypes
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends. Only Linux has this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit_memory(size: int) -> None:
    """Limit this process to `size` bytes of data; more is a MemoryError. Only Linux counts all of it."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if most == resource.RLIM_INFINITY else min(size, most), most))


def limit_cpu(seconds: float) -> None:
    """Have the kernel kill this process after so many more seconds of its processors' time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    end = int(usage.ru_utime + usage.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (end if most == resource.RLIM_INFINITY else min(end, most), most))


def no_core_dump() -> None:
    """A process that dies leaves no file with its callers' models."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
