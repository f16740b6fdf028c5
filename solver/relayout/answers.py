"""Asking a backend, and checking what it answers: past this module every answer is well-formed.

A backend is a stranger's code. Whatever it raises, and whatever it answers that is no answer, becomes a `BackendError`
that names the backend, the node and the operand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from relayout.backend import Backend, Implementation, axis_count, rank_of
from relayout.errors import BackendError, InputError, LayoutSyntaxError
from relayout.layout import Layout
from relayout.layout_faults import MAX_RANK
from relayout.roles import input_role, onnx_letters, result_role

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["MAX_COST", "ask", "ask_order_cost", "shown", "stated"]

MAX_COST = 1 << 48
"""The most that an implementation may cost, in bytes: sums over all nodes of a graph stay within 63 bits."""

_NO_TENSOR = Layout.any(0)


def ask(backend: Backend, node: ir.Node) -> tuple[Implementation, ...]:
    """The ways in which `backend` runs `node`, checked: a layout for each operand, of its rank, and a cost.

    A single `*` is any layout of any rank, as in Glow. A missing operand is in any layout, of rank 0. An operand of
    unknown rank keeps the layout that was answered. A backend that is not enabled is not asked, nor is any about a node
    of whose operands one has more dimensions than layouts have. Raises BackendError.
    """
    if not backend.is_enabled or any(rank_of(value) > MAX_RANK for value in (*node.inputs, *node.outputs)):
        return tuple([_unasked(node, place) for place in backend.places() or ("",)])
    question = _Question(backend, node)
    try:
        answer: object = backend.implementations(node)
        # A generator is a stranger's code too, and may fail on the way.
        given = tuple(answer) if isinstance(answer, Iterable) else None
    except Exception as error:
        question.blame(error)
    if given is None:
        raise question.nonsense("a sequence of Implementation", shown(answer))
    if not given:
        raise question.nonsense(
            "at least one implementation", "none", hint="`supports` is where a backend declines a node"
        )
    return tuple([question.implementation(each) for each in given])


def _unasked(node: ir.Node, place: str) -> Implementation:
    return Implementation(
        tuple([_any(value) for value in node.inputs]), tuple([_any(value) for value in node.outputs]), place=place
    )


def _any(value: ir.Value | None) -> Layout:
    """No wish; of what has more dimensions than layouts have there can be none."""
    rank = rank_of(value)
    return Layout.any(rank) if rank <= MAX_RANK else _NO_TENSOR


def ask_order_cost(
    backend: Backend, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool
) -> int | None:
    """What `backend` says that `node` costs in an order of its axes, checked (see `Backend.order_cost`)."""
    if type(backend).order_cost is Backend.order_cost:
        return traffic
    question = _Question(backend, node)
    try:
        answer = backend.order_cost(node, axes, traffic, is_rewritten=is_rewritten)
    except Exception as error:
        question.blame(error)
    return None if answer is None else question.cost(answer)


def stated(backend: Backend, node: ir.Node) -> Implementation:
    """The one implementation that a backend's two requirement methods state, at no extra cost. Raises BackendError."""
    inputs = _Question(backend, node, "input")
    results = _Question(backend, node, "result")
    of_input, of_result = backend.nth_input_layout_requirements, backend.nth_result_layout_requirements
    return Implementation(
        tuple([inputs.answered(of_input, value, n) for n, value in enumerate(node.inputs)]),
        tuple([results.answered(of_result, value, n) for n, value in enumerate(node.outputs)]),
    )


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, for the checks of the answer and for their errors; `kind` is "input" or "result"."""

    backend: Backend
    node: ir.Node
    kind: str = ""

    def implementation(self, given: object) -> Implementation:
        if not isinstance(given, Implementation):
            raise self.nonsense("an Implementation", shown(given))
        return Implementation(
            _Question(self.backend, self.node, "input").layouts(given.inputs, self.node.inputs),
            _Question(self.backend, self.node, "result").layouts(given.results, self.node.outputs),
            self.cost(given.cost),
            given.rewrite,
            given.pads,
            self.place(given.place),
        )

    def layouts(self, given: object, values: Sequence[ir.Value | None]) -> tuple[Layout, ...]:
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise self.nonsense(f"a tuple of {self.kind} layouts", shown(given))
        if len(given) != len(values):
            raise self.nonsense(f"{len(values)} {self.kind} layouts, one an operand", f"{len(given)}")
        return tuple([self.layout(each, value, n) for n, (each, value) in enumerate(zip(given, values, strict=True))])

    def answered(self, method: Callable[[ir.Node, int], object], value: ir.Value | None, n: int) -> Layout:
        if value is None:
            return _NO_TENSOR
        try:
            answer = method(self.node, n)
        except Exception as error:
            self.blame(error, n)
        return self.layout(answer, value, n)

    def layout(self, given: object, value: ir.Value | None, n: int) -> Layout:
        """One operand's layout, parsed and of the operand's rank."""
        if value is None:
            return _NO_TENSOR
        rank = rank_of(value)
        if isinstance(given, str):
            try:
                given = Layout.parse(given)
            except LayoutSyntaxError as error:
                self.blame(error, n)
        if not isinstance(given, Layout):
            raise self.nonsense("a Layout or its string", shown(given), n)
        if axis_count(given) == rank or value.shape is None:
            return self.named(given, n) if given.is_numbered else given
        if str(given) == "*":
            return Layout.any(rank)
        axes = axis_count(given)
        raise self.nonsense(f"a layout of rank {rank}, as the tensor", f"{str(given)!r}, of rank {axes}", n)

    def named(self, given: Layout, n: int) -> Layout:
        """The layout in the letters of the operator, where it names its axes; where not, as it is."""
        role = input_role(self.node, n) if self.kind == "input" else result_role(self.node, n)
        # As ONNX has the operator: a legal model is asked the same again.
        native = onnx_letters(self.node, role, given.rank)
        return given if native is None else given.with_names(native)

    def cost(self, given: object) -> int:
        try:
            number = operator.index(given)  # type: ignore[arg-type]  # what it is, is the question
        except TypeError:
            number = -1
        if isinstance(given, bool) or not 0 <= number <= MAX_COST:
            raise self.nonsense(f"a cost in bytes: an integer from 0 to {MAX_COST}", shown(given))
        return number

    def place(self, given: object) -> str:
        places = self.backend.places() or ("",)
        if not isinstance(given, str) or given not in places:
            raise self.nonsense(f"one of the backend's places: {', '.join(map(repr, places))}", shown(given))
        return given

    def blame(self, error: Exception, n: int | None = None) -> NoReturn:
        """Raise `error` as the backend's fault, or as it is where it is the model's or names the backend already."""
        if isinstance(error, LayoutSyntaxError):
            found = f"{error.found} in {error.text!r}, column {error.column}"
            raise self.nonsense(error.expected, found, n) from error
        if isinstance(error, BackendError | InputError):
            raise error
        first_line = next(iter(str(error).splitlines()), "no message")
        raise BackendError(
            f"the backend failed: {type(error).__name__}: {first_line}",
            where=self.where(n),
            expected="the node's implementations" if n is None else "a layout",
            found=type(error).__name__,
            hint="this is a fault of the backend, not of the model",
        ) from error

    def nonsense(self, expected: str, found: str, n: int | None = None, *, hint: str = "") -> BackendError:
        return BackendError(
            "the backend's answer makes no sense", where=self.where(n), expected=expected, found=found, hint=hint
        )

    def where(self, n: int | None) -> str:
        node = self.node
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        place = f"backend {self.backend.name or type(self.backend).__name__}, node {node.name or '(no name)'} ({kind})"
        return place if n is None else f"{place}, {self.kind} {n}"


def shown(answer: object) -> str:
    """An answer that is none, in words for an error."""
    try:
        text = repr(answer)
    except Exception:  # a stranger's code too
        text = "what cannot be shown"
    return f"{type(answer).__name__}: {text[:77] + '...' if len(text) > 80 else text}"
