"""Models in and out: an ONNX file, bytes or protobuf, an onnx_ir.Model or graph JSON, to and from one `onnx_ir.Model`.

What `read_model` returns is valid by construction: the structure is checked, local functions are inlined (all but those
of the domain `relayout`), nodes are in topological order, every value has the type and shape that can be inferred. It
shares tensors with the source, which nothing changes, and not one other object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde
from onnx_ir.passes.common import InlinePass

from relayout.errors import InputError, InternalError, LayoutSyntaxError, RelayoutError, UsageError
from relayout.graph_codec import BOUNDARY_LAYOUT_KEY, json_to_proto, model_to_json
from relayout.graph_json import GraphJson, load_json, validate
from relayout.layout import Layout
from relayout.onnx_file import LARGEST_FILE, replace_file, write_onnx
from relayout.shape_inference import all_graphs, infer_shapes, without_weights
from relayout.structure import OLDEST_OPSET, check_structure
from relayout.tensor_types import is_absent
from relayout.tensors import AbsentTensor, FileTensor, is_in_file, share

__all__ = ["Source", "read_model", "to_json", "to_proto", "warnings_of", "write_model"]

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | GraphJson | dict[str, Any]

OLDEST_IR_VERSION_WITH_CONSTANTS = 4
_SOURCES = "a path, ONNX bytes, a ModelProto, an onnx_ir.Model or a graph-JSON dict"

FUNCTION_DOMAIN = "relayout"
WARNINGS_KEY = "relayout.warnings"


def read_model(source: Source, *, external_data: bool = True) -> ir.Model:
    """The model that `source` holds: a path (.onnx or .json), ONNX bytes, a ModelProto, an onnx_ir.Model, graph JSON.

    Weights in files stay there and are mapped when read. With `external_data=False` a model that refers to a file is
    refused: no path is looked at, let alone opened. A constant without data becomes an `AbsentTensor`.

    Raises InputError with where, expected and found for everything that is not a model.
    """
    try:
        return _read(source, external_data)
    except RelayoutError:
        raise
    except (Exception, RecursionError) as error:
        # onnx, onnx_ir and protobuf raise what they like on input that no one tried before; a traceback helps nobody.
        raise InputError(
            "the model cannot be read",
            where=str(source) if isinstance(source, str | os.PathLike) else "model",
            expected="a valid ONNX model or graph JSON",
            found=f"{type(error).__name__}: {str(error)[:500]}",
        ) from error


def warnings_of(model: ir.Model) -> tuple[str, ...]:
    """What was changed on reading that its owner may want to know."""
    return tuple(model.meta.get(WARNINGS_KEY, ()))


def _read(source: Source, external_data: bool) -> ir.Model:
    folder: str | None = None
    if isinstance(source, str | os.PathLike):
        path, folder = Path(source), str(Path(source).parent)
        data = _read_file(path)
        source = load_json(data, f"file {path}") if path.suffix == ".json" else _parse(data, f"file {path}")
        del data
    elif isinstance(source, bytes | bytearray | memoryview):
        source = _parse(bytes(source), "the bytes given")
    elif isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        source = copy
    if isinstance(source, dict):
        source = validate(GraphJson, source, "graph JSON")
    if isinstance(source, GraphJson):
        source = json_to_proto(source)
    if isinstance(source, ir.Model):
        model = _clone(source)
    elif isinstance(source, onnx.ModelProto):
        model = _from_proto(source)
    else:
        raise UsageError("not a model", expected=_SOURCES, found=repr(type(source)))
    _adopt_tensors(model, folder, external_data)
    if isinstance(source, ir.Model):
        check_structure(without_weights(model))
    _inline(model)
    model.graph.sort()
    infer_shapes(model)
    _check_boundary(model.graph)
    return model


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """`model` as one protobuf with its weights inside; InputError where they exceed what a protobuf holds."""
    total = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    if total > LARGEST_FILE:
        raise InputError(
            "the model is too large for one protobuf",
            where=f"graph '{model.graph.name}'",
            expected=f"at most {LARGEST_FILE} bytes of constants",
            found=f"{total} bytes",
            hint="write it to a file: its weights go beside it",
        )
    return ir.to_proto(model)


def to_json(model: ir.Model, *, weights: bool = True) -> dict[str, Any]:
    """`model` as graph JSON, version 1.

    Without `weights` only constants up to 1 KiB have their data; the others have the `transform` that turns the
    source's data into theirs, where there is one. A constant that was absent is absent.
    """
    return model_to_json(model, weights=weights)


def write_model(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write `model` to an .onnx or a .json file; a kill leaves the old file or the whole new one, never a part.

    ONNX: constants go into the file one at a time, or to `<name>.data` beside it where they came from such a file or
    exceed 2 GB together. UsageError for a path that cannot be written.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        write_onnx(model, path)
        return
    if path.suffix == ".json":
        text = json.dumps(to_json(model), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        with replace_file(path) as file:
            file.write(text.encode())
        return
    raise UsageError("unknown kind of file", where=f"file {path}", expected="a name ending in .onnx or .json")


# --- from the source to an onnx_ir.Model -----------------------------------------------------------------------------


def _read_file(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            "the model file cannot be read",
            where=f"file {path}",
            expected="a file with an ONNX model or graph JSON",
            found="a folder" if path.is_dir() else error.strerror or str(error),
        ) from error
    if not data:
        raise InputError("the file is empty", where=f"file {path}", expected="an ONNX model", found="0 bytes")
    return data


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise InputError(
            "not an ONNX model",
            where=where,
            expected="a protobuf ModelProto",
            found=f"{len(data)} bytes that do not parse: truncated, or of another format",
            hint="graph JSON goes into a file that ends in .json" if data.lstrip()[:1] == b"{" else "",
        ) from error
    return proto


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    """`proto` is ours: its tensors become the model's."""
    check_structure(proto)
    for graph in _graphs(proto.graph):
        for info in (*graph.input, *graph.value_info, *graph.output):
            _forget_minus_one(info.type)
    model: ir.Model = serde.deserialize_model(proto)
    notes: list[str] = []
    if proto.training_info:
        notes.append("the model's training information is not kept")
    _normalize(model, notes)
    return model


