"""Inputs that the caller gives for the comparison of a model with its original.

Random numbers are no inputs of some models, such as one that reads lengths whose sum is the size of another input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import onnx_ir as ir

from relayout.errors import InputError, UsageError
from relayout.verification.axis_names import fed
from relayout.verification.numeric.symbolic_sizes import symbol_of

Given = Mapping[str, Any]
"""An array, or a sequence of numbers, for each input of the original, by name. One with a default may be missing."""

Array = np.ndarray[Any, Any]


def read_arrays(file: IO[bytes], where: str) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises InputError, OSError."""
    try:
        if not is_zipfile(file):
            raise BadZipFile("another kind of file")
        file.seek(0)
        with np.load(file) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # zipfile, its decompressors and NumPy's header parser raise errors of many types
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        expected = "an .npz file of arrays, as numpy.savez writes it"
        raise InputError("the inputs cannot be read", where=where, expected=expected, found=str(error)) from None


def checked_inputs(original: ir.Model, given: Sequence[Given]) -> tuple[dict[str, Array], ...]:
    """The samples as arrays. Raises UsageError for a missing or unknown name, another type, rank or extent, and two
    extents for one dim."""
    if not isinstance(given, Sequence) or not all(isinstance(sample, Mapping) for sample in given):
        expected = "a list with a mapping of names to arrays for each sample"
        raise UsageError("no list of samples", where="inputs", expected=expected, found=type(given).__name__)
    return tuple([_checked(original, sample) for sample in given])


def _checked(original: ir.Model, sample: Given) -> dict[str, Array]:
    inputs = {str(value.name): value for value in fed(original)}
    defaults = {str(value.name): value for value in original.graph.inputs if value.is_initializer()}
    known = {**defaults, **inputs}
    if unknown := sorted(sample.keys() - known.keys()):
        raise _wrong(unknown[0], f"one of {_listed(known)}", "no input of the original")
    if missing := sorted(inputs.keys() - sample.keys() - defaults.keys()):
        raise _wrong(missing[0], "an array for each input of the original", "none")
    found = {name: _array(known[name], data) for name, data in sample.items()}
    extents: dict[str, int] = {}
    for name, array in found.items():
        for dim, extent in zip(known[name].shape or (), array.shape, strict=True):
            if isinstance(dim, ir.SymbolicDim) and dim.value and extents.setdefault(dim.value, extent) != extent:
                raise _wrong(name, f"{extents[dim.value]} for the dim {dim.value}, as in another input", str(extent))
    return found


def _array(value: ir.Value, data: object) -> Array:
    name, dtype = str(value.name), value.dtype
    if type(value.type) is not ir.TensorType or dtype is None or value.shape is None:
        raise _wrong(name, "an input that is a tensor of known rank", "another kind of input")
    own = np.dtype(object) if dtype == ir.DataType.STRING else dtype.numpy()
    try:
        # Numbers of Python have no width, and texts no type of NumPy's. Bytes may be in another order.
        is_free = dtype == ir.DataType.STRING or not isinstance(data, np.ndarray | np.generic)
        array = np.asarray(data, own) if is_free else np.asarray(data)
    except (TypeError, ValueError, OverflowError) as error:
        raise _wrong(name, f"elements of type {own}", str(error).splitlines()[0]) from None
    if array.dtype.newbyteorder("=") != own:
        raise _wrong(name, f"elements of type {own}", f"{array.dtype}")
    declared = tuple(dim if isinstance(dim, int) else dim.value or "?" for dim in value.shape)
    pairs = list(zip(declared, array.shape, strict=False))
    if len(declared) != array.ndim or any(isinstance(one, int) and one != other for one, other in pairs):
        raise _wrong(name, f"the shape [{_listed(declared)}]", f"[{_listed(array.shape)}]")
    return array.astype(own, copy=False)


def _wrong(name: str, expected: str, found: str) -> UsageError:
    return UsageError("the inputs do not fit the original", where=f"inputs, {name}", expected=expected, found=found)


def _listed(parts: Iterable[object]) -> str:
    return ",".join(map(str, parts))


def extents_of_inputs(original: ir.Model, sample: Given) -> dict[str, int]:
    """The extents of the open dims of the inputs in a sample."""
    return {
        symbol_of(value, axis): sample[str(value.name)].shape[axis]
        for value in fed(original)
        if value.shape is not None and str(value.name) in sample
        for axis, extent in enumerate(value.shape)
        if not isinstance(extent, int)
    }
