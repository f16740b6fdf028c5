"""ONNX models of callers: parsed once, and refused if any part of them refers to a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from relayout.errors import InputError
from relayout.model.onnx_file import Parsed, parse

# By the first bytes, what is often sent in place of a model, and how it is sent rightly.
_OTHERS = {
    b"{": ("JSON", 'send graph JSON as {"graph": ...}, with Content-Type: application/json'),
    b"\x1f\x8b": ("gzip", "send it with Content-Encoding: gzip"),
}


def parse_model(body: bytes | memoryview) -> Parsed | bytes:
    """The model in `body`, or `body` itself if it is of an unknown format, for `read_model` to report the fault.

    `read_model` refuses external data too, in the tensors that it reads. This function checks every tensor, so that no
    later reader, such as a runtime's loader, opens a file. Raises InputError.
    """
    if not body:
        raise InputError("there is no model", where="body", expected="an ONNX model", found="0 bytes")
    try:
        model = parse(body)
    except Exception:
        whole = bytes(body)
        for start, (found, hint) in _OTHERS.items():
            if whole.lstrip().startswith(start):
                raise InputError(
                    "not an ONNX model", where="body", expected="a protobuf ModelProto", found=found, hint=hint
                ) from None
        return whole
    for tensor in _tensors(model.proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise InputError(
                "external data is not accepted here",
                where=f"tensor '{tensor.name}'",
                expected="weights inside the model, or none at all",
                found="a reference to a file",
                hint="save the model with its weights inside",
            )
    return model


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Every tensor in a message, at any depth; protobuf bounds the depth."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in [value] if hasattr(value, "ListFields") else value:
            if isinstance(inner, onnx.TensorProto):
                yield inner
            else:
                yield from _tensors(inner)
