"""The service under its loads, on a server of its own: python benchmarks/service.py

Prints the times from start to ready and to the first answer about jobs; the processor time (server, template, workers)
and the wall time of requests, for a small graph and for onnx's light_resnet50 without weights, new each time and known;
a model of 27 MB in and out; and 100 callers with 10 small graphs each, at once, from one address and from 100.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
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
    parser.add_argument("--repeat", type=int, default=0, help="then so many requests, with the memory in between")
    parser.add_argument("--minutes", type=float, default=0, help="then a mixed load for so many minutes")
    arguments = parser.parse_args()
    resnet = to_json(read_model(MODEL), weights=False)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with server() as (address, process, seconds), httpx.Client(base_url=address, timeout=120) as client:
        start = perf_counter()
        client.get("/v1/jobs").raise_for_status()
        print(
            f"start to ready: {seconds:.2f} s, to the first answer about jobs: {seconds + perf_counter() - start:.2f} s"
        )
        print(f"{'':<41}{'server':>10}{'workers':>10}{'median':>10}{'least':>10}{'most':>10}")
        fresh = count()

        def new(graph: dict[str, Any]) -> Callable[[], httpx.Response]:
            return lambda: client.post("/v1/legalize", content=body(graph, f"new {next(fresh)}"), headers=JSON)

        def same(graph: dict[str, Any]) -> Callable[[], httpx.Response]:
            content = body(graph, "same")
            return lambda: client.post("/v1/legalize", content=content, headers=JSON)

        for name, graph in (("small graph", GRAPH), (f"light_resnet50, {len(resnet['nodes'])} nodes", resnet)):
            show(f"{name}, new each time", new(graph), arguments.requests, process)
            show(f"{name}, the same", same(graph), arguments.requests, process)
        # Made before, because to make one takes as long as its answer.
        sent = iter(list(large_models(WARM_UP + 5)))
        show("27 MB model, new each time", lambda: large(address, next(sent)), 5, process)
        for addresses in (1, 100):
            asyncio.run(crowd(address, addresses))
        if arguments.repeat:
            repeated(client, process, resnet, arguments.repeat)
        if arguments.minutes:
            asyncio.run(mixed(address, process, resnet, arguments.minutes))


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
    """Print the processor time of a request, of the server and of all below it, and its wall times."""
    seconds, own, used = [], 0.0, 0.0
    for index in range(WARM_UP + times):
        if index == WARM_UP:
            own, used = own_seconds(process), processor_seconds(process)
        start = perf_counter()
        answer = ask()
        if isinstance(answer, httpx.Response):
            answer.raise_for_status()
        seconds.append(perf_counter() - start)
    own, used = (own_seconds(process) - own) / times, (processor_seconds(process) - used) / times
    figures = [own, used - own, *(f(seconds[WARM_UP:]) for f in (statistics.median, min, max))]
    print(f"{name:<41}" + "".join(f"{1000 * figure:>7.1f} ms" for figure in figures))


def processor_seconds(process: int) -> float:
    """The processor time of a process and all below it."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return own_seconds(process) + sum(processor_seconds(int(child)) for child in children)