def _clone(source: ir.Model) -> ir.Model:
    try:
        model = source.clone()
    except Exception as error:
        raise InputError(
            "the onnx_ir.Model is not a graph",
            where=f"graph '{source.graph.name}'",
            expected="nodes in topological order, each operand an input, a constant or another node's output",
            found=str(error.__cause__ or error)[:500],
            hint="model.graph.sort() orders the nodes",
        ) from error
    _normalize(model, list(warnings_of(source)))
    return model


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(subgraph)


def _forget_minus_one(proto: onnx.TypeProto) -> None:
    """Old exporters write an unknown extent as -1."""
    if proto.HasField("tensor_type"):
        for dim in proto.tensor_type.shape.dim:
            if dim.dim_value == -1:
                dim.ClearField("value")


def _normalize(model: ir.Model, notes: list[str]) -> None:
    """One way to say each thing: the standard domain is '', constants are not inputs unless they can be overridden."""
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        if "ai.onnx" in imports:
            imports[""] = imports.pop("ai.onnx")
    # No standard operator so far, but a Transpose may come: the newest opset that the model's age suggests.
    suggested = max((row[2] for row in onnx.helper.VERSION_TABLE if row[1] <= model.ir_version), default=OLDEST_OPSET)
    model.opset_imports.setdefault("", max(suggested, OLDEST_OPSET))
    if model.ir_version < OLDEST_IR_VERSION_WITH_CONSTANTS:
        named = [value for value in model.graph.inputs if value.is_initializer()]
        for value in named:
            model.graph.inputs.remove(value)
        model.ir_version = OLDEST_IR_VERSION_WITH_CONSTANTS
        if named:
            notes.append(f"IR version 3 lists constants as inputs: {len(named)} inputs became plain constants")
    if notes:
        model.meta[WARNINGS_KEY] = tuple(notes)


