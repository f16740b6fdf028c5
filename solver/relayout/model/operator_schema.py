"""ONNX's operator schemas: the number of operands, and the attributes with their types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InputError, did_you_mean, shortened
from relayout.ops.operand_roles import OWN_DOMAIN

Versions = Mapping[str, int]
ANY_NUMBER = (1 << 31) - 1
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
LAYOUT_PAIRS = (("source_layout", "target_layout"), ("src_layout", "dst_layout"))
"""The attributes by which a Transpose or a layout_transform may say its layouts, in ONNX's own domain too."""
_OF_LAYOUTS = {"Transpose": frozenset(name for pair in LAYOUT_PAIRS for name in pair)}
_CHECKED_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.training"})
"""Where onnx.checker refuses an operator that ONNX does not define."""
_UNDEFINED = frozenset(
    # onnxruntime has these in ONNX's own domain, in every opset.
    "LayerNormalization MeanVarianceNormalization SimplifiedLayerNormalization ThresholdedRelu "
    # onnx.checker accepts these, which were experiments before opset 10.
    "ATen Affine ConstantFill Crop DynamicSlice GRUUnit GivenTensorFill ImageScaler ParametricSoftplus Scale "
    "ScaledTanh "
    # relayout reads this one of TVM.
    "layout_transform".split()
)
"""Operators in ONNX's own domain that need no definition of ONNX."""
_NOT_OF_ONNX = (
    "An exporter such as tf2onnx leaves an operator here that it cannot convert: build the network without it. "
    "An operator of your own needs a domain of its own."
)
_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class _Definition(Struct, frozen=True):
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: frozenset[int]
    """The inputs that are never left out, nor in the newest version: some models leave out the `roi` of a Resize before
    opset 13."""
    repeated: int
    """From this input on, any number may follow, all of one type and none left out."""
    attributes: Mapping[str, int]
    required: tuple[str, ...]
    is_deprecated: bool


