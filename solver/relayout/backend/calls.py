"""Guarded calls into a backend: past this module every answer is well-formed.

A backend is a plugin. Any exception that it raises and any answer of the wrong form become a `BackendError` that names
the backend, the hook, and the node and operand where there are any.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import Struct

from relayout.backend.failures import guarded, shown, wrong_answer
from relayout.backend.interface import (
    MOVES,
    Backend,
    Implementation,
    OperatorBody,
    Reordering,
    TensorType,
    Violation,
    axis_count,
    rank_of,
)
from relayout.backend.members import is_default, misspelt_hooks
from relayout.errors import BackendError, LayoutRankError, first_few
from relayout.layout.grammar_faults import MAX_RANK
from relayout.layout.layout import Layout
from relayout.ops.logical_node import logical, logical_order, node_name
from relayout.ops.operand_roles import OWN_DOMAIN, operand_letters

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_COST = 1 << 48
"""The largest cost of an implementation, in bytes: sums over all nodes of a graph stay within 63 bits."""

_T = TypeVar("_T")
_NO_TENSOR = Layout.any(0)


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
        # A generator runs the plugin's code here. A text is a sequence of its letters.
        given = tuple(answer) if isinstance(answer, Iterable) and not isinstance(answer, str) else None
    if given is None:
        raise check.wrong("a sequence of Implementation", shown(answer))
    if not given:
        raise check.wrong("at least one implementation", "none", hint="a backend declines a node in `supports`")
    return tuple([check.implementation(each) for each in given])


def _without_requirements(node: ir.Node, device: str) -> Implementation:
    def any_layout(value: ir.Value | None) -> Layout:
        rank = rank_of(value)
        return Layout.any(rank) if rank <= MAX_RANK else _NO_TENSOR

    inputs, results = tuple(map(any_layout, node.inputs)), tuple(map(any_layout, node.outputs))
    return Implementation(inputs, results, device=device)


def ask_order_cost(
    backend: Backend, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool
) -> int | None:
    """The cost of `node` in an order of its axes, checked (see `Backend.order_cost`)."""
    if is_default(backend, "order_cost"):
        return traffic
    where = _Location(node)
    with guarded(backend, "order_cost", where):
        order = logical_order(node, axes)
        answer = backend.order_cost(logical(node), order, traffic, is_rewritten=is_rewritten)
    return None if answer is None else _checked_cost(backend, "order_cost", where, answer)


class _Conversion(NamedTuple):
    """A conversion that a backend is asked about. Its text is for errors, and long to make."""

    tensor: TensorType
    source: Layout
    target: Layout
    value: str | None

    def __str__(self) -> str:
        shape = "x".join(str(extent if extent is not None else "?") for extent in self.tensor.shape)
        name = f"tensor '{self.value}'" if self.value else "a tensor"
        return f"{name} ({shape}, {self.tensor.element_size} bytes an element), {self.source} to {self.target}"


def conversion_of(
    backend: Backend, tensor: TensorType, source: Layout, target: Layout, value: str | None = None
) -> Reordering | None:
    """The backend's own operator for a conversion, checked. `value`: the tensor's name, for errors.

    Raises BackendError.
    """
    where = _Conversion(tensor, source, target, value)
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
    where = _Conversion(tensor, source, target, value)
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
        answer = backend.is_satisfied_by(tensor, required, current)
    return _checked_bool(backend, "is_satisfied_by", where, answer)


def supported_by(backend: Backend, node: ir.Node) -> bool:
    """Whether the backend runs the node at all. Raises BackendError."""
    if is_default(backend, "supports"):
        return True
    where = _Location(node)
    with guarded(backend, "supports", where):
        answer = backend.supports(logical(node))
    return _checked_bool(backend, "supports", where, answer)


def prepared_by(backend: Backend, model: ir.Model) -> bool:
    """Run the backend's pre-pass on the source's model, in place. Returns whether it changed.

    Raises BackendError, also where the pass changes an input or output: what follows takes those for the source's.
    """
    before = _boundary(model)
    with guarded(backend, "prepare"):
        changed = backend.prepare(model)
    for (side, old), (_, new) in zip(before, _boundary(model), strict=True):
        if old != new:
            lost, added = ([each for each in these if each not in those] for these, those in ((old, new), (new, old)))
            expected = f"those of the source, in its order: {first_few(lost or old, ', ')}"
            found = first_few(added, ", ") or ("none" if lost else first_few(new, ", "))
            raise wrong_answer(backend, "prepare", f"the graph's {side}", expected, found)
    return _checked_bool(backend, "prepare", "", changed)


def _boundary(model: ir.Model) -> list[tuple[str, list[str]]]:
    """The inputs and the outputs of the graph, each as a text."""
    sides = {"inputs": model.graph.inputs, "outputs": model.graph.outputs}
    return [(side, [_described(value) for value in values]) for side, values in sides.items()]


def _described(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    return f"{value.name!r} {dtype} {value.shape}"


def finished_by(backend: Backend, model: ir.Model, device: str = "") -> bool:
    """Run the backend's post-pass on a legal model, in place; of several devices, on the nodes of `device`. Returns
    whether the model changed. Raises BackendError."""
    with guarded(backend, "finish"):
        changed = backend.finish(model, device) if device else backend.finish(model)
    return _checked_bool(backend, "finish", "", changed)


def violations_of(backend: Backend, model: ir.Model) -> tuple[Violation, ...]:
    """The faults that the backend finds in a legal model, checked. Raises BackendError."""
    return _all_of(backend, "check", model, Violation, "a sequence of Violation")


def _all_of(backend: Backend, hook: str, model: ir.Model, kind: type[_T], expected: str) -> tuple[_T, ...]:
    with guarded(backend, hook):
        answer: object = getattr(backend, hook)(model)
        # A generator runs the plugin's code here. A text is a sequence of its letters.
        found = tuple(answer) if isinstance(answer, Iterable) and not isinstance(answer, str) else None
    if found is None:
        raise wrong_answer(backend, hook, "", expected, shown(answer))
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
    # A tile is a dimension of the file.
    check = _NodeCheck(backend, "operator_layouts", node, lambda layout: layout.rank)
    with guarded(backend, check.hook, check.where):
        answer = backend.operator_layouts(node)
    if answer is None:
        return None
    if not isinstance(answer, Implementation):
        raise check.wrong("an Implementation or None", shown(answer))
    return Implementation(*check.operands(answer))


def operator_body_of(backend: Backend, node: ir.Node, opset: int) -> OperatorBody | None:
    """The ONNX operators that compute what an operator of the backend's own computes, checked. Raises BackendError."""
    import onnx

    hook, where = "operator_body", _Location(node)
    with guarded(backend, hook, where):
        answer = backend.operator_body(node, opset)
    if answer is None:
        return None
    if not isinstance(answer, OperatorBody) or not isinstance(answer.function, onnx.FunctionProto):
        raise wrong_answer(backend, hook, where, "an OperatorBody with an onnx.FunctionProto, or None", shown(answer))
    function = answer.function
    operands, own = (len(node.inputs), len(node.outputs)), (len(function.input), len(function.output))
    # A node may leave out its last operands.
    if own[0] < operands[0] or own[1] < operands[1]:
        expected, found = (f"inputs: {n}, outputs: {m}" for n, m in (operands, own))
        raise wrong_answer(backend, hook, where, f"a function with the node's operands ({expected})", found)
    versions = {each.domain: each.version for each in function.opset_import}
    if versions != {"": opset}:
        raise wrong_answer(backend, hook, where, f"operators of ONNX's opset {opset} alone", shown(versions))
    return answer


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


