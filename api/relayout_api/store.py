"""Models and results as files that are named by the SHA-256 of their content, in a folder or at an fsspec URL."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread
from time import monotonic
from typing import Any, Protocol

from relayout.errors import UsageError
from relayout_api.settings import Settings

_HOUR = 3600.0
_CHECK_BYTES = 4096
_LARGEST_READ = 1 << 20
_LONGEST_HEAD = 1 << 16
# A folder that may not be written: a file system that is read-only, or the rights of another user.
_REFUSALS = (errno.EROFS, errno.EACCES, errno.EPERM)
# They have no folders: fsspec would make a bucket, where a name is wrong or the bucket is gone.
_OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")

# The service at a URL has this long for an answer, one second more for so many bytes, and this long for a list of all.
_ANSWER_SECONDS, _RATE, _LIST_SECONDS = 5.0, 1 << 20, 600.0
# One that did not answer in time is not asked for so long, so that requests do not wait one after the other.
_AWAY_SECONDS = 5.0
# Calls at once of a file system that is not asynchronous. Those that it never ends stay among them.
_MOST_CALLS = 32


def digest_of(content: bytes | memoryview) -> str:
    """The name of a content."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored file: its path, its size in bytes, and the time of its last use."""

    path: str
    size: int
    used: float


class AwayError(OSError):
    """The store cannot be used: the service at its URL does not answer, or refuses, or its folder may not be
    written."""


class Files(Protocol):
    """Files by path. `write` is atomic; a file that is not `durable` may come out of a crash of the machine damaged.

    `lacks` takes no time: it is whether a file is known not to be there. A file that is read counts as used, and
    `mark_used` is whether it is there.
    """

    def lacks(self, path: str) -> bool: ...

    def read(self, path: str) -> memoryview | None: ...

    def write(self, path: str, *parts: bytes | memoryview, durable: bool) -> None: ...

    def mark_used(self, path: str) -> bool: ...

    def remove(self, path: str) -> None: ...

    def entries(self) -> Iterator[Entry]: ...


class Store:
    """Contents by digest, and records by key: facts, as a small JSON object, and a content beside them, or none.

    Every method but `lacks` may block, and raises OSError where the disk is full, AwayError where the service of the
    URL does not answer, or the folder may not be written.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._counting = Lock()
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes of all files when they were last counted, by `clean`, and those that were written here since."""
        return self._size

    def _write(self, path: str, *parts: bytes | memoryview, durable: bool) -> None:
        self._files.write(path, *parts, durable=durable)
        with self._counting:
            self._size += sum(map(len, parts))

    def put(self, content: bytes | memoryview) -> str:
        """Keep a content and return its digest. When this returns, the content outlives a crash."""
        digest = digest_of(content)
        self.put_as(digest, content)
        return digest

    def put_as(self, digest: str, content: bytes | memoryview) -> None:
        """Keep a content whose digest is known."""
        # Also where there is one, as that may be damaged.
        self._write(_blob(digest), content, durable=True)

    def get(self, digest: str) -> memoryview | None:
        """The content of a digest; None where it was deleted or is damaged."""
        content = self._files.read(_blob(digest))
        if content is None:
            return None
        if digest_of(content) != digest:
            # A crash cut it off. The next `put` writes it again.
            self._files.remove(_blob(digest))
            return None
        return content

    def record(self, key: str, facts: dict[str, Any], content: bytes | memoryview = b"") -> None:
        """Keep a record. It may be lost in a crash."""
        head = json.dumps([digest_of(content), facts]).encode() + b"\n"
        self._write(_record(key), head, content, durable=False)

    def record_first(self, key: str, facts: dict[str, Any], content: bytes | memoryview) -> None:
        """Keep a record, unless there is one."""
        if not self._files.mark_used(_record(key)):
            self.record(key, facts, content)

    def lacks(self, key: str) -> bool:
        """Whether there is certainly no record of this key."""
        return self._files.lacks(_record(key))

    def recorded(self, key: str) -> tuple[dict[str, Any], memoryview] | None:
        """The facts and the content of a record; None where it was deleted or is damaged."""
        found = self._files.read(_record(key))
        if found is None:
            return None
        end = bytes(found[:_LONGEST_HEAD]).find(b"\n")
        content = found[end + 1 :]
        try:
            digest, facts = json.loads(bytes(found[:end]))
        except ValueError:
            digest = facts = None
        if digest != digest_of(content):
            # A crash cut it off.
            self._files.remove(_record(key))
            return None
        return facts, content

    def check(self) -> None:
        """Write a small file and remove it. Raises OSError."""
        self._files.write("check", bytes(_CHECK_BYTES), durable=False)
        self._files.remove("check")

    def clean(self, most_bytes: int, hours: float, keep: Iterable[str] = (), since: float = math.inf) -> int:
        """Delete files that were not used for so long, and the least recently used until all together are small enough.

        If they are too large, a tenth more than needed is deleted, so that the next file does not begin it again.
        `keep`: digests that jobs still need. Files that were used at the time `since` or later stay, too. Returns the
        number of deleted files.
        """
        kept = {_blob(digest) for digest in keep}
        written = self._size
        entries = sorted(self._files.entries(), key=lambda each: each.used)
        size = sum(each.size for each in entries)
        most = most_bytes if size <= most_bytes else most_bytes * 9 // 10
        oldest = time.time() - hours * _HOUR
        count = 0
        for each in entries:
            if each.used >= oldest and size <= most:
                break
            if each.path in kept or each.used >= since:
                continue
            self._files.remove(each.path)
            size -= each.size
            count += 1
        with self._counting:
            # A file that was written in the meantime may or may not be among the entries.
            self._size = size + self._size - written
        return count


