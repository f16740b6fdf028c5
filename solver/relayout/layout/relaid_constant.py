"""Lazy constants: absent, in a file, shared with the caller, or converted only when they are read.

A weight can be larger than memory, and its data may be absent altogether. These tensors do not keep their data: each
read makes the array again. A constant is converted by a list of steps:

    {"op": "transpose", "perm": [2, 3, 1, 0]}        numpy.transpose
    {"op": "reshape", "shape": [64, 147]}            numpy.reshape, row-major
    {"op": "pad", "pads": [0, 0, 8, 0]}              the number of zeros before each dimension, then after each
    {"op": "crop", "shape": [56, 147]}               the first elements of each dimension

Reshape and crop have `from`, the shape before them, so that every step can be inverted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, BinaryIO, NoReturn, TypeGuard, TypeVar

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Meta, Struct, field
from onnx_ir.serde import TensorProtoTensor

from relayout.errors import InputError, InternalError
from relayout.layout.metadata_keys import TRANSFORM_KEY

_T = TypeVar("_T")

Step = Mapping[str, Any]
Steps = tuple[Step, ...]

SLAB_BYTES = 1 << 20

_Count = Annotated[int, Meta(ge=0)]


def is_one_of(tensor: object, *kinds: type[_T]) -> TypeGuard[_T]:
    """`isinstance` for classes of tensors. onnx_ir derives them from protocols, whose own check is ten times slower."""
    return not frozenset(kinds).isdisjoint(type(tensor).__mro__)


class AbsentTensor(TensorProtoTensor):
    """A constant without data, with a type and a shape; the owner of the data must apply the steps in `transform`.

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
        # onnx_ir writes the metadata of the protobuf and of the tensor; the step entry must not be written twice.
        self.metadata_props.clear()
        self.metadata_props.update(metadata or {})
        self.transform: Steps = tuple(transform)

    @classmethod
    def from_proto(cls, proto: onnx.TensorProto) -> AbsentTensor:
        """The absent constant of a protobuf without data, with the steps from the protobuf's metadata."""
        metadata = {entry.key: entry.value for entry in reversed(proto.metadata_props)}
        steps = _parsed(metadata.pop(TRANSFORM_KEY, "[]"), tuple(proto.dims), f"constant '{proto.name}'")
        dtype, doc = ir.DataType(proto.data_type), proto.doc_string
        return cls(dtype, proto.dims, proto.name, steps, doc_string=doc, metadata=metadata)

    def relaid(self, steps: Sequence[Step]) -> AbsentTensor:
        """The same constant with `steps` appended to `transform`. The doc string is dropped."""
        full, shape = _with_shapes(tuple(self.shape.numpy()), steps)
        return AbsentTensor(self.dtype, shape, self.name, (*self.transform, *full), metadata=self.metadata_props)

    def numpy(self) -> NoReturn:
        """Raise InputError: there is no data."""
        raise InputError(
            "the data of this constant is absent",
            where=f"constant '{self.name}'",
            expected=f"{self.dtype.name.lower()} data of shape {list(self.shape.numpy())}",
            found="a constant with a type and a shape only",
            hint="give a model with weights",
        )

    def tobytes(self) -> NoReturn:
        """Raise InputError: there is no data."""
        self.numpy()

    def __repr__(self) -> str:
        return f"{self._repr_base()}(absent, name={self.name!r})"


class SharedTensor(ir.LazyTensor):
    """The data of another tensor under a name of its own: renaming it does not rename the other."""

    __slots__ = ("source",)

    def __init__(self, source: ir.TensorProtocol) -> None:
        self.source: ir.TensorProtocol = source.source if is_one_of(source, SharedTensor) else source
        shape = source.shape
        super().__init__(
            lambda: self.source,
            source.dtype,
            shape if isinstance(shape, ir.Shape) and shape.frozen else ir.Shape(shape.numpy(), frozen=True),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props) or None,
        )


