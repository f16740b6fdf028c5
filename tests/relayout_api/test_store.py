"""The store: contents by digest, records, and what is deleted first."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import relayout_api.store as store_module
from relayout.errors import UsageError
from relayout_api.results import Results
from relayout_api.settings import Settings
from relayout_api.store import AwayError, Store, digest_of, store_of
from relayout_api.telemetry.metrics import Metrics
from relayout_api.workers.messages import Answer, Task
from relayout_api.workers.pool import Pool


@pytest.fixture(params=["folder", "memory://"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    url = None if request.param == "folder" else f"memory://{tmp_path}"
    return store_of(Settings(data=tmp_path, store_url=url))


def test_a_content_is_found_by_its_digest(store: Store) -> None:
    digest = store.put(b"model")
    assert digest == digest_of(b"model") == store.put(memoryview(b"model"))
    assert store.get(digest) == b"model"
    assert store.get(digest_of(b"other")) is None
    store.record("ab" * 32, {"content": digest})
    assert store.recorded("ab" * 32) == ({"content": digest}, b"")
    assert store.recorded("cd" * 32) is None
    store.check()


def test_a_large_answer_is_kept_when_it_is_computed_again(store: Store, tmp_path: Path) -> None:
    async def main() -> None:
        results = Results(Settings(data=tmp_path), store)
        small, large = Answer(b"small", b"{}", repeats=True), Answer(bytes(9 << 20), b"{}", repeats=True)
        await results.learn("ab" * 32, small)
        assert await results.known("ab" * 32) == Answer(memoryview(b"small"), b"{}", repeats=True)
        for is_known in (False, True):
            await results.learn("cd" * 32, large)
            assert (await results.known("cd" * 32) is not None) is is_known

    anyio.run(main)


def test_a_job_waits_for_a_store_that_is_away_and_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relayout_api.results._BACK_SECONDS", 0.01)
    store = store_of(Settings(data=tmp_path))
    digest = store.put(b"body")
    away = dict.fromkeys(("get", "recorded", "put"), 2)

    def sometimes(name: str) -> Callable[..., Any]:
        method = getattr(store, name)

        def call(*arguments: object) -> object:
            if away[name]:
                away[name] -= 1
                raise AwayError("the service of the store does not answer")
            return method(*arguments)

        return call

    for name in away:
        monkeypatch.setattr(store, name, sometimes(name))
    ran = []

    class OnePool(Pool):
        async def run(self, *_: object, **__: object) -> Answer:
            ran.append(1)
            return Answer(b"model", b"{}")

    async def main() -> None:
        settings = Settings(data=tmp_path)
        results = Results(settings, store)
        body = await results.input(digest)
        assert body == b"body"
        task = Task("legalize", None, 1.0, 1, "parts", digest=digest, of_job=True)
        found = await results.answer(task, body, "caller", pool=OnePool(settings, Metrics()), take=ran.append)
        assert await results.content(found["model"]) == b"model"

    anyio.run(main)
    assert (ran, set(away.values())) == ([1], {0})


def test_the_first_of_two_answers_stands_and_a_damaged_one_is_none(store: Store, tmp_path: Path) -> None:
    key = "ab" * 32
    for content in (b"first\n1", b"second"):
        store.record_first(key, {"report": "{}"}, memoryview(content))
    assert store.recorded(key) == ({"report": "{}"}, b"first\n1")
    assert store.recorded("cd" * 32) is None
    for path in filter(Path.is_file, (tmp_path / "store").rglob("*")):
        path.write_bytes(path.read_bytes()[:-1])
        assert store.recorded(key) is None
        store.record_first(key, {}, memoryview(b"again"))
        assert store.recorded(key) == ({}, b"again")


def test_too_much_is_deleted_but_not_what_is_needed(store: Store) -> None:
    digests = [store.put(bytes([each]) * 100) for each in range(4)]
    # Needed contents count, and a tenth more than the excess is deleted.
    assert store.size == 400
    assert store.clean(210, 1.0, keep=digests[:1]) == 3
    left = [store.get(digest) is not None for digest in digests]
    assert (left, store.size) == ([True, False, False, False], 100)
    store.record("ab" * 32, {})
    assert store.size == 173


def test_what_was_written_a_moment_ago_is_not_deleted(tmp_path: Path) -> None:
    """A request stores its input before the row of its job is written."""
    store = store_of(Settings(data=tmp_path))
    digest = store.put(b"input")
    assert store.clean(1, 1.0, since=time.time() - 5) == 0
    assert store.get(digest) == b"input"


def test_the_oldest_goes_first(tmp_path: Path) -> None:
    store = store_of(Settings(data=tmp_path))
    old, used, new = (store.put(content) for content in (b"old", b"used", b"new"))
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.read_bytes() != b"new":
            os.utime(path, (time.time() - 7200,) * 2)
    assert store.get(used) is not None
    assert store.clean(1 << 20, hours=1.0) == 1
    assert [store.get(each) for each in (old, used, new)] == [None, b"used", b"new"]


def test_a_url_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        store_of(Settings(data=tmp_path, store_url="nowhere://x"))
    assert raised.value.where == "RELAYOUT_STORE_URL"


def test_an_error_of_the_stores_own_client_is_one_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without credentials botocore raises an exception that is no OSError."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = store_of(Settings(data=tmp_path, store_url="s3://relayout-test-of-nothing"))
    with pytest.raises(OSError, match="NoCredentialsError: Unable to locate credentials"):
        store.check()


def test_a_bucket_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    made = []

    class WithoutBuckets(MemoryFileSystem):
        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            made.append(path)

        def pipe_file(self, path: str, *_: object, **__: object) -> None:
            raise FileNotFoundError(path)

    fsspec.register_implementation("abfs", WithoutBuckets, clobber=True)
    with pytest.raises(AwayError, match=r"there is no place for .*models/check"):
        store_of(Settings(data=tmp_path, store_url="abfs://models")).check()
    assert made == []


def test_a_store_whose_client_waits_without_end_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_mended = Event()

    class Silent(MemoryFileSystem):
        def pipe_file(self, *_: object, **__: object) -> None:
            is_mended.wait()

    monkeypatch.setattr("relayout_api.store._ANSWER_SECONDS", 0.1)
    # A default is the constant as it was when the function was made.
    monkeypatch.setitem(store_module._Remote._ask.__kwdefaults__, "seconds", 0.1)
    monkeypatch.setattr("relayout_api.store._AWAY_SECONDS", 0.0)
    monkeypatch.setattr("relayout_api.store._MOST_CALLS", 3)
    fsspec.register_implementation("silent", Silent, clobber=True)
    store = store_of(Settings(data=tmp_path, store_url="silent://models"))
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(AwayError, match="does not answer"):
            store.check()
    # The calls that nobody ends are no more than so many.
    assert threading.active_count() == before + 3
    is_mended.set()
    monkeypatch.setattr("relayout_api.store._ANSWER_SECONDS", 30.0)
    store.check()


def test_a_folder_that_may_not_be_written_is_away_and_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted read-only, which root cannot write either."""
    store = store_of(Settings(data=tmp_path))
    digest = store.put(b"model")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    with pytest.raises(AwayError) as error:
        store.put(b"other")
    assert error.value.strerror == "Read-only file system"
    assert store.get(digest) == b"model"


def test_only_this_user_may_read_the_data_folder(tmp_path: Path) -> None:
    for settings in (Settings(data=tmp_path / "a" / "b"), Settings(data=tmp_path / "c", auth="required")):
        store_of(settings)
        assert settings.keys_url.endswith("keys.sqlite")
        assert settings.data.stat().st_mode & 0o777 == 0o700
        assert (settings.data / "store").stat().st_mode & 0o777 == 0o700
        assert (settings.data / "keys.sqlite").stat().st_mode & 0o777 == 0o600
