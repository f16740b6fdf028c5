"""A client of the HTTP service, synchronous and asynchronous.

>>> from relayout.client import Client
>>> client = Client("http://127.0.0.1:8000")  # doctest: +SKIP
>>> result = client.legalize("model.onnx", "nhwc")  # doctest: +SKIP
"""

from __future__ import annotations

from relayout.client.asynchronous import AsyncClient
from relayout.client.protocol import Event, Job, Result
from relayout.client.synchronous import Client

__all__ = ["AsyncClient", "Client", "Event", "Job", "Result"]
