"""Fusion into blocked convolutions: factors, offsets, a sum and an activation after a convolution become part of it.

onnxruntime does the same to convolutions that it blocks itself, and to no others. Factors and offsets of the channels
go into the kernel and the bias, one value is added before the activation, and the activation comes last:

    Conv, Mul, Add, batch normalization, Add, Relu      one Conv with a bias, a sum and activation = "Relu"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from relayout_backends.x86_nchwc.absorbing import Channels, Vector, activation_of, affine_of
from relayout_backends.x86_nchwc.blocks import DOMAIN, block_of
from relayout_backends.x86_nchwc.editing import Editing, is_view, only_reader, same_shape, sources
from relayout_backends.x86_nchwc.kernels import can_be_scaled, scaled
from relayout_backends.x86_nchwc.scaling import scale_by_convolutions
from relayout_backends.x86_nchwc.shapes import constant, numbers


def fuse(model: ir.Model, device: str) -> bool:
    """Fuse into each blocked convolution of `model` the operators after it that only it feeds; whether any were.

    `device`: only nodes there are fused; "": all (see `relayout.backend.DEVICE_KEY`).
    """
    editing = Editing(model.graph, device)
    _grow_chains(editing)
    scale_by_convolutions(editing)
    editing.drop_idle_views()
    _grow_chains(editing)
    editing.drop_idle_views()
    return editing.changed


def _grow_chains(editing: Editing) -> None:
    for node in list(editing.graph):
        is_convolution = node.op_type == "Conv" and block_of(node) is not None
        if node.graph is editing.graph and is_convolution and editing.is_own(node):
            chain = _Chain(node, editing.is_own)
            chain.grow()
            if chain.done:
                _write(editing, chain)


@dataclass
class _Chain:
    """A convolution and the operators after it that it can run, `done`, the last of which makes `end`."""

    convolution: ir.Node
    is_own: Callable[[ir.Node], bool]
    done: list[ir.Node] = field(default_factory=list)
    factor: Vector | None = None
    offset: Vector | None = None
    added: ir.Value | None = None
    activation: dict[str, Any] = field(default_factory=dict)

    @property
    def result(self) -> ir.Value:
        """The result of the convolution."""
        return self.convolution.outputs[0]

    @property
    def end(self) -> ir.Value:
        """The result of the last operator that is done."""
        return self.done[-1].outputs[0]

    @property
    def channels(self) -> Channels:
        """The channels of the result."""
        return Channels.of(self.convolution)

    def grow(self) -> None:
        """Take the operators after the convolution for as long as it can run them."""
        views: list[ir.Node] = []
        value = self.result
        while not self.activation and "activation" not in self.convolution.attributes:
            node = only_reader(value)
            if node is None or node.graph is not self.convolution.graph or not self.is_own(node):
                return
            if node.outputs[0].shape is None:
                return
            if is_view(node):
                views.append(node)
            elif self._scales(node, value) or self._adds(node, value) or self._activates(node):
                self.done += [*views, node]
                views = []
            else:
                return
            value = node.outputs[0]

    def _scales(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether `node` multiplies the channels or adds to them, before any sum; if so it is recorded."""
        kernel, bias = self.convolution.inputs[1], _operand(self.convolution, 2)
        if self._has_sum() or not can_be_scaled(kernel) or (bias is not None and numbers(bias) is None):
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
        """Whether `node` adds another value in the same format, the first one; if so it is recorded."""
        is_sum = node.domain == "" and node.op_type in ("Add", "Sum") and len(node.inputs) == 2
        if self._has_sum() or not is_sum:
            return False
        other = node.inputs[1 if node.inputs[0] is value else 0]
        if other is None or other is value or constant(other) is not None or not same_shape(other, value):
            return False
        self.added = next((source for source in sources(other) if same_shape(source, self.result)), None)
        return self.added is not None

    def _activates(self, node: ir.Node) -> bool:
        chosen = activation_of(node, self.channels.used != self.channels.count)
        self.activation = chosen or {}
        return chosen is not None

    def _has_sum(self) -> bool:
        return self.added is not None or _operand(self.convolution, 3) is not None


def _write(editing: Editing, chain: _Chain) -> None:
    """Replace the last of the fused operators with one convolution."""
    old, last = chain.convolution, chain.done[-1]
    operands = [_operand(old, place) for place in range(4)]
    if chain.factor is not None:
        kernel = operands[1]
        assert kernel is not None
        operands[1] = scaled(editing, kernel, chain.factor, chain.channels.block, last)
    if chain.factor is not None or chain.offset is not None:
        operands[2] = editing.constant(f"{chain.end.name}_bias", _bias(chain, operands[2]))
    if chain.added is not None:
        operands[3] = chain.added
    while operands[-1] is None:
        operands.pop()
    attributes = [attribute for name, attribute in old.attributes.items() if name not in chain.activation]
    attributes += [ir.convenience.convert_attribute(name, value) for name, value in chain.activation.items()]
    new = ir.Node(DOMAIN, "Conv", operands, attributes, name=old.name, metadata_props=dict(old.metadata_props))
    hidden, shape = chain.result.shape, chain.end.shape
    assert hidden is not None
    assert shape is not None
    made = editing.insert(new, last, hidden, chain.result, f"{chain.end.name}_blocked")
    shown = editing.view(made, shape, last, like=_in_blocks(chain.channels)) or _viewed(editing, chain, made)
    editing.replace(chain.end, shown, [*reversed(chain.done), old])


def _viewed(editing: Editing, chain: _Chain, value: ir.Value) -> ir.Value:
    """`value` in the shape of the chain's end, by its own views: no single Reshape describes some of these shapes, such
    as that of one block without its dim of extent 1, where batch, height and width are open."""
    for view in filter(is_view, chain.done):
        shape = view.outputs[0].shape
        assert shape is not None
        node = ir.Node("", view.op_type, [value, *view.inputs[1:]], list(view.attributes.values()))
        value = editing.insert(node, chain.done[-1], shape, value, f"{chain.end.name}_as")
    return value


def _in_blocks(channels: Channels) -> tuple[int, ...]:
    """The target of a Reshape to N, C/block, H, W, block, for any N, H and W."""
    return 0, channels.count // channels.block, 0, 0, channels.block


def _bias(chain: _Chain, given: ir.Value | None) -> ir.TensorProtocol:
    stored = numbers(given)
    bias = np.zeros(chain.channels.count) if stored is None else stored.astype(np.float64)
    if chain.factor is not None:
        bias = bias * chain.factor
    if chain.offset is not None:
        bias = bias + chain.offset
    return ir.tensor(bias.astype(np.float32))


def _operand(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if len(node.inputs) > place else None
