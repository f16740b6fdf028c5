"""Inputs that the caller gives for the comparison of a model with its original.

Random numbers are no inputs of some models, such as one that reads lengths whose sum is the size of another input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout.errors import UsageError
from relayout.verification.axis_names import fed
from relayout.verification.numeric.symbolic_sizes import symbol_of

__all__ = ["Given", "checked_inputs", "extents_of_inputs"]

Given = Mapping[str, Any]
"""An array, or a sequence of numbers, for each input of the original, by name. One with a default may be missing."""


def checked_inputs(original: ir.Model, given: Sequence[Given]) -> tuple[dict[str, np.ndarray[Any, Any]], ...]:
    """The samples as arrays. Raises UsageError for a missing or unknown name, another type, rank or extent."""
    return tuple([_checked(original, sample) for sample in given])


def _checked(original: ir.Model, sample: Given) -> dict[str, np.ndarray[Any, Any]]:
    inputs = {str(value.name): value for value in fed(original)}
    defaults = {str(value.name): value for value in original.graph.inputs if value.is_initializer()}
    known = {**defaults, **inputs}
    if unknown := sorted(sample.keys() - known.keys()):
        raise _wrong(unknown[0], f"one of {_listed(known)}", "no input of the original")
    if missing := sorted(inputs.keys() - sample.keys() - defaults.keys()):
        raise _wrong(missing[0], "an array for each input of the original", "none")
    return {name: _array(known[name], np.asarray(data)) for name, data in sample.items()}


def _array(value: ir.Value, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    name, dtype = str(value.name), value.dtype
    if dtype is None or value.shape is None:
        raise _wrong(name, "an input that is a tensor of known rank", "another kind of input")
    if dtype == ir.DataType.STRING:
        array = array.astype(object)
    elif array.dtype != dtype.numpy():
        raise _wrong(name, f"elements of type {dtype.numpy()}", f"{array.dtype}")
    declared = tuple(dim if isinstance(dim, int) else dim.value or "?" for dim in value.shape)
    pairs = list(zip(declared, array.shape, strict=False))
    if len(declared) != array.ndim or any(isinstance(one, int) and one != other for one, other in pairs):
        raise _wrong(name, f"the shape [{_listed(declared)}]", f"[{_listed(array.shape)}]")
    return array


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
