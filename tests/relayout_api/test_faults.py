"""Faults with real processes: no accepted job is lost, and the caller is told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest
from http_jobs import loop_body, state_of, submit, submit_loop, wait_until_ended
from http_server import Server, children, client_of, has_ended, is_running, serving, wait_for, workers_of

from relayout_api.access.keys import Keys
from relayout_api.examples import GRAPH

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux has them")

BODY = {"graph": GRAPH, "backend": "nhwc"}
# The prefix of a server that is no fork: a new process also ends as one, where no signal ends it.
NEW = ["env"]
# A fifth to a third of a second of work.
LOOP = 140_000


def wait_until_running(server: Server, client: httpx.Client, job: str) -> None:
    wait_for(lambda: state_of(client, job) == "running" and any(map(is_running, workers_of(server))))


def test_jobs_outlive_workers_and_servers(tmp_path: Path) -> None:
    """One data folder and three servers one after the other: one is killed, one terminated, one interrupted."""
    with serving(tmp_path) as server, client_of(server) as client, client_of(server, "127.0.0.2") as other:
        assert_worker_is_killed_and_job_ends(server, client)
        running = submit_loop(client, LOOP * 4)
        wait_until_running(server, client, running)
        left = [running, submit_loop(client, LOOP), submit_loop(other, LOOP + 1), submit(client, BODY)["id"]]
        workers = workers_of(server)
        server.process.kill()
        wait_for(lambda: all(map(has_ended, workers)))
    with serving(tmp_path) as server, client_of(server) as client:
        states = [wait_until_ended(client, job)["state"] for job in left]
        assert states == ["succeeded"] * 4, server.log()
        # No loop of another length, whose answer would be known.
        stopped = submit_loop(client, LOOP * 10 + 1)
        wait_until_running(server, client, stopped)
        assert_request_is_told_and_server_ends(server, signal.SIGTERM)
        assert f"go back into the queue: {stopped}" in server.log()
    with serving(tmp_path, NEW) as server, client_of(server) as client:
        assert wait_until_ended(client, stopped)["state"] == "succeeded"
        assert_request_is_told_and_server_ends(server, signal.SIGINT)


def test_a_second_interrupt_ends_the_grace_and_loses_no_job(tmp_path: Path) -> None:
    with serving(tmp_path, NEW, RELAYOUT_GRACE="600") as server, client_of(server) as client:
        job = submit_loop(client, LOOP * 1000)
        wait_until_running(server, client, job)
        os.kill(server.pid, signal.SIGINT)
        wait_for(lambda: "Shutting down" in server.log())
        os.kill(server.pid, signal.SIGINT)
        assert server.ended_within(30)
        assert f"go back into the queue: {job}" in server.log()
        assert "Traceback" not in server.log(), server.log()


def test_a_body_that_is_not_there_at_the_end_of_the_grace_is_refused(tmp_path: Path) -> None:
    head = (
        b"POST /v1/layouts/parse HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    )
    with (
        serving(tmp_path, RELAYOUT_BODY_SECONDS="600", RELAYOUT_BODY_RATE="0") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as caller,
        client_of(server) as client,
    ):
        caller.sendall(head + b"{")
        # The server has read what came before this request: a connection that it has not read yet is reset.
        client.get("/healthz")
        server.process.terminate()
        assert b"/problems/stopping" in b"".join(iter(lambda: caller.recv(1 << 16), b""))
        assert server.ended_within(30)
        assert "Traceback" not in server.log(), server.log()


def test_the_log_has_the_reason_where_the_system_refuses(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client:
        (tmp_path / "data" / "store" / "blobs").write_text("no folder")
        answer = client.post("/v1/jobs", params={"kind": "legalize"}, json=BODY)
        assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal")
        assert "NotADirectoryError" in server.log()


def test_a_database_that_is_none_is_told_and_the_server_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "jobs.sqlite").write_text("garbage" * 100)
    with serving(tmp_path, until="/healthz", impatient=True) as server, client_of(server) as client:
        wait_for(lambda: client.get("/readyz").json()["detail"] == "the job database cannot be opened")
        # Anybody may ask; the path is in the log.
        assert client.get("/readyz").json()["hint"] == "retry later; the log of the server has the reason"
        assert str(tmp_path) not in client.get("/readyz").text
        assert f"{data}/jobs.sqlite: file is not a database" in server.log()
        refused = client.get("/v1/jobs")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/starting")
        # It is tried again, and said once.
        sleep(1.0)
        assert server.log().count("the job database cannot be opened") == 1
        assert "Traceback" not in server.log(), server.log()
        (data / "jobs.sqlite").unlink()
        wait_for(lambda: client.get("/readyz").status_code == 200)
        assert wait_until_ended(client, submit(client, BODY)["id"])["state"] == "succeeded"


def test_a_data_folder_that_is_gone_accepts_no_job(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client:
        submit(client, BODY)
        (tmp_path / "data").rename(tmp_path / "moved")
        refused = client.post("/v1/jobs", json={"graph": {**GRAPH, "name": "lost"}})
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/starting")
        assert str(tmp_path) not in refused.text
        assert "jobs.sqlite was moved or deleted" in server.log()
        # The finding stands for a second.
        wait_for(lambda: client.get("/readyz").status_code == 503)


def test_a_store_that_cannot_be_written_is_told_without_its_path_and_logged_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client_of(server) as client:
        store = tmp_path / "data" / "store"
        store.rename(tmp_path / "moved")
        store.write_text("no folder")
        wait_for(lambda: client.get("/readyz").status_code == 503)
        told = client.get("/readyz")
        assert (told.json()["detail"], told.json()["found"]) == ("the store cannot be used", "File exists")
        assert str(tmp_path) not in told.text
        assert server.log().count(f"the store cannot be used: [Errno 17] File exists: '{store}") == 1
        store.unlink()
        wait_for(lambda: client.get("/readyz").status_code == 200)
        assert "the store can be used again" in server.log()


def test_a_store_that_is_away_slows_requests_and_refuses_jobs(tmp_path: Path) -> None:
    """A server that was ready, and whose bucket is gone: nothing listens at its address."""
    url = {"RELAYOUT_STORE_URL": "s3://bucket", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_MAX_ATTEMPTS": "1"}
    with serving(tmp_path, until="/healthz", **url, **keys) as server, client_of(server) as client:
        wait_for(lambda: client.get("/readyz").json()["detail"] == "the store cannot be used")
        assert client.post("/v1/legalize", json=BODY).status_code == 200
        refused = client.post("/v1/jobs", params={"kind": "legalize"}, json=BODY)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/starting")
        assert int(refused.headers["retry-after"]) > 0


def test_a_store_that_never_answers_holds_neither_probes_nor_requests(tmp_path: Path) -> None:
    """Its machine takes connections, and nothing reads them. The client of S3 waits for a minute, and then again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = {"RELAYOUT_STORE_URL": "s3://bucket", "AWS_ENDPOINT_URL": "http://{}:{}".format(*silent.getsockname())}
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        with (
            serving(tmp_path, until="/healthz", impatient=True, **url, **keys) as server,
            client_of(server) as client,
        ):
            client.timeout = httpx.Timeout(20)
            wait_for(lambda: client.get("/readyz").json().get("detail") == "the store cannot be used")
            assert "the store cannot be used: the service of the store does not answer" in server.log()
            assert client.post("/v1/legalize", json=BODY).status_code == 200
            assert client.post("/v1/jobs", params={"kind": "legalize"}, json=BODY).status_code == 503