def store_of(settings: Settings) -> Store:
    """The store that the settings name. Raises UsageError for a folder or a URL that cannot be used."""
    if settings.store_url is None:
        return Store(_Folder(settings.folder("store")))
    return Store(_Remote(settings.store_url))


def _blob(digest: str) -> str:
    return f"blobs/{digest[:2]}/{digest[2:]}"


def _record(key: str) -> str:
    return f"records/{key[:2]}/{key[2:]}"


class _Folder:
    """Files in a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def lacks(self, path: str) -> bool:
        return not os.path.exists(self._root / path)

    def read(self, path: str) -> memoryview | None:
        try:
            with open(self._root / path, "rb") as file:
                self.mark_used(path)
                # A file is never written again, only replaced, so a large one is mapped.
                if os.fstat(file.fileno()).st_size > _LARGEST_READ:
                    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                return memoryview(file.read())
        except FileNotFoundError:
            return None

    def write(self, path: str, *parts: bytes | memoryview, durable: bool) -> None:
        try:
            self._write(path, parts, durable)
        except OSError as error:
            if error.errno in _REFUSALS:
                raise AwayError(error.errno, error.strerror, error.filename) from error
            raise

    def _write(self, path: str, parts: Sequence[bytes | memoryview], durable: bool) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        file, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        try:
            with os.fdopen(file, "wb") as stream:
                stream.writelines(parts)
                if durable:
                    stream.flush()
                    os.fsync(stream.fileno())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
        if not durable:
            return
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def mark_used(self, path: str) -> bool:
        try:
            os.utime(self._root / path)
        except FileNotFoundError:
            return False
        except OSError as error:
            # It is there all the same.
            return error.errno in _REFUSALS
        return True

    def remove(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def entries(self) -> Iterator[Entry]:
        for path in self._root.rglob("*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                yield Entry(path.relative_to(self._root).as_posix(), status.st_size, status.st_mtime)


class _Remote:
    """Files at an fsspec URL. The time of a file's last use is that of its last write there."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            # A list from before would hide what other servers have written since.
            self._system, root = fsspec.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise UsageError(
                "the store's URL needs a package",
                where="RELAYOUT_STORE_URL",
                found=str(error),
                hint="install relayout[s3]" if url.startswith("s3://") else "",
            ) from error
        except ValueError as error:
            raise UsageError(
                "the store's URL cannot be used", where="RELAYOUT_STORE_URL", expected="an fsspec URL", found=str(error)
            ) from error
        self._root = str(root).rstrip("/")
        self._has_folders = url.partition("://")[0] not in _OBJECT_STORES
        self._away_until = -math.inf
        self._calls = BoundedSemaphore(_MOST_CALLS)

    def _ask(self, method: str, *arguments: object, seconds: float = _ANSWER_SECONDS, **options: object) -> Any:
        """Call the file system. Raises AwayError where it does not answer in time, as its own client may wait without
        end, and for the errors of that client, such as missing credentials."""
        if monotonic() < self._away_until:
            raise AwayError("the service of the store does not answer")
        call = functools.partial(getattr(self._system, method), *arguments, **options)
        try:
            return call(timeout=seconds) if self._system.async_impl else self._ended(call, seconds)
        except FileNotFoundError:
            raise
        except TimeoutError as error:
            self._away_until = monotonic() + _AWAY_SECONDS
            raise AwayError("the service of the store does not answer") from error
        except Exception as error:
            raise AwayError(f"{type(error).__name__}: {error}") from error

    def _ended(self, call: Callable[[], Any], seconds: float) -> Any:
        """The result of a call that has no limit of its own. Raises TimeoutError, and as the call does."""
        if not self._calls.acquire(timeout=seconds):
            raise TimeoutError
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)
            finally:
                self._calls.release()

        # No thread of a pool, for which the process would wait at its end.
        Thread(target=run, daemon=True).start()
        return result.result(seconds)

    def lacks(self, path: str) -> bool:
        # Only a request to the service of the URL would tell.
        return False

    def read(self, path: str) -> memoryview | None:
        source = f"{self._root}/{path}"
        try:
            size = self._ask("info", source)["size"]
            content: bytes = self._ask("cat_file", source, seconds=_seconds_for(size))
        except FileNotFoundError:
            return None
        return memoryview(content)

    def write(self, path: str, *parts: bytes | memoryview, durable: bool) -> None:
        target = f"{self._root}/{path}"
        try:
            if self._has_folders:
                self._ask("makedirs", target.rpartition("/")[0], exist_ok=True)
            # An object store shows a new object when all of it is there.
            content = b"".join(parts)
            self._ask("pipe_file", target, content, seconds=_seconds_for(len(content)))
        except FileNotFoundError as error:
            raise AwayError(f"there is no place for {target}: {error}") from error

    def mark_used(self, path: str) -> bool:
        return bool(self._ask("exists", f"{self._root}/{path}"))

    def remove(self, path: str) -> None:
        try:
            self._ask("rm_file", f"{self._root}/{path}")
        except FileNotFoundError:
            return

    def entries(self) -> Iterator[Entry]:
        if not self._ask("exists", self._root):
            return
        for name, facts in self._ask("find", self._root, detail=True, seconds=_LIST_SECONDS).items():
            when = facts.get("LastModified") or facts.get("created") or facts.get("mtime")
            used = when.timestamp() if hasattr(when, "timestamp") else float(when or time.time())
            yield Entry(name.removeprefix(f"{self._root}/"), facts["size"], used)


def _seconds_for(size: int) -> float:
    """The time that a content of this size may take to or from the service of a URL."""
    return _ANSWER_SECONDS + size / _RATE