def _refused(backend: Backend, model: ir.Model, constants: Callable[[ir.Graph], Container[ir.Value]]) -> Iterator[str]:
    """A warning where a backend of one device does not run some nodes: it has no other place to run them."""
    if backend.devices() or is_default(backend, "supports"):
        return
    known = constants(model.graph)
    computed = [
        node
        for node in model.graph.all_nodes()
        if node.op_type not in MOVES and any(value not in known for value in node.outputs)
    ]
    refused = [node for node in computed if not supported_by(backend, node)]
    if refused:
        named = ", ".join(f"{node_name(node)} ({node.op_type})" for node in refused[:5])
        more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
        yield f"backend {backend.name} does not run {named}{more}, and there is no other device"


class _Location(NamedTuple):
    """A node that a backend is asked about. Its text is for errors, and long to make."""

    node: ir.Node

    def __str__(self) -> str:
        node = self.node
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if node.name:
            return f"node {node.name} ({kind})"
        # Its type tells which node it is, or which ones: an answer may be about all nodes of a class.
        shapes = [value.shape for value in node.inputs if value is not None and value.shape is not None]
        return f"a node without a name ({kind} on {', '.join(map(str, shapes)) or 'no operands'})"


class _NodeCheck(Struct, frozen=True):
    """The checks of a hook's answer about a node. `rank`: the rank of a tensor in a layout."""

    backend: Backend
    hook: str
    node: ir.Node
    rank: Callable[[Layout], int] = axis_count

    @property
    def where(self) -> _Location:
        return _Location(self.node)

    def implementation(self, given: object) -> Implementation:
        if not isinstance(given, Implementation):
            raise self.wrong("an Implementation", shown(given))
        inputs, results = self.operands(given)
        cost = _checked_cost(self.backend, self.hook, self.where, given.cost)
        devices = self.backend.devices() or ("",)
        if not isinstance(given.device, str) or given.device not in devices:
            raise self.wrong(f"one of the backend's devices: {', '.join(map(repr, devices))}", shown(given.device))
        if given.rewrite is not None and not callable(given.rewrite):
            raise self.wrong("a function that writes the node, or None, as `rewrite`", shown(given.rewrite))
        for field in ("pads", "any_order"):
            if not isinstance(getattr(given, field), bool):
                raise self.wrong(f"True or False as `{field}`", shown(getattr(given, field)))
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
        stated = self.rank(given)
        if stated == rank or value.shape is None:
            return self.with_letters(given, side, n) if given.is_numbered else given
        if str(given) == "*":
            return Layout.any(rank)
        is_blocked = given.rank > stated
        found = (
            f"{str(given)!r}, of {stated} axes, some in tiles" if is_blocked else f"{str(given)!r}, of rank {stated}"
        )
        rule = _rule_behind(self.backend, self.node)
        hint = f"{rule}; `when.rank` and `when.result.rank` limit it to nodes with these ranks" if rule else ""
        if is_blocked and given.rank == rank and self.node.domain not in ("", OWN_DOMAIN):
            hint = "`operator_layouts` states the tiles of an operator of the backend's own"
        raise self.wrong(f"a layout of rank {rank}, as the tensor", found, f"{side} {n}", hint, LayoutRankError)

    def with_letters(self, given: Layout, side: str, n: int) -> Layout:
        """A numbered layout in the operator's axis names, where it has any."""
        letters = operand_letters(self.node, n, given.rank, is_result=side != "input")
        return given if letters is None else given.with_names(letters)

    def wrong(
        self, expected: str, found: str, operand: str = "", hint: str = "", kind: type[BackendError] = BackendError
    ) -> BackendError:
        hint = hint or _rule_behind(self.backend, self.node)
        where = self.where
        return wrong_answer(self.backend, self.hook, where, expected, found, operand=operand, hint=hint, kind=kind)


def _checked_bool(backend: Backend, hook: str, where: object, given: object) -> bool:
    """A missing `return` is no answer, and would count as False: what a post-pass wrote would be lost."""
    if isinstance(given, bool):
        return given
    import numpy as np  # the server lists backends without it

    if not isinstance(given, np.bool_):
        raise wrong_answer(backend, hook, where, "True or False", shown(given))
    return bool(given)


def _checked_cost(backend: Backend, hook: str, where: object, given: object) -> int:
    try:
        number = operator.index(given)  # type: ignore[arg-type]  # the type is what is checked
    except TypeError:
        number = -1
    if isinstance(given, bool) or not 0 <= number <= MAX_COST:
        expected = f"a cost in bytes: an integer from 0 to {MAX_COST}"
        raise wrong_answer(backend, hook, where, expected, shown(given))
    return number


def _rule_behind(backend: Backend, node: ir.Node) -> str:
    """Where the rule of a table is that answers for a node; empty for code."""
    # Only the backend of a table has this method; its module is above this one.
    answers_from = getattr(backend, "answers_from", None)
    place = answers_from(node) if callable(answers_from) else ""
    return f"the rule is in {place}" if place else ""
