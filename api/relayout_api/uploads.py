"""ONNX models from strangers: parsed once, and refused if any part of them, wherever it is, points to a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from relayout.errors import InputError

__all__ = ["parse_model"]


def parse_model(body: bytes) -> onnx.ModelProto | bytes:
    """The model that `body` holds, or `body` itself where it holds none: its reader says best what is wrong with it.

    `read_model` refuses external data too, where it comes across them. This looks at every tensor there is, so that
    nothing that works on the model later, be it a runtime's loader, can be led to a file. Raises InputError.
    """
    model = onnx.ModelProto()
    try:
        model.ParseFromString(body)
    except Exception:
        return body
    for tensor in _tensors(model):
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
    """Every tensor in a message, however deep. protobuf has bounded the depth already."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in [value] if hasattr(value, "ListFields") else value:
            if isinstance(inner, onnx.TensorProto):
                yield inner
            else:
                yield from _tensors(inner)
