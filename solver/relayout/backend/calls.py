"""Guarded calls into a backend: past this module every answer is well-formed.

A backend is a plugin. Any exception that it raises and any answer of the wrong form become a `BackendError` that names
the backend, the hook, and the node and operand where there are any.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, TypeVar

from relayout.backend.interface import (
    MOVES,
    Backend,
    Implementation,
    Reordering,
    TensorType,
    Violation,
    axis_count,
    rank_of,
)
from relayout.errors import BackendError, LayoutSyntaxError, RelayoutError, first_few
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.ops.logical_node import logical, logical_order
from relayout.ops.operand_roles import input_role, onnx_letters, result_role

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "MAX_COST",
    "answers_by_type",
    "ask",
    "ask_order_cost",
    "check_members",
    "conversion_cost_of",
    "conversion_of",
    "conversion_operators_of",
    "failure_text",
    "finished_by",
    "guarded",
    "is_met_by",
    "is_pure",
    "misspelt_hooks",
    "opaque_values_of",
    "operator_layouts_of",
    "prepared_by",
    "shown",
    "supported_by",
    "transfer_cost_of",
    "violations_of",
    "warnings_about",
    "wrong_answer",
]

MAX_COST = 1 << 48
"""The largest cost of an implementation, in bytes: sums over all nodes of a graph stay within 63 bits."""

_T = TypeVar("_T")
_NO_TENSOR = Layout.any(0)
_OUR_PACKAGES = ("relayout", "relayout_backends")
_ANSWERS = frozenset(
    "implementations nth_input_layout_requirements nth_result_layout_requirements default_nd_layout layouts_for_dims "
    "supports order_cost at devices".split()
)
_METHODS = tuple(name for name, member in vars(Backend).items() if not name.startswith("_") and callable(member))
_ATTRIBUTES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "a text"),
    "is_enabled": (bool, "True or False"),
    "flows_down": ((bool, frozenset), "True, False or a frozenset of operators"),
    "context": (Backend, "a backend"),
}


@contextmanager
def guarded(backend: Backend, hook: str, where: str = "", expected: str = "") -> Iterator[None]:
    """Turn an exception of plugin code into a BackendError; relayout's own errors pass, as they name their cause.

    `where` is the node or the tensor that the hook is called for, `expected` the answer that was due.
    """
    try:
        yield
    except LayoutSyntaxError as error:
        found = f"{error.found} in {error.text!r}, column {error.column}"
        operand = _operand_of(error)
        place = ", ".join(filter(None, [where, operand]))
        raise wrong_answer(backend, _asked(backend, hook, operand), place, error.expected, found) from error
    except RelayoutError:
        raise
    except (Exception, SystemExit) as error:
        operand = _operand_of(error)
        raise BackendError(
            f"the backend failed in {_asked(backend, hook, operand)}",
            where=_location(backend, ", ".join(filter(None, [where, operand]))),
            expected="a layout" if operand else expected,
            found=failure_text(error, type(backend).__module__),
            hint="this is a fault of the backend, not of the model",
        ) from error


def _asked(backend: Backend, hook: str, operand: str) -> str:
    """The method that gave the layout of an operand, such as `input 0`: `Backend.implementations` asks two others."""
    if operand and hook == "implementations" and type(backend).implementations is Backend.implementations:
        return f"nth_{operand.partition(' ')[0]}_layout_requirements"
    return hook


def wrong_answer(backend: Backend, hook: str, where: str, expected: str, found: str, *, hint: str = "") -> BackendError:
    """The error for an answer of the wrong form."""
    problem = f"invalid value from the backend's {hook}"
    location = _location(backend, where)
    return BackendError(
        problem, where=location, expected=expected, found=found, hint=hint or _defined_at(backend, hook)
    )


def shown(answer: object) -> str:
    """The type and the start of the text of any object, for an error."""
    try:
        text = repr(answer)
    except Exception:  # a plugin's code too
        text = "(its repr fails)"
    return f"{type(answer).__name__}: {text[:77] + '...' if len(text) > 80 else text}"


def ask(backend: Backend, node: ir.Node) -> tuple[Implementation, ...]:
    """The implementations of `node` on `backend`, checked: a layout for each operand, of its rank, and a cost.

    The backend is asked about the logical node (see `relayout.ops.logical_node`), so that its answer does not depend on
    how the operands of `node` lie; layouts have the axes of the logical operands. A single `*` is any
    layout of any rank, as in Glow. A missing operand is in any layout, of rank 0. An operand of unknown rank keeps the
    backend's layout. The backend is not called if it is not enabled or if an operand has more dimensions than layouts
    have. Raises BackendError.
    """
    node = logical(node)
    if not backend.is_enabled or any(rank_of(value) > MAX_RANK for value in (*node.inputs, *node.outputs)):
        return tuple([_without_requirements(node, device) for device in backend.devices() or ("",)])
    check = _NodeCheck(backend, "implementations", node)
    with guarded(backend, check.hook, check.where, "the node's implementations"):
        answer: object = backend.implementations(node)
        # A generator runs the plugin's code here.
        given = tuple(answer) if isinstance(answer, Iterable) else None
    if given is None:
        raise check.wrong("a sequence of Implementation", shown(answer))
    if not given:
        hint = "a backend declines a node in `supports`"
        raise wrong_answer(backend, check.hook, check.where, "at least one implementation", "none", hint=hint)
    return tuple([check.implementation(each) for each in given])


def _without_requirements(node: ir.Node, device: str) -> Implementation:
    def any_layout(value: ir.Value | None) -> Layout:
        rank = rank_of(value)
        return Layout.any(rank) if rank <= MAX_RANK else _NO_TENSOR

    inputs, results = tuple(map(any_layout, node.inputs)), tuple(map(any_layout, node.outputs))
    return Implementation(inputs, results, device=device)


def answers_by_type(backend: Backend) -> bool:
    """Whether the backend's class declares `answers_by_type` where it defines its answers, and the backend itself does
    not deny it."""
    if not _ANSWERS.isdisjoint(vars(backend)) or vars(backend).get("answers_by_type", True) is not True:
        return False
    for each in type(backend).__mro__:
        if "answers_by_type" in vars(each):
            return vars(each)["answers_by_type"] is True
        if not _ANSWERS.isdisjoint(vars(each)):
            return False
    return False


def is_pure(backend: Backend) -> bool:
    """Whether the backend's own class, or the backend itself, declares `is_pure`; nothing is inherited."""
    return bool(vars(backend).get("is_pure", vars(type(backend)).get("is_pure", False)))


