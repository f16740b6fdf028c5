"""Attributes as JSON, without loss.

An attribute is written plain if JSON shows its type: an integer, a number with a point, a string, a list of these that
is not empty. Otherwise `{"type": T, "value": V}` with T one of int, float, string, ints, floats, strings, tensor,
tensors, graph, graphs, type, types; `{"type": T, "ref": "alpha"}` for a function's parameter; and
`{"type": "string", "base64": B}` for bytes that are not text. If the operator's schema has floats, integers are read
as floats: JavaScript writes 1.0 as 1.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from relayout.errors import InputError
from relayout.model.graph_json.schema import ConstantJson, ValueJson, validate
from relayout.model.graph_json.tensors import (
    bytes_of,
    constant_to_proto,
    number_of,
    tensor_to_json,
    text_of,
    type_name,
    type_proto,
)

GraphToJson = Callable[[ir.Graph], dict[str, Any]]
GraphToProto = Callable[[object, str], onnx.GraphProto]

_TYPES: Mapping[str, ir.AttributeType] = {
    **{kind.name.lower(): kind for kind in ir.AttributeType if "TYPE" not in kind.name and "SPARSE" not in kind.name},
    "type": ir.AttributeType.TYPE_PROTO,
    "types": ir.AttributeType.TYPE_PROTOS,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def attribute_to_json(attribute: ir.Attr, graph_to_json: GraphToJson) -> Any:
    """An attribute's value in the notation of this module's docstring."""
    name = _NAMES[attribute.type]
    if attribute.is_ref():
        return {"type": name, "ref": attribute.ref_attr_name}
    value = attribute.value
    if name in ("int", "ints"):
        plain = [int(item) for item in value] if name == "ints" else value
    elif name in ("float", "floats"):
        plain = [_float(x) for x in value] if name == "floats" else _float(value)
    elif name == "string" and isinstance(value, bytes):
        return {"type": name, "base64": base64.b64encode(value).decode("ascii")}
    elif name in ("string", "strings"):
        plain = list(value) if name == "strings" else value
    else:
        return {"type": name, "value": _structure(name, value, graph_to_json)}
    strange = name in ("float", "floats") and any(isinstance(x, str) for x in np.atleast_1d(np.array(plain, object)))
    return {"type": name, "value": plain} if plain == [] or strange else plain


def _structure(name: str, value: Any, graph_to_json: GraphToJson) -> Any:
    def one(item: Any) -> dict[str, Any]:
        if name.startswith("tensor"):
            return ({"name": item.name} if item.name else {}) | tensor_to_json(item)
        if name.startswith("graph"):
            return graph_to_json(item)
        shape = None if item.shape is None else [dim if isinstance(dim, int) else dim.value for dim in item.shape]
        return {"dtype": type_name(item.type), "shape": shape}

    return [one(item) for item in value] if name.endswith("s") else one(value)


def attribute_to_proto(
    name: str, given: Any, wanted: ir.AttributeType | None, where: str, graph_to_proto: GraphToProto
) -> onnx.AttributeProto:
    """The attribute for `given`; `wanted` is its type in the operator's schema, if any. Raises InputError."""
    where = f"{where}, attribute '{name}'"
    kind, value = _typed(given, wanted, where)
    proto = onnx.AttributeProto(name=name, type=onnx.AttributeProto.AttributeType.Name(_TYPES[kind].value))
    if isinstance(given, dict) and "ref" in given:
        proto.ref_attr_name = text_of(given["ref"], where)
        return proto
    many = kind.endswith("s")
    if many and not isinstance(value, list):
        raise InputError("an attribute is no list", where=where, expected=kind, found=repr(value)[:80])
    built = [_item(kind.removesuffix("s"), item, where, graph_to_proto) for item in (value if many else [value])]
    field = _FIELDS[kind]
    if many:
        getattr(proto, field).extend(built)
    elif isinstance(built[0], onnx.TensorProto | onnx.GraphProto | onnx.TypeProto):
        getattr(proto, field).CopyFrom(built[0])
    else:
        setattr(proto, field, built[0])
    return proto


_FIELDS = {
    "int": "i",
    "float": "f",
    "string": "s",
    "tensor": "t",
    "graph": "g",
    "type": "tp",
    "types": "type_protos",
    **{name: name for name in ("ints", "floats", "strings", "tensors", "graphs")},
}


def _typed(given: Any, wanted: ir.AttributeType | None, where: str) -> tuple[str, Any]:
    """The type's name and the value, from the plain form or the typed one."""
    if isinstance(given, dict):
        kind = given.get("type")
        if (
            not isinstance(kind, str)
            or kind not in _FIELDS
            or len(given) != 2
            or not given.keys() & {"value", "ref", "base64"}
        ):
            raise InputError(
                "an attribute's type is not given",
                where=where,
                expected=f'{{"type": T, "value": V}} with T one of {", ".join(_FIELDS)}',
                found=f"an object with {', '.join(map(repr, list(given)[:5])) or 'nothing'}",
            )
        if "base64" in given:
            return kind, bytes_of(given["base64"], kind, where)
        return kind, given.get("value")
    asked = _NAMES.get(wanted) if wanted is not None else None
    if given == []:
        if asked is None or not asked.endswith("s"):
            raise InputError(
                "an empty list shows no type", where=where, expected='{"type": "ints", "value": []}', found="[]"
            )
        return asked, given
    items = given if isinstance(given, list) else [given]
    for kind, types in (("int", (int,)), ("float", (int, float)), ("string", (str,))):
        if all(isinstance(item, types) and not isinstance(item, bool) for item in items):
            kind = "float" if kind == "int" and asked in ("float", "floats") else kind
            return kind + "s" * isinstance(given, list), given
    raise InputError(
        "an attribute's type is not evident",
        where=where,
        expected="an integer, a number, a string, a list of one of them, or an object with type and value",
        found=repr(given)[:80],
    )


def _item(kind: str, value: Any, where: str, graph_to_proto: GraphToProto) -> Any:
    if kind == "int" and isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    if kind == "float" and isinstance(value, int | float | str) and not isinstance(value, bool):
        return number_of(value, where)
    if kind == "string":
        return value if isinstance(value, bytes) else text_of(value, where).encode()
    if kind == "graph":
        return graph_to_proto(value, where)
    if kind == "tensor" and isinstance(value, dict):
        # Only constants need a name; a tensor in an attribute often has none.
        constant = validate(ConstantJson, {**value, "name": value.get("name") or "-"}, where)
        proto = constant_to_proto(constant, where)
        if not value.get("name"):
            proto.ClearField("name")
        return proto
    if kind == "type" and isinstance(value, dict) and value.keys() <= {"dtype", "shape"}:
        # A type is a value without a name of its own.
        shown = validate(ValueJson, {**value, "name": "-"}, where)
        return type_proto(text_of(shown.dtype, where), shown.shape, where)
    raise InputError("an attribute has the wrong type", where=where, expected=kind, found=repr(value)[:80])


def _float(value: float) -> float | str:
    """The shortest decimal that is this float32 again: 0.1, not 0.10000000149011612."""
    return float(str(np.float32(value))) if math.isfinite(value) else str(float(value))
