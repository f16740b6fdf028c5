"""How much memory a process may have of its own, where the system can hold it to that."""

from __future__ import annotations

try:
    import resource
except ImportError:  # Windows has no such limits.
    resource = None  # type: ignore[assignment]

__all__ = ["limit_memory"]


def limit_memory(size: int) -> None:
    """Let this process have at most `size` bytes of data; more is a MemoryError. Only Linux counts all of it."""
    if resource is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if most == resource.RLIM_INFINITY else min(size, most), most))