def ask_order_cost(
    backend: Backend, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool
) -> int | None:
    """The cost of `node` in an order of its axes, checked (see `Backend.order_cost`)."""
    if type(backend).order_cost is Backend.order_cost:
        return traffic
    where = _node_location(node)
    with guarded(backend, "order_cost", where):
        order = logical_order(node, axes)
        answer = backend.order_cost(logical(node), order, traffic, is_rewritten=is_rewritten)
    return None if answer is None else _checked_cost(backend, "order_cost", where, answer)


def conversion_of(
    backend: Backend, tensor: TensorType, source: Layout, target: Layout, value: str | None = None
) -> Reordering | None:
    """The backend's own operator for a conversion, checked. `value`: the tensor's name, for errors.

    Raises BackendError.
    """
    where = _conversion_location(tensor, source, target, value)
    with guarded(backend, "conversion", where):
        answer = backend.conversion(tensor, source, target)
    if answer is None:
        return None
    if not isinstance(answer, Reordering):
        raise wrong_answer(backend, "conversion", where, "a Reordering or None", shown(answer))
    if answer.cost is not None:
        _checked_cost(backend, "conversion", where, answer.cost)
    return answer


def conversion_cost_of(
    backend: Backend, tensor: TensorType, source: Layout, target: Layout, value: str | None = None
) -> int | None:
    """The backend's cost of a conversion, checked. `value`: the tensor's name, for errors. Raises BackendError."""
    where = _conversion_location(tensor, source, target, value)
    with guarded(backend, "conversion_cost", where):
        answer = backend.conversion_cost(tensor, source, target)
    return None if answer is None else _checked_cost(backend, "conversion_cost", where, answer)


def transfer_cost_of(backend: Backend, nbytes: int, source: str, target: str) -> int:
    """The cost of copying so many bytes from one device to another, checked. Raises BackendError."""
    where = f"{source} to {target}"
    with guarded(backend, "transfer_cost", where):
        answer = backend.transfer_cost(nbytes, source, target)
    return _checked_cost(backend, "transfer_cost", where, answer)


