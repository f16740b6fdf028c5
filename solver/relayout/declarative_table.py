"""The table of a declarative backend: its schema, and reading one from TOML, JSON or a dict; errors say where.

Everything is bounded, nothing is code, and no key names a file, so a table may come from a stranger.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from relayout.answers import MAX_COST
from relayout.errors import BackendError, LayoutSyntaxError
from relayout.layout import Layout
from relayout.roles import spell
from relayout.toml_lines import line_of

__all__ = ["MAX_BYTES", "BackendTable", "Condition", "Range", "Rule", "Way", "check_table", "read_table"]

MAX_BYTES = 1 << 20
"""How large a file may be."""

_DATA = frozenset(["NCW", "NCHW", "NCDHW"])
_KERNEL = frozenset(["OIW", "OIHW", "OIDHW"])


def _fault(expected: str, found: str) -> PydanticCustomError:
    return PydanticCustomError("relayout", "{expected}", {"expected": expected, "found": found})


def _one_or_more(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _layout(text: str) -> str:
    """A layout string, checked; `*` is any layout of any rank."""
    try:
        Layout.parse(text)
    except LayoutSyntaxError as error:
        raise _fault(error.expected, f"{error.found} in {text!r}, column {error.column}") from None
    return text


def _lettered(text: str, axes: frozenset[str]) -> str:
    """A layout of named axes, where S stands for the spatial ones. `*` leaves its place open."""
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


_ONNX_TYPES = {"float32": "FLOAT", "float64": "DOUBLE"}
_Text = Annotated[str, Field(min_length=1, max_length=256)]
_LayoutText = Annotated[_Text, AfterValidator(_layout)]
_DataText = Annotated[_Text, AfterValidator(lambda text: _lettered(text, _DATA))]
_KernelText = Annotated[_Text, AfterValidator(lambda text: _lettered(text, _KERNEL))]
_Pattern = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.*?]+$")]
_Extent = Annotated[int, Field(ge=0, le=1 << 48)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Range(_Table):
    """Bounds of a number, both included; a number that is not known is in no range."""

    min: _Extent | None = None
    max: _Extent | None = None
    multiple_of: Annotated[int, Field(ge=1, le=1 << 48)] | None = None


class Condition(_Table):
    """What a node must be for a rule to apply; rank, dtype and channels are those of its first input."""

    rank: Annotated[list[Annotated[int, Field(ge=0, le=8)]], BeforeValidator(_one_or_more), Field(max_length=9)] = []
    dtype: Annotated[
        list[Annotated[_Text, AfterValidator(_element_type)]], BeforeValidator(_one_or_more), Field(max_length=32)
    ] = []
    attributes: Annotated[dict[_Text, Annotated[Any, AfterValidator(_attribute)]], Field(max_length=32)] = {}
    channels: Range | None = None
    kernel: Range | None = None

    @property
    def types(self) -> frozenset[str]:
        """The element types by ONNX's names: FLOAT for float32."""
        return frozenset(_ONNX_TYPES.get(each, each.upper()) for each in self.dtype)


class Way(_Table):
    """One way to run a node: layouts by role (`data`, `kernel`) or by operand (`inputs`, `results`), and a cost.

    What is given by neither is as the node has it. `cost` is in bytes of memory traffic.
    """

    data: _DataText | None = None
    kernel: _KernelText | None = None
    inputs: Annotated[list[_LayoutText], Field(max_length=64)] = []
    results: Annotated[list[_LayoutText], Field(max_length=64)] = []
    cost: Annotated[int, Field(ge=0, le=MAX_COST)] = 0

    @property
    def says_something(self) -> bool:
        """Whether any layout is given."""
        return self.data is not None or self.kernel is not None or bool(self.inputs or self.results)


