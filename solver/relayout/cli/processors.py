"""The processors that this process may use, for the command and the service."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def processors() -> int:
    """The processors of this process's CPU set, and no more than a container's quota."""
    # macOS and Windows have no CPU sets.
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        count = min(count, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # there is no quota
    return count
