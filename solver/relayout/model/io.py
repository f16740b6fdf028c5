"""Reading and writing of models: ONNX files, bytes or protobufs, `onnx_ir.Model`s and graph JSON.

`read_model` returns a model that is valid by construction: the structure is checked, local functions are inlined (all
but those of the domain `relayout`), nodes are in topological order, every value has the type and shape that can be
inferred. It shares only tensors with the source, and they are never changed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InputError, RelayoutError, UsageError
from relayout.model.collector import collector_paused
from relayout.model.external_data import Folder
from relayout.model.onnx_file import (
    LARGEST_FILE,
    MOST_READ,
    Encoded,
    Parsed,
    parse,
    replace_file,
    write_inside,
    write_onnx,
)
from relayout.model.reading import (
    DECLARED_KEY,
    WARNINGS_KEY,
    Declared,
    Opened,
    detached,
    model_from,
    normalized,
    with_input_shapes,
    without_output_shapes,
)
from relayout.ops.node_reader import extents_of

if TYPE_CHECKING:
    from relayout.model.graph_json.schema import GraphJson

Source: TypeAlias = "str | os.PathLike[str] | bytes | Parsed | onnx.ModelProto | ir.Model | GraphJson | dict[str, Any]"

_SOURCES = "a path, ONNX bytes, a ModelProto, an onnx_ir.Model or a graph-JSON dict"

# The first bytes of files that are taken for a model, the kind of file, and a hint.
_OTHER_FORMATS = {
    b"\x1f\x8b": ("gzip", "unpack it with gunzip; - reads a model from a pipe: gunzip -c FILE | relayout inspect -"),
    b"PK\x03\x04": ("a zip archive, as torch.save and Keras write", "export it to ONNX, or unpack it"),
    b"\x89HDF": ("HDF5, as Keras writes", "export it to ONNX"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it with zstd -d"),
    b"version https://git-lfs": ("a pointer of Git LFS", "git lfs pull fetches the file; in CI, check out with LFS"),
    b"<!DOCTYPE": ("a web page", "the address it came from is that of a page about the file"),
    b"<!doctype": ("a web page", "the address it came from is that of a page about the file"),
    b"<html": ("a web page", "the address it came from is that of a page about the file"),
}
# The mark of TFLite files, and its place.
_TFLITE, _TFLITE_PLACE = ("TFLite", "export it to ONNX, as tf2onnx does"), slice(4, 8)


@collector_paused()
def read_model(
    source: Source,
    *,
    external_data: bool = True,
    bodies: bool = True,
    convert_opset: bool = True,
    digest: str | None = None,
) -> ir.Model:
    """Read a model from a path (.onnx or .json), ONNX bytes, a ModelProto, an onnx_ir.Model or graph JSON.

    Weights in files stay there and are mapped when read. With `external_data=False` a model that refers to a file is
    refused before any path is accessed. A constant without data becomes an `AbsentTensor`. An operator of the domain
    `relayout` without a body gets one, unless `bodies` is False. A model of opset 1 to 6 is lifted to opset 7, with a
    warning, unless `convert_opset` is False. `digest` is the SHA-256 of the model's file, where the caller knows it.

    Raises InputError, with location, expectation and finding, for an invalid model.
    """
    with _readable(str(source) if isinstance(source, str | os.PathLike) else "model"):
        # Nothing keeps what a stage does not return: most memory is needed in the last one.
        light = detached(_open(source, external_data, digest), convert_opset=convert_opset)
        return model_from(normalized(light, bodies=bodies))


@collector_paused()
def reader_at_sizes(model: ir.Model) -> Callable[[Mapping[str, Sequence[int]]], ir.Model]:
    """A function that gives the model where inputs have the shapes that it is given, by name: all others are inferred
    from them, and not those declared. The model must not change while the function is in use.

    Both raise InputError, the function where operators do not fit their operands then.
    """
    with _readable("model"):
        light = detached(_open(model, True, None), convert_opset=False)

    @collector_paused()
    def read(shapes: Mapping[str, Sequence[int]]) -> ir.Model:
        with _readable("model"):
            return model_from(normalized(with_input_shapes(light, shapes), bodies=False))

    return read


@collector_paused()
def read_without_outputs(model: ir.Model, names: Set[str]) -> ir.Model:
    """The model where nothing is declared for the outputs of these names, nor for inner values.

    Raises InputError where operators do not fit their operands then.
    """
    with _readable("model"):
        light = detached(_open(model, True, None), convert_opset=False)
        return model_from(normalized(without_output_shapes(light, names), bodies=False))


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """onnx, onnx_ir and protobuf raise errors of any type on invalid input; the user gets a message, no traceback."""
    try:
        yield
    except RelayoutError:
        raise
    except Exception as error:
        found, expected = f"{type(error).__name__}: {str(error)[:500]}", "a valid ONNX model or graph JSON"
        raise InputError("the model cannot be read", where=where, expected=expected, found=found) from error


def is_read(model: ir.Model) -> bool:
    """Whether `read_model` made this model."""
    return WARNINGS_KEY in model.meta


def warnings_of(model: ir.Model) -> tuple[str, ...]:
    """Warnings about changes to the model on reading."""
    return tuple(model.meta.get(WARNINGS_KEY, ()))


def declared_extents(model: ir.Model, side: str) -> Mapping[str, tuple[Declared, ...] | None]:
    """The extents of the inputs or outputs, by name, as the source of a model declares them: inference may know more.

    None for a value without a shape; `side` is "input" or "output". A model that could not be read has its own.
    """
    declared: Mapping[str, Mapping[str, tuple[Declared, ...] | None]] | None = model.meta.get(DECLARED_KEY)
    if declared is not None:
        return declared[side]
    values = model.graph.inputs if side == "input" else model.graph.outputs
    return {value.name or "": extents_of(value) for value in values}


@collector_paused()
def to_proto(model: ir.Model) -> onnx.ModelProto:
    """`model` as one protobuf with its weights inside. Raises InputError if they exceed a protobuf's limit."""
    _check_size(model)
    return ir.to_proto(model)


