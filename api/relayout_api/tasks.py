"""The functions that the server calls in a worker process. Only there are the heavy modules imported."""

from __future__ import annotations

import gc
import json
import traceback
from functools import cache

from relayout.errors import InternalError, RelayoutError
from relayout_api.memory import limit_memory
from relayout_api.messages import Answer, Task
from relayout_api.problems import RefusedError

__all__ = ["perform", "warm"]


def perform(task: Task) -> Answer:
    """The answer to a request, within its memory limit. Raises only RelayoutErrors."""
    limit_memory(task.memory_bytes)
    try:
        from relayout_api.work import WORK

        return WORK[task.verb](task)
    except RelayoutError:
        raise
    except MemoryError:
        problem = "the work on this takes more memory than a worker may have"
        raise RefusedError("too-large", problem, expected=f"at most {task.memory_bytes} bytes") from None
    except Exception:
        # Only text is passed to the server, which logs it.
        raise InternalError("an unforeseen exception", found=traceback.format_exc()) from None


@cache
def warm(memory_bytes: int) -> None:
    """Answer the example requests once, so that no caller waits for an import."""
    # The examples do not need it.
    import relayout.solve.or_tools  # noqa: F401
    from relayout_api.examples import LEGALIZE, VERIFY

    for verb, examples in (("legalize", LEGALIZE), ("verify", VERIFY)):
        for example in examples.values():
            perform(Task(verb, json.dumps(example).encode(), None, 60.0, memory_bytes))
    # All objects so far are permanent, so the garbage collector need not visit them. This saves a fifth of a request's
    # time.
    gc.freeze()
