"""A server that needs keys, its logs and its metrics."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import httpx
import pytest
from chromium import browsing
from command_line import Run
from http_server import Server, client_of, serving, wait_for
from playwright.sync_api import expect

from relayout.cli import main
from relayout_api.examples import GRAPH

BODY = {"graph": GRAPH, "backend": "nhwc"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


def keys(folder: Path, *arguments: str) -> str:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with pytest.MonkeyPatch.context() as environment, redirect_stdout(out):
        environment.setenv("RELAYOUT_DATA", str(folder / "data"))
        assert main(["serve", "keys", *arguments]) == 0
    out.seek(0)
    return out.read().strip()


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, str]:
    """A key for each scope, and one of another caller."""
    made = {scope: keys(folder, "add", scope, "--scope", scope) for scope in ("read", "legalize", "admin")}
    return made | {"other": keys(folder, "add", "other")}


@pytest.fixture(scope="module")
def guarded(folder: Path, texts: dict[str, str]) -> Iterator[Server]:
    with serving(folder, RELAYOUT_AUTH="required", RELAYOUT_LOG_FORMAT="json") as server:
        yield server


@pytest.fixture
def client(guarded: Server) -> Iterator[httpx.Client]:
    with client_of(guarded) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_without_a_key_only_the_page_and_the_probes_answer(client: httpx.Client) -> None:
    for path in ("/", "/healthz", "/readyz", "/openapi.json", "/problems/unauthorized"):
        assert client.get(path).status_code == 200, path
    for path in ("/v1/backends", "/v1/jobs", "/metrics"):
        refused = client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert refused.headers["content-type"] == "application/problem+json"
    assert client.post("/v1/legalize", json=BODY).status_code == 401
    assert client.get("/v1/backends", headers=bearer("relayout_wrong")).status_code == 401


def test_a_scope_allows_what_it_says(client: httpx.Client, texts: dict[str, str]) -> None:
    reader, worker = bearer(texts["read"]), {"X-API-Key": texts["legalize"]}
    assert client.get("/v1/backends", headers=reader).status_code == 200
    assert client.post("/v1/legalize", json=BODY, headers=reader).status_code == 403
    assert client.post("/v1/legalize", json=BODY, headers=worker).status_code == 200


def test_jobs_are_seen_by_their_own_caller_and_by_admins(client: httpx.Client, texts: dict[str, str]) -> None:
    made = client.post("/v1/jobs", json=BODY, headers=bearer(texts["legalize"]))
    assert made.status_code == 202
    path = made.headers["location"]
    seen = {name: client.get(path, headers=bearer(key)).status_code for name, key in texts.items()}
    assert seen == {"read": 404, "legalize": 200, "admin": 200, "other": 404}
    assert client.delete(path, headers=bearer(texts["other"])).status_code == 404
    listed = {name: client.get("/v1/jobs", headers=bearer(texts[name])).json()["jobs"] for name in ("read", "admin")}
    assert listed["read"] == []
    assert made.json()["id"] in {job["id"] for job in listed["admin"]}


def test_the_page_asks_for_a_key_and_works_with_it(guarded: Server, texts: dict[str, str]) -> None:
    with browsing() as browser:
        page = browser.new_page()
        page.goto(guarded.address)
        field = page.get_by_label("API key of this server")
        # Nothing else can be done first, and nothing went wrong so far.
        expect(page.locator("#key-note")).to_contain_text("need an API key")
        expect(page.locator("#form")).to_be_hidden()
        expect(page.locator("#problem")).to_be_hidden()
        field.fill("relayout_wrong")
        field.press("Enter")
        expect(page.locator("#key-note")).to_contain_text("no such key")
        # Text that fits no header, as from a word processor.
        for text in ("relayout\u2011key\u200b", "two words", " "):
            field.fill(text)
            field.press("Enter")
            expect(page.locator("#key-note")).to_contain_text("This is no key")
            expect(page.locator("#problem")).to_be_hidden()
        field.fill(texts["legalize"])
        page.click("#use-key")
        expect(page.locator("#backend option")).not_to_have_count(0)
        expect(page.locator("#key-form")).to_be_hidden()
        expect(page.locator("#problem")).to_be_hidden()
        page.click("#example")
        page.get_by_role("button", name="Legalize").click()
        # The job, its events, its report and its drawing, all with the key.
        expect(page.locator(".view[aria-busy=false]")).not_to_have_count(0, timeout=20_000)


def test_a_rate_is_kept_and_the_answer_says_when_to_come_back(folder: Path, client: httpx.Client) -> None:
    limited = bearer(keys(folder, "add", "limited", "--rate", "2"))
    answers = [client.get("/v1/backends", headers=limited) for _ in range(3)]
    assert answers[-1].status_code == 429
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 30


def test_a_revoked_key_is_soon_refused(folder: Path, client: httpx.Client) -> None:
    key = keys(folder, "add", "passing")
    keys(folder, "revoke", "passing")
    assert client.get("/v1/backends", headers=bearer(key)).status_code == 401


def test_each_answer_is_a_line_of_json_with_ids_and_without_its_query(
    guarded: Server, client: httpx.Client, texts: dict[str, str]
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Request-ID": "mine-1", **bearer(texts["admin"])}
    answer = client.get("/v1/jobs?limit=1", headers=headers)
    assert answer.headers["x-request-id"] == "mine-1"
    # The line may be written after the answer.
    wait_for(lambda: "mine-1" in guarded.log())
    lines = [json.loads(line) for line in guarded.log().splitlines()]
    [line] = [line for line in lines if line.get("request_id") == "mine-1"]
    assert (line["trace_id"], line["caller"], line["route"], line["status"]) == (trace, "key:admin", "/v1/jobs", 200)
    assert line["bytes_out"] == len(answer.content)
    assert "limit" not in json.dumps(line)
    assert not any(key in guarded.log() for key in texts.values())


def test_the_metrics_count_requests_solves_and_stages(client: httpx.Client, texts: dict[str, str]) -> None:
    assert client.post("/v1/legalize", json=BODY, headers=bearer(texts["legalize"])).status_code == 200
    text = client.get("/metrics", headers=bearer(texts["read"])).text
    assert 'relayout_requests_total{method="POST",route="/v1/legalize",status="200"}' in text
    assert 'relayout_request_seconds_bucket{le="0.005",route="/v1/legalize"}' in text
    assert 'relayout_solves_total{status="optimal"}' in text
    assert 'relayout_stage_seconds_count{stage="' in text
    for name in ("queue_depth", "queue_oldest_seconds", "workers", "jobs", "worker_restarts_total", "body_bytes_total"):
        assert f"\nrelayout_{name}" in text, name


def test_every_metric_of_the_dashboard_exists(client: httpx.Client, texts: dict[str, str]) -> None:
    dashboard = Path(__file__).parents[2] / "docker" / "grafana" / "dashboards" / "relayout.json"
    used = set(re.findall(r"relayout_\w+", " ".join(re.findall(r'"expr": "(.*)"', dashboard.read_text()))))
    text = client.get("/metrics", headers=bearer(texts["read"])).text
    families = set(re.findall(r"^# TYPE (relayout_\w+) ", text, re.MULTILINE))
    known = {f"{name}{suffix}" for name in families for suffix in ("", "_sum", "_count", "_bucket")}
    assert len(used) > 8
    assert used - known == set()


def test_every_answer_has_the_headers_that_protect_a_browser(client: httpx.Client) -> None:
    for path in ("/", "/v1/backends", "/nowhere"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "access-control-allow-origin" not in client.get(path, headers={"Origin": "https://elsewhere"}).headers


def test_no_answer_about_callers_work_is_kept_for_others(client: httpx.Client, texts: dict[str, str]) -> None:
    """A cache between them knows no X-API-Key."""
    for path in ("/v1/jobs", "/v1/limits", "/v1/jobs/none"):
        for key in (texts["legalize"], "none"):
            headers = client.get(path, headers={"X-API-Key": key}).headers
            assert headers["cache-control"] == "private, no-cache"


def test_listening_to_others_needs_keys_or_an_explicit_setting(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relayout", "serve", "--host", "0.0.0.0", "--port", "1"]
    environment = {"PATH": "", "HOME": str(tmp_path), "RELAYOUT_DATA": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "nobody could call the service" in done.stderr
    assert "--open" in done.stderr


def test_a_port_in_use_and_a_misspelt_setting_are_told_at_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        command = [sys.executable, "-m", "relayout", "serve", "--port", str(port)]
        environment = {"PATH": "", "HOME": str(tmp_path), "RELAYOUT_DATA": str(tmp_path), "RELAYOUT_WORKER": "4"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    warning, _, error = done.stderr.partition("\n")
    assert warning.endswith("warning RELAYOUT_WORKER: no such setting; did you mean RELAYOUT_WORKERS?")
    assert error == (
        f"relayout: error: --host 127.0.0.1 --port {port}: nothing can listen there\n"
        "  expected: an address of this machine and a free port\n"
        "  found:    Address already in use\n"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [("--days", "1000000000000"), ("--days", "3000000"), ("--rate", "inf"), ("--concurrency", str(1 << 70))],
)
def test_a_limit_of_a_key_that_no_database_holds_is_refused(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    monkeypatch.setenv("RELAYOUT_DATA", str(tmp_path))
    refused = run("serve", "keys", "add", "ci", option, value)
    assert refused.status == 2
    assert option in refused.err


def test_a_grace_without_end_is_refused(run: Run) -> None:
    refused = run("serve", "--grace", "inf", "--check")
    assert refused.status == 2
    assert "--grace" in refused.err


def test_the_settings_are_listed_without_passwords(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYOUT_DATABASE_URL", "postgresql://ann:se@cret@host:5432/jobs")
    monkeypatch.setenv("RELAYOUT_TIME_LIMIT", "45")
    listed = run("serve", "settings")
    assert listed.status == 0, listed.err
    assert "RELAYOUT_TIME_LIMIT=45\n    seconds for one request in a worker\n" in listed.out
    assert "RELAYOUT_DATABASE_URL=postgresql://ann:***@host:5432/jobs\n" in listed.out
    assert "RELAYOUT_OIDC_ISSUER=\n" in listed.out
    monkeypatch.setenv("RELAYOUT_DATABASE_URL", "postgresql://host/jobs?user=ann&password=secret&sslmode=require")
    assert "=postgresql://host/jobs?user=ann&password=***&sslmode=require\n" in run("serve", "settings").out


def test_the_configuration_can_be_checked_without_a_start(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAYOUT_DATA", str(tmp_path))
    monkeypatch.setenv("RELAYOUT_STORE_BYTES", str(5 << 20))
    good = run("serve", "--check")
    assert good.status == 0, good.err
    store = rf"^store +{re.escape(str(tmp_path))}, at most 5 MiB; \d+ MiB are free there$"
    assert re.search(store, good.out, re.MULTILINE)
    monkeypatch.setenv("RELAYOUT_AUTH", "required")
    locked = run("serve", "--check", "--open")
    assert locked.status == 2
    assert "RELAYOUT_AUTH: nobody could call the service" in locked.err
    assert "lets everybody in" not in locked.err
    for count in ("1 key", "2 keys"):
        assert run("serve", "keys", "add", f"with-{count[0]}").status == 0
        checked = run("serve", "--check")
        assert checked.status == 0
        assert re.search(rf"^access +{count}$", checked.out, re.MULTILINE)
    monkeypatch.delenv("RELAYOUT_AUTH")
    # Kubernetes sets this for a service named relayout.
    monkeypatch.setenv("RELAYOUT_PORT", "tcp://10.0.0.1:8000")
    assert run("serve", "--check").status == 0
    nowhere = run("serve", "--check", "--host", "999.1.1.1", "--open")
    assert nowhere.status == 2
    assert "--host 999.1.1.1: nothing can listen there" in nowhere.err
    (tmp_path / "jobs.sqlite").write_text("garbage" * 100)
    corrupt = run("serve", "--check")
    assert corrupt.status == 2
    assert f"file {tmp_path / 'jobs.sqlite'}: the job database cannot be used" in corrupt.err
    (tmp_path / "jobs.sqlite").unlink()
    monkeypatch.setenv("RELAYOUT_WORKER", "4")
    misspelt = run("serve", "--check")
    assert misspelt.status == 2
    assert "did you mean RELAYOUT_WORKERS?" in misspelt.err
    monkeypatch.delenv("RELAYOUT_WORKER")
    monkeypatch.setenv("RELAYOUT_DATABASE_URL", "postgresql://u:secret@127.0.0.1:1/x")
    bad = run("serve", "--check")
    assert bad.status == 2
    assert "job database" in bad.out
    assert "secret" not in bad.out + bad.err
    monkeypatch.setenv("RELAYOUT_DATABASE_URL", "mysql://u:secret@127.0.0.1:1/x")
    foreign = run("serve", "--check")
    assert foreign.status == 2
    assert "RELAYOUT_DATABASE_URL: a setting is wrong" in foreign.err
    assert "secret" not in foreign.err
    monkeypatch.setenv("RELAYOUT_WORKERS", "none")
    told = run("serve", "--check")
    assert told.status == 2
    assert "  expected: a valid integer\n" in told.err
