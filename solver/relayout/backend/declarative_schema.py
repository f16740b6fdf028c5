"""The schema of a declarative backend's table.

Every size is bounded, no value is code, and no key names a file, so a table may come from an untrusted source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from relayout.backend.calls import MAX_COST
from relayout.errors import LayoutSyntaxError
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import DATA, KERNEL, has_role, spell

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$"
PATTERN = r"^[A-Za-z0-9_.*?]+$"

_DATA = frozenset(["NCW", "NCHW", "NCDHW"])
_KERNEL = frozenset(["OIW", "OIHW", "OIDHW"])


def _fault(expected: str, found: str, *key: int | str, hint: str = "") -> PydanticCustomError:
    """A fault of the value that is checked, or of the one at `key` inside it."""
    facts = {"expected": expected, "found": found, "key": key, "hint": hint}
    return PydanticCustomError("relayout", "{expected}", facts)


def _one_or_several(kind: Any, most: int, *, least: int = 0) -> BeforeValidator:
    """A single value is a list of one, in the JSON schema too."""
    several = Annotated[list[kind], Field(min_length=least, max_length=most)]
    return BeforeValidator(
        lambda value: value if isinstance(value, list) else [value], json_schema_input_type=kind | several
    )


def _layout(text: str) -> str:
    """A layout string, checked; `*` is any layout of any rank."""
    try:
        Layout.parse(text)
    except LayoutSyntaxError as error:
        raise _fault(error.expected, f"{error.found} in {text!r}, column {error.column}") from None
    return text


def _lettered(text: str, axes: frozenset[str]) -> str:
    """A layout of named axes. S is replaced by the spatial axes, and `*` is any axis."""
    if text == "*":
        return text
    try:
        layouts = [spell(text, rank) for rank in (3, 4, 5)]
    except LayoutSyntaxError as error:
        raise _fault(error.expected, f"{error.found} in {text!r}, column {error.column}") from None
    for layout in layouts:
        outer = [layout.names[i] for i in range(layout.rank) if layout.tile(i) is None]
        if not any(len(known) == len(outer) and {*outer} <= {*known, "*"} for known in axes):
            first = min(axes, key=len)[:2]
            raise _fault(f"the letters {first} and the spatial W, HW, DHW, or S for these, in any order", repr(text))
    return text


def _element_type(text: str) -> str:
    from onnx_ir import DataType

    if _ONNX_TYPES.get(text, text.upper()) not in DataType.__members__:
        raise _fault("an element type such as float32, float16, int8", repr(text))
    return text


def _attribute(value: object) -> object:
    scalars = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int | float | str) and not isinstance(each, bool) for each in scalars):
        raise _fault("a number, a string, or a list of them", repr(value))
    return value


def _free_of_charge(devices: object) -> object:
    """A device's name, or several, in place of a table: these devices, at no cost."""
    if isinstance(devices, str):
        return {devices: 0}
    is_list = isinstance(devices, list) and all(isinstance(device, str) for device in devices)
    return dict.fromkeys(devices, 0) if is_list else devices  # type: ignore[call-overload]  # a list, by now