class RelaidTensor(ir.LazyTensor):
    """The constant `source`, converted by the steps in `transform` each time it is read."""

    __slots__ = ("source", "transform")

    transform: Steps

    def __init__(self, source: ir.TensorProtocol, steps: Sequence[Step]) -> None:
        self.source = source
        self.transform, shape = _with_shapes(tuple(source.shape.numpy()), steps)
        super().__init__(
            self._relay,
            source.dtype,
            ir.Shape(shape, frozen=True),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props) or None,
        )

    def _relay(self) -> ir.TensorProtocol:
        array = np.ascontiguousarray(_applied(self.source.numpy(), self.transform))
        return ir.Tensor(array, dtype=self.dtype, name=self.name)

    def tofile(self, file: BinaryIO) -> None:
        """Write the data; a large tensor is written in slabs, so that memory never has a second copy."""
        if self.dtype.bitwidth < 8 or not self.nbytes:
            super().tofile(file)
            return
        # A reshape at the end changes no byte, and would make a copy of the whole.
        steps = [*self.transform]
        while steps and steps[-1]["op"] == "reshape":
            steps.pop()
        view = np.atleast_1d(_applied(self.source.numpy(), steps))
        rows = max(1, view.shape[0] * SLAB_BYTES // view.nbytes)
        for start in range(0, view.shape[0], rows):
            file.write(np.ascontiguousarray(view[start : start + rows]).view(np.uint8).data)


def relaid(tensor: ir.TensorProtocol, steps: Sequence[Step]) -> ir.TensorProtocol:
    """`tensor` converted by `steps` when it is read; an absent tensor gets the steps appended to `transform`.

    >>> import numpy as np
    >>> relaid(ir.tensor(np.zeros((2, 3)), name="w"), [{"op": "transpose", "perm": [1, 0]}]).shape
    Shape([3, 2])
    """
    of = _lazy(tensor)
    if isinstance(of, AbsentTensor):
        return of.relaid(steps)
    if of is not None:
        return RelaidTensor(of.source, (*of.transform, *steps))
    return RelaidTensor(tensor, steps)


def share(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same data under a name and metadata of its own, so that the caller's tensor is never renamed."""
    if is_one_of(tensor, AbsentTensor):
        return AbsentTensor(
            tensor.dtype,
            tensor.shape.numpy(),
            tensor.name,
            tensor.transform,
            doc_string=tensor.doc_string or "",
            metadata=tensor.metadata_props,
        )
    if is_one_of(tensor, RelaidTensor):
        return RelaidTensor(tensor.source, tensor.transform)
    if is_one_of(tensor, ir.StringTensor):
        return ir.StringTensor(
            tensor.string_data(), shape=ir.Shape(tensor.shape), name=tensor.name, doc_string=tensor.doc_string
        )
    return SharedTensor(tensor)


def transform_of(tensor: ir.TensorProtocol | None) -> Steps:
    """The steps from the source's data to this constant."""
    of = _lazy(tensor)
    return of.transform if of is not None else ()


def note_transform(constant: ir.Value, source: ir.Value, before: ir.TensorProtocol) -> None:
    """Note on a constant that was converted from `before`, the data of `source`, by which steps: those that are noted
    on the source, then its own. An absent constant has them in its tensor."""
    tensor = constant.const_value
    if is_one_of(tensor, RelaidTensor):
        # The source may be the constant itself, which has the new data already.
        steps = joined([*_noted(source, before), *tensor.transform[len(transform_of(before)) :]])
        if steps:
            constant.metadata_props[TRANSFORM_KEY] = json.dumps(steps)
        else:
            constant.metadata_props.pop(TRANSFORM_KEY, None)


def noted_transform(constant: ir.Value) -> Steps:
    """The steps that are noted on a constant; none where the note cannot be read, or does not fit the constant."""
    return () if constant.const_value is None else _noted(constant, constant.const_value)


def _noted(constant: ir.Value, tensor: ir.TensorProtocol) -> Steps:
    text = constant.metadata_props.get(TRANSFORM_KEY)
    if text is None:
        return ()
    shape: tuple[int, ...] | None = tuple(tensor.shape.numpy())
    try:
        steps = _parsed(text, tuple(tensor.shape.numpy()), f"constant '{constant.name}'")
    except InputError:
        return ()
    for step in reversed(steps):
        shape = None if shape is None else shape_before(shape, step)
    return () if shape is None else tuple(steps)


def _lazy(tensor: ir.TensorProtocol | None) -> AbsentTensor | RelaidTensor | None:
    # The check of a class is slow, since onnx_ir derives it from a protocol.
    is_lazy = is_one_of(tensor, AbsentTensor, RelaidTensor)
    return tensor if is_lazy else None  # type: ignore[return-value]  # it is of one of these classes


def _applied(array: np.ndarray[Any, Any], steps: Sequence[Step]) -> np.ndarray[Any, Any]:
    for step in steps:
        array = apply_step(array, step)
    return array


def apply_step(array: np.ndarray[Any, Any], step: Step) -> np.ndarray[Any, Any]:
    """The array after one step: a view of the data, except after padding and some reshapes."""
    if step["op"] == "transpose":
        return array.transpose(step["perm"])
    if step["op"] == "reshape":
        return array.reshape(step["shape"])
    if step["op"] == "crop":
        return array[tuple(slice(extent) for extent in step["shape"])]
    pads = step["pads"]
    return np.pad(array, list(zip(pads[: array.ndim], pads[array.ndim :], strict=True)))


def joined(steps: Iterable[Step]) -> list[Step]:
    """The steps with one transpose or reshape in place of several in a row, and none in place of those that undo each
    other.

    >>> turn, rows = {"op": "transpose", "perm": [1, 0]}, {"op": "reshape", "shape": [6], "from": [2, 3]}
    >>> joined([turn, rows, {"op": "reshape", "shape": [2, 3], "from": [6]}, turn])
    []
    """
    found: list[Step] = []
    for step in steps:
        kind = step["op"]
        if found and kind == found[-1]["op"] == "transpose":
            earlier = found.pop()["perm"]
            step = {"op": kind, "perm": [earlier[axis] for axis in step["perm"]]}
        elif found and kind == found[-1]["op"] == "reshape":
            step = {**found.pop(), "shape": step["shape"]}
        if kind == "transpose" and step["perm"] == sorted(step["perm"]):
            continue
        if kind == "reshape" and step["shape"] == step.get("from"):
            continue
        found.append(step)
    return found


def shape_before(shape: Sequence[int], step: Step) -> tuple[int, ...] | None:
    """The shape before a step that results in `shape`; None if the step does not determine it.

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


class _Transpose(Struct, tag_field="op", tag="transpose", forbid_unknown_fields=True):
    perm: list[_Count]


class _Pad(Struct, tag_field="op", tag="pad", forbid_unknown_fields=True):
    pads: list[_Count]
    from_: list[_Count] | None = field(default=None, name="from")


class _Reshape(Struct, tag_field="op", tag="reshape", forbid_unknown_fields=True):
    shape: list[_Count]
    from_: list[_Count] | None = field(default=None, name="from")


class _Crop(Struct, tag_field="op", tag="crop", forbid_unknown_fields=True):
    shape: list[_Count]
    from_: list[_Count] | None = field(default=None, name="from")


_STEPS = list[_Transpose | _Pad | _Reshape | _Crop]


def fault_of(steps: Sequence[Step], shape: tuple[int, ...] | None) -> str:
    """The first fault of steps that are given for a constant of this shape; empty without one. None: an unknown shape.

    >>> fault_of([{"op": "pad", "shape": [4, 4]}], (3, 4))
    'Object contains unknown field `shape` - at `$[0]`'
    >>> fault_of([{"op": "transpose", "perm": [0, 2, 1]}], (3, 4))
    "{'op': 'transpose', 'perm': [0, 2, 1]} on shape [3, 4]"
    """
    try:
        msgspec.convert([dict(step) for step in steps], _STEPS)
    except msgspec.ValidationError as error:
        return str(error)
    if shape is None:
        return ""
    for step in steps:
        after = _shape_after(shape, step)
        if after is None:
            return f"{dict(step)} on shape {list(shape)}"
        shape = after
    return ""


def _parsed(text: str, shape: tuple[int, ...], where: str) -> list[Step]:
    """The steps to this shape in the metadata of a constant. Raises InputError."""
    try:
        msgspec.json.decode(text, type=_STEPS)
    except msgspec.MsgspecError as error:
        raise InputError(
            "the steps of a constant's transform cannot be read",
            where=f"{where}, metadata {TRANSFORM_KEY}",
            expected="a list of steps, each a transpose, reshape, pad or crop",
            found=f"{text[:80]!r}: {error}",
        ) from None
    steps: list[Step] = json.loads(text)
    check_steps(shape, steps, where)
    return steps


def check_steps(shape: Sequence[int], steps: Sequence[Step], where: str) -> None:
    """Raise InputError if the steps cannot result in `shape`; steps of unknown input shape are not checked."""
    shape = tuple(shape)
    for number, step in reversed(list(enumerate(steps))):
        before = shape_before(shape, step)
        known = before is not None and min(before, default=0) >= 0
        after = _shape_after(before, step) if before is not None and known else tuple(step.get("shape", ()))
        if after != shape:
            raise InputError(
                "the steps of a constant's transform do not fit",
                where=f"{where}, transform[{number}]",
                expected=f"a step that results in shape {list(shape)}",
                found=str(dict(step)),
            )
        if before is None:
            return
        shape = before


def _with_shapes(shape: tuple[int, ...], steps: Sequence[Step]) -> tuple[Steps, tuple[int, ...]]:
    """The steps with `from` added to each reshape and crop, and the shape after all of them."""
    full: list[Step] = []
    for step in steps:
        after = _shape_after(shape, step)
        if after is None:
            raise InternalError("a step does not fit its constant", found=f"{dict(step)} on shape {list(shape)}")
        full.append({**step, "from": list(shape)} if step["op"] in ("reshape", "crop") else step)
        shape = after
    return tuple(full), shape


def _shape_after(shape: tuple[int, ...], step: Step) -> tuple[int, ...] | None:
    """The shape after a step on `shape`; None if the step does not fit."""
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