def _schema(op: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """The operator's schema in this version of its domain; None if ONNX does not define it."""
    try:
        return onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return None


@lru_cache(maxsize=4096)
def _definition(op: str, domain: str, version: int) -> _Definition | None:
    schema = _schema(op, domain, version)
    if schema is None:
        return None
    return _Definition(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        _single(schema) & _single(onnx.defs.get_schema(op, domain=domain)),
        _first_repeated(schema),
        {name: attribute_number(attribute) for name, attribute in schema.attributes.items()},
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        bool(schema.deprecated),
    )


def _single(schema: onnx.defs.OpSchema) -> frozenset[int]:
    return frozenset(index for index, each in enumerate(schema.inputs) if each.option == _SINGLE)


def _first_repeated(schema: onnx.defs.OpSchema) -> int:
    """The index of the input that stands for any number of the same type; above all indices where there is none."""
    last = schema.inputs[-1] if schema.inputs else None
    is_repeated = last is not None and last.option == _VARIADIC and last.is_homogeneous
    return len(schema.inputs) - 1 if is_repeated else ANY_NUMBER


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
    schema = _schema(op, domain, version)
    if schema is None:
        return (), ()
    variables = {constraint.type_param_str for constraint in schema.type_constraints}

    def of(operands: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[str, ...]:
        return tuple(operand.type_str if operand.type_str in variables else "" for operand in operands)

    return of(schema.inputs), of(schema.outputs)


@lru_cache(maxsize=1024)
def takes_type(op: str, version: int, dtype: ir.DataType | None) -> bool:
    """Whether the first operand of ONNX's operator may have elements of this type; True if either is not known."""
    schema = _schema(op, "", version)
    if schema is None or dtype is None or dtype == ir.DataType.UNDEFINED:
        return True
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    return f"tensor({dtype.name.lower()})" in allowed[schema.inputs[0].type_str]


def since(op: str, domain: str, version: int) -> int | None:
    """The version since which the schema at `version` is valid; None if ONNX does not define the operator."""
    schema = _schema(op, domain, version)
    return None if schema is None else int(schema.since_version)


def attribute_number(attribute: onnx.defs.OpSchema.Attribute) -> int:
    """The attribute's type, as AttributeProto counts types."""
    kind: Any = attribute.type  # an enumeration by pybind11; onnx's stubs do not give it its number
    return int(kind.value)


def has_body(op: str, versions: Versions) -> bool:
    """Whether ONNX defines this standard operator by a graph of others."""
    schema: Any = _schema(op, "", versions.get("", 1))  # onnx's stubs lack these two
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def check_node(
    node: onnx.NodeProto,
    attributes: Sequence[tuple[str, int]],
    versions: Versions,
    functions: Collection[tuple[str, str]],
) -> None:
    """Raise InputError if a node, with these names and types of attributes, does not fit its operator's schema.

    Without a schema any operands fit. An operator of the domain `relayout` has the attributes of ONNX's, and layouts,
    which are text. Only operators outside ONNX's domains need none, and `functions`, the domains and names of the
    model's own. The location in the error is that within the node."""
    operator, domain = node.op_type, node.domain
    if not operator:
        raise InputError("a node has no operator", expected="an op_type", found="''")
    domain = "" if domain == "ai.onnx" else domain
    version = versions.get(domain, 1)
    definition = _definition(operator, domain, version)
    # onnx.checker looks at no operator of a domain without a version.
    is_known = domain in versions and (domain, operator) not in functions
    if is_known and (definition is None or definition.is_deprecated):
        _check_operator(operator, domain, version, is_deprecated=definition is not None)
    if definition is None:
        if domain == OWN_DOMAIN:
            layouts = [name for name, _ in attributes if name.endswith("_layout")]
            # A function for a second layout has the layout in its name, `Conv_NHWC_HWIO`.
            standard = _definition(operator.partition("_")[0], "", versions.get("", 1))
            known = standard.attributes if standard is not None else {}
            _check_types(attributes, {**known, **dict.fromkeys(layouts, onnx.AttributeProto.STRING)})
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
    for index, name in enumerate(node.input):
        # onnx.checker accepts one of a number of operands, and onnxruntime ends the process.
        if not name and (index in definition.needed or index >= definition.repeated):
            where = f"input {index}"
            raise InputError("an operand that ONNX requires is left out", where=where, expected="a value", found="''")
    given = {name for name, _ in attributes}
    others = given - definition.attributes.keys() if is_known else ()
    for name in sorted(others):
        # onnx and onnxruntime leave an attribute alone whose name begins so.
        if not name.startswith("__") and not (domain == "" and name in _OF_LAYOUTS.get(operator, ())):
            raise _unknown_attribute(name, operator, domain, version, definition)
    for name in definition.required:
        if name not in given:
            raise InputError("an operator lacks an attribute", expected=f"'{name}'", found="none")
    _check_types(attributes, definition.attributes)


def check_auto_pad(attribute: onnx.AttributeProto, where: str) -> None:
    """Raise InputError if the value of a standard operator's `auto_pad` is none that ONNX defines."""
    text = attribute.s.decode("utf-8", "replace")
    # onnxruntime reads empty text as the default.
    if text and text not in _AUTO_PADS and not attribute.ref_attr_name:
        raise InputError(
            "auto_pad has no such value",
            where=where,
            expected=" or ".join(_AUTO_PADS),
            found=f"'{shortened(text)}'",
        )


def _check_operator(operator: str, domain: str, version: int, *, is_deprecated: bool) -> None:
    """Raise InputError for an operator that this version of ONNX does not define, or no longer has."""
    if domain not in _CHECKED_DOMAINS or (domain == "" and operator in _UNDEFINED):
        return
    shown = f"{domain}::{operator}" if domain else operator
    opset = f"opset {version}{f' of {domain}' if domain else ''}"
    if is_deprecated:
        raise InputError(
            f"ONNX has no operator {shown} any more",
            expected=f"an operator of {opset}",
            found=f"'{operator}', which is deprecated since opset {since(operator, domain, version)}",
            hint="export the model again, or import the opset that it was made for",
        )
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == domain]
    first = min((schema.since_version for schema in schemas if schema.name == operator), default=None)
    near = did_you_mean(operator, sorted({schema.name for schema in schemas}))
    hint = (
        f"ONNX has {operator} since opset {first}: import that opset or a newer one"
        if first is not None
        else " ".join(filter(None, [near, _NOT_OF_ONNX]))
    )
    raise InputError(
        f"ONNX has no operator {shown}",
        expected=f"an operator of {opset}, or another domain",
        found=f"'{shortened(operator)}'",
        hint=hint,
    )


def _unknown_attribute(name: str, operator: str, domain: str, version: int, definition: _Definition) -> InputError:
    history = [
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.domain, schema.name) == (domain, operator) and name in schema.attributes
    ]
    hint = did_you_mean(name, sorted(definition.attributes))
    if history:
        versions = ", ".join(str(each) for each in sorted(history))
        hint = f"the versions of {operator} since opset {versions} have it; the model imports opset {version}"
    return InputError(
        f"{operator} has no such attribute",
        where=f"attribute '{shortened(name)}'",
        expected=" or ".join(f"'{each}'" for each in sorted(definition.attributes)) or "no attribute",
        found=f"'{shortened(name)}'",
        hint=hint,
    )


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