def working(server: Server) -> int:
    """The worker that has work: the one that runs each time that one looks. A new one runs for a moment too."""
    for _ in range(100):
        seen = set(workers_of(server))
        for _ in range(5):
            seen &= set(filter(is_running, workers_of(server)))
            sleep(0.02)
        if len(seen) == 1:
            return seen.pop()
    raise AssertionError("no worker has work")


def assert_worker_is_killed_and_job_ends(server: Server, client: httpx.Client) -> None:
    job = submit_loop(client, LOOP * 6)
    wait_until_running(server, client, job)
    worker = working(server)
    os.kill(worker, signal.SIGKILL)
    assert wait_until_ended(client, job)["state"] == "succeeded"
    assert f"worker {worker} died in a task: SIGKILL" in server.log()


def assert_request_is_told_and_server_ends(server: Server, number: signal.Signals) -> None:
    """A request of another caller has the grace, which is a second, and then an answer."""
    busy = sum(map(is_running, workers_of(server)))
    with client_of(server, "127.0.0.2") as client, ThreadPoolExecutor(1) as beside:
        long = beside.submit(client.post, "/v1/verify", json=loop_body(1 << 60))
        wait_for(lambda: sum(map(is_running, workers_of(server))) > busy)
        started = monotonic()
        os.kill(server.pid, number)
        answer = long.result()
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/stopping")
        assert int(answer.headers["retry-after"]) > 0
        assert monotonic() - started >= 1
    assert server.ended_within(30)
    assert "Traceback" not in server.log(), server.log()