def is_met_by(backend: Backend, tensor: TensorType, required: Layout, current: Layout | None, where: str = "") -> bool:
    """Whether the tensor meets the required layout, for the backend. Raises BackendError."""
    with guarded(backend, "is_satisfied_by", where):
        return bool(backend.is_satisfied_by(tensor, required, current))


def supported_by(backend: Backend, node: ir.Node) -> bool:
    """Whether the backend runs the node at all. Raises BackendError."""
    with guarded(backend, "supports", _node_location(node)):
        return bool(backend.supports(logical(node)))


def prepared_by(backend: Backend, model: ir.Model) -> bool:
    """Run the backend's pre-pass on the source's model, in place. Returns whether it changed.

    Raises BackendError, also where the pass changes an input or output: what follows takes those for the source's.
    """
    before = _boundary(model)
    with guarded(backend, "prepare"):
        changed = bool(backend.prepare(model))
    for (side, old), (_, new) in zip(before, _boundary(model), strict=True):
        if old != new:
            lost, added = ([each for each in these if each not in those] for these, those in ((old, new), (new, old)))
            expected = f"those of the source, in its order: {first_few(lost or old, ', ')}"
            found = first_few(added, ", ") or ("none" if lost else first_few(new, ", "))
            raise wrong_answer(backend, "prepare", f"the graph's {side}", expected, found)
    return changed


def _boundary(model: ir.Model) -> list[tuple[str, list[str]]]:
    """The inputs and the outputs of the graph, each as a text."""
    sides = {"inputs": model.graph.inputs, "outputs": model.graph.outputs}
    return [(side, [_described(value) for value in values]) for side, values in sides.items()]


