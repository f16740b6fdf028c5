"""What the server hands to a worker and gets back. What does the work is heavy, and imported there alone."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps

from relayout.errors import InternalError, RelayoutError
from relayout_api.memory import limit_memory
from relayout_api.problems import RefusedError
from relayout_api.schemas import ExplainWish, LegalizeWish, VerifyWish

__all__ = ["Answer", "Task", "explain", "legalize", "verify", "warm"]


@dataclass(frozen=True, slots=True)
class Task:
    """What a request asks for.

    `wish` has the backend and the options that go with an ONNX model in `body`; it is None where `body` is JSON, which
    brings its own. `seconds` and `memory_bytes` are what the server gives. `as_bytes` asks for the model's bytes alone.
    """

    body: bytes
    wish: LegalizeWish | ExplainWish | VerifyWish | None
    seconds: float
    memory_bytes: int
    as_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of the response, and the report without its lists where the body has no room for it."""

    content: bytes
    summary: str = ""


def _accountable(function: Callable[[Task], Answer]) -> Callable[[Task], Answer]:
    """`function`, held to its memory, and raising nothing but RelayoutErrors: what else it raises becomes one."""

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
    """Do once what requests need, so that none of them waits for an import."""
    # The solver's last resort, which the examples do not come to.
    import relayout.solve.or_tools  # noqa: F401
    from relayout_api.examples import LEGALIZE, VERIFY

    for function, examples in ((legalize, LEGALIZE), (verify, VERIFY)):
        for example in examples.values():
            body = json.dumps(example).encode()
            function(Task(body, None, 60.0, memory_bytes))
    # What is there now stays: the collector need not look at it again. Measured: a fifth of a request's time.
    gc.freeze()
