"""The service under its loads, on a server of its own: python benchmarks/service.py

Prints the time from start to ready; the processor time (server, template, workers) and the wall time of requests, for a
small graph and for onnx's light_resnet50 without weights, new each time and known; a model of 27 MB in and out; and 100
callers with 10 small graphs each, at once, from one address and from 100.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from relayout.model.io import read_model, to_json
from relayout_api.examples import GRAPH

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
WARM_UP = 3
TICK = os.sysconf("SC_CLK_TCK")
JSON = {"Content-Type": "application/json"}
ONNX = {"Content-Type": "application/octet-stream", "Accept": "application/octet-stream"}


def main() -> None:
    """Print one line for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=30)
    arguments = parser.parse_args()
    resnet = to_json(read_model(MODEL), weights=False)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with server() as (address, process, seconds), httpx.Client(base_url=address, timeout=120) as client:
        print(f"start to ready: {seconds:.2f} s")
        print(f"{'':<36}{'processor':>10}{'median':>10}{'least':>10}{'most':>10}")
        fresh = count()

        def new(graph: dict[str, Any]) -> Callable[[], httpx.Response]:
            return lambda: client.post("/v1/legalize", content=body(graph, f"new {next(fresh)}"), headers=JSON)

        def same(graph: dict[str, Any]) -> Callable[[], httpx.Response]:
            content = body(graph, "same")
            return lambda: client.post("/v1/legalize", content=content, headers=JSON)

        for name, graph in (("small graph", GRAPH), (f"light_resnet50, {len(resnet['nodes'])} nodes", resnet)):
            show(f"{name}, new each time", new(graph), arguments.requests, process)
            show(f"{name}, the same", same(graph), arguments.requests, process)
        sent = large_models(WARM_UP + 5)
        show("27 MB model, new each time", lambda: large(address, next(sent)), 5, process)
        for addresses in (1, 100):
            asyncio.run(crowd(address, addresses))


def body(graph: dict[str, Any], name: str) -> bytes:
    """A request whose answer is known only where the name is."""
    return json.dumps({"graph": {**graph, "name": name}, "backend": "nhwc", "weights": False}).encode()


def large_models(number: int) -> Iterator[bytes]:
    """Models of 27 MB: a convolution and a matrix."""
    rng = np.random.default_rng(0)
    for index in range(number):
        matrix = rng.standard_normal((2600, 2600)).astype(np.float32)
        matrix[0, 0] = index
        weights = [
            numpy_helper.from_array(matrix, "matrix"),
            numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "kernel"),
        ]
        nodes = [
            helper.make_node("Conv", ["x", "kernel"], ["a"]),
            helper.make_node("Flatten", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "matrix"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            "large",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 26, 25])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2600])],
            weights,
        )
        yield helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def large(address: str, model: bytes) -> None:
    """Send a large model and read the answer, with little work of the client."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
    with closing(connection):
        connection.request("POST", "/v1/legalize?backend=nhwc", model, ONNX)
        answer = connection.getresponse()
        if answer.status != 200 or len(answer.read()) < len(model):
            raise SystemExit(f"a large model got {answer.status}")


def show(name: str, ask: Callable[[], object], times: int, process: int) -> None:
    """Print the processor time of a request, and its wall times."""
    seconds, used = [], 0.0
    for index in range(WARM_UP + times):
        if index == WARM_UP:
            used = processor_seconds(process)
        start = perf_counter()
        answer = ask()
        if isinstance(answer, httpx.Response):
            answer.raise_for_status()
        seconds.append(perf_counter() - start)
    used = (processor_seconds(process) - used) / times
    figures = [used, *(f(seconds[WARM_UP:]) for f in (statistics.median, min, max))]
    print(f"{name:<36}" + "".join(f"{1000 * figure:>7.1f} ms" for figure in figures))


def processor_seconds(process: int) -> float:
    """The processor time of a process and all below it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / TICK + sum(processor_seconds(int(child)) for child in children)


async def crowd(address: str, addresses: int) -> None:
    """100 callers at once, with 10 small graphs each, one after the other and none tried again."""
    statuses: Counter[int] = Counter()
    seconds: list[float] = []

    async def caller(number: int) -> None:
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{1 + number % addresses}")
        async with httpx.AsyncClient(base_url=address, timeout=120, transport=transport) as client:
            for index in range(10):
                content = body(GRAPH, f"crowd of {addresses}: {number}, {index}")
                start = perf_counter()
                answer = await client.post("/v1/legalize", content=content, headers=JSON)
                seconds.append(perf_counter() - start)
                statuses[answer.status_code] += 1

    await asyncio.gather(*[caller(number) for number in range(100)])
    seconds.sort()
    name = f"100 callers x 10, {addresses} address{'es' if addresses > 1 else ''}"
    print(
        f"{name:<36} {dict(statuses)}; median {1000 * statistics.median(seconds):.0f} ms, "
        f"99 % below {1000 * seconds[int(0.99 * len(seconds))]:.0f} ms, most {1000 * seconds[-1]:.0f} ms"
    )


@contextmanager
def server() -> Iterator[tuple[str, int, float]]:
    """The address of a server that is ready, its process, and the seconds that it took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as data:
        environment = {**os.environ, "RELAYOUT_DATA": data}
        start = perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "relayout", "serve", "--port", str(port)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            while not ready(address):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.05)
                    raise SystemExit("the server did not start")
            yield address, process.pid, perf_counter() - start
        finally:
            process.terminate()
            process.wait()


def ready(address: str) -> bool:
    """Whether the server accepts work."""
    try:
        return httpx.get(f"{address}/readyz").status_code == 200
    except httpx.ConnectError:
        return False


if __name__ == "__main__":
    main()
