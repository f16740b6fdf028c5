"""Lazy constants: absent, in a file, shared with the caller, or converted only when they are read.

A weight can be larger than memory allows and can stay at its owner's home altogether. None of these tensors keeps its
data: each read makes the array anew and lets it go with its last reference. Steps are how a constant is converted:

    {"op": "transpose", "perm": [2, 3, 1, 0]}        numpy.transpose
    {"op": "reshape", "shape": [64, 147]}            numpy.reshape, row-major
    {"op": "pad", "pads": [0, 0, 8, 0]}              zeros: how many before each dimension, then how many after each
    {"op": "crop", "shape": [56, 147]}               the first so many of each dimension

Reshape and crop carry `from`, the shape before them, so that every step can be undone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NoReturn

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.serde import TensorProtoTensor

from relayout.errors import InputError, InternalError
from relayout.layout.metadata_keys import TRANSFORM_KEY

__all__ = [
    "AbsentTensor",
    "RelaidTensor",
    "Step",
    "Steps",
    "apply_step",
    "check_steps",
    "relaid",
    "shape_before",
    "share",
    "transform_of",
]

Step = Mapping[str, Any]
Steps = tuple[Step, ...]

SLAB_BYTES = 16 << 20


class AbsentTensor(TensorProtoTensor):
    """A constant of which only the type and the shape are known; `transform` is what its owner must do to the data.

    It is written to ONNX as a tensor without data; `shape` is the shape after `transform`.
    """

    __slots__ = ("transform",)

    def __init__(
        self,
        dtype: ir.DataType,
        shape: Sequence[int],
        name: str | None,
        transform: Sequence[Step] = (),
        *,
        doc_string: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        proto = onnx.TensorProto(name=name or "", data_type=dtype.value, dims=[int(extent) for extent in shape])
        if doc_string:
            proto.doc_string = doc_string
        if transform:
            proto.metadata_props.add(key=TRANSFORM_KEY, value=json.dumps([dict(step) for step in transform]))
        super().__init__(proto)
        # onnx_ir writes what the protobuf notes, and then what the tensor does.
        self.metadata_props.clear()
        self.metadata_props.update(metadata or {})
        self.transform: Steps = tuple(transform)

    @classmethod
    def from_proto(cls, proto: onnx.TensorProto) -> AbsentTensor:
        """The absent constant that a protobuf without data stands for, with the steps that were noted in it."""
        noted = {entry.key: entry.value for entry in reversed(proto.metadata_props)}
        steps = json.loads(noted.pop(TRANSFORM_KEY, "[]"))
        dtype, doc = ir.DataType(proto.data_type), proto.doc_string
        return cls(dtype, proto.dims, proto.name, steps, doc_string=doc, metadata=noted)

    def relaid(self, steps: Sequence[Step]) -> AbsentTensor:
        """The same constant with `steps` added to what its owner must do. What was said of the data no longer holds."""
        noted, shape = _noted(tuple(self.shape.numpy()), steps)
        return AbsentTensor(self.dtype, shape, self.name, (*self.transform, *noted), metadata=self.metadata_props)

    def numpy(self) -> NoReturn:
        """Raise InputError: there is no data."""
        raise InputError(
            "the data of this constant is absent",
            where=f"constant '{self.name}'",
            expected=f"{self.dtype.name.lower()} data of shape {list(self.shape.numpy())}",
            found="a constant with a type and a shape only",
            hint="give a model with its weights where values are needed",
        )

    def tobytes(self) -> NoReturn:
        """Raise InputError: there is no data."""
        self.numpy()

    def __repr__(self) -> str:
        return f"{self._repr_base()}(absent, name={self.name!r})"


class SharedTensor(ir.LazyTensor):
    """Another's tensor under our own name: renaming ours leaves theirs alone."""

    __slots__ = ("source",)

    def __init__(self, source: ir.TensorProtocol) -> None:
        self.source: ir.TensorProtocol = source.source if isinstance(source, SharedTensor) else source
        super().__init__(
            lambda: self.source,
            source.dtype,
            ir.Shape(source.shape.numpy(), frozen=True),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props) or None,
        )


