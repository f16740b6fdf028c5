"""Tensors and types as JSON, without loss.

Floats that JSON lacks are "nan", "inf" and "-inf". Types other than tensors wrap the element type: seq(float16),
optional(seq(int64)), sparse(float).
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from relayout.errors import InputError
from relayout.layout.relaid_constant import AbsentTensor, check_steps, is_one_of, transform_of
from relayout.model.graph_json.schema import ConstantJson
from relayout.model.tensor_types import dtype_of_name

MOST_VALUES = 64
MOST_NESTED_TYPES = 8
DEEPEST = 64
SMALL = 1024
"""Constants up to this many bytes are written even without weights: shapes, axes, scales."""

_WRAPPERS = {"seq": "sequence_type", "optional": "optional_type"}


# --- types -----------------------------------------------------------------------------------------------------------


def type_name(kind: ir.TypeProtocol | None) -> str | None:
    """ "float16" for a tensor, "seq(float16)" for a sequence of them, and so on."""
    if kind is None:
        return None
    if type(kind) is ir.TensorType:
        return _name_of(kind.dtype)
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return f"{'seq' if isinstance(kind, ir.SequenceType) else 'optional'}({type_name(kind.elem_type)})"
    name = _name_of(kind.dtype)
    return f"sparse({name})" if isinstance(kind, ir.SparseTensorType) else name


@cache
def _name_of(dtype: ir.DataType) -> str:
    # The names of an enum's members are slow to look up.
    return dtype.name.lower()


def type_proto(name: str, shape: Sequence[int | str | None] | None, where: str) -> onnx.TypeProto:
    """The type with this name, for tensors of `shape`."""
    outer = proto = onnx.TypeProto()
    rest = name
    for _ in range(MOST_NESTED_TYPES):
        head, _open, inner = rest.partition("(")
        if head not in _WRAPPERS or not inner.endswith(")"):
            break
        proto = getattr(proto, _WRAPPERS[head]).elem_type
        rest = inner[:-1]
    sparse = rest.startswith("sparse(") and rest.endswith(")")
    tensor = proto.sparse_tensor_type if sparse else proto.tensor_type
    tensor.elem_type = dtype_of_name(rest[7:-1] if sparse else rest, where).value
    if shape is not None:
        tensor.shape.SetInParent()
    for extent in shape or ():
        dim = tensor.shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        elif extent is not None:
            dim.dim_param = extent
    return outer


# --- tensors ---------------------------------------------------------------------------------------------------------


def tensor_to_json(tensor: ir.TensorProtocol, *, weights: bool = True) -> dict[str, Any]:
    """`dtype`, `shape` and data of a tensor; without `weights` only data up to 1 KiB, else the steps of `transform`."""
    # onnx_ir makes the type and the shape of an encoded tensor anew for each question.
    dtype = tensor.dtype
    shape = tensor.raw.dims[:] if is_one_of(tensor, ir.TensorProtoTensor) else list(tensor.shape.numpy())
    given: dict[str, Any] = {"dtype": _name_of(dtype), "shape": shape}
    if tensor.doc_string:
        given["doc"] = tensor.doc_string
    size = math.prod(shape)
    is_text = dtype == ir.DataType.STRING
    if is_one_of(tensor, AbsentTensor) or not (
        weights or (tensor.nbytes <= SMALL if is_text else size * dtype.bitwidth <= 8 * SMALL)
    ):
        steps = [dict(step) for step in transform_of(tensor)]
        return given | ({"transform": steps} if steps else {})
    if is_text:
        return given | {"values": [_decoded(text, tensor.name) for text in tensor.numpy().ravel().tolist()]}
    if size <= MOST_VALUES and (dtype.is_integer() or dtype == ir.DataType.BOOL):
        return given | {"values": tensor.numpy().ravel().tolist()}
    return given | {"data": base64.b64encode(tensor.tobytes()).decode("ascii")}


def _decoded(text: bytes, name: str | None) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"tensor {name}" if name else "a tensor"
        raise InputError("a string is not UTF-8", where=where, expected="the text of JSON", found=str(error)) from None


def constant_to_proto(constant: ConstantJson, where: str) -> onnx.TensorProto:
    """The tensor of a constant; without data if the JSON has none."""
    dtype = dtype_of_name(constant.dtype, where)
    if (constant.data is not None) + (constant.values is not None) + bool(constant.transform) > 1:
        raise InputError(
            "a constant has its data twice", where=where, expected="one of data, values, transform or none"
        )
    if constant.data is None and constant.values is None and math.prod(constant.shape) > 0:
        steps = [step.model_dump(by_alias=True, exclude_none=True) for step in constant.transform]
        check_steps(constant.shape, steps, where)
        return AbsentTensor(dtype, constant.shape, constant.name, steps, doc_string=constant.doc).raw
    proto = onnx.TensorProto(name=constant.name, data_type=dtype.value, dims=constant.shape)
    if constant.doc:
        proto.doc_string = constant.doc
    if constant.data is None:
        elements = _elements(constant.values or [], math.prod(constant.shape), where)
        if dtype == ir.DataType.STRING:
            proto.string_data.extend(text_of(element, where).encode() for element in elements)
        else:
            proto.raw_data = _pack(elements, dtype, where)
        return proto
    try:
        proto.raw_data = base64.b64decode(constant.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            "a constant's data is not base64", where=f"{where}, data", expected="base64", found=str(error)
        ) from error
    return proto


def _elements(values: Sequence[Any], count: int, where: str) -> list[Any]:
    """Flatten nested lists; the shape is checked elsewhere. A list that contains itself is an error."""
    for _ in range(DEEPEST):
        if not values or not all(isinstance(value, list) for value in values):
            break
        values = [element for value in values for element in value]
    if len(values) != count or any(isinstance(value, dict | list) for value in values):
        raise InputError(
            "a constant's values do not fit its shape",
            where=f"{where}, values",
            expected=f"{count} elements",
            found=f"{len(values)}, some of them lists or objects" if len(values) == count else str(len(values)),
        )
    return list(values)


def _pack(elements: list[Any], dtype: ir.DataType, where: str) -> bytes:
    """The elements as ONNX's raw data: little-endian, those below a byte packed."""
    where = f"{where}, values"
    if dtype == ir.DataType.BOOL:
        return ir.Tensor(np.array(_of_kind(elements, (bool,), dtype, where), dtype=np.bool_), dtype=dtype).tobytes()
    if dtype.is_integer():
        whole = _of_kind(elements, (int,), dtype, where)
        signed = dtype.is_signed()
        span = range(-(1 << dtype.bitwidth - 1) if signed else 0, 1 << dtype.bitwidth - signed)
        if whole and not (min(whole) in span and max(whole) in span):
            raise _out_of_range(dtype, where)
        wide = np.array(whole, dtype=np.int64 if signed else np.uint64)
        if dtype.bitwidth >= 8:
            return wide.astype(dtype.numpy().newbyteorder("<")).tobytes()
        return ir.Tensor(wide.astype(dtype.numpy()), dtype=dtype).tobytes()
    named = [number_of(element, where) if isinstance(element, str) else element for element in elements]
    try:
        reals = np.array(_of_kind(named, (int, float), dtype, where), dtype=np.float64)
    except OverflowError:
        raise _out_of_range(dtype, where) from None
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = reals.astype(dtype.numpy())
    if np.any(np.isfinite(reals) & ~np.isfinite(narrow)):
        raise _out_of_range(dtype, where)
    return ir.Tensor(narrow, dtype=dtype).tobytes()


