"""What follows a blocked convolution is done by the convolution: factors, offsets, a sum, an activation.

onnxruntime does the same to convolutions that it blocks itself, and to no others. Factors and offsets of the channels
go into the kernel and the bias, one value is added before the activation, and the activation comes last:

    Conv, Mul, Add, batch normalization, Add, Relu      one Conv with a bias, a sum and activation = "Relu"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout_backends.x86_nchwc.absorbing import Channels, Vector, activation_of, affine_of, has_data
from relayout_backends.x86_nchwc.blocks import DOMAIN
from relayout_backends.x86_nchwc.shapes import constant, numbers

__all__ = ["fuse"]


def fuse(model: ir.Model) -> None:
    """Let each blocked convolution of `model` do what follows it and is read by nobody else."""
    graph = model.graph
    for node in list(graph):
        if node.graph is graph and node.domain == DOMAIN and node.op_type == "Conv":
            chain = _Chain(node)
            chain.grow()
            if chain.done:
                _write(graph, chain)
    _drop_idle_views(graph)


@dataclass
class _Chain:
    """A convolution and the operators after it that it can do itself, `done`, the last of which makes `end`."""

    convolution: ir.Node
    done: list[ir.Node] = field(default_factory=list)
    factor: Vector | None = None
    offset: Vector | None = None
    added: ir.Value | None = None
    activation: dict[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> ir.Value:
        """What the convolution makes."""
        return self.convolution.outputs[0]

    @property
    def end(self) -> ir.Value:
        """What the last operator that is done makes."""
        return self.done[-1].outputs[0]

    @property
    def channels(self) -> Channels:
        """The channels of the result."""
        return Channels.of(self.convolution)

    def grow(self) -> None:
        """Take the operators after the convolution for as long as it can do them."""
        views: list[ir.Node] = []
        value = self.result
        while not self.activation and "activation" not in self.convolution.attributes:
            node = _only_reader(value)
            if node is None or node.graph is not self.convolution.graph:
                return
            if _is_view(node):
                views.append(node)
            elif self._scales(node, value) or self._adds(node, value) or self._activates(node):
                self.done += [*views, node]
                views = []
            else:
                return
            value = node.outputs[0]

    def _scales(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether `node` multiplies the channels or adds to them, before any sum; if so that is noted."""
        kernel, bias = self.convolution.inputs[1], _operand(self.convolution, 2)
        if self._has_sum() or not has_data(kernel) or (bias is not None and not has_data(bias)):
            return False
        found = affine_of(node, value, self.channels)
        if found is None:
            return False
        factor, offset = found
        if factor is not None:
            self.factor = factor if self.factor is None else self.factor * factor
            self.offset = None if self.offset is None else self.offset * factor
        if offset is not None:
            self.offset = offset if self.offset is None else self.offset + offset
        # A normalization in blocks may have taken its activation already.
        taken = [node.attributes[name] for name in ("activation", "activation_params") if name in node.attributes]
        self.activation = {attribute.name: attribute.value for attribute in taken}
        return True

    def _adds(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether `node` adds another value that lies alike, the first one; if so that is noted."""
        is_sum = node.domain == "" and node.op_type in ("Add", "Sum") and len(node.inputs) == 2
        if self._has_sum() or not is_sum:
            return False
        other = node.inputs[1 if node.inputs[0] is value else 0]
        if other is None or other is value or constant(other) is not None or not _same_shape(other, value):
            return False
        hidden = other if _same_shape(other, self.result) else _viewed(other)
        if hidden is None or not _same_shape(hidden, self.result):
            return False
        self.added = hidden
        return True

    def _activates(self, node: ir.Node) -> bool:
        chosen = activation_of(node, self.channels.used != self.channels.count)
        self.activation = chosen or {}
        return chosen is not None

    def _has_sum(self) -> bool:
        return self.added is not None or _operand(self.convolution, 3) is not None


class _Scaled(ir.LazyTensor):
    """A blocked kernel whose outputs are multiplied, when it is read; outputs are its outermost and innermost part."""

    def __init__(self, source: ir.TensorProtocol, factor: Vector, block: int) -> None:
        super().__init__(self._scale, source.dtype, ir.Shape(source.shape.numpy()), name=f"{source.name}_scaled")
        self.source, self.factor, self.block = source, factor, block

    def _scale(self) -> ir.TensorProtocol:
        array = self.source.numpy()
        parts = array.reshape(len(self.factor) // self.block, -1, self.block)
        scaled = parts * self.factor.reshape(-1, 1, self.block)
        return ir.Tensor(scaled.astype(array.dtype).reshape(array.shape), name=self.name)


def _write(graph: ir.Graph, chain: _Chain) -> None:
    """Put one convolution in the place of the last operator that it does."""
    old, last = chain.convolution, chain.done[-1]
    operands = [_operand(old, place) for place in range(4)]
    if chain.factor is not None:
        kernel = constant(operands[1])
        assert kernel is not None
        operands[1] = _initializer(graph, _Scaled(kernel, chain.factor, chain.channels.block))
    if chain.factor is not None or chain.offset is not None:
        operands[2] = _initializer(graph, _bias(chain, operands[2]))
    if chain.added is not None:
        operands[3] = chain.added
    while operands[-1] is None:
        operands.pop()
    attributes = [attribute for name, attribute in old.attributes.items() if name not in chain.activation]
    attributes += [ir.convenience.convert_attribute(name, value) for name, value in chain.activation.items()]
    new = ir.Node(DOMAIN, "Conv", operands, attributes, name=old.name, metadata_props=dict(old.metadata_props))
    made = new.outputs[0]
    made.type, made.shape = old.outputs[0].type, old.outputs[0].shape
    graph.insert_before(last, new)
    if not _same_shape(chain.end, made):
        # A view is among what was done, for the last operator worked on another shape than the convolution.
        view = next(node for node in reversed(chain.done) if _is_view(node))
        viewing = ir.Node("", "Reshape", [made, view.inputs[1]], list(view.attributes.values()))
        graph.insert_before(last, viewing)
        made = viewing.outputs[0]
        made.type, made.shape = chain.end.type, chain.end.shape
    made.metadata_props.update(chain.end.metadata_props)
    name = chain.end.name
    ir.convenience.replace_all_uses_with(chain.end, made, replace_graph_outputs=True)
    _remove(graph, [*reversed(chain.done), old])
    made.name = name


def _bias(chain: _Chain, given: ir.Value | None) -> ir.TensorProtocol:
    stored = numbers(given)
    bias = np.zeros(chain.channels.count) if stored is None else stored.astype(np.float64)
    if chain.factor is not None:
        bias = bias * chain.factor
    if chain.offset is not None:
        bias = bias + chain.offset
    return ir.tensor(bias.astype(np.float32), name=f"{chain.end.name}_bias")


def _initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    stem, count = str(tensor.name), 0
    while (name := f"{stem}_{count}" if count else stem) in graph.initializers:
        count += 1
    tensor.name = name
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _is_view(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Reshape"


def _viewed(value: ir.Value) -> ir.Value | None:
    """What `value` is a view of; None where it is none."""
    producer = value.producer()
    return producer.inputs[0] if producer is not None and _is_view(producer) else None


def _same_shape(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values have the same shape for certain: dims that are not known, and have no name, may differ."""
    if one.shape is None or other.shape is None or list(one.shape) != list(other.shape):
        return False
    return all(isinstance(extent, int) or extent.value is not None for extent in one.shape)


def _operand(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if len(node.inputs) > place else None


def _drop_idle_views(graph: ir.Graph) -> None:
    """A view of a view that has the first one's shape again is what the first one views; and some are read no more."""
    views = [node for node in graph if _is_view(node)]
    for node in views:
        source = _viewed(node.inputs[0]) if node.inputs[0] is not None else None
        if source is not None and _same_shape(source, node.outputs[0]) and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
    for node in reversed(views):
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            _remove(graph, [node])


def _remove(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Remove nodes that are read no more, and the constants that nobody else reads."""
    constants = [value for node in nodes for value in node.inputs if value is not None and value.is_initializer()]
    graph.remove(nodes, safe=True)
    for value in constants:
        if not value.uses() and not value.is_graph_output():
            graph.initializers.pop(str(value.name), None)
