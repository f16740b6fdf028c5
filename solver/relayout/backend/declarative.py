"""Declarative backends, defined by a table of rules. A table has no code, so it may come from an untrusted source.

    name = "acme"
    extends = "nhwc"

    [[rule]]
    op = "Conv*"
    when.channels = { multiple_of = 4 }
    data = "NHWC"
    kernel = "OHWI"

The first rule whose operator, domain and conditions fit a node decides; if none does, the extended backend does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

from relayout.backend.composite import Assignment, Composite, Device, Nodes
from relayout.backend.declarative_schema import (
    AssignTable,
    BackendTable,
    Condition,
    DeviceTable,
    Range,
    Rule,
    TensorCondition,
    Way,
    onnx_operators,
)
from relayout.backend.interface import Backend, Implementation, axis_count, element_size, rank_of
from relayout.backend.members import answers_by_type, is_pure, prices_by_traffic
from relayout.errors import did_you_mean
from relayout.layout.layout import Layout
from relayout.model.constants import hangs_on_constants
from relayout.ops.logical_node import logical
from relayout.ops.operand_roles import (
    DATA,
    KERNEL,
    input_role,
    kernel_input,
    own_layout,
    result_role,
    spatial_letters,
    spell,
)

if TYPE_CHECKING:
    import onnx_ir as ir

_NO_CONDITION = TensorCondition()


def _of_extended(hook: str) -> Callable[..., Any]:
    """The hook of the backend that a table extends."""

    def answer(backend: DeclarativeBackend, *arguments: Any, **options: Any) -> Any:
        return getattr(backend.extended, hook)(*arguments, **options)

    return answer


class DeclarativeBackend(Backend):
    """The backend that a table describes. `extended` makes the backend that answers what the table does not
    state, given its context. `place` gives the location of a rule, by its index, for errors."""

    answers_by_type = True

    def __init__(
        self,
        table: BackendTable,
        extended: Callable[[Backend], Backend],
        context: Backend | None = None,
        place: Callable[[int], str] = lambda number: f"rule[{number}]",
    ) -> None:
        super().__init__(context)
        self.name = table.name
        self.table = table
        self._place = place
        self.extended = extended(self.context)
        self.is_pure = is_pure(self.extended)
        self.prices_by_traffic = prices_by_traffic(self.extended)
        # A condition on constants tells apart what the types do not: the results of an operator on constants alone.
        asks_for_data = any(rule.when.constant or rule.when.variable for rule in table.rule)
        self.answers_by_type = answers_by_type(self.extended) and not asks_for_data
        # A backend that is not enabled requires nothing; the table's own rules hold.
        self._fallback = self.extended if self.extended.is_enabled else Backend(self.context)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        rule = self._rule(node)
        if rule is None:
            return self._fallback.nth_input_layout_requirements(node, n)
        return _input_layout(rule.ways[0], node, n)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        rule = self._rule(node)
        if rule is None:
            return self._fallback.nth_result_layout_requirements(node, n)
        return _result_layout(rule.ways[0], node, n)

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        rule = self._rule(node)
        if rule is None:
            return self._fallback.implementations(node)
        traffic = _traffic(node)
        return [
            Implementation(
                tuple(_input_layout(way, node, n) for n in range(len(node.inputs))),
                tuple(_result_layout(way, node, n) for n in range(len(node.outputs))),
                way.cost + round(way.cost_per_byte * traffic),
                pads=way.pads,
                any_order=way.any_order,
            )
            for way in rule.ways
        ]

    @property
    def flows_down(self) -> bool | frozenset[str]:  # type: ignore[override]
        return self.extended.flows_down

    def warnings(self, model: ir.Model) -> Iterable[str]:
        """Rules for operators and attributes that neither ONNX nor the model has, and a table of which no rule fits."""
        yield from self.extended.warnings(model)
        nodes = [logical(node) for node in model.graph.all_nodes()]
        known = dict(onnx_operators())
        for node in nodes:
            known[node.op_type] = known.get(node.op_type, frozenset()) | node.attributes.keys()
        for place, rule in enumerate(self.table.rule):
            if rule.domain is not None:
                continue
            attributes: set[str] = set()
            for pattern in rule.op:
                meant = [names for operator, names in known.items() if fnmatchcase(operator, pattern)]
                attributes.update(*meant)
                if not meant:
                    yield f"table {self.name}, rule[{place}]: there is no operator {pattern}{_near(pattern, known)}"
            for name in rule.when.attributes:
                if attributes and name not in attributes:
                    text = f"no operator of the rule has an attribute {name}{_near(name, attributes)}"
                    yield f"table {self.name}, rule[{place}]: {text}"
        if self.table.rule and not any(_applies(rule, node) for rule in self.table.rule for node in nodes):
            yield f"table {self.name}: no rule fits a node of the model, so {self.table.extends} decides all"

    layouts_for_dims = _of_extended("layouts_for_dims")
    default_nd_layout = _of_extended("default_nd_layout")
    supports = _of_extended("supports")
    is_satisfied_by = _of_extended("is_satisfied_by")
    conversion_cost = _of_extended("conversion_cost")
    conversion = _of_extended("conversion")
    conversion_operators = _of_extended("conversion_operators")
    operator_layouts = _of_extended("operator_layouts")
    opaque_values = _of_extended("opaque_values")
    operator_body = _of_extended("operator_body")
    order_cost = _of_extended("order_cost")
    prepare = _of_extended("prepare")
    finish = _of_extended("finish")
    check = _of_extended("check")

    def answers_from(self, node: ir.Node) -> str:
        """The location of the rule that answers for a node; empty where the extended backend does."""
        rule = self._rule(node)
        return "" if rule is None else self._place(next(i for i, each in enumerate(self.table.rule) if each is rule))

    def _rule(self, node: ir.Node) -> Rule | None:
        return next((rule for rule in self.table.rule if _applies(rule, node)), None)


def _near(name: str, names: Iterable[str]) -> str:
    near = did_you_mean(name, names)
    return f"; {near}" if near else ""


def _traffic(node: ir.Node) -> int:
    """The bytes that a node reads and writes; an unknown extent counts as 1."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.shape is not None]
    return sum(
        element_size(value) * prod(extent for extent in value.shape or () if isinstance(extent, int))
        for value in values
    )


