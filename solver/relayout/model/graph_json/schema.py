"""Graph JSON, version 1: the schema of a graph in JSON, checked strictly; unknown fields are errors.

The stable part is `name`, `opset`, `inputs`, `outputs`, `constants` and `nodes`. All else is optional and exists so
that every graph that relayout reads and writes can be converted to JSON and back unchanged. Attributes are plain JSON
values if their type is evident, else `{"type": ..., "value": ...}`: see `attributes`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from relayout.errors import InputError
from relayout.model.graph_json.faults import first_fault, json_kind
from relayout.model.graph_json.json_text import parse_json

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Extent = Count | Name | None
Version = Annotated[int, Field(ge=1, lt=1 << 31)]
Texts = dict[str, str]
_Model = TypeVar("_Model", bound=BaseModel)

_PLAIN: list[dict[str, Any]] = [{"type": "integer"}, {"type": "number"}, {"type": "string"}]
_TYPED = {
    "type": "object",
    "properties": {
        "type": {
            "enum": [
                *("int", "float", "string", "ints", "floats", "strings"),
                *("tensor", "tensors", "graph", "graphs", "type", "types"),
            ]
        },
        "value": {},
        "ref": {"type": "string", "description": "the function's attribute that this one takes its value from"},
        "base64": {"description": "a string, or a list of them, that is not UTF-8"},
    },
    "required": ["type"],
    "additionalProperties": False,
}
Attribute = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "a number, a string, a list of them, or {type, value} where the type is not evident",
            "anyOf": [*_PLAIN, {"type": "array", "items": {"anyOf": _PLAIN}}, _TYPED],
        }
    ),
]


def _empty(kind: type[list[Any]] | type[dict[Any, Any]], description: str | None = None) -> Any:
    """A field that is empty by default. Pydantic would make a deep copy of a default for each object."""
    return Field(default_factory=kind, description=description, json_schema_extra={"default": kind()})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class ValueJson(_Strict):
    """A value: an input, an output, or the result of a node."""

    name: Name
    dtype: str | None = Field(None, description="ONNX's lower-case name, e.g. float16; seq(float), optional(float)")
    shape: list[Extent] | None = Field(None, description="extents, symbols, null for an unknown extent or rank")
    layout: str | None = Field(None, description="how the data of an input or output lies, e.g. NHWC")
    metadata: Texts = _empty(dict)
    doc: str = ""


class TransposeStep(_Strict):
    """numpy.transpose(data, perm)."""

    op: Literal["transpose"]
    perm: list[Count]


class _StepFrom(_Strict):
    from_: list[Count] | None = Field(None, alias="from", description="the shape before the step")


class ReshapeStep(_StepFrom):
    """numpy.reshape(data, shape), row-major."""

    op: Literal["reshape"]
    shape: list[Count]


class PadStep(_StepFrom):
    """Zeros: how many before each dimension, then how many after each."""

    op: Literal["pad"]
    pads: list[Count]


class CropStep(_StepFrom):
    """The first so many of each dimension."""

    op: Literal["crop"]
    shape: list[Count]


Transform = Annotated[TransposeStep | ReshapeStep | PadStep | CropStep, Field(discriminator="op")]


class ConstantJson(_Strict):
    """A constant: its data in base64, its values, or neither if the weights are absent."""

    name: Name
    dtype: str
    shape: list[Count]
    data: str | None = Field(None, description="base64 of the elements, little-endian, row-major")
    values: list[Any] | None = Field(None, description="the elements, flat or nested")
    transform: list[Transform] = _empty(list, "what the owner of absent data has to do to it")
    source: str = Field("", description="whose data that is, where it is not the source's constant of this name")
    metadata: Texts = _empty(dict)
    doc: str = ""

    @field_validator("data", mode="before")
    @classmethod
    def _is_no_list(cls, data: object) -> object:
        if isinstance(data, list):
            message = "base64 of the elements; a list of elements goes into the field values"
            raise PydanticCustomError("list_of_elements", message)
        return data


class NodeJson(_Strict):
    """One operator. An empty name is an omitted operand."""

    name: str = ""
    op: Name
    domain: str = ""
    overload: str = ""
    inputs: list[str] = _empty(list)
    outputs: list[str]
    attributes: dict[str, Attribute] = _empty(dict)
    metadata: Texts = _empty(dict)
    doc: str = ""


class GraphBody(_Strict):
    """The fields that graphs and subgraphs have in common."""

    name: str = "graph"
    inputs: list[ValueJson] = _empty(list)
    outputs: list[ValueJson]
    constants: list[ConstantJson] = _empty(list)
    nodes: list[NodeJson] = _empty(list)
    values: list[ValueJson] = _empty(list, "what is known of the nodes' results")
    metadata: Texts = _empty(dict)
    doc: str = ""


class FunctionJson(_Strict):
    """A function of the model; those of the domain `relayout` are operators in layouts that ONNX lacks."""

    name: Name
    domain: str
    overload: str = ""
    inputs: list[Name] = _empty(list)
    outputs: list[Name] = _empty(list)
    attributes: list[Name] = _empty(list)
    defaults: dict[str, Attribute] = _empty(dict)
    opset: Version | None = None
    opsets: dict[str, Version] = _empty(dict)
    nodes: list[NodeJson] = _empty(list)
    values: list[ValueJson] = _empty(list)
    metadata: Texts = _empty(dict)
    doc: str = ""


class GraphJson(GraphBody):
    """A whole model as graph JSON, version 1."""

    version: Literal[1] = 1
    opset: Version
    opsets: dict[str, Version] = _empty(dict, "versions of domains other than the standard one")
    functions: list[FunctionJson] = _empty(list)
    ir_version: Version | None = None
    model: Texts = _empty(dict, "producer_name, producer_version, domain, doc_string")
    properties: Texts = _empty(dict, "the model's own metadata")


def load_json(data: bytes | str, where: str) -> dict[str, Any]:
    """The JSON object in `data`. Raises InputError if it is not JSON or not an object."""
    try:
        loaded = parse_json(data)
    except ValueError as error:
        raise InputError("not JSON", where=where, expected="a JSON object", found=str(error)[:200]) from error
    if not isinstance(loaded, dict):
        raise InputError("not graph JSON", where=where, expected="a JSON object", found=json_kind(loaded))
    return loaded


def validate(schema: type[_Model], data: object, where: str) -> _Model:
    """`data` as a `schema`; InputError with the path of the first fault."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        fault = first_fault(error.errors(include_url=False, include_context=False), data, schema)
        raise InputError(
            "not graph JSON, version 1",
            where=f"{where}, {fault.path}" if fault.path else where,
            expected=fault.expected,
            found=fault.found,
            hint=fault.hint or (f"more places with faults: {fault.more}" if fault.more else ""),
        ) from error
