"""ONNX's operator schemas: the number of operands, and the attributes with their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InputError
from relayout.ops.operand_roles import OWN_DOMAIN

__all__ = ["attribute_type", "check_node", "has_body", "since", "takes_type", "type_variables"]

Versions = Mapping[str, int]
ANY_NUMBER = (1 << 31) - 1


class _Definition(Struct, frozen=True):
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: Mapping[str, int]
    required: tuple[str, ...]


@lru_cache(maxsize=4096)
def _definition(op: str, domain: str, version: int) -> _Definition | None:
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return None
    return _Definition(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {name: attribute_number(attribute) for name, attribute in schema.attributes.items()},
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
    )


def attribute_type(op: str, domain: str, versions: Versions, name: str) -> ir.AttributeType | None:
    """The type of the attribute `name` in the operator's schema; None if ONNX does not define it."""
    definition = _definition(op, domain, versions.get(domain, 1))
    if definition is None or name not in definition.attributes:
        return None
    return ir.AttributeType(definition.attributes[name])


@lru_cache(maxsize=1024)
def type_variables(op: str, domain: str, version: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The type variables of an operator's inputs and results, such as T. Empty for an operand with a type of its own;
    none for an operator that ONNX does not define."""
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return (), ()
    variables = {constraint.type_param_str for constraint in schema.type_constraints}

    def of(operands: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[str, ...]:
        return tuple(operand.type_str if operand.type_str in variables else "" for operand in operands)

    return of(schema.inputs), of(schema.outputs)


@lru_cache(maxsize=1024)
def takes_type(op: str, version: int, dtype: ir.DataType | None) -> bool:
    """Whether the first operand of ONNX's operator may have elements of this type; True if either is not known."""
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=version)
    except onnx.defs.SchemaError:
        return True
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    return (
        dtype in (None, ir.DataType.UNDEFINED) or f"tensor({dtype.name.lower()})" in allowed[schema.inputs[0].type_str]
    )


def since(op: str, domain: str, version: int) -> int | None:
    """The version since which the schema at `version` is valid; None if ONNX does not define the operator."""
    try:
        return int(onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain).since_version)
    except onnx.defs.SchemaError:
        return None


def attribute_number(attribute: onnx.defs.OpSchema.Attribute) -> int:
    """The attribute's type, as AttributeProto counts types."""
    kind: Any = attribute.type  # an enumeration by pybind11; onnx's stubs do not give it its number
    return int(kind.value)


def has_body(op: str, versions: Versions) -> bool:
    """Whether ONNX defines this standard operator by a graph of others."""
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=versions.get("", 1))
    except onnx.defs.SchemaError:
        return False
    told: Any = schema  # onnx's stubs lack these two
    return bool(told.has_function or told.has_context_dependent_function)


def check_node(node: onnx.NodeProto, attributes: Sequence[tuple[str, int]], versions: Versions) -> None:
    """Raise InputError if a node, with these names and types of attributes, does not fit its operator's schema; without
    a schema any operands fit, and a layout is text. The location in the error is that within the node."""
    operator, domain = node.op_type, node.domain
    if not operator:
        raise InputError("a node has no operator", expected="an op_type", found="''")
    domain = "" if domain == "ai.onnx" else domain
    definition = _definition(operator, domain, versions.get(domain, 1))
    if definition is None:
        layouts = [name for name, _ in attributes if domain == OWN_DOMAIN and name.endswith("_layout")]
        _check_types(attributes, dict.fromkeys(layouts, onnx.AttributeProto.STRING))
        return
    for side, operands, (least, most) in (
        ("inputs", node.input, definition.inputs),
        ("outputs", node.output, definition.outputs),
    ):
        if not least <= len(operands) <= most:
            raise InputError(
                f"an operator with the wrong number of {side}",
                expected=f"{least} to {most}" if most < ANY_NUMBER else f"at least {least}",
                found=str(len(operands)),
            )
    given = {name for name, _ in attributes}
    for name in definition.required:
        if name not in given:
            raise InputError("an operator lacks an attribute", expected=f"'{name}'", found="none")
    _check_types(attributes, definition.attributes)


def _check_types(attributes: Sequence[tuple[str, int]], expected: Mapping[str, int]) -> None:
    for name, kind in attributes:
        wanted = expected.get(name)
        if wanted is not None and kind != wanted:
            raise InputError(
                "an attribute has the wrong type",
                where=f"attribute '{name}'",
                expected=_name(wanted),
                found=_name(kind),
            )


def _name(number: int) -> str:
    return next((kind.name.lower() for kind in ir.AttributeType if kind.value == number), f"type {number}")
