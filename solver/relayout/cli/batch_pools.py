"""Where the models of a batch are legalized: in this process, in several, or on a cluster of Dask."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relayout.cli.batch_work import Done, Item, key_of, legalize_item, legalize_sent, pack
from relayout.cli.exit_status import FAULT, describe
from relayout.errors import UsageError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from distributed import Client, Future, as_completed
    from pebble import ProcessPool

# The modules that every worker needs, imported once in the process that the workers are forked from.
_PRELOADED = [
    "relayout.backend.loading",
    "relayout.cli.batch_work",
    "relayout.legalization",
    "relayout.model.io",
    "relayout.verification.verifier",
]
_CONNECT_SECONDS = 10
_NOTICED_SECONDS = 0.1
"""How long Ctrl-C may wait: the thread that handles it sets a flag, which wakes up no other thread."""


def one_by_one(items: Sequence[Item], progress: Callable[[str], None]) -> Iterator[Done]:
    """Each model in this process, in order."""
    return (legalize_item(item, progress) for item in items)


def preload() -> None:
    """Start the process that the workers are forked from, which imports what they need while this one goes on. Windows
    has no fork: there each worker imports it."""
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload(_PRELOADED)
    # A terminal sends Ctrl-C to all processes, and each would print a traceback. The command itself ends the others, so
    # they inherit a mask without it. The resource tracker unblocks the signal when it starts: it comes first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def processes(items: Sequence[Item], count: int) -> Iterator[Done]:
    """Each model in one of `count` processes, as they end, the largest file first: none is left for the end.

    A process that dies fails its model alone.
    """
    with _interrupts_later():
        # An import that is interrupted may fail with any error.
        from concurrent.futures import FIRST_COMPLETED, wait
        from concurrent.futures import Future as ProcessFuture

        from pebble import ProcessExpired

    with _pool(count) as pool:
        try:
            futures: dict[ProcessFuture[Done], Item] = {}
            with _interrupts_later():
                for item in sorted(items, key=_size, reverse=True):
                    futures[pool.schedule(legalize_item, args=[item])] = item
            left = set(futures)
            while left:
                ended, left = wait(left, _NOTICED_SECONDS, FIRST_COMPLETED)
                for future in sorted(ended, key=lambda each: futures[each].name):
                    try:
                        yield future.result()
                    except ProcessExpired as error:
                        yield Done(futures[future].name, FAULT, message=_death(error.exitcode))
        except BaseException:
            pool.stop()
            raise


def _size(item: Item) -> int:
    """The bytes of a model; 0 for one that is gone, or a link to nothing: the work itself says so."""
    try:
        return item.source.stat().st_size
    except OSError:
        return 0


def _pool(count: int) -> ProcessPool:
    with _interrupts_later():
        from multiprocessing import get_context

        from pebble import ProcessPool

    if sys.platform == "win32":
        # The console sends Ctrl-C to the workers too, which this process ends.
        return ProcessPool(max_workers=count, initializer=signal.signal, initargs=[signal.SIGINT, signal.SIG_IGN])
    context = get_context("forkserver")
    _wait_for(context.Process(target=int))
    return ProcessPool(max_workers=count, context=context)


def _wait_for(first: BaseProcess) -> None:
    """Run the first process that is forked, so that the one that it is forked from has imported what all need. A worker
    that waits for this would outlive this process after Ctrl-C, and fail with a traceback."""
    starter = threading.Thread(target=first.start, daemon=True)
    starter.start()
    while starter.is_alive():
        starter.join(_NOTICED_SECONDS)
    first.join()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Within the context Ctrl-C and SIGTERM do nothing; at its end they raise KeyboardInterrupt and SystemExit. So what
    began ends: imports, and the start of workers, each of which is then known to the pool, which can end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: came.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    if signal.SIGINT in came:
        raise KeyboardInterrupt
    if came:
        raise SystemExit(128 + signal.SIGTERM)


def on_cluster(items: Sequence[Item], address: str, table: bytes) -> Iterator[Done]:
    """Each model on a worker of the Dask scheduler at `address`, as they end; this process reads and writes the files.

    `table` is the file that declares the backend, empty if none does. The scheduler gives the model of a worker that
    died to another worker, a few times. After that it is sent once more, alone: another model may have killed the
    workers. Raises UsageError.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise UsageError(
            "a cluster needs packages that are not installed",
            where="--scheduler",
            expected="the packages of the extra `distributed`",
            found=str(error),
            hint='pip install "relayout[distributed]"',
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            "the scheduler does not answer",
            where=f"--scheduler {address}",
            expected="the address of a Dask scheduler, such as tcp://host:8786",
            found=str(error).partition("\n")[0],
        ) from error
    with client:
        at_once = 2 * _workers(client, address)
        waiting = iter(items)
        sent: dict[Future[Any], tuple[Item, str]] = {}
        suspects: list[Item] = []
        ended = as_completed([], loop=client.loop)

        def send() -> Iterator[Done]:
            """Send the next model; one that cannot be read is done already."""
            for item in waiting:
                try:
                    key, content = key_of(item), pack(item.source)
                except Exception as error:
                    status, message = describe(error)
                    yield Done(item.name, status, message=message)
                    continue
                # Batches share nothing: the same model in another batch is legalized again.
                future = client.submit(legalize_sent, item.name, content, item.request, table, pure=False)
                sent[future] = item, key
                ended.add(future)
                return

        for _ in range(at_once):
            yield from send()
        for future in _as_they_end(ended, client, address):
            item, key = sent.pop(future)
            if _is_killed(future):
                suspects.append(item)
            else:
                yield _received(future, item, key)
            future.release()
            yield from send()
        for item in suspects:
            waiting = iter([item])
            yield from send()
            for future in _as_they_end(ended, client, address):
                yield _received(future, *sent.pop(future))