def _input_layout(way: Way, node: ir.Node, n: int) -> Layout:
    role = input_role(node, n)
    by_role = {DATA: way.data, KERNEL: way.kernel}.get(role)
    return _layout(way.inputs, n, by_role, rank_of(node.inputs[n]), own_layout(node, role, rank_of(node.inputs[n])))


def _result_layout(way: Way, node: ir.Node, n: int) -> Layout:
    role = result_role(node, n)
    rank = rank_of(node.outputs[n])
    own = own_layout(node, role, rank, is_result=True)
    return _layout(way.results, n, way.data if role == DATA else None, rank, own)


def _layout(listed: Sequence[str], n: int, by_role: str | None, rank: int, own: Layout) -> Layout:
    """The n-th listed layout, else the one for the operand's role, else the node's own."""
    text = listed[n] if n < len(listed) else None
    if text is None and by_role is not None:
        return Layout.any(rank) if by_role == "*" else spell(by_role, rank)
    if text is None:
        return own
    return Layout.any(rank) if text == "*" else Layout.parse(text)


def _applies(rule: Rule, node: ir.Node) -> bool:
    return (
        any(fnmatchcase(node.op_type, pattern) for pattern in rule.op)
        and (node.domain == "" if rule.of_onnx else node.domain == rule.domain)
        and _spellable(rule, node)
        and holds(rule.when, node)
    )


def _spellable(rule: Rule, node: ir.Node) -> bool:
    """Whether layouts given by role have the rank of the node's data: NHWC does not apply to a Conv on NCW data."""
    texts = [text for way in rule.ways for text in (way.data, way.kernel) if text is not None]
    if not texts:
        return True
    rank = rank_of(node.inputs[0]) if node.inputs else 0
    return spatial_letters(rank) is not None and all(
        text == "*" or axis_count(spell(text, rank)) == rank for text in texts
    )


def holds(condition: Condition, node: ir.Node) -> bool:
    """Whether a node meets a condition."""
    data = node.inputs[0] if node.inputs else None
    result = node.outputs[0] if node.outputs else None
    return (
        _tensor_holds(condition, data, input_role(node, 0))
        and (condition.result == _NO_CONDITION or _tensor_holds(condition.result, result, result_role(node, 0)))
        and all(_equals(_attribute(node, name), value) for name, value in condition.attributes.items())
        and (condition.kernel is None or _all_inside(condition.kernel, _kernel_sizes(node)))
        and all(_is_constant(node, n) is True for n in condition.constant)
        and all(_is_constant(node, n) is False for n in condition.variable)
    )


