"""A rewriter for one node: the rewritten node alone in a graph, its operands and results as graph inputs and outputs.

numpy converts the operands and results, so that a backend's rewrite is tested without the solver and the rewriter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from graphs import session

from relayout.backend import Implementation
from relayout.layout.layout import Layout
from relayout.layout.relaid_constant import relaid

Array = np.ndarray[Any, Any]


def to_layout(array: Array, letters: str, layout: Layout) -> Array:
    """`array`, whose axes are `letters`, in `layout`: tiled dims are split, and padded with zeros where needed."""
    if layout.is_any:
        return array
    tiles = {layout.names[i].upper(): size for i in range(layout.rank) if (size := layout.tile(i)) is not None}
    padding = [(0, -extent % tiles.get(letter, 1)) for letter, extent in zip(letters, array.shape, strict=True)]
    shape: list[int] = []
    names = ""
    for letter, extent in zip(letters, np.pad(array, padding).shape, strict=True):
        tile = tiles.get(letter)
        shape += [extent] if tile is None else [extent // tile, tile]
        names += letter if tile is None else letter + letter.lower()
    split = np.pad(array, padding).reshape(shape)
    return np.ascontiguousarray(split.transpose([names.index(name) for name in layout.names]))


def from_layout(array: Array, letters: str, layout: Layout, shape: Sequence[int]) -> Array:
    """The inverse of `to_layout`: crops the padding. Raises AssertionError if the padding is not zero."""
    if layout.is_any:
        return array.reshape(shape)
    # Where each element is, counted from 1; the padding is 0.
    places = to_layout(np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape), letters, layout).reshape(-1)
    given = array.reshape(-1)
    assert not given[places == 0].any(), "the padding is not zero"
    found = np.empty(shape, array.dtype)
    found.reshape(-1)[places[places > 0] - 1] = given[places > 0]
    return found


class OneNode:
    """The rewriter of `node` for one implementation; `letters` are the axis names of its data."""

    def __init__(self, node: ir.Node, implementation: Implementation, letters: str = "NCHW", opset: int = 17) -> None:
        self.node, self.implementation, self.letters, self.opset = node, implementation, letters, opset
        self.nodes: list[ir.Node] = []
        self.feeds: dict[int, ir.Value] = {}
        self.initializers: list[ir.Value] = []
        self.results_by_index: dict[int, ir.Value] = {}
        self.imports = {"": opset}

    def shape_of(self, index: int, *, is_result: bool = False) -> tuple[int | str | None, ...]:
        value = (self.node.outputs if is_result else self.node.inputs)[index]
        layout = (self.implementation.results if is_result else self.implementation.inputs)[index]
        assert value is not None
        assert value.shape is not None
        return to_layout(np.zeros(value.shape.numpy(), np.int8), self.letters, layout).shape

    def read(self, index: int, shape: Sequence[int | str | None] | None = None) -> ir.Value:
        source = self.node.inputs[index]
        assert source is not None
        if source.const_value is not None:
            array, layout = source.const_value.numpy(), self.implementation.inputs[index]
            return self._constant(ir.tensor(array if array.ndim == 1 else to_layout(array, self.letters, layout)))
        extents = self.shape_of(index)
        fed = self.feeds.setdefault(index, _value(f"in_{index}", source.dtype, extents))
        if shape is None or tuple(shape) == tuple(extents):
            return fed
        return self.emit("Reshape", [fed, self.constant("shape", np.array(shape, np.int64))], shape=shape)

    def relaid_constant(self, index: int, steps: Sequence[Mapping[str, Any]]) -> ir.Value:
        source = self.node.inputs[index]
        assert source is not None
        assert source.const_value is not None
        return self._constant(relaid(source.const_value, list(steps)))

    def constant(self, stem: str, array: Array) -> ir.Value:
        return self._constant(ir.tensor(array, name=stem))

    def emit(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        shape: Sequence[int | str | None],
        domain: str = "",
        version: int = 1,
        like: ir.Value | None = None,
    ) -> ir.Value:
        first = like or next(value for value in inputs if value is not None)
        result = _value(f"made_{len(self.nodes)}", first.dtype, shape)
        self.nodes.append(
            ir.Node(
                domain,
                operator,
                inputs,
                [ir.convenience.convert_attribute(name, value) for name, value in (attributes or {}).items()],
                outputs=[result],
            )
        )
        if domain:
            self.imports[domain] = version
        return result

    def set_result(self, index: int, value: ir.Value) -> None:
        extents = self.shape_of(index, is_result=True)
        assert value.shape is not None
        assert np.prod(value.shape.numpy()) == np.prod(extents), "not the same memory"  # type: ignore[arg-type]
        self.results_by_index[index] = value

    def model(self) -> ir.Model:
        """A model of the emitted nodes: its inputs are the operands read, its outputs the results."""
        graph = ir.Graph(
            [self.feeds[index] for index in sorted(self.feeds)],
            [self.results_by_index[index] for index in sorted(self.results_by_index)],
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports=self.imports,
            name="written",
        )
        return ir.Model(graph, ir_version=10)

    def run(self, feeds: Mapping[int, Array]) -> dict[int, Array]:
        """Run the rewrite on operands in the identity format, and return the results in the identity format."""
        assert self.implementation.rewrite is not None
        self.implementation.rewrite(self)
        operands = {f"in_{i}": to_layout(feeds[i], self.letters, self.implementation.inputs[i]) for i in self.feeds}
        found = session(ir.to_proto(self.model())).run(None, operands)
        results: dict[int, Array] = {}
        for index, array in zip(sorted(self.results_by_index), found, strict=True):
            shape = self.node.outputs[index].shape
            assert shape is not None
            extents = [int(e) for e in shape]  # type: ignore[arg-type]
            results[index] = from_layout(array, self.letters, self.implementation.results[index], extents)
        return results

    def _constant(self, tensor: ir.TensorProtocol) -> ir.Value:
        name = f"constant_{len(self.initializers)}"
        tensor.name = name
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.initializers.append(value)
        return value


def _value(name: str, dtype: ir.DataType | None, shape: Sequence[int | str | None]) -> ir.Value:
    assert dtype is not None
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