def _described(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    return f"{value.name!r} {dtype} {value.shape}"


def finished_by(backend: Backend, model: ir.Model) -> bool:
    """Run the backend's post-pass on a legal model, in place. Returns whether it changed. Raises BackendError."""
    with guarded(backend, "finish"):
        return bool(backend.finish(model))


def violations_of(backend: Backend, model: ir.Model) -> tuple[Violation, ...]:
    """The faults that the backend finds in a legal model, checked. Raises BackendError."""
    return _all_of(backend, "check", model, Violation, "a sequence of Violation")


def _all_of(backend: Backend, hook: str, model: ir.Model, kind: type[_T], expected: str) -> tuple[_T, ...]:
    with guarded(backend, hook):
        found = tuple(getattr(backend, hook)(model))
    for each in found:
        if not isinstance(each, kind):
            raise wrong_answer(backend, hook, "", expected, shown(each))
    return found


def conversion_operators_of(backend: Backend) -> frozenset[tuple[str, str]]:
    """The backend's own conversion operators, checked. Raises BackendError."""
    with guarded(backend, "conversion_operators"):
        answer = backend.conversion_operators()
    if not isinstance(answer, frozenset) or not all(map(_is_operator, answer)):
        raise wrong_answer(backend, "conversion_operators", "", "a frozenset of (domain, operator)", shown(answer))
    return answer


def _is_operator(key: object) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and all(isinstance(each, str) for each in key)


def operator_layouts_of(backend: Backend, node: ir.Node) -> Implementation | None:
    """The layouts of an operator of the backend's own, checked. Raises BackendError."""
    check = _NodeCheck(backend, "operator_layouts", node)
    with guarded(backend, check.hook, check.where):
        answer = backend.operator_layouts(node)
    if answer is None:
        return None
    if not isinstance(answer, Implementation):
        raise check.wrong("an Implementation or None", shown(answer))
    return Implementation(*check.operands(answer))


def opaque_values_of(backend: Backend, model: ir.Model) -> frozenset[ir.Value]:
    """The values whose memory is not in the order of their shape, checked. Raises BackendError."""
    import onnx_ir as ir

    return frozenset(_all_of(backend, "opaque_values", model, ir.Value, "values of the model"))


def warnings_about(
    backend: Backend, model: ir.Model, constants: Callable[[ir.Graph], Container[ir.Value]]
) -> tuple[str, ...]:
    """Warnings about a backend and a model: methods that no hook has the name of, nodes that the backend does not run,
    and the backend's own warnings, checked. `constants` gives the constant values of a graph, whose nodes
    no device runs. Raises BackendError."""
    own = _all_of(backend, "warnings", model, str, "a sequence of texts")
    return (*misspelt_hooks(backend), *_refused(backend, model, constants), *own)


def misspelt_hooks(backend: Backend) -> Iterator[str]:
    """A warning for each method of a plugin whose name is nearly that of a hook."""
    for kind in type(backend).__mro__:
        if kind.__module__.partition(".")[0] in _OUR_PACKAGES or kind is object:
            continue
        for name, member in vars(kind).items():
            near = get_close_matches(name, _METHODS, n=1, cutoff=0.8)
            if callable(member) and not name.startswith("_") and name not in _METHODS and near:
                text = f"backend {backend.name}: no hook has the name {name}, so relayout never calls it"
                yield f"{text}; did you mean {near[0]}?"


def _refused(backend: Backend, model: ir.Model, constants: Callable[[ir.Graph], Container[ir.Value]]) -> Iterator[str]:
    """A warning where a backend of one device does not run some nodes: it has no other place to run them."""
    if backend.devices() or type(backend).supports is Backend.supports:
        return
    known = constants(model.graph)
    computed = [
        node
        for node in model.graph.all_nodes()
        if node.op_type not in MOVES and any(value not in known for value in node.outputs)
    ]
    refused = [node for node in computed if not supported_by(backend, node)]
    if refused:
        named = ", ".join(f"{node.name or node.outputs[0].name} ({node.op_type})" for node in refused[:5])
        more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
        yield f"backend {backend.name} does not run {named}{more}, and there is no other device"


def check_members(backend: Backend) -> None:
    """Raise BackendError if a hook is not a method, or if an attribute, the devices or the host are invalid."""
    for name, (kind, expected) in _ATTRIBUTES.items():
        with guarded(backend, name):
            # Without super().__init__ there is no context.
            member = getattr(backend, name, None)
        if not isinstance(member, kind):
            hint = "a constructor of one's own calls super().__init__(context)" if name == "context" else ""
            raise wrong_answer(backend, name, "", expected, shown(member), hint=hint)
    for name in _METHODS:
        with guarded(backend, name):
            member = getattr(backend, name)
        if not callable(member):
            raise wrong_answer(backend, name, "", "a method", shown(member))
    with guarded(backend, "devices"):
        devices = backend.devices()
    if not isinstance(devices, tuple) or not all(isinstance(device, str) and device for device in devices):
        raise wrong_answer(backend, "devices", "", "a tuple of names", shown(devices))
    with guarded(backend, "host"):
        host = backend.host()
    if host is not None and host not in devices:
        raise wrong_answer(backend, "host", "", " or ".join(["None", *devices]), shown(host))
    for device in devices or ("",):
        hook = f"at({device!r})"
        with guarded(backend, hook):
            own = backend.at(device)
        if not isinstance(own, Backend):
            raise wrong_answer(backend, hook, "", "a backend", shown(own))


@dataclass(frozen=True, slots=True)
class _NodeCheck:
    """The checks of a hook's answer about a node."""

    backend: Backend
    hook: str
    node: ir.Node

    @property
    def where(self) -> str:
        return _node_location(self.node)

    def implementation(self, given: object) -> Implementation:
        if not isinstance(given, Implementation):
            raise self.wrong("an Implementation", shown(given))
        inputs, results = self.operands(given)
        cost = _checked_cost(self.backend, self.hook, self.where, given.cost)
        devices = self.backend.devices() or ("",)
        if not isinstance(given.device, str) or given.device not in devices:
            raise self.wrong(f"one of the backend's devices: {', '.join(map(repr, devices))}", shown(given.device))
        return Implementation(inputs, results, cost, given.rewrite, given.pads, given.device, given.any_order)

    def operands(self, given: Implementation) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        inputs = self.layouts(given.inputs, "input", self.node.inputs)
        return inputs, self.layouts(given.results, "result", self.node.outputs)

    def layouts(self, given: object, side: str, values: Sequence[ir.Value | None]) -> tuple[Layout, ...]:
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise self.wrong(f"a tuple of {side} layouts", shown(given))
        if len(given) != len(values):
            raise self.wrong(f"{len(values)} {side} layouts, one an operand", f"{len(given)}")
        return tuple([self.layout(each, side, n, v) for n, (each, v) in enumerate(zip(given, values, strict=True))])

    def layout(self, given: object, side: str, n: int, value: ir.Value | None) -> Layout:
        """The layout of one operand, parsed and of the operand's rank."""
        if value is None:
            return _NO_TENSOR
        rank = rank_of(value)
        if isinstance(given, str):
            with guarded(self.backend, self.hook, f"{self.where}, {side} {n}"):
                given = Layout.parse(given)
        if not isinstance(given, Layout):
            raise self.wrong("a Layout or its string, such as '*' for any", shown(given), f"{side} {n}")
        # A logical node has whole axes. An operator of the backend's own has tiles as dimensions of the file.
        stated = given.rank if self.hook == "operator_layouts" else axis_count(given)
        if stated == rank or value.shape is None:
            return self.with_letters(given, side, n) if given.is_numbered else given
        if str(given) == "*":
            return Layout.any(rank)
        found = f"{str(given)!r}, of rank {stated}"
        raise self.wrong(f"a layout of rank {rank}, as the tensor", found, f"{side} {n}")

    def with_letters(self, given: Layout, side: str, n: int) -> Layout:
        """A numbered layout in the operator's axis names, where it has any."""
        role = input_role(self.node, n) if side == "input" else result_role(self.node, n)
        letters = onnx_letters(self.node, role, given.rank)
        return given if letters is None else given.with_names(letters)

    def wrong(self, expected: str, found: str, operand: str = "") -> BackendError:
        place = ", ".join(filter(None, [self.where, operand]))
        hook = _asked(self.backend, self.hook, operand)
        hint = _rule_behind(self.backend, self.node)
        return wrong_answer(self.backend, hook, place, expected, found, hint=hint)


def _checked_cost(backend: Backend, hook: str, where: str, given: object) -> int:
    try:
        number = operator.index(given)  # type: ignore[arg-type]  # the type is what is checked
    except TypeError:
        number = -1
    if isinstance(given, bool) or not 0 <= number <= MAX_COST:
        expected = f"a cost in bytes: an integer from 0 to {MAX_COST}"
        raise wrong_answer(backend, hook, where, expected, shown(given))
    return number


def _operand_of(error: BaseException) -> str:
    """The operand that `Backend.implementations` noted on an error of a requirement method; empty without one."""
    notes = [note for note in getattr(error, "__notes__", ()) if re.fullmatch(r"(input|result) \d+", note)]
    return notes[-1] if notes else ""


def _node_location(node: ir.Node) -> str:
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return f"node {node.name or '(no name)'} ({kind})"


def _conversion_location(tensor: TensorType, source: Layout, target: Layout, value: str | None) -> str:
    shape = "x".join(str(extent if extent is not None else "?") for extent in tensor.shape)
    name = f"tensor '{value}'" if value else "a tensor"
    return f"{name} ({shape}, {tensor.element_size} bytes an element), {source} to {target}"


def _rule_behind(backend: Backend, node: ir.Node) -> str:
    """Where the rule of a table is that answers for a node; empty for code."""
    # Only the backend of a table has this method; its module is above this one.
    answers_from = getattr(backend, "answers_from", None)
    place = answers_from(node) if callable(answers_from) else ""
    return f"the rule is in {place}" if place else ""


def _defined_at(backend: Backend, hook: str) -> str:
    """The line of the class that defines a hook; empty for a hook of `Backend` itself."""
    member = getattr(type(backend), hook, None)
    code = getattr(member, "__code__", None)
    if code is None or member is getattr(Backend, hook, None):
        return ""
    return f"{hook} is defined in {shown_path(code.co_filename)}, line {code.co_firstlineno}"


def failure_text(error: BaseException, module: str) -> str:
    """The type and the first line of an exception, with the innermost line of the plugin's own package.

    `module` is a module of that package. Without a line there, the innermost line outside relayout is told.
    """
    first_line = next(iter(str(error).splitlines()), "no message")
    own, others = None, None
    package = module.partition(".")[0]
    for frame, line in walk_tb(error.__traceback__):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root == package:
            own = frame.f_code.co_filename, line
        elif root not in ("relayout", "importlib") and not frame.f_code.co_filename.startswith("<"):
            others = frame.f_code.co_filename, line
    place = own or others
    at = f", in {shown_path(place[0])}, line {place[1]}" if place is not None else ""
    return f"{type(error).__name__}: {first_line}{at}"


def shown_path(file: str) -> str:
    """A file below the current folder relative to it, any other by its last two parts: servers keep their paths."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(*path.parts[-2:]))


def _location(backend: Backend, where: str) -> str:
    try:
        name = backend.name
    except Exception:  # a plugin's property
        name = ""
    label = f"backend {name if isinstance(name, str) and name else type(backend).__name__}"
    return f"{label}, {where}" if where else label
