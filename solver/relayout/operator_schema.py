"""What ONNX's own definitions say of an operator: how many operands it takes, which attributes, of which types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx
import onnx_ir as ir

from relayout.errors import InputError

__all__ = ["attribute_type", "check_node"]

Versions = Mapping[str, int]


@lru_cache(maxsize=4096)
def _schema(op: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return None


def attribute_type(op: str, domain: str, versions: Versions, name: str) -> ir.AttributeType | None:
    """The type that the operator's definition gives the attribute `name`; None for what ONNX does not define."""
    schema = _schema(op, domain, versions.get(domain, 1))
    if schema is None or name not in schema.attributes:
        return None
    return ir.AttributeType(int(schema.attributes[name].type))


def check_node(node: onnx.NodeProto, versions: Versions, where: str) -> None:
    """InputError where a node is none of its operator; operators that ONNX does not define may be anything."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = _schema(node.op_type, domain, versions.get(domain, 1))
    if schema is None:
        return
    sides = (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    )
    for side, count, least, most in sides:
        if not least <= count <= most:
            raise InputError(
                f"an operator with the wrong number of {side}",
                where=where,
                expected=f"{least} to {most}" if most < 1 << 31 - 1 else f"at least {least}",
                found=str(count),
            )
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, definition in schema.attributes.items():
        attribute = given.get(name)
        if attribute is None and definition.required:
            raise InputError("an operator lacks an attribute", where=where, expected=f"'{name}'", found="none")
        if attribute is not None and attribute.type != int(definition.type):
            raise InputError(
                "an attribute has the wrong type",
                where=f"{where}, attribute '{name}'",
                expected=_name(int(definition.type)),
                found=_name(attribute.type),
            )


def _name(number: int) -> str:
    return ir.AttributeType(number).name.lower()
