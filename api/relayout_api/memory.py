"""The limit of a process's memory, on systems that have one."""

from __future__ import annotations

try:
    import resource
except ImportError:  # Windows has no such limits.
    resource = None  # type: ignore[assignment]

__all__ = ["limit_memory"]


def limit_memory(size: int) -> None:
    """Limit this process to `size` bytes of data; more is a MemoryError. Only Linux counts all of it."""
    if resource is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if most == resource.RLIM_INFINITY else min(size, most), most))
