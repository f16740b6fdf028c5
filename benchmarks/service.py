"""Latency of `POST /v1/legalize` on a warm server, and of the library alone: python benchmarks/service.py

The graph is onnx's light_resnet50 without weights, in JSON. The benchmark starts a server on a free port; the client
is on the same machine and keeps its connection. Prints medians and extremes of `--requests` requests, after three
warm-up requests.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import onnx

from relayout.backend import load_backend
from relayout.legalization import Options, legalize_model
from relayout.model.io import read_model, to_json

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
WARM_UP = 3


def main() -> None:
    """Print one line for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--backend", default="nhwc")
    arguments = parser.parse_args()
    graph = to_json(read_model(MODEL), weights=False)
    print(f"{MODEL.stem}, {len(graph['nodes'])} nodes, --backend {arguments.backend}; load {os.getloadavg()[0]:.1f}")
    print(f"{'':<36}{'median':>8}{'least':>8}{'most':>8}   answer")

    def in_process() -> int:
        outcome = legalize_model(read_model(graph), load_backend(arguments.backend), Options())
        return len(json.dumps(to_json(outcome.model, weights=False)))

    show("in this process", in_process, arguments.requests)
    with server() as address, httpx.Client(base_url=address, timeout=120) as client:
        for weights in (False, True):
            body = {"graph": graph, "backend": arguments.backend, "weights": weights}
            content = json.dumps(body).encode()

            def by_http(content: bytes = content) -> int:
                answer = client.post("/v1/legalize", content=content, headers={"Content-Type": "application/json"})
                answer.raise_for_status()
                return len(answer.content)

            show(f"by HTTP, {'with' if weights else 'without'} the answer's weights", by_http, arguments.requests)


def show(name: str, ask: Callable[[], int], times: int) -> None:
    """Print the latency in milliseconds and the size of the response."""
    seconds = []
    for _ in range(WARM_UP + times):
        start = perf_counter()
        size = ask()
        seconds.append(perf_counter() - start)
    figures: list[Any] = [f(seconds[WARM_UP:]) for f in (statistics.median, min, max)]
    print(f"{name:<36}" + "".join(f"{1000 * figure:>5.0f} ms" for figure in figures) + f"   {size} bytes")


@contextmanager
def server() -> Iterator[str]:
    """The address of a server whose workers are warm."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--factory", "relayout_api.app:create_app", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"], env={**os.environ, "RELAYOUT_WORKERS": "1"})
    try:
        address = f"http://127.0.0.1:{port}"
        while not ready(address):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
                raise SystemExit("the server did not start")
        yield address
    finally:
        process.terminate()
        process.wait()


def ready(address: str) -> bool:
    """Whether a worker is warm."""
    try:
        return httpx.get(f"{address}/readyz").status_code == 200
    except httpx.ConnectError:
        return False


if __name__ == "__main__":
    main()