class Rule(Way):
    """Which nodes, and the ways to run them: its own layouts, or several under `implementation`."""

    op: Annotated[list[_Pattern], BeforeValidator(_one_or_more), Field(min_length=1, max_length=64)]
    domain: Annotated[str, Field(max_length=256)] | None = None
    when: Condition = Condition()
    implementation: Annotated[list[Way], Field(max_length=16)] = []

    @property
    def ways(self) -> list[Way]:
        """The ways to run a node, at least one."""
        return self.implementation or [self]

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that the rule is about; without a word of it, ONNX's own operators in any layout."""
        return ("ai.onnx", "relayout") if self.domain is None else (self.domain or "ai.onnx",)

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> Rule:
        if self.implementation and (self.says_something or self.cost):
            raise _fault("layouts and cost in the rule, or in its implementations", "both")
        if not all(way.says_something for way in self.ways):
            raise _fault("data, kernel, inputs or results", "a way to run a node without any")
        return self


class BackendTable(_Table):
    """A declarative backend: the backend that it extends, and the rules that it puts before it."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]
    version: Literal[1] = 1
    description: Annotated[str, Field(max_length=1024)] = ""
    extends: Annotated[str, Field(min_length=1, max_length=64)] = "onnx"
    rule: Annotated[list[Rule], Field(max_length=256)] = []


def read_table(path: Path) -> BackendTable:
    """The table in a .toml or .json file. Raises BackendError with the line."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BackendError("the backend's file cannot be read", where=str(path), found=str(error)) from error
    if len(data) > MAX_BYTES:
        raise BackendError(
            "the backend's file is too large", where=str(path), expected=f"at most {MAX_BYTES} bytes", found="more"
        )
    is_toml = path.suffix == ".toml"
    try:
        table = tomllib.loads(text) if is_toml else json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if is_toml else "JSON"
        raise BackendError(f"the backend's file is not {kind}", where=str(path), found=str(error)) from error
    if not isinstance(table, Mapping):
        raise BackendError(
            "the backend's file is no table", where=str(path), expected="a JSON object", found=type(table).__name__
        )
    return check_table(table, str(path), text if is_toml else "")


def check_table(table: Mapping[str, Any], where: str = "inline backend", toml: str = "") -> BackendTable:
    """The table that a dict describes. Raises BackendError that names the key, and its line if `toml` is the text."""
    try:
        return BackendTable.model_validate(dict(table))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    place = _written(table, tuple(part for part in faults[0]["loc"] if part != "[key]"))
    line = line_of(toml, place) if toml else None
    expected, found, hint = _explained(faults[0]["type"], faults[0])
    raise BackendError(
        "the backend's table is not right" + (f" ({len(faults)} faults, this is the first)" if faults[1:] else ""),
        where=", ".join(filter(None, [where, f"line {line}" if line else "", _path(place)])),
        expected=expected,
        found=found,
        hint=hint,
    )


def _written(table: Mapping[str, Any], place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """`place` as the table has it: a single value that stands for a list of one has no index."""
    inner: Any = table
    for depth, part in enumerate(place):
        if isinstance(part, int) and not isinstance(inner, list):
            return place[:depth]
        inner = inner.get(part) if isinstance(inner, Mapping) else inner[part] if isinstance(part, int) else None
    return place


def _path(place: tuple[int | str, ...]) -> str:
    """`rule[0].when.rank`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def _explained(kind: str, fault: Mapping[str, Any]) -> tuple[str, str, str]:
    """(expected, found, hint) of one of pydantic's faults."""
    place = fault["loc"]
    if kind == "relayout":
        return fault["ctx"]["expected"], fault["ctx"]["found"], ""
    if kind == "missing":
        return f"the key {place[-1]!r}", "none", ""
    if kind == "extra_forbidden":
        known = sorted(_keys(place))
        near = get_close_matches(str(place[-1]), known, n=1)
        return f"one of the keys {', '.join(known)}", repr(place[-1]), f"did you mean {near[0]}?" if near else ""
    found = repr(fault["input"])
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return message.removeprefix("input should be "), found if len(found) <= 80 else f"{found[:77]}...", ""


def _keys(place: tuple[int | str, ...]) -> set[str]:
    """The keys that the table at the place of an unknown one may have."""
    tables: dict[str, type[BaseModel]] = {
        "": BackendTable,
        "rule": Rule,
        "when": Condition,
        "implementation": Way,
        "channels": Range,
        "kernel": Range,
    }
    owner = next((part for part in reversed(place[:-1]) if isinstance(part, str)), "")
    return set(tables[owner].model_fields)
