"""Asking a backend, and checking what it answers: past this module every answer is well-formed.

A backend is a stranger's code. Whatever it raises, and whatever it answers that is no answer, becomes a `BackendError`
that names the backend, the node and the operand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from relayout.backend.interface import Backend, Implementation, Reordering, TensorType, axis_count, rank_of
from relayout.errors import BackendError, InputError, LayoutSyntaxError, RelayoutError
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import input_role, onnx_letters, result_role

if TYPE_CHECKING:
    import onnx_ir as ir
if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "MAX_COST",
    "answers_by_type",
    "ask",
    "ask_order_cost",
    "blaming",
    "check_members",
    "conversion_cost_of",
    "conversion_of",
    "finished_by",
    "is_met_by",
    "prepared_by",
    "shown",
    "stated",
    "supported_by",
    "transfer_cost_of",
    "wrong_answer",
]


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
        return tuple([_unasked(node, device) for device in backend.devices() or ("",)])
    question = _Question(backend, node)
    try:
        # The base class states one implementation; asked operand by operand, an error names the operand.
        is_base = type(backend).implementations is Backend.implementations
        answer: object = (stated(backend, node),) if is_base else backend.implementations(node)
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


def _unasked(node: ir.Node, device: str) -> Implementation:
    return Implementation(
        tuple([_any(value) for value in node.inputs]), tuple([_any(value) for value in node.outputs]), device=device
    )


def _any(value: ir.Value | None) -> Layout:
    """No wish; of what has more dimensions than layouts have there can be none."""
    rank = rank_of(value)
    return Layout.any(rank) if rank <= MAX_RANK else _NO_TENSOR


def answers_by_type(backend: Backend) -> bool:
    """Whether the backend declares so where its answers are (see `Backend.answers_by_type`)."""
    if not _ANSWERS.isdisjoint(vars(backend)):
        return False
    for each in type(backend).__mro__:
        if "answers_by_type" in vars(each):
            return vars(each)["answers_by_type"] is True
        if not _ANSWERS.isdisjoint(vars(each)):
            return False
    return False


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
            self.device(given.device),
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

    def device(self, given: object) -> str:
        devices = self.backend.devices() or ("",)
        if not isinstance(given, str) or given not in devices:
            raise self.nonsense(f"one of the backend's devices: {', '.join(map(repr, devices))}", shown(given))
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
        device = f"backend {self.backend.name or type(self.backend).__name__}, node {node.name or '(no name)'} ({kind})"
        return device if n is None else f"{device}, {self.kind} {n}"


def shown(answer: object) -> str:
    """An answer that is none, in words for an error."""
    try:
        text = repr(answer)
    except Exception:  # a stranger's code too
        text = "what cannot be shown"
    return f"{type(answer).__name__}: {text[:77] + '...' if len(text) > 80 else text}"


_ANSWERS = frozenset(
    "implementations nth_input_layout_requirements nth_result_layout_requirements default_nd_layout layouts_for_dims "
    "supports order_cost at devices".split()
)
_METHODS = tuple(name for name, member in vars(Backend).items() if not name.startswith("_") and callable(member))
_KINDS: dict[str, type] = {"name": str, "is_enabled": bool, "flows_down": bool, "context": Backend}
_WORDS = {"name": "a text", "is_enabled": "True or False", "flows_down": "True or False", "context": "a backend"}


def check_members(backend: Backend) -> None:
    """Raise BackendError where a method is none, or where name, switches, devices or host make no sense."""
    where = f"backend {type(backend).__name__}"
    for name in ("name", "is_enabled", "flows_down", "context", *_METHODS):
        try:
            member = getattr(backend, name)
            is_sound = callable(member) if name in _METHODS else isinstance(member, _KINDS[name])
        except Exception as error:
            _blame(error, where, name)
        if not is_sound:
            hint = "a constructor of one's own calls super().__init__(context)" if name == "context" else ""
            expected = "a method" if name in _METHODS else _WORDS[name]
            raise _wrong(where, name, expected, member, hint)
    _check_devices(backend, f"backend {backend.name or type(backend).__name__}")


def _check_devices(backend: Backend, where: str) -> None:
    asked = "devices"
    try:
        devices = backend.devices()
        if not isinstance(devices, tuple) or not all(isinstance(device, str) and device for device in devices):
            raise _wrong(where, asked, "a tuple of names", devices)
        asked = "host"
        host = backend.host()
        if host is not None and host not in devices:
            raise _wrong(where, asked, " or ".join(["None", *devices]), host)
        asked = "at"
        for device in devices or ("",):
            own = backend.at(device)
            if not isinstance(own, Backend):
                raise _wrong(where, f"at({device!r})", "a backend", own)
    except Exception as error:
        _blame(error, where, asked)


def _wrong(where: str, name: str, expected: str, found: object, hint: str = "") -> BackendError:
    problem = f"the backend's {name} makes no sense"
    return BackendError(problem, where=where, expected=expected, found=shown(found), hint=hint)


def _blame(error: Exception, where: str, asked: str) -> NoReturn:
    if isinstance(error, RelayoutError):
        raise error
    raise BackendError(
        f"the backend failed in {asked}",
        where=where,
        found=f"{type(error).__name__}: {error}",
        hint="this is a fault of the backend, not of the model",
    ) from error



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


def transfer_cost_of(backend: Backend, nbytes: int, source: str, target: str) -> int:
    """What bringing so many bytes from one device to another costs, checked. Raises BackendError."""
    where = f"{source} to {target}"
    with blaming(backend, "transfer_cost", where):
        answer = backend.transfer_cost(nbytes, source, target)
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