def own_seconds(process: int) -> float:
    """The processor time of a process alone."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def crowd(address: str, addresses: int) -> None:
    """100 callers at once, with 10 small graphs each, one after the other and none tried again."""
    found = Answers()

    async def caller(number: int, client: httpx.AsyncClient) -> None:
        for index in range(10):
            content = body(GRAPH, f"crowd of {addresses}: {number}, {index}")
            await found.ask("small", client.post("/v1/legalize", content=content, headers=JSON))

    # All clients are there before the first request, and share one context of TLS, which takes longer than a request.
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(caller_from(address, number % addresses)) for number in range(100)]
        await asyncio.gather(*[caller(number, client) for number, client in enumerate(clients)])
    found.show(f"100 callers x 10, {addresses} address{'es' if addresses > 1 else ''}")


def caller_from(address: str, number: int) -> httpx.AsyncClient:
    """A client with an address of its own, as far as the server sees."""
    transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{1 + number}", verify=False)
    return httpx.AsyncClient(base_url=address, timeout=120, transport=transport)


class Answers:
    """The statuses and seconds of answers, by kind of request."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.statuses: dict[str, Counter[int | str]] = {}

    async def ask(self, kind: str, request: Awaitable[httpx.Response]) -> httpx.Response | None:
        """Wait for an answer; a refusal without Retry-After is counted as one."""
        start = perf_counter()
        try:
            answer = await request
        except httpx.HTTPError as error:
            self.statuses.setdefault(kind, Counter())[type(error).__name__] += 1
            return None
        self.seconds.setdefault(kind, []).append(perf_counter() - start)
        is_mute = answer.status_code in (429, 503) and not answer.headers.get("retry-after", "").isdecimal()
        status: int | str = f"{answer.status_code} without Retry-After" if is_mute else answer.status_code
        self.statuses.setdefault(kind, Counter())[status] += 1
        return answer

    def show(self, name: str) -> None:
        """Print a line for each kind."""
        for kind, statuses in sorted(self.statuses.items()):
            seconds = sorted(self.seconds.get(kind, [0.0]))
            print(
                f"{name}, {kind}: {dict(statuses)}; median {1000 * statistics.median(seconds):.0f} ms, "
                f"99 % below {1000 * seconds[int(0.99 * len(seconds))]:.0f} ms, most {1000 * seconds[-1]:.0f} ms"
            )


async def mixed(address: str, process: int, graph: dict[str, Any], minutes: float) -> None:
    """Callers of all kinds for so many minutes: 20 of ResNet-50, 10 of small graphs, 2 of 27 MB, 4 of jobs, 2 known."""
    found, end, fresh = Answers(), perf_counter() + 60 * minutes, count()
    models = list(large_models(4))

    async def work(kind: str, number: int, client: httpx.AsyncClient) -> None:
        while perf_counter() < end:
            name = f"mixed {next(fresh)}"
            if kind == "large":
                content, headers, path = models[number % len(models)], ONNX, "/v1/legalize?backend=nhwc"
            else:
                sent = graph if kind == "ResNet-50" else GRAPH
                content, headers, path = body(sent, "same" if kind == "known" else name), JSON, "/v1/legalize"
            if kind == "job":
                path = "/v1/jobs"
            answer = await found.ask(kind, client.post(path, content=content, headers=headers))
            if answer is None:
                continue
            if answer.status_code in (429, 503):
                await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
            while kind == "job" and answer.status_code in (200, 202) and not answer.json()["ended"]:
                await asyncio.sleep(0.2)
                answer = await client.get(f"/v1/jobs/{answer.json()['id']}")
            if kind == "job" and answer.status_code == 200:
                found.statuses["job"][answer.json()["state"]] += 1

    async def watch() -> None:
        while perf_counter() < end:
            print(f"{minutes - (end - perf_counter()) / 60:6.1f} min: {megabytes(process)}", flush=True)
            await asyncio.sleep(60 * minutes / 5)

    kinds = ["ResNet-50"] * 20 + ["small"] * 10 + ["large"] * 2 + ["job"] * 4 + ["known"] * 2
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(caller_from(address, number)) for number in range(len(kinds))]
        await asyncio.gather(watch(), *[work(kinds[number], number, client) for number, client in enumerate(clients)])
    print(f"{minutes:6.1f} min: {megabytes(process)}")
    found.show("mixed")


def repeated(client: httpx.Client, process: int, graph: dict[str, Any], times: int) -> None:
    """So many requests, one after the other, every tenth of ResNet-50, and the memory in between."""
    for index in range(times + 1):
        if index % (times // 5) == 0:
            print(f"{index:>6} requests: {megabytes(process)}", flush=True)
        sent = graph if index % 10 == 0 else GRAPH
        client.post("/v1/legalize", content=body(sent, f"again {index}"), headers=JSON).raise_for_status()


def megabytes(process: int) -> str:
    """The resident memory of the server, and of the template and the workers, without the pages that they share."""
    status = Path(f"/proc/{process}/smaps_rollup").read_text()
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    own = sum(
        int(line.split()[1]) for line in status.splitlines() if line.startswith(("Private_Clean", "Private_Dirty"))
    )
    return ", ".join([f"{own >> 10} MB", *(megabytes(int(child)) for child in children)])


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
