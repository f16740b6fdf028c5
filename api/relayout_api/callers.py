"""Who a request is from: workers and queues are shared between callers."""

from __future__ import annotations

from fastapi import Request

__all__ = ["caller_of"]


def caller_of(request: Request) -> str:
    """The name by which a caller has its share: here its address."""
    return f"address {request.client.host}" if request.client is not None else "address unknown"
