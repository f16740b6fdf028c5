"""External data: weights in files beside the model, checked when the model is read and memory-mapped on use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.errors import InputError
from relayout.layout.relaid_constant import RelaidTensor, SharedTensor, is_one_of
from relayout.model.proto_graphs import nodes_inside, subgraphs_of


class FileTensor(ir.LazyTensor):
    """A part of a file, mapped as long as an array of it exists.

    The file's identity is taken when the model is read: data that changed since then is an error, never a wrong weight.
    """

    __slots__ = ("_identity", "length", "offset", "path")

    def __init__(
        self,
        path: str,
        offset: int,
        dtype: ir.DataType,
        shape: Sequence[int],
        *,
        name: str | None,
        doc_string: str = "",
    ) -> None:
        self.path, self.offset = path, offset
        super().__init__(self._open, dtype, ir.Shape(shape, frozen=True), name=name, doc_string=doc_string or None)
        self.length = self.nbytes
        self._identity = _identity(path)

    def _open(self) -> ir.TensorProtocol:
        if _identity(self.path) != self._identity:
            raise InputError(
                "the file changed after the model was read",
                where=f"constant '{self.name}', {self.path}",
                expected="the file that the model was read with",
                found="another file, size or modification time",
                hint="read the model again",
            )
        if not self.length:
            # An empty range cannot be mapped.
            return ir.Tensor(np.empty(self.shape.numpy(), self.dtype.numpy()), dtype=self.dtype, name=self.name)
        return ir.ExternalTensor(
            self.path, self.offset, self.length, self.dtype, shape=ir.Shape(self.shape), name=self.name or ""
        )


def is_in_file(tensor: ir.TensorProtocol | None) -> bool:
    """Whether the data, before any step, is in a file beside a model."""
    while is_one_of(tensor, SharedTensor, RelaidTensor):
        assert isinstance(tensor, SharedTensor | RelaidTensor)
        tensor = tensor.source
    return is_one_of(tensor, FileTensor, ir.ExternalTensor)


def loaded_whole(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The protobuf in a file with the data of the files beside it, which a caller has checked by reading the model.

    onnx.load refuses a file of data that has several hard links, as caches of models and copies of folders have.
    """
    proto, folder = onnx.load(path, load_external_data=False), Path(path).parent
    for tensor in _tensors_of(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            told = {entry.key: entry.value for entry in tensor.external_data}
            with (folder / told["location"]).open("rb") as file:
                file.seek(int(told.get("offset", 0)))
                tensor.raw_data = file.read(int(told["length"]) if "length" in told else -1)
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
    return proto


def _tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in subgraphs_of(proto.graph):
        yield from graph.initializer
    for body in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in nodes_inside(body):
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors


class Folder(Struct, frozen=True):
    """The folder of a model's files; `path` is None for a model in memory. `accepted`: whether files may be read."""

    path: str | None
    accepted: bool = True


def adopt_external(tensor: ir.TensorProtocol, folder: Folder, where: str) -> ir.TensorProtocol:
    """`tensor`, as a `FileTensor` if its data is in a file.

    Locations are relative to the model's folder and stay inside it, symbolic links resolved. Where external data is
    not accepted the location is not even looked at.
    """
    if not folder.accepted and is_in_file(tensor):
        raise InputError(
            "external data is not accepted here",
            where=where,
            expected="weights inside the model, or none at all",
            found="a reference to a file",
            hint="save the model with its weights inside",
        )
    if not is_one_of(tensor, ir.ExternalTensor):
        return tensor
    assert isinstance(tensor, ir.ExternalTensor)
    return _from_file(tensor, folder.path, where)


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
    if os.path.isabs(location) or not Path(path).is_relative_to(root):
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


def _identity(path: str) -> tuple[int, int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError("the external data cannot be read", where=path, found=error.strerror or str(error)) from error
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