def _tensor_holds(condition: TensorCondition, value: ir.Value | None, role: str) -> bool:
    """Whether an operand in a role meets a condition; one of unknown rank or type meets none on these."""
    return (
        (not condition.rank or (value is not None and value.shape is not None and len(value.shape) in condition.rank))
        and (
            not condition.dtype
            or (value is not None and value.dtype is not None and value.dtype.name in condition.types)
        )
        and (condition.channels is None or _inside(condition.channels, _channels(value, role)))
        and (condition.spatial is None or _all_inside(condition.spatial, _spatial(value, role)))
    )


def _is_constant(node: ir.Node, n: int) -> bool | None:
    """Whether the n-th input is a constant; None where there is no such input."""
    value = node.inputs[n] if n < len(node.inputs) else None
    return None if value is None else hangs_on_constants(value)


def _inside(bounds: Range, number: int | None) -> bool:
    """Whether a number is within bounds; an unknown one is not."""
    return (
        number is not None
        and (bounds.min is None or number >= bounds.min)
        and (bounds.max is None or number <= bounds.max)
        and (bounds.multiple_of is None or number % bounds.multiple_of == 0)
    )


def _all_inside(bounds: Range, numbers: Sequence[int]) -> bool:
    return bool(numbers) and all(_inside(bounds, number) for number in numbers)


def _channels(value: ir.Value | None, role: str) -> int | None:
    """The extent of an operand's channels, where the operator names its axes and the extent is known."""
    named = _named_extents(value, role)
    return next((extent for name, extent in named if name == "C"), None)


def _spatial(value: ir.Value | None, role: str) -> list[int]:
    """The extents of an operand's spatial axes; empty where the operator has none, or where one is unknown."""
    found = [extent for name, extent in _named_extents(value, role) if name in "DHW"]
    known = [extent for extent in found if extent is not None]
    return known if len(known) == len(found) else []


def _named_extents(value: ir.Value | None, role: str) -> list[tuple[str, int | None]]:
    """The name and the extent of each axis of a data operand; an unknown extent is None."""
    if role != DATA or value is None or value.shape is None or len(value.shape) < 2:
        return []
    names = "NC" + (spatial_letters(len(value.shape)) or "")
    extents = [extent if isinstance(extent, int) else None for extent in value.shape]
    return list(zip(names, extents, strict=False))


def _kernel_sizes(node: ir.Node) -> list[int]:
    """The spatial extents of a convolution's or a pool's window; empty where they are unknown."""
    attribute = node.attributes.get("kernel_shape")
    if attribute is not None:
        return list(attribute.as_ints())
    index = kernel_input(node.op_type)
    kernel = node.inputs[index] if index is not None and index < len(node.inputs) else None
    if kernel is None or kernel.shape is None:
        return []
    extents = list(kernel.shape)[2:]
    known = [extent for extent in extents if isinstance(extent, int)]
    return known if len(known) == len(extents) else []


def _equals(found: Any, expected: Any) -> bool:
    """Whether an attribute has the value of a condition, or one of a list of values."""
    return bool(found == expected or (isinstance(expected, list) and found in expected))


def _attribute(node: ir.Node, name: str) -> Any:
    """The value of an attribute, or ONNX's default for it; None if there is neither."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return _default(node.op_type, name)
    value = attribute.value
    return list(value) if isinstance(value, tuple | list) else value


@lru_cache(maxsize=1024)
def _default(op_type: str, name: str) -> Any:
    from onnx import defs, helper

    if not defs.has(op_type) or name not in defs.get_schema(op_type).attributes:
        return None
    default = defs.get_schema(op_type).attributes[name].default_value
    value = helper.get_attribute_value(default) if default.type else None
    return value.decode() if isinstance(value, bytes) else value


def composite(table: BackendTable, backends: Sequence[Callable[[Backend | None], Backend]]) -> Composite:
    """The backend that `table` describes; `backends` make those of its devices, given their context."""
    devices = [
        Device(each.name, make, _nodes(each), each.transfer, each.transfer_fixed)
        for each, make in zip(table.device, backends, strict=True)
    ]
    assignments = [Assignment(each.devices, _nodes(each)) for each in table.assign]
    return Composite(devices, assignments, host=table.host, name=table.name)


def table_of(device: DeviceTable) -> BackendTable:
    """The table of one device's own backend, named after the backend that it extends where it has no rules."""
    name = device.name if device.rule else device.backend
    return BackendTable.model_construct(name=name, extends=device.backend, options=device.options, rule=device.rule)


def _nodes(selection: DeviceTable | AssignTable) -> Nodes:
    when = None if selection.when == Condition() else partial(holds, selection.when)
    return Nodes(tuple(selection.op), tuple(selection.nodes), when)
