"""Names of element types, and validation of protobuf tensors and types."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from relayout.errors import InputError, shortened

# The repeated field of the elements of each type if they are not raw bytes, and its entries for each element.
_FIELDS = {
    "float_data": {"FLOAT": 1.0, "COMPLEX64": 2.0},
    "double_data": {"DOUBLE": 1.0, "COMPLEX128": 2.0},
    "int64_data": {"INT64": 1.0},
    "uint64_data": {"UINT64": 1.0, "UINT32": 1.0},
    "string_data": {"STRING": 1.0},
}
_ALL_FIELDS = (*_FIELDS, "int32_data")
_PACKED = {2: 0.25, 4: 0.5}
_BY_NUMBER = {dtype.value: dtype for dtype in ir.DataType}
_BY_NAME = {dtype.name.lower(): dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED}
_NUMPY_NAMES = {"float32": "float", "float64": "double", "str": "string"}


def name_of_dtype(number: int, where: str) -> str:
    """ONNX's lower-case name of an element type, e.g. "float16". Raises InputError for an unknown number."""
    try:
        return ir.DataType(number).name.lower()
    except ValueError:
        raise InputError(
            "unknown dtype", where=where, expected="an element type that ONNX defines", found=f"number {number}"
        ) from None


def dtype_of_name(name: str, where: str) -> ir.DataType:
    """The element type of ONNX's lower-case name; NumPy's float32, float64 and str are understood too."""
    dtype = _BY_NAME.get(_NUMPY_NAMES.get(name, name))
    if dtype is None:
        raise InputError(
            "unknown dtype", where=where, expected=f"one of {', '.join(sorted(_BY_NAME))}", found=f"'{name[:40]}'"
        )
    return dtype


def is_absent(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor has elements but no data."""
    return (
        tensor.data_location != onnx.TensorProto.EXTERNAL
        and not tensor.HasField("raw_data")
        and not any(len(getattr(tensor, field)) for field in _ALL_FIELDS)
        and math.prod(tensor.dims[:]) > 0
    )


def check_text(texts: Iterable[str], where: str) -> None:
    """Raise InputError if a text is not UTF-8: protobuf returns such text as bytes."""
    given: list[str] = []
    try:
        given += texts
        "".join(given)
    except (TypeError, UnicodeDecodeError) as error:
        found = next((shortened(repr(each)) for each in given if not isinstance(each, str)), str(error))
        raise InputError("a text is not UTF-8", where=where, expected="UTF-8", found=found) from error


def check_strings(attribute: onnx.AttributeProto, where: str, *, is_standard: bool) -> None:
    """Raise InputError if a string of a list is not UTF-8. A single string may be any bytes, unless `is_standard`:
    custom operators store bytes in one."""
    try:
        for text in (*attribute.strings, *([attribute.s] if is_standard else [])):
            text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("a string is not UTF-8", where=where, expected="UTF-8", found=str(error)) from error


def check_type(proto: onnx.TypeProto, where: str) -> None:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        if tensor.elem_type not in _BY_NUMBER:
            name_of_dtype(tensor.elem_type, where)
        for axis, dim in enumerate(tensor.shape.dim):
            check_text((dim.dim_param, dim.denotation), where)
            if dim.dim_value < -1:
                raise InputError(
                    "a negative extent", where=f"{where}, axis {axis}", expected="0 or more", found=str(dim.dim_value)
                )
    elif kind in ("sequence_type", "optional_type"):
        inner = getattr(proto, kind).elem_type
        if inner.WhichOneof("value") is None:
            raise InputError(f"a {kind} of nothing", where=where, expected="an elem_type", found="none")
        check_type(inner, where)
    elif kind == "map_type":
        raise InputError(
            "maps are not supported",
            where=where,
            expected="tensors, sequences or optionals",
            found="a map",
            hint="export the model without its ZipMap",
        )


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Check that a tensor's data fits its type and shape, or is absent."""
    dtype = _BY_NUMBER.get(tensor.data_type)
    if dtype is None:
        name_of_dtype(tensor.data_type, where)
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        raise InputError("a tensor has no dtype", where=where, expected="an element type", found="undefined")
    dims = tensor.dims[:]
    if min(dims, default=0) < 0:
        raise InputError("a negative extent", where=where, expected="0 or more", found=str(dims))
    count = math.prod(dims)
    if count >= 1 << 62:
        raise InputError("a tensor too large for any memory", where=where, found=f"shape {dims}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    if tensor.HasField("segment"):
        raise InputError("tensors in segments are not supported", where=where, expected="the whole tensor")
    filled = {field: held for field in _ALL_FIELDS if (held := len(getattr(tensor, field)))}
    is_raw = tensor.HasField("raw_data")
    if is_raw and dtype == ir.DataType.STRING:
        raise InputError("strings are no raw bytes", where=where, expected="string_data", found="raw_data")
    if is_raw:
        wanted, found, unit = math.ceil(dtype.itemsize * count), len(tensor.raw_data), "bytes"
    elif not filled:
        return
    else:
        field, found = filled.popitem()
        wanted, unit = math.ceil(_entries(dtype, field, where) * count), f"entries of {field}"
    if filled or wanted != found:
        raise InputError(
            "a tensor's data does not fit its shape",
            where=where,
            expected=f"{wanted} {unit} for {dtype.name.lower()} of shape {dims}",
            found=f"{found} {unit}" + (f" and {', '.join(filled)}" if filled else ""),
        )


def _entries(dtype: ir.DataType, field: str, where: str) -> float:
    if field == "int32_data" and dtype.name not in {name for kinds in _FIELDS.values() for name in kinds}:
        return _PACKED.get(dtype.bitwidth, 1.0)
    entries = _FIELDS.get(field, {}).get(dtype.name)
    if entries is None:
        raise InputError(
            "a tensor's data is of another type", where=where, expected=dtype.name.lower(), found=f"entries in {field}"
        )
    return entries