def _of_kind(elements: list[Any], kinds: tuple[type, ...], dtype: ir.DataType, where: str) -> list[Any]:
    for element in elements:
        if not isinstance(element, kinds) or (isinstance(element, bool) and bool not in kinds):
            raise InputError(
                "a constant's element has the wrong type",
                where=where,
                expected=dtype.name.lower(),
                found=repr(element)[:80],
            )
    return elements


def _out_of_range(dtype: ir.DataType, where: str) -> InputError:
    return InputError(
        "a constant's element is out of range",
        where=where,
        expected=f"elements that {dtype.name.lower()} has",
        found="one that is too large or too small",
    )


# --- scalars ---------------------------------------------------------------------------------------------------------


def number_of(value: float | str, where: str) -> float:
    """The number of a JSON number, or of the name of one that JSON lacks."""
    if isinstance(value, str):
        if value not in ("nan", "inf", "-inf"):
            raise InputError("not a number", where=where, expected='a number, "nan", "inf" or "-inf"', found=value[:80])
        return float(value)
    return float(value)


def text_of(value: object, where: str) -> str:
    """`value`, which has to be a string."""
    if not isinstance(value, str):
        raise InputError("not a string", where=where, expected="a string", found=repr(value)[:80])
    return value


def bytes_of(value: Any, kind: str, where: str) -> Any:
    """The bytes of a base64 string; a list of them if `kind` is "strings"."""
    try:
        if kind == "strings" and isinstance(value, list):
            return [base64.b64decode(item, validate=True) for item in value]
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InputError("not base64", where=where, expected="base64", found=repr(value)[:80]) from error