# A small file system in a name space of its own. The server's folder is seen from outside by way of /proc.
_SMALL_DISK = 'mount -t tmpfs -o size=3m tmpfs {data} && exec "$@"'


def has_name_spaces() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_name_spaces(), reason="a small disk needs Linux name spaces of a user")
def test_a_full_disk_accepts_no_job_and_loses_none(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _SMALL_DISK.format(data=data), "sh"]
    with serving(tmp_path, prefix, impatient=True) as server, client_of(server) as client:
        seen = Path(f"/proc/{server.pid}/root") / data.relative_to("/")
        running = submit_loop(client, LOOP * 2)
        wait_until_running(server, client, running)
        filler = seen / "filler"
        fill(filler)
        refused = client.post("/v1/jobs", json={"graph": {**GRAPH, "name": "x" * 100_000}})
        assert (refused.status_code, refused.json()["type"]) == (507, "/problems/no-space"), refused.text
        assert "retry-after" in refused.headers
        # The finding stands for a second.
        wait_for(lambda: client.get("/readyz").status_code == 503)
        assert client.post("/v1/legalize", json=BODY).status_code == 200
        filler.unlink()
        # A worker may take it before the answer is made.
        assert submit(client, {"graph": {**GRAPH, "name": "x" * 100_000}})["state"] in ("queued", "running")
        ended = wait_until_ended(client, running)
        assert ended["state"] == "succeeded" or ended["problem"]["type"] == "/problems/no-space"


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


class Postgres:
    """A PostgreSQL server of this test, which refuses to run as root. It is a child of this process: the process 1 of a
    container takes seconds to notice that an adopted one has ended, and meanwhile no other may start."""

    def __init__(self, folder: Path) -> None:
        self._binaries = postgres_binaries()
        self._folder = folder / "postgres"
        self._folder.mkdir()
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
        made = self._start("initdb", "--no-sync", "-A", "trust", "-U", "relayout", "-D", f"{self._folder}/data")
        assert made.wait() == 0, (self._folder / "log").read_text()
        self.url = f"postgresql://relayout@/postgres?host={self._folder}&port=5432"

    def start(self) -> None:
        options = ["-k", str(self._folder), "-c", "listen_addresses=", "-c", "fsync=off"]
        self._server = self._start("postgres", "-D", f"{self._folder}/data", *options)
        wait_for(self._is_ready)

    def _is_ready(self) -> bool:
        """By the file in which the server writes its process and its state; one that was killed leaves it behind."""
        file = self._folder / "data" / "postmaster.pid"
        words: list[str] = []
        # A new server removes the file of one that was killed.
        with contextlib.suppress(FileNotFoundError):
            words = file.read_text().split()
        assert self._server.poll() is None, (self._folder / "log").read_text()
        return str(self._server.pid) in words and "ready" in words

    def kill(self) -> None:
        """Kill it. The processes of its connections end when they notice, and none starts before."""
        connections = children(self._server.pid)
        self._server.kill()
        self._server.wait()
        wait_for(lambda: all(map(has_ended, connections)))

    def stop(self) -> None:
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait()

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            command = [f"{self._binaries}/{program}", *arguments]
            return subprocess.Popen(command, cwd=self._folder, user=self._user, stdout=log, stderr=log)