@collector_paused()
def write_whole(model: ir.Model, file: BinaryIO, written: Encoded | None = None) -> None:
    """Write `model` to an open file as ONNX, with its weights inside. The errors are those of `to_proto`; `written` is
    as in `write_model`."""
    _check_size(model)
    write_inside(model, file, written)


def _check_size(model: ir.Model) -> None:
    total = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    if total > LARGEST_FILE:
        raise InputError(
            "the model is too large for one protobuf",
            where=f"graph '{model.graph.name}'",
            expected=f"at most {LARGEST_FILE} bytes of constants",
            found=f"{total} bytes",
            hint="write it to a file; its weights are then written beside it",
        )


@collector_paused()
def to_json(model: ir.Model, *, weights: bool = True, shares: bool = False) -> dict[str, Any]:
    """`model` as graph JSON, version 1.

    Without `weights` only constants up to 1 KiB have data; the others have `transform`, the steps from the source's
    data to theirs, if there are any. An absent constant has no data in either case. With `shares` nodes may share
    objects, for a caller that encodes the result and changes nothing in it.
    """
    # Only here and in `_parse_json`: most runs read and write no JSON, and its schema is slow to import.
    from relayout.model.graph_json.codec import model_to_json

    return model_to_json(model, weights=weights, shares=shares)


