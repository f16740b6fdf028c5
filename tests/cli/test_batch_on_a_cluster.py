"""`relayout batch --scheduler`: a scheduler of Dask and two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from command_line import CHANNELS_FIRST, CHANNELS_LAST, saved

from relayout.cli.batch_pools import on_cluster, one_by_one
from relayout.cli.batch_work import Item
from relayout.cli.options import Request
from relayout.errors import UsageError
from relayout.options import Options

SUPPORT = Path(__file__).parents[1] / "support"
MODELS = 12


@dataclass(frozen=True, slots=True)
class Cluster:
    """A scheduler with its address, and its two workers. Their nannies replace one that dies."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    file = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}

    def start(kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(file), *arguments]
        process = subprocess.Popen([*command, "--no-dashboard"], cwd=tmp_path, env=environment, stderr=log, stdout=log)
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    with ExitStack() as stack, (tmp_path / "log").open("wb") as log:
        scheduler = start("scheduler", "--port", "0", "--host", "127.0.0.1")
        for _ in range(600):
            if file.exists():
                break
            time.sleep(0.1)
        one = ("--nworkers", "1", "--nthreads", "1", "--host", "127.0.0.1")
        workers = [start("worker", "--no-nanny", *one), start("worker", "--nanny", *one)]
        yield Cluster(json.loads(file.read_text())["address"], scheduler, workers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    made.mkdir()
    for number in range(MODELS):
        saved(made / f"{number:02}.onnx", CHANNELS_LAST if number % 2 else CHANNELS_FIRST)
    return made


def test_a_worker_that_dies_loses_nothing_and_a_model_that_kills_them_fails_alone(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    saved(folder / "deadly.onnx", CHANNELS_FIRST.replace("[conv]", "[deadly]"))
    request = Request("dying_backend:Dying", Options())
    done = {}
    for each in on_cluster(items(folder, tmp_path / "there", request), cluster.address, b""):
        if not done:
            cluster.workers[0].kill()
        done[each.name] = each
    assert done.pop("deadly.onnx").message.startswith("each worker that had it died")
    assert {each.status for each in done.values()} == {0}
    assert len(done) == MODELS
    (folder / "deadly.onnx").unlink()
    assert [each.status for each in one_by_one(items(folder, tmp_path / "here", request), print)] == [0] * MODELS
    for path in folder.iterdir():
        assert onnx.load(tmp_path / "there" / path.name) == onnx.load(tmp_path / "here" / path.name)


def test_a_scheduler_that_dies_ends_the_batch(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    request = Request("onnx", Options())
    done = on_cluster(items(folder, tmp_path / "there", request), cluster.address, b"")
    assert next(done).status == 0
    cluster.scheduler.kill()
    with pytest.raises(UsageError, match="the connection to the scheduler was lost"):
        list(done)


def items(folder: Path, target: Path, request: Request) -> list[Item]:
    target.mkdir()
    return [Item(path, target / path.name, request) for path in sorted(folder.iterdir())]
