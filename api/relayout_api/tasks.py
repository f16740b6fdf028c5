"""The functions that the server calls in a worker process. The work itself is heavy, and imported there alone."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable
from functools import cache, wraps

from relayout.errors import InternalError, RelayoutError
from relayout_api.memory import limit_memory
from relayout_api.messages import Answer, Task
from relayout_api.problems import RefusedError

__all__ = ["explain", "legalize", "verify", "warm"]


def _accountable(function: Callable[[Task], Answer]) -> Callable[[Task], Answer]:
    """`function` within its limit of memory; any other exception than a RelayoutError becomes one."""

    @wraps(function)
    def accounted(task: Task) -> Answer:
        limit_memory(task.memory_bytes)
        try:
            return function(task)
        except RelayoutError:
            raise
        except MemoryError:
            problem = "the work on this takes more memory than a worker may have"
            raise RefusedError("too-large", problem, expected=f"at most {task.memory_bytes} bytes") from None
        except Exception:
            # The text alone crosses to the server, whose log it is for.
            raise InternalError("an unforeseen exception", found=traceback.format_exc()) from None

    return accounted


@_accountable
def legalize(task: Task) -> Answer:
    """See `relayout_api.work.legalize`."""
    from relayout_api import work

    return work.legalize(task)


@_accountable
def explain(task: Task) -> Answer:
    """See `relayout_api.work.explain`."""
    from relayout_api import work

    return work.explain(task)


@_accountable
def verify(task: Task) -> Answer:
    """See `relayout_api.work.verify`."""
    from relayout_api import work

    return work.verify(task)


@cache
def warm(memory_bytes: int) -> None:
    """Run the examples once, so that no request waits for an import."""
    from relayout.cli.lazy_imports import defer_slow_imports

    # The process is the service's own, as the command's is its own.
    defer_slow_imports()
    # The examples are solved without it.
    import relayout.solve.or_tools  # noqa: F401
    from relayout_api.examples import LEGALIZE, VERIFY

    for function, examples in ((legalize, LEGALIZE), (verify, VERIFY)):
        for example in examples.values():
            body = json.dumps(example).encode()
            function(Task(body, None, 60.0, memory_bytes))
    # All objects so far stay, so the garbage collector need not visit them: a fifth of a request's time, measured.
    gc.freeze()
