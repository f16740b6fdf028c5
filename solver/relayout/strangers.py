"""Running a backend's own code: whatever it raises, or answers that is no answer, is a `BackendError` that names it.

What a backend says of a node's layouts is checked in `relayout.answers`; here is all else that it is asked or does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relayout.answers import MAX_COST, shown
from relayout.backend import Backend, Reordering, TensorType
from relayout.errors import BackendError, RelayoutError
from relayout.layout import Layout

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "blaming",
    "conversion_cost_of",
    "conversion_of",
    "crossing_cost_of",
    "finished_by",
    "is_met_by",
    "prepared_by",
    "supported_by",
    "wrong_answer",
]


@contextmanager
def blaming(backend: Backend, doing: str, where: str = "") -> Iterator[None]:
    """Whatever is raised in here is the backend's fault, but for errors that say whose fault they are."""
    try:
        yield
    except RelayoutError:
        raise
    except Exception as error:
        raise BackendError(
            f"the backend failed in {doing}",
            where=_place(backend, where),
            found=f"{type(error).__name__}: {error}",
            hint="this is a fault of the backend, not of the model",
        ) from error


def conversion_of(backend: Backend, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
    """The backend's own operator for a conversion, checked. Raises BackendError."""
    where = f"{source} to {target}"
    with blaming(backend, "conversion", where):
        answer = backend.conversion(tensor, source, target)
    if answer is None:
        return None
    if not isinstance(answer, Reordering):
        raise wrong_answer(backend, where, "a Reordering or None", shown(answer))
    if answer.cost is not None:
        _check_cost(backend, where, answer.cost)
    return answer


def conversion_cost_of(backend: Backend, tensor: TensorType, source: Layout, target: Layout) -> int | None:
    """What the backend says that a conversion costs, checked. Raises BackendError."""
    where = f"{source} to {target}"
    with blaming(backend, "conversion_cost", where):
        answer = backend.conversion_cost(tensor, source, target)
    return None if answer is None else _check_cost(backend, where, answer)


def crossing_cost_of(backend: Backend, nbytes: int, source: str, target: str) -> int:
    """What bringing so many bytes from one place to another costs, checked. Raises BackendError."""
    where = f"{source} to {target}"
    with blaming(backend, "crossing_cost", where):
        answer = backend.crossing_cost(nbytes, source, target)
    return _check_cost(backend, where, answer)


def is_met_by(backend: Backend, tensor: TensorType, required: Layout, current: Layout | None, where: str = "") -> bool:
    """Whether the backend takes the tensor for one that meets the layout. Raises BackendError."""
    with blaming(backend, "is_satisfied_by", where):
        return bool(backend.is_satisfied_by(tensor, required, current))


def supported_by(backend: Backend, node: ir.Node) -> bool:
    """Whether the backend runs the node at all. Raises BackendError."""
    with blaming(backend, "supports", node.name or node.op_type):
        return bool(backend.supports(node))


def prepared_by(backend: Backend, model: ir.Model) -> bool:
    """Let the backend prepare the source's model, in place; whether it changed anything. Raises BackendError."""
    with blaming(backend, "prepare"):
        return bool(backend.prepare(model))


def finished_by(backend: Backend, model: ir.Model) -> bool:
    """Let the backend finish a legal model, in place; whether it changed anything. Raises BackendError."""
    with blaming(backend, "finish"):
        return bool(backend.finish(model))


def _check_cost(backend: Backend, where: str, answer: object) -> int:
    try:
        number = operator.index(answer)  # type: ignore[arg-type]  # what it is, is the question
    except TypeError:
        number = -1
    if isinstance(answer, bool) or not 0 <= number <= MAX_COST:
        raise wrong_answer(backend, where, f"a cost in bytes: an integer from 0 to {MAX_COST}", shown(answer))
    return number


def wrong_answer(backend: Backend, where: str, expected: str, found: str) -> BackendError:
    """The error for an answer that is none."""
    return BackendError(
        "the backend's answer makes no sense", where=_place(backend, where), expected=expected, found=found
    )


def _place(backend: Backend, where: str) -> str:
    name = f"backend {backend.name or type(backend).__name__}"
    return f"{name}, {where}" if where else name