class RelaidTensor(ir.LazyTensor):
    """A constant that is converted when it is read; `transform` tells how, `source` from what."""

    __slots__ = ("source", "transform")

    transform: Steps

    def __init__(self, source: ir.TensorProtocol, steps: Sequence[Step]) -> None:
        self.source = source
        self.transform, shape = _noted(tuple(source.shape.numpy()), steps)
        super().__init__(
            self._relay,
            source.dtype,
            ir.Shape(shape, frozen=True),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props) or None,
        )

    def _view(self) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self.source.numpy()
        for step in self.transform:
            array = apply_step(array, step)
        return array

    def _relay(self) -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(self._view()), dtype=self.dtype, name=self.name)

    def tofile(self, file: BinaryIO) -> None:
        """Write the data, slab by slab where the tensor is large, so that no second copy of it is ever in memory."""
        if self.nbytes <= SLAB_BYTES or self.dtype.bitwidth < 8:
            super().tofile(file)
            return
        view = self._view()
        rows = max(1, view.shape[0] * SLAB_BYTES // self.nbytes)
        for start in range(0, view.shape[0], rows):
            file.write(np.ascontiguousarray(view[start : start + rows]).view(np.uint8).data)


def relaid(tensor: ir.TensorProtocol, steps: Sequence[Step]) -> ir.TensorProtocol:
    """`tensor` converted by `steps`, read lazily; an absent one remembers the steps for its owner.

    >>> import numpy as np
    >>> relaid(ir.tensor(np.zeros((2, 3)), name="w"), [{"op": "transpose", "perm": [1, 0]}]).shape
    Shape([3, 2])
    """
    if isinstance(tensor, AbsentTensor):
        return tensor.relaid(steps)
    if isinstance(tensor, RelaidTensor):
        return RelaidTensor(tensor.source, (*tensor.transform, *steps))
    return RelaidTensor(tensor, steps)


def share(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same data under a name and metadata of its own, so that the caller's tensor is never renamed."""
    if isinstance(tensor, AbsentTensor):
        return AbsentTensor(
            tensor.dtype,
            tensor.shape.numpy(),
            tensor.name,
            tensor.transform,
            doc_string=tensor.doc_string or "",
            metadata=tensor.metadata_props,
        )
    if isinstance(tensor, RelaidTensor):
        return RelaidTensor(tensor.source, tensor.transform)
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(
            tensor.string_data(), shape=ir.Shape(tensor.shape), name=tensor.name, doc_string=tensor.doc_string
        )
    return SharedTensor(tensor)


def transform_of(tensor: ir.TensorProtocol | None) -> Steps:
    """What was done, or is to be done, to the source's data to get this constant."""
    return tensor.transform if isinstance(tensor, AbsentTensor | RelaidTensor) else ()


def apply_step(array: np.ndarray[Any, Any], step: Step) -> np.ndarray[Any, Any]:
    """One step done to the data: a view of it, but for padding."""
    if step["op"] == "transpose":
        return array.transpose(step["perm"])
    if step["op"] == "reshape":
        return array.reshape(step["shape"])
    if step["op"] == "crop":
        return array[tuple(slice(extent) for extent in step["shape"])]
    pads = step["pads"]
    return np.pad(array, list(zip(pads[: array.ndim], pads[array.ndim :], strict=True)))


def shape_before(shape: Sequence[int], step: Step) -> tuple[int, ...] | None:
    """The shape that a step makes `shape` of; None where the step does not tell.

    >>> shape_before([8, 3], {"op": "transpose", "perm": [1, 0]})
    (3, 8)
    """
    if "from" in step:
        return tuple(step["from"])
    if step["op"] == "transpose" and sorted(step["perm"]) == list(range(len(shape))):
        return tuple(shape[step["perm"].index(axis)] for axis in range(len(shape)))
    if step["op"] == "pad" and len(step["pads"]) == 2 * len(shape):
        before, after = step["pads"][: len(shape)], step["pads"][len(shape) :]
        return tuple(extent - zeros - more for extent, zeros, more in zip(shape, before, after, strict=True))
    return None


def check_steps(shape: Sequence[int], steps: Sequence[Step], where: str) -> None:
    """InputError where the steps do not lead to `shape`, as far back as they tell."""
    shape = tuple(shape)
    for number, step in reversed(list(enumerate(steps))):
        before = shape_before(shape, step)
        known = before is not None and min(before, default=0) >= 0
        made = _shape_after(before, step) if before is not None and known else tuple(step.get("shape", ()))
        if made != shape:
            raise InputError(
                "the steps of a constant's transform do not fit",
                where=f"{where}, transform[{number}]",
                expected=f"a step that makes shape {list(shape)}",
                found=str(dict(step)),
            )
        if before is None:
            return
        shape = before


def _noted(shape: tuple[int, ...], steps: Sequence[Step]) -> tuple[Steps, tuple[int, ...]]:
    """The steps, with the shape before each that does not tell it otherwise, and the shape after all of them."""
    noted: list[Step] = []
    for step in steps:
        after = _shape_after(shape, step)
        if after is None:
            raise InternalError("a constant cannot be re-laid like this", found=f"{dict(step)} on shape {list(shape)}")
        noted.append({**step, "from": list(shape)} if step["op"] in ("reshape", "crop") else step)
        shape = after
    return tuple(noted), shape


def _shape_after(shape: tuple[int, ...], step: Step) -> tuple[int, ...] | None:
    """The shape that a step makes of `shape`; None where it does not fit."""
    if step["op"] == "transpose":
        fits = sorted(step["perm"]) == list(range(len(shape)))
        return tuple(shape[axis] for axis in step["perm"]) if fits else None
    if step["op"] == "pad":
        fits = len(step["pads"]) == 2 * len(shape)
        before, after = step["pads"][: len(shape)], step["pads"][len(shape) :]
        return tuple(e + b + a for e, b, a in zip(shape, before, after, strict=True)) if fits else None
    wanted = tuple(step["shape"])
    if step["op"] == "reshape":
        return wanted if math.prod(wanted) == math.prod(shape) else None
    fits = len(wanted) == len(shape) and all(kept <= extent for kept, extent in zip(wanted, shape, strict=True))
    return wanted if fits else None
