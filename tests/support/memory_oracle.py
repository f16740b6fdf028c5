"""The memory of an array in a memory format, computed with NumPy: the oracle of the tests of formats and views."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from relayout.layout.memory_format import MemoryFormat


def lay_out(array: np.ndarray, order: MemoryFormat) -> np.ndarray:
    """The elements of an array in the order of a memory format, computed with NumPy only."""
    bounds_of = {axis: {1, extent} for axis, extent in enumerate(array.shape)}
    for atom in order:
        bounds_of[atom.axis] |= {atom.inner, atom.outer or array.shape[atom.axis]}
    dims: list[int] = []
    positions: dict[tuple[int, int], int] = {}
    for axis in range(array.ndim):
        bounds = sorted(bounds_of[axis], reverse=True)
        for high, low in pairwise(bounds):
            positions[axis, low] = len(dims)
            dims.append(high // low)
    perm: list[int] = []
    for atom in order:
        high = atom.outer or array.shape[atom.axis]
        perm += [
            positions[atom.axis, low] for low in sorted(bounds_of[atom.axis], reverse=True) if atom.inner <= low < high
        ]
    rest = [index for index in range(len(dims)) if index not in perm]
    assert all(dims[index] == 1 for index in rest), "an axis is missing from the format"
    return array.reshape(dims).transpose([*rest, *perm]).ravel()