def postgres_binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if postgres_binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    # Its socket's path may not be long, and its user must reach it.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        database = Postgres(Path(name))
        database.start()
        yield database
        database.stop()


def test_servers_share_a_queue_and_outlive_its_database(postgres: Postgres, tmp_path: Path) -> None:
    shared = {"RELAYOUT_DATABASE_URL": postgres.url, "RELAYOUT_STORE_URL": f"file://{tmp_path}/store"}
    folders = [tmp_path / "a", tmp_path / "b"]
    for each in folders:
        each.mkdir()
    with serving(folders[0], impatient=True, **shared) as server, client_of(server) as client:
        # PostgreSQL takes no text with NUL.
        assert client.get("/v1/jobs/%00").status_code == 404
        job = submit_loop(client, LOOP * 2)
        wait_until_running(server, client, job)
        with client.stream("GET", f"/v1/jobs/{job}/events") as events:
            postgres.kill()
            # It ends as an answer does, without `done`.
            assert "event: done" not in events.read().decode()
        refused = client.post("/v1/jobs", json=BODY)
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/starting"), refused.text
        # The finding stands for a second.
        wait_for(lambda: client.get("/readyz").status_code == 503)
        assert client.post("/v1/legalize", json=BODY).status_code == 200
        metrics = client.get("/metrics")
        assert metrics.status_code == 200
        assert 'relayout_workers{state="busy"}' in metrics.text
        assert "relayout_jobs{" not in metrics.text
        postgres.start()
        assert wait_until_ended(client, job)["state"] == "succeeded"
        # One line when it goes, one when it is back, and none of the threads that ask it all the time.
        wait_for(lambda: "the job database can be used again" in server.log())
        lines = server.log().splitlines()
        of_jobs = f"job {job}"
        assert sum("psycopg" in line and of_jobs not in line for line in lines) == 1, server.log()
        assert sum("the job database" in line for line in lines) == 2, server.log()
        assert "Traceback" not in server.log()
        with serving(folders[1], impatient=True, **shared) as second, client_of(second) as other:
            lost = submit_loop(client, LOOP * 3)
            wait_for(lambda: state_of(client, lost) == "running")
            # The one that runs it is killed; the other takes it over.
            first_has_it = any(map(is_running, workers_of(server)))
            (server if first_has_it else second).process.kill()
            survivor = other if first_has_it else client
            assert wait_until_ended(survivor, lost)["state"] == "succeeded"


def test_servers_that_share_a_database_and_no_store_say_so(postgres: Postgres, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for each in folders:
        each.mkdir()
    shared = {"RELAYOUT_DATABASE_URL": postgres.url}
    with serving(folders[0], impatient=True, **shared) as server, client_of(server) as client:
        job = submit_loop(client)
        wait_until_running(server, client, job)
        server.process.kill()
    with serving(folders[1], impatient=True, **shared) as server, client_of(server) as client:
        problem = wait_until_ended(client, job)["problem"]
    assert (problem["type"], problem["detail"]) == (
        "/problems/no-result",
        "the body of the job is not in the server's store",
    )
    assert "RELAYOUT_STORE_URL" in problem["hint"]


def test_a_key_is_found_at_once_when_its_database_is_back(postgres: Postgres) -> None:
    with Keys(postgres.url.replace("postgresql", "postgresql+psycopg", 1)) as keys:
        text = keys.add("ci", "read")
        assert keys.find(text) is not None
        postgres.kill()
        postgres.start()
        assert keys.find(text) is not None
