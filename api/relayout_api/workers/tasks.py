"""The functions of a worker process. Only there are the heavy modules imported."""

from __future__ import annotations

import gc
import json
import logging
import traceback
from contextlib import suppress
from typing import get_args

from relayout.errors import BackendError, InternalError, RelayoutError
from relayout_api.problems import RefusedError
from relayout_api.workers.limits import limit_memory
from relayout_api.workers.messages import Answer, Events, Parts, Task


def perform(task: Task, parts: Parts, events: Events = lambda event: None) -> Answer:
    """The answer to a request, within its memory limit. Raises only RelayoutErrors."""
    limit_memory(task.memory_bytes)
    try:
        from relayout_api.workers.work import WORK

        return WORK[task.verb](task, parts, events)
    except RelayoutError:
        raise
    except MemoryError:
        problem = "the work on this takes more memory than a worker may have"
        raise RefusedError("too-large", problem, expected=f"at most {task.memory_bytes} bytes") from None
    except Exception:
        # Only text is passed to the server, which logs it.
        raise InternalError("an unforeseen exception", found=traceback.format_exc()) from None


def warm() -> None:
    """Answer the example requests once, so that no caller waits for an import."""
    # It repeats names of callers' models.
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    # The examples do not need it, so it is imported for the requests that do.
    import relayout.solve.or_tools  # noqa: F401
    from relayout.backend.declarative_schema import BackendTable
    from relayout_api.examples import LEGALIZE, VERIFY
    from relayout_api.schemas import Parameters
    from relayout_api.workers.work import WORK

    for verb, examples in (("legalize", LEGALIZE), ("verify", VERIFY)):
        for example in examples.values():
            # A backend that another package claims too, or that is broken, keeps no other from being served.
            with suppress(BackendError):
                WORK[verb](Task(verb, None, 60.0, 0), [json.dumps(example).encode()], lambda event: None)
    for schema in (BackendTable, *get_args(Parameters)):
        # It is built when it is first used.
        schema.model_rebuild()
    # All objects so far are permanent, so the garbage collector need not visit them. This saves a fifth of a request's
    # time, and keeps their pages shared between the workers.
    gc.collect()
    gc.freeze()
