"""Extents that a Reshape needs when the model runs: the value off which they are read."""

from __future__ import annotations

from contextlib import nullcontext

import onnx_ir as ir
import pytest

from relayout.layout.memory_format import Atom
from relayout.model.emit import Emitter, Physical

SHAPE = ("n", 8, "h", "w")


def tensor(name: str, *shape: int | str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))


def read_by(emitter: Emitter) -> list[str]:
    """The values whose shapes are read to split the pixels of an image into rows and columns."""
    emitter.emitted.clear()
    axes = [Atom(axis) for axis in range(4)]
    pixels = Physical(tensor("pixels", "n", 8, "h*w"), ((axes[0],), (axes[1],), (axes[2], axes[3])))
    emitter.convert(pixels, tuple((axis,) for axis in axes), SHAPE, "image")
    return [str(node.inputs[0].name) for node in emitter.emitted if node.op_type == "Shape" and node.inputs[0]]


def test_a_shape_that_a_value_has_is_read_once() -> None:
    emitter = Emitter(set(), 20)
    emitter.know(tensor("known", *SHAPE))
    assert read_by(emitter) == ["known"]
    assert [node.op_type for node in emitter.emitted] == ["Shape", "Reshape"]
    assert read_by(emitter) == []


@pytest.mark.parametrize("is_region", [False, True])
def test_values_of_the_own_device_and_region_come_first(is_region: bool) -> None:
    """A value of another device would have to be copied, and the state of a loop may grow under its name."""
    emitter = Emitter(set(), 20)
    emitter.know(tensor("outside", *SHAPE))
    with emitter.scope() if is_region else nullcontext():
        if not is_region:
            emitter.at("another")
        # The rows and columns are no dims of the pixels, but their number is.
        assert read_by(emitter) == ["pixels", "outside"]
        emitter.know(tensor("inside", *SHAPE))
        assert read_by(emitter) == ["inside"]
    emitter.at("")
    assert read_by(emitter) == ["outside"]
