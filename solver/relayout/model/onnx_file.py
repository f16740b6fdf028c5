"""Writing an onnx_ir.Model to an ONNX file, tensor by tensor.

A protobuf message is the concatenation of its fields in any order, so the graph without its constants can be encoded by
protobuf and the constants appended one at a time: a weight is in memory only while it is being written. If the weights
exceed a protobuf's limit or came from a file, their data is written to `<name>.data` beside the model.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InternalError, UsageError
from relayout.layout.relaid_constant import AbsentTensor, is_one_of
from relayout.model.external_data import is_in_file
from relayout.model.proto_graphs import copy_fields
from relayout.model.typed_values import proto_of

__all__ = ["Encoded", "encoded", "replace_file", "write_inside", "write_onnx"]

MOST_READ = (1 << 31) - 1
"""The limit of protobuf on the bytes of one message."""

LARGEST_FILE = 2_000_000_000
"""Bytes of constants that are written into one message, with room for the graph around them."""

SMALLEST_OUTSIDE = 1024
PAGE = 4096

MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_RAW_DATA = 9


class Encoded(Struct, frozen=True):
    """A model in the bytes of a file: `model` without the graph, and `graph` without its initializers."""

    model: bytes
    graph: bytes


def encoded(proto: onnx.ModelProto) -> Encoded:
    """The bytes of a model, which is as before when this returns. Its initializers are not read."""
    graph, head, aside = proto.graph, onnx.ModelProto(), onnx.GraphProto()
    aside.initializer.extend(graph.initializer)
    del graph.initializer[:]
    written = graph.SerializeToString(deterministic=True)
    graph.initializer.extend(aside.initializer)
    copy_fields(proto, head, left_out="graph")
    return Encoded(head.SerializeToString(deterministic=True), written)


def _encoded(model: ir.Model) -> Encoded:
    return encoded(proto_of(model, lambda value: False))


def write_onnx(model: ir.Model, path: Path, written: Encoded | None = None) -> None:
    """Write `model` to `path` atomically: at any time the path has the old file or the whole new one. `written` are the
    model's bytes, where the caller has them."""
    written, constants = written or _encoded(model), _constants(model)
    size = len(written.graph) + sum(each.size for each in constants)
    outside = size > LARGEST_FILE or any(is_in_file(each.tensor) for each in constants)
    with contextlib.ExitStack() as stack:
        # The contexts exit in the opposite order: the data is in place before a model refers to it.
        file = stack.enter_context(replace_file(path))
        data = stack.enter_context(replace_file(path.with_name(f"{path.name}.data"))) if outside else None
        _write(written, constants, file, data, f"{path.name}.data")


def write_inside(model: ir.Model, file: BinaryIO, written: Encoded | None = None) -> None:
    """Write `model` to an open file with all constants inside; `written` is that of `write_onnx`."""
    _write(written or _encoded(model), _constants(model), file, None, "")


class _Constant(Struct, frozen=True):
    """An initializer, with the number of bytes of its data, which onnx_ir computes anew for each question."""

    name: str
    tensor: ir.TensorProtocol
    size: int


def _constants(model: ir.Model) -> list[_Constant]:
    found = []
    for value in model.graph.initializers.values():
        if value.const_value is None:
            raise InternalError("a constant has no data", where=f"constant '{value.name}'")
        found.append(_Constant(value.name or "", value.const_value, value.const_value.nbytes))
    return found


def _write(
    written: Encoded, constants: Sequence[_Constant], file: BinaryIO, data: BinaryIO | None, location: str
) -> None:
    heads = [_head(each, data, location) for each in constants]
    file.write(written.model)
    framed = (len(_frame(GRAPH_INITIALIZER, len(head) + inside)) + len(head) + inside for head, inside in heads)
    file.write(_frame(MODEL_GRAPH, len(written.graph) + sum(framed)))
    file.write(written.graph)
    for constant, (head, inside) in zip(constants, heads, strict=True):
        file.write(_frame(GRAPH_INITIALIZER, len(head) + inside) + head)
        if inside:
            _write_data(constant, file)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces `path` when all is written and is removed if anything fails."""
    target = os.path.realpath(path)
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise UsageError(
                "the file cannot be written", where=f"file {path}", found=error.strerror or str(error)
            ) from error
        raise


def _head(constant: _Constant, data: BinaryIO | None, location: str) -> tuple[bytes, int]:
    """A TensorProto up to its data, and the number of bytes of data that follow; external data is written here."""
    tensor, size = constant.tensor, constant.size
    if is_one_of(tensor, AbsentTensor, ir.StringTensor):
        proto = ir.to_proto(tensor)
        proto.name = constant.name
        return proto.SerializeToString(deterministic=True), 0
    proto = onnx.TensorProto(name=constant.name, data_type=tensor.dtype.value, dims=list(tensor.shape.numpy()))
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    for key, text in tensor.metadata_props.items():
        proto.metadata_props.add(key=key, value=text)
    if data is None or size < SMALLEST_OUTSIDE:
        return proto.SerializeToString(deterministic=True) + _frame(TENSOR_RAW_DATA, size), size
    # Aligned to pages, so that a runtime can map each weight by itself.
    data.write(bytes(-data.tell() % PAGE))
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", str(data.tell())), ("length", str(size))):
        proto.external_data.add(key=key, value=text)
    _write_data(constant, data)
    return proto.SerializeToString(deterministic=True), 0


def _write_data(constant: _Constant, file: BinaryIO) -> None:
    start = file.tell()
    writable: Any = constant.tensor  # every tensor of onnx_ir can be written, but its protocol lacks the method
    writable.tofile(file)
    if file.tell() - start != constant.size:
        raise InternalError(
            "a constant's data does not fit its shape",
            where=f"constant '{constant.name}'",
            expected=f"{constant.size} bytes",
            found=f"{file.tell() - start} bytes",
        )


def _frame(field: int, length: int) -> bytes:
    """The head of a length-delimited protobuf field: its number and wire type 2, then the length, as varints."""
    return _varint(field << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