def _inline(model: ir.Model) -> None:
    if all(function.domain == FUNCTION_DOMAIN for function in model.functions.values()):
        return
    outputs = [value.name for value in model.graph.outputs]
    try:
        InlinePass(lambda function: function.domain != FUNCTION_DOMAIN)(model)
    except Exception as error:
        raise InputError(
            "the model's local functions cannot be inlined",
            where="model, functions",
            expected="functions of the model's own opsets that do not call themselves",
            found=str(error.__cause__ or error)[:500],
        ) from error
    for identifier in [key for key in model.functions if key[0] != FUNCTION_DOMAIN]:
        del model.functions[identifier]
    if [value.name for value in model.graph.outputs] != outputs:
        raise InternalError("inlining changed the names of the outputs", expected=", ".join(map(str, outputs)))
    check_structure(without_weights(model))


def _check_boundary(graph: ir.Graph) -> None:
    """A layout given for an input or output has to be one, of the value's rank."""
    for value in (*graph.inputs, *graph.outputs):
        text = value.metadata_props.get(BOUNDARY_LAYOUT_KEY)
        if text is None:
            continue
        try:
            layout = Layout.parse(text)
        except LayoutSyntaxError as error:
            error.where = f"value '{value.name}', {error.where}"
            raise
        rank = None if value.shape is None else len(value.shape)
        if layout.rank != rank:
            raise InputError(
                "a layout does not fit the value's rank",
                where=f"value '{value.name}', layout '{text}'",
                expected="a shape" if rank is None else f"{rank} dimensions",
                found=f"{layout.rank} dimensions",
            )


# --- tensors ---------------------------------------------------------------------------------------------------------


def _adopt_tensors(model: ir.Model, folder: str | None, external_data: bool) -> None:
    """Give each constant a tensor object of its own; those in files are checked against the file, once."""
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            place = f"constant '{value.name}'"
            if value.const_value is None:
                raise InputError("a constant has no data", where=place, expected="a tensor", found="nothing")
            value.const_value = _adopt(value.const_value, folder, external_data, place)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
                    continue
                place = f"node '{node.name}' ({node.op_type}), attribute '{name}'"
                tensor = _adopt(attribute.as_tensor(), folder, external_data, place)
                node.attributes[name] = ir.AttrTensor(name, tensor, doc_string=attribute.doc_string)


def _adopt(tensor: ir.TensorProtocol, folder: str | None, external_data: bool, where: str) -> ir.TensorProtocol:
    if is_in_file(tensor) and not external_data:
        raise InputError(
            "external data is not accepted here",
            where=where,
            expected="weights inside the model, or none at all",
            found="a reference to a file",
            hint="save the model with its weights inside",
        )
    if isinstance(tensor, ir.ExternalTensor):
        return _from_file(tensor, folder, where)
    if isinstance(tensor, serde.TensorProtoTensor) and is_absent(tensor.raw) and not isinstance(tensor, AbsentTensor):
        return AbsentTensor.from_proto(tensor.raw)
    return share(tensor)


def _from_file(tensor: ir.ExternalTensor, folder: str | None, where: str) -> FileTensor:
    base = os.fspath(tensor.base_dir) or folder
    location = os.fspath(tensor.location)
    where = f"{where}, external data '{location}'"
    if base is None:
        raise InputError(
            "external data without a folder to look in",
            where=where,
            expected="the path of a model file",
            found="a model in memory",
            hint="give the path, or load the weights first",
        )
    path = os.path.realpath(os.path.join(base, location))
    root = os.path.realpath(base or os.curdir)
    if os.path.isabs(location) or os.path.commonpath([path, root]) != root:
        raise InputError(
            "external data outside the model's folder", where=where, expected=f"a file in {root}", found=path
        )
    if not os.path.isfile(path):
        raise InputError(
            "the external data file is missing", where=where, expected="a file", found=f"nothing at {path}"
        )
    start, wanted, size = tensor.offset or 0, tensor.nbytes, os.path.getsize(path)
    if start < 0 or start + wanted > size or tensor.length not in (None, wanted):
        raise InputError(
            "the external data does not fit the constant",
            where=where,
            expected=f"{wanted} bytes for {tensor.dtype.name.lower()} of shape {list(tensor.shape.numpy())}",
            found=f"offset {start}, length {tensor.length} in a file of {size} bytes",
        )
    return FileTensor(
        path, start, tensor.dtype, tensor.shape.numpy(), name=tensor.name, doc_string=tensor.doc_string or ""
    )