_ONNX_TYPES = {"float32": "FLOAT", "float64": "DOUBLE"}
_Text = Annotated[str, Field(min_length=1, max_length=256)]
_LayoutText = Annotated[_Text, AfterValidator(_layout)]
_DataText = Annotated[_Text, AfterValidator(lambda text: _lettered(text, _DATA))]
_KernelText = Annotated[_Text, AfterValidator(lambda text: _lettered(text, _KERNEL))]
_Pattern = Annotated[str, Field(min_length=1, max_length=100, pattern=PATTERN)]
_Index = Annotated[int, Field(ge=0, lt=64)]
_Rank = Annotated[int, Field(ge=0, le=8)]
_Type = Annotated[_Text, AfterValidator(_element_type)]
_SCALAR = {"type": ["number", "string"]}
_Attribute = Annotated[
    Any, AfterValidator(_attribute), WithJsonSchema({"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]})
]
_Name = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME)]
_Extent = Annotated[int, Field(ge=0, le=1 << 48)]
_Options = Annotated[dict[_Name, JsonValue], Field(max_length=32)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Range(_Table):
    """Bounds of a number, both included; an unknown number is in no range."""

    min: _Extent | None = None
    max: _Extent | None = None
    multiple_of: Annotated[int, Field(ge=1, le=1 << 48)] | None = None

    @model_validator(mode="after")
    def _has_a_number(self) -> Range:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise _fault(f"at least the min, {self.min}", str(self.max), "max")
        return self


class TensorCondition(_Table):
    """The conditions on one tensor; `spatial` is for each extent of an image's height, width and depth."""

    rank: Annotated[list[_Rank], Field(max_length=9), _one_or_several(_Rank, 9)] = []
    dtype: Annotated[list[_Type], Field(max_length=32), _one_or_several(_Type, 32)] = []
    channels: Range | None = None
    spatial: Range | None = None

    @property
    def types(self) -> frozenset[str]:
        """The element types by ONNX's names: FLOAT for float32."""
        return frozenset(_ONNX_TYPES.get(each, each.upper()) for each in self.dtype)


class Condition(TensorCondition):
    """The conditions of a rule; those on a tensor are on the node's first input, and in `result` on its first result.

    `constant` and `variable` count the inputs that must be constants, and those that must not.
    """

    attributes: Annotated[dict[_Text, _Attribute], Field(max_length=32)] = {}
    kernel: Range | None = None
    result: TensorCondition = TensorCondition()
    constant: Annotated[list[_Index], Field(max_length=64), _one_or_several(_Index, 64)] = []
    variable: Annotated[list[_Index], Field(max_length=64), _one_or_several(_Index, 64)] = []


class Way(_Table):
    """One implementation: layouts by role (`data`, `kernel`) or by operand (`inputs`, `results`), and a cost.

    An operand with a layout in neither keeps the node's. `cost` is in bytes of memory traffic, and `cost_per_byte` is
    added for each byte that the node reads and writes. `pads`, `any_order`: see `Implementation`.
    """

    data: _DataText | None = None
    kernel: _KernelText | None = None
    inputs: Annotated[list[_LayoutText], Field(max_length=64)] = []
    results: Annotated[list[_LayoutText], Field(max_length=64)] = []
    cost: Annotated[int, Field(ge=0, le=MAX_COST)] = 0
    cost_per_byte: Annotated[float, Field(ge=0, le=1e4, strict=False)] = 0.0
    pads: bool = False
    any_order: bool = False

    @property
    def says_something(self) -> bool:
        """Whether any layout is given, or any order is."""
        return self.any_order or self.data is not None or self.kernel is not None or bool(self.inputs or self.results)


class Rule(Way):
    """A selection of nodes, and their implementations: the rule's own layouts, or several under `implementation`."""

    op: Annotated[list[_Pattern], Field(min_length=1, max_length=64), _one_or_several(_Pattern, 64, least=1)]
    domain: Annotated[str, Field(max_length=256)] | None = None
    when: Condition = Condition()
    implementation: Annotated[list[Way], Field(max_length=16)] = []

    @property
    def ways(self) -> list[Way]:
        """The implementations of a node, at least one."""
        return self.implementation or [self]

    @property
    def of_onnx(self) -> bool:
        """Whether the rule is for ONNX's own operators, in any layout."""
        return self.domain in (None, "", "ai.onnx")

    def _placed_ways(self) -> Iterator[tuple[tuple[str | int, ...], Way]]:
        """The implementations, each with its place in the rule."""
        for number, way in enumerate(self.ways):
            yield ("implementation", number) if self.implementation else (), way

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> Rule:
        own = self.says_something or self.cost or self.cost_per_byte or self.pads
        if self.implementation and own:
            raise _fault("layouts and cost in the rule, or in its implementations", "both")
        if not all(way.says_something for way in self.ways):
            raise _fault("data, kernel, inputs, results or any_order", "an implementation without any layout")
        return self

    @model_validator(mode="after")
    def _says_layouts_by_role_or_by_operand(self) -> Rule:
        for inside, way in self._placed_ways():
            role = next((role for role in (DATA, KERNEL) if getattr(way, role) is not None), None)
            if way.inputs and role is not None:
                expected = f"layouts by role (data, kernel), or by operand (inputs): inputs would hide {role}"
                raise _fault(
                    expected, "both", *inside, "inputs", hint=f"list the layout of {role} in inputs or results"
                )
        return self

    @model_validator(mode="after")
    def _lists_operands_that_the_operators_have(self) -> Rule:
        if not self.of_onnx:
            return self
        for inside, way in self._placed_ways():
            for side, listed in (("inputs", way.inputs), ("results", way.results)):
                for operator in self.op:
                    most = _most_operands(operator, side)
                    if most is not None and len(listed) > most:
                        expected = f"at most {most} {side if most != 1 else side[:-1]}, as {operator} has"
                        raise _fault(expected, str(len(listed)), *inside, side)
        return self

    @model_validator(mode="after")
    def _names_roles_that_the_operators_have(self) -> Rule:
        if not self.of_onnx:
            return self
        for inside, way in self._placed_ways():
            for role, layout in ((DATA, way.data), (KERNEL, way.kernel)):
                operator = next((each for each in self.op if layout is not None and _lacks(each, role)), None)
                if operator is not None:
                    raise _fault(
                        f"no layout for the role {role}, as no operand of {operator} has it",
                        repr(layout),
                        *inside,
                        role,
                        hint=f"leave it out; a rule for {operator} alone may have layouts by operand (inputs, results)",
                    )
        return self


@lru_cache(maxsize=1024)
def _lacks(pattern: str, role: str) -> bool:
    """Whether the pattern means operators of ONNX, and none of them has an operand in this role."""
    meant = [operator for operator in onnx_operators() if fnmatchcase(operator, pattern)]
    return bool(meant) and not any(has_role(operator, role) for operator in meant)


@lru_cache(maxsize=1024)
def _most_operands(pattern: str, side: str) -> int | None:
    """The most inputs or results of the operators of ONNX that the pattern means, in all versions; None if it means
    none."""
    meant = [facts for name, facts in _definitions().items() if fnmatchcase(name, pattern)]
    return max((each.most_inputs if side == "inputs" else each.most_results for each in meant), default=None)


@cache
def onnx_operators() -> Mapping[str, frozenset[str]]:
    """The names of the attributes of each of ONNX's own operators, in all versions."""
    return {name: facts.attributes for name, facts in _definitions().items()}


class _Definition(NamedTuple):
    """The attributes and the most operands of an operator, over all its versions."""

    attributes: frozenset[str] = frozenset()
    most_inputs: int = 0
    most_results: int = 0


@cache
def _definitions() -> Mapping[str, _Definition]:
    """ONNX's own operators. onnx takes 12 ms to list their versions, so that it is asked once."""
    from onnx import defs

    found: dict[str, _Definition] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            known = found.get(schema.name, _Definition())
            found[schema.name] = _Definition(
                known.attributes | schema.attributes.keys(),
                max(known.most_inputs, schema.max_input),
                max(known.most_results, schema.max_output),
            )
    return found


class _Selection(_Table):
    """A selection of nodes by operator, by name, and by condition; an absent key is no condition."""

    op: Annotated[list[_Pattern], Field(min_length=1, max_length=256), _one_or_several(_Pattern, 256, least=1)] = ["*"]
    nodes: Annotated[list[_Text], Field(min_length=1, max_length=256), _one_or_several(_Text, 256, least=1)] = ["*"]
    when: Condition = Condition()


class DeviceTable(_Selection):
    """One device of several: its backend with options, rules that override it, the nodes that it runs, and the cost of
    transfers, in bytes of memory traffic for each byte and for each tensor."""

    name: _Name
    backend: Annotated[str, Field(min_length=1, max_length=64)] = "onnx"
    options: _Options = {}
    rule: Annotated[list[Rule], Field(max_length=256)] = []
    transfer: Annotated[float, Field(ge=0, le=1e4, strict=False)] = 1.0
    transfer_fixed: Annotated[int, Field(ge=0, le=MAX_COST)] = 0


class AssignTable(_Selection):
    """The devices of some nodes, by name, and the cost of running there in bytes of memory traffic."""

    devices: Annotated[
        dict[_Name, Annotated[int, Field(ge=0, le=MAX_COST)]],
        Field(min_length=1, max_length=16),
        BeforeValidator(_free_of_charge, json_schema_input_type=_Name | list[_Name] | dict[_Name, int]),
    ]


class BackendTable(_Table):
    """A declarative backend: the backend that it extends, that one's options, and the rules before it; or several
    devices with a backend each, and the assignment of nodes to them."""

    name: _Name
    version: Literal[1] = 1
    description: Annotated[str, Field(max_length=1024)] = ""
    extends: Annotated[str, Field(min_length=1, max_length=64)] = "onnx"
    options: _Options = {}
    rule: Annotated[list[Rule], Field(max_length=256)] = []
    device: Annotated[list[DeviceTable], Field(max_length=16)] = []
    assign: Annotated[list[AssignTable], Field(max_length=256)] = []
    host: _Name | None = None

    @model_validator(mode="after")
    def _names_its_places(self) -> BackendTable:
        names = [each.name for each in self.device]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise _fault("a name of its own for each device", repr(name), "device", number, "name")
        own = next((key for key in ("rule", "options", "extends") if self.device and key in self.model_fields_set), "")
        if own:
            expected = "devices, or a backend that is extended: a device has options and rules of its own"
            raise _fault(expected, "both", own)
        known = " or ".join(names) or "devices, each in a table [[device]]"
        places: list[tuple[str | None, tuple[int | str, ...]]] = [(self.host, ("host",))]
        places += [(name, ("assign", n, "devices")) for n, each in enumerate(self.assign) for name in each.devices]
        for place, key in places:
            if place is not None and place not in names:
                raise _fault(known, repr(place), *key)
        return self