@collector_paused()
def write_model(model: Source, path: str | os.PathLike[str], written: Encoded | None = None) -> None:
    """Write `model` to an .onnx or a .json file; a kill leaves the old file or the whole new one, never a part.

    A model of another kind than onnx_ir.Model is read first, as `read_model` does. ONNX: constants are written to the
    file one at a time, or to `<name>.data` beside it if they came from such a file or exceed 2 GB together. Raises
    UsageError for a path that cannot be written, and the errors of `read_model`.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        expected = f"a name ending in {' or '.join(FORMATS)}"
        raise UsageError("unknown kind of file", where=f"file {path}", expected=expected)
    FORMATS[path.suffix].write(model if isinstance(model, ir.Model) else read_model(model), path, written)


# --- from the source to a parsed model --------------------------------------------------------------------------------


def _open(source: Source, accepts_external: bool, digest: str | None) -> Opened:
    """The source as a protobuf or an onnx_ir.Model. Of the bytes of a file, only data of large constants are kept."""
    folder, is_ours = Folder(None, accepts_external), True
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        folder = Folder(str(path.parent), accepts_external)
        format_ = FORMATS.get(path.suffix, FORMATS[".onnx"])
        data = _read_file(path, format_)
        digest, source = None, format_.parse(data, f"file {path}")
    elif isinstance(source, bytes | bytearray | memoryview):
        digest, source = None, _parse(bytes(source), "the bytes given")
    else:
        is_ours = not isinstance(source, Parsed | onnx.ModelProto)
    if isinstance(source, Parsed):
        digest = digest or sha256(source.file).hexdigest()
        return Opened(source.proto, folder, digest, is_ours, source.data)
    if not isinstance(source, ir.Model | onnx.ModelProto):
        source = _parse_json(source)
    return Opened(source, folder, digest, is_ours, {})


def _read_file(path: Path, format_: FileFormat) -> bytes:
    largest = format_.largest
    try:
        size = path.stat().st_size
        if size > largest:
            raise InputError(
                "the file is larger than protobuf can hold",
                where=f"file {path}",
                expected=f"at most {largest} bytes",
                found=f"{size} bytes",
                hint="weights beyond that are external data, in files of their own",
            )
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            "the model file cannot be read",
            where=f"file {path}",
            expected="a file with an ONNX model or graph JSON",
            found="a folder" if path.is_dir() else error.strerror or str(error),
        ) from error
    if not data:
        raise InputError("the file is empty", where=f"file {path}", expected=format_.contents, found="0 bytes")
    return data


def _parse(data: bytes, where: str) -> Parsed:
    try:
        return parse(data)
    except Exception as error:
        found, hint = _kind_of(data)
        raise InputError(
            "not an ONNX model",
            where=where,
            expected="a protobuf ModelProto",
            found=f"{len(data)} bytes that do not parse: {found}",
            hint=hint,
        ) from error


def _kind_of(data: bytes) -> tuple[str, str]:
    """The kind of file that was taken for a model, and a hint."""
    for magic, kind in _OTHER_FORMATS.items():
        if data.startswith(magic):
            return kind
    if data[_TFLITE_PLACE] == b"TFL3":
        return _TFLITE
    if data.lstrip()[:1] == b"{":
        return "truncated, or of another format", "write graph JSON to a file that ends in .json"
    start = data[:1000]
    if start.isascii() and start.decode().replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        return "text", "export the model in ONNX's binary format"
    return "truncated, or of another format", ""


def _load_json(data: bytes, where: str) -> dict[str, Any]:
    from relayout.model.graph_json.schema import load_json

    return load_json(data, where)


def _write_json(model: ir.Model, path: Path, written: Encoded | None) -> None:
    text = json.dumps(to_json(model, shares=True), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    with replace_file(path) as file:
        file.write(text.encode())


def _parse_json(source: object) -> onnx.ModelProto:
    from relayout.model.graph_json.codec import json_to_proto
    from relayout.model.graph_json.schema import GraphJson, validate

    if isinstance(source, dict):
        source = validate(GraphJson, source, "graph JSON")
    if not isinstance(source, GraphJson):
        raise UsageError("not a model", expected=_SOURCES, found=type(source).__name__)
    return json_to_proto(source)


class FileFormat(Struct, frozen=True):
    """The files of one suffix: their contents, parser and largest size, and the writer of models to them."""

    contents: str
    parse: Callable[[bytes, str], Parsed | dict[str, Any]]
    write: Callable[[ir.Model, Path, Encoded | None], None]
    largest: float = math.inf


FORMATS: Mapping[str, FileFormat] = {
    ".onnx": FileFormat("an ONNX model", _parse, write_onnx, MOST_READ),
    ".json": FileFormat("graph JSON", _load_json, _write_json),
}
"""By suffix. A file of any other suffix is read as ONNX, and none is written."""
