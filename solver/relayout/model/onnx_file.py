"""ONNX files: parsing and writing them without their weights, which no protobuf then holds.

The data of a constant are a field inside a field inside a field of a file:

    ModelProto { graph = 7 { initializer = 5 { raw_data = 9 } } }

Protobuf copies them when it parses them, and again each time they are read. A walk over these three messages finds
them, and they stay in the bytes of the file. The walk stops at the first field of an unusual encoding; protobuf parses
all fields from there on. If the file without its weights does not parse, protobuf parses the whole file. So all errors
are protobuf's own.

A message is the concatenation of its fields in any order, so the graph without its constants can be encoded by
protobuf and the constants appended one at a time: a weight is in memory only while it is being written. If the weights
exceed a protobuf's limit or came from a file, their data is written to `<name>.data` beside the model.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InternalError, UsageError
from relayout.layout.relaid_constant import AbsentTensor, is_one_of
from relayout.model.external_data import is_in_file
from relayout.model.opset_conversion import is_lifted
from relayout.model.proto_graphs import copy_fields
from relayout.model.serialization import proto_of
from relayout.model.tensor_types import is_absent
from relayout.model.weights import is_small

MOST_READ = (1 << 31) - 1
"""The limit of protobuf on the bytes of one message."""

LARGEST_FILE = 2_000_000_000
"""Bytes of constants that are written into one message, with room for the graph around them."""

SMALLEST_OUTSIDE = 1024
PAGE = 4096

MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_RAW_DATA = 9

LARGE = 1 << 16
"""Bytes of a constant that are left out of the protobuf."""

BYTES_A_FIELD = 4096
"""Protobuf parses so many bytes in about the time of one step of the walk, which takes no more steps than that."""

MOST_FIELDS = 64
"""Of a model before its graph, and of a constant."""

MOST_VARINT = 10
"""Bytes of a number of 64 bits."""

_NUMBER, _BYTES = 0, 2
_GRAPH, _INITIALIZER, _RAW_DATA = (field << 3 | _BYTES for field in (MODEL_GRAPH, GRAPH_INITIALIZER, TENSOR_RAW_DATA))


class Parsed(Struct, frozen=True):
    """A file that is parsed. `data` are the large constants that `proto` lacks, by their index among its initializers:
    little-endian elements of whole bytes, as many as the constant's shape has. They are parts of `file`."""

    file: bytes | memoryview
    proto: onnx.ModelProto
    data: Mapping[int, memoryview]

    def whole(self) -> onnx.ModelProto:
        """The protobuf with all data, for what runs a model as it was given."""
        return _parsed(self.file)


def parse(file: bytes | memoryview) -> Parsed:
    """Parse the bytes of a model, which must not change. Raises protobuf's error if they are none."""
    view = memoryview(file)
    graph = _graph_in(view) if LARGE <= len(view) <= MOST_READ else None
    weights = [] if graph is None else [*_weights_in(view, graph)]
    data = {index: view[content:end] for index, _, (_, _, content, end) in weights}
    # They keep the whole file in memory, so they have to be the larger part of it.
    if graph is None or 2 * sum(map(len, data.values())) < len(view):
        return Parsed(file, _parsed(file), {})
    try:
        proto = _parsed(_without_data(view, graph, weights))
    except Exception:  # protobuf has other errors where it is written in another language
        return Parsed(file, _parsed(file), {})
    is_whole = is_lifted(proto)
    for index, own in [*data.items()]:
        tensor = proto.graph.initializer[index]
        if is_whole or not _may_lack(tensor, own):
            tensor.raw_data = bytes(data.pop(index))
    return Parsed(file, proto, data)


def _parsed(file: bytes | memoryview) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.ParseFromString(file)
    return proto


def _may_lack(tensor: onnx.TensorProto, data: memoryview) -> bool:
    """Whether a constant has these data and no others, they fit its type and shape, and no stage reads them."""
    if not is_absent(tensor) or min(tensor.dims[:], default=0) < 0:
        return False
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (TypeError, ValueError):  # no type, or one without a size
        return False
    fits = bits % 8 == 0 and math.prod(tensor.dims[:]) * bits == 8 * len(data)
    return fits and not is_small(tensor.data_type, tensor.dims[:])


# --- the walk ---------------------------------------------------------------------------------------------------------

_Part = tuple[int, int, int, int]
"""A field of a message: its key, and the offsets in the file of the field, of its content, and of its end."""

_Weight = tuple[int, _Part, _Part]
"""The index of an initializer, its field, and the field of its data."""


def _graph_in(view: memoryview) -> _Part | None:
    """The first graph of a model; protobuf appends the constants of another one to those of the first."""
    parts = islice(_parts(view, 0, len(view)), MOST_FIELDS)
    return next((part for part in parts if part[0] == _GRAPH), None)


def _weights_in(view: memoryview, graph: _Part) -> Iterator[_Weight]:
    """The large constants of a graph, as far as the walk comes."""
    index = 0
    for part in islice(_parts(view, *graph[2:]), len(view) // BYTES_A_FIELD):
        key, _, content, end = part
        if key != _INITIALIZER:
            continue
        if end - content >= LARGE:
            fields = [*islice(_parts(view, content, end), MOST_FIELDS)]
            data = [field for field in fields if field[0] == _RAW_DATA]
            # Of data that are given twice, protobuf takes the last.
            if len(data) == 1 and fields[-1][3] == end and data[0][3] - data[0][2] >= LARGE:
                yield index, part, data[0]
        index += 1


def _parts(view: memoryview, at: int, end: int) -> Iterator[_Part]:
    """The fields of a message, up to the first that is no number and no bytes, or not written in the shortest way."""
    try:
        while at < end:
            place, key, at = at, view[at], at + 1
            if key > 0x7F:
                key, at = _number_at(view, place)
            if key & 7 == _BYTES:
                size, at = view[at], at + 1
                if size > 0x7F:
                    size, at = _number_at(view, at - 1)
            elif key & 7 == _NUMBER:
                size, (_, at) = 0, _number_at(view, at)
            else:
                return
            if at + size > end:
                return
            yield key, place, at, at + size
            at += size
    except (IndexError, ValueError):
        return


def _number_at(view: memoryview, at: int) -> tuple[int, int]:
    """The number at an offset, and the offset behind it. Raises IndexError, and ValueError if it could be shorter."""
    number = 0
    for place in range(MOST_VARINT):
        byte = view[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if place and not byte:
                break
            return number, at + place + 1
    raise ValueError("no number, or longer than it must be")


def _without_data(view: memoryview, graph: _Part, weights: Sequence[_Weight]) -> bytes:
    """The file without these data."""
    _, place, at, end = graph
    parts: list[bytes | memoryview] = []
    for _, (_, field, content, last), (_, data, _, data_end) in weights:
        kept = view[content:data], view[data_end:last]
        parts += [view[at:field], _frame(GRAPH_INITIALIZER, sum(map(len, kept))), *kept]
        at = last
    parts.append(view[at:end])
    return b"".join([view[:place], _frame(MODEL_GRAPH, sum(map(len, parts))), *parts, view[end:]])


# --- writing ----------------------------------------------------------------------------------------------------------


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


def remove_unfinished(path: Path) -> None:
    """Remove what is left of writes of `path`, and of files of weights beside it, whose process was killed."""
    target = Path(os.path.realpath(path))
    for left in target.parent.glob(f".{glob.escape(target.name)}*.{'[0-9a-f]' * 16}.tmp"):
        left.unlink(missing_ok=True)


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