def _as_they_end(completed: as_completed, client: Client, address: str) -> Iterator[Future[Any]]:
    """The models on the cluster, as they end. Raises UsageError where the scheduler is gone: Dask would wait for ever,
    and another scheduler on its address does not know them."""
    while not completed.is_empty():
        if client.status != "running":
            # It would log a traceback of its attempt to connect again, which ends with it.
            logging.getLogger("distributed.client").disabled = True
            raise UsageError(
                "the connection to the scheduler was lost",
                where=f"--scheduler {address}",
                expected="a scheduler that runs until the last model has ended",
                found=str(client.status),
                hint="run the batch again with --resume",
            )
        if completed.has_ready():
            yield next(completed)
        else:
            time.sleep(_NOTICED_SECONDS)


def _is_killed(future: Future[Any]) -> bool:
    """Whether each worker that had the model died."""
    return type(future.exception()).__name__ == "KilledWorker"


def _received(future: Future[Any], item: Item, key: str) -> Done:
    """The result of a model on the cluster, whose file is written."""
    from relayout.model.onnx_file import replace_file

    try:
        done, content = future.result()
        if content:
            with replace_file(item.target) as file:
                file.write(content)
    except Exception as error:
        if _is_killed(future):
            return Done(item.name, FAULT, message=f"each worker that had it died ({error})".partition("\n")[0])
        status, message = describe(error)
        return Done(item.name, status, message=message)
    assert isinstance(done, Done)
    return replace(done, key=key)


def _workers(client: Client, address: str) -> int:
    """The number of threads of all workers. Raises UsageError if there are none, or they have another relayout."""
    from importlib.metadata import version

    try:
        client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
    except TimeoutError as error:
        raise UsageError(
            "the scheduler has no workers", where=f"--scheduler {address}", expected="one at least", found="none"
        ) from error
    own = version("relayout")
    found: Mapping[str, Any] = client.run(_version)
    others = sorted({str(each) for each in found.values() if each != own})
    if others:
        raise UsageError(
            "the workers have another version of relayout",
            where=f"--scheduler {address}",
            expected=own,
            found=", ".join(others),
        )
    return sum(client.nthreads().values())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("relayout")
    except PackageNotFoundError:
        return "none"


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"its process was ended by {signal.Signals(-exit_code).name}; it may have run out of memory"
    return f"its process ended with status {exit_code}"
