"""Asking a backend, and checking what it answers: past this module every answer is well-formed.

A backend is a stranger's code. Whatever it raises, and whatever it answers that is no answer, becomes a `BackendError`
that names the backend, the node and the operand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from relayout.backend import Backend, Implementation, axis_count, rank_of
from relayout.errors import BackendError, InputError, LayoutSyntaxError
from relayout.layout import Layout

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["MAX_COST", "ask", "stated"]

MAX_COST = 1 << 48
"""The most that an implementation may cost, in bytes: sums over all nodes of a graph stay within 63 bits."""

# What may be wrong with an operand: its kind ("input" or "result") and its number.
_Operand = tuple[str, int]


def ask(backend: Backend, node: ir.Node) -> tuple[Implementation, ...]:
    """The ways in which `backend` runs `node`, checked: a layout for each operand, of its rank, and a cost.

    A single `*` is any layout of any rank, as in Glow. A missing operand is in any layout, of rank 0. An operand of
    unknown rank keeps the layout that was answered.
    Raises BackendError.
    """
    answer = _call(backend, node, "implementations", lambda: backend.implementations(node))
    if isinstance(answer, Implementation) or not isinstance(answer, Iterable):
        raise _nonsense(backend, node, "a sequence of Implementation", _shown(answer))
    implementations = tuple(_checked(backend, node, each) for each in _call(backend, node, "", lambda: list(answer)))
    if not implementations:
        raise _nonsense(
            backend, node, "at least one implementation", "none", hint="`supports` is where a backend declines a node"
        )
    return implementations


def stated(backend: Backend, node: ir.Node) -> Implementation:
    """The one implementation that a backend's two requirement methods state, at no extra cost. Raises BackendError."""
    inputs = [
        _layout(backend, node, value, ("input", n), partial(backend.nth_input_layout_requirements, node, n))
        for n, value in enumerate(node.inputs)
    ]
    results = [
        _layout(backend, node, value, ("result", n), partial(backend.nth_result_layout_requirements, node, n))
        for n, value in enumerate(node.outputs)
    ]
    return Implementation(tuple(inputs), tuple(results))


def _checked(backend: Backend, node: ir.Node, each: object) -> Implementation:
    if not isinstance(each, Implementation):
        raise _nonsense(backend, node, "an Implementation", _shown(each))
    return Implementation(
        _layouts(backend, node, "input", each.inputs, node.inputs),
        _layouts(backend, node, "result", each.results, node.outputs),
        _cost(backend, node, each.cost),
    )


def _layouts(
    backend: Backend, node: ir.Node, kind: str, layouts: object, values: Sequence[ir.Value | None]
) -> tuple[Layout, ...]:
    if isinstance(layouts, str | Layout) or not isinstance(layouts, Sequence):
        raise _nonsense(backend, node, f"a tuple of {kind} layouts", _shown(layouts))
    if len(layouts) != len(values):
        raise _nonsense(backend, node, f"{len(values)} {kind} layouts, one an operand", f"{len(layouts)}")
    return tuple(
        _layout(backend, node, value, (kind, n), partial(layouts.__getitem__, n)) for n, value in enumerate(values)
    )


def _layout(
    backend: Backend, node: ir.Node, value: ir.Value | None, operand: _Operand, answer: Callable[[], object]
) -> Layout:
    """One operand's layout, parsed and of the operand's rank."""
    if value is None:
        return Layout.any(0)
    layout = _call(backend, node, operand, answer)
    if isinstance(layout, str):
        try:
            layout = Layout.parse(layout)
        except LayoutSyntaxError as error:
            raise BackendError(
                "the backend's answer is not a layout",
                where=_where(backend, node, operand),
                expected=error.expected,
                found=f"{error.found} in {error.text!r}, column {error.column}",
            ) from error
    if not isinstance(layout, Layout):
        raise _nonsense(backend, node, "a Layout or its string", _shown(layout), operand)
    rank = rank_of(value)
    if str(layout) == "*":
        return Layout.any(rank)
    if value.shape is not None and axis_count(layout) != rank:
        raise _nonsense(
            backend, node, f"a layout of rank {rank}, as the tensor", f"{str(layout)!r}, of rank {layout.rank}", operand
        )
    return layout


def _cost(backend: Backend, node: ir.Node, cost: object) -> int:
    try:
        number = operator.index(cost)  # type: ignore[arg-type]  # what it is, is the question
    except TypeError:
        number = -1
    if isinstance(cost, bool) or not 0 <= number <= MAX_COST:
        raise _nonsense(backend, node, f"a cost in bytes: an integer from 0 to {MAX_COST}", _shown(cost))
    return number


def _call(backend: Backend, node: ir.Node, operand: _Operand | str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LayoutSyntaxError as error:
        raise _nonsense(
            backend, node, error.expected, f"{error.found} in {error.text!r}, column {error.column}"
        ) from error
    except (BackendError, InputError):
        raise
    except Exception as error:
        raise BackendError(
            f"the backend failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
            where=_where(backend, node, operand if isinstance(operand, tuple) else None),
            expected="a layout" if isinstance(operand, tuple) else "the node's implementations",
            found=type(error).__name__,
            hint="this is a fault of the backend, not of the model",
        ) from error


def _nonsense(
    backend: Backend, node: ir.Node, expected: str, found: str, operand: _Operand | None = None, hint: str = ""
) -> BackendError:
    return BackendError(
        "the backend's answer makes no sense",
        where=_where(backend, node, operand),
        expected=expected,
        found=found,
        hint=hint,
    )


def _where(backend: Backend, node: ir.Node, operand: _Operand | None) -> str:
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    place = f"backend {backend.name or type(backend).__name__}, node {node.name or '(no name)'} ({kind})"
    return f"{place}, {operand[0]} {operand[1]}" if operand else place


def _shown(answer: object) -> str:
    text = repr(answer)
    return f"{type(answer).__name__}: {text[:77] + '...' if len(text) > 80 else text}"
