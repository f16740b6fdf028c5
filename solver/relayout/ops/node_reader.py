"""Typed access to one node for its rule: attributes with ONNX's defaults, constant inputs, extents."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from relayout.layout.memory_format import Extent
from relayout.layout.metadata_keys import ORDER_KEY
from relayout.layout.relaid_constant import AbsentTensor, is_one_of

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
"""The types of floats in which a node is decomposed; those of 16 bits are computed in 32."""

NOTED_ORDER = -1
"""The annotated order of the first result, among the constants that a rule reads."""


class NoRuleError(Exception):
    """The rule does not cover this node, which is therefore pinned. The operator table catches it."""


def extents_of(value: ir.Value | None) -> tuple[Extent, ...] | None:
    """The value's extents, or None where there is no value or its rank is unknown."""
    shape = value.shape if value is not None else None
    if shape is None:
        return None
    return tuple([d if isinstance(d, int) else d.value for d in shape.dims])


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The stored data of a constant: of an initializer or a Constant; None for any other value.

    `ir.convenience.get_const_tensor` gives the same, and names the tensor of a Constant after its result: a model that
    was only read would be written with other names.
    """
    if (stored := value.const_value) is not None:
        return stored
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        data = producer.attributes.get("value")
        if data is not None and not data.is_ref() and producer.domain == "":
            return data.as_tensor()
    return ir.convenience.get_const_tensor(value)


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """The value's numbers if they are known before the model runs, else None."""
    if value is None or value.is_graph_input():
        return None
    tensor = constant_tensor(value)
    # A constant without data has no numbers to read; `size` is cheap where `numpy` may read a file.
    if tensor is None or tensor.size > 4096 or is_one_of(tensor, AbsentTensor):
        return None
    return tensor.numpy()


def noted_order(value: ir.Value) -> tuple[int, ...]:
    """The axes of the source in the value's order, as an earlier run has annotated it; in the source's order where it
    has annotated no order of whole axes."""
    in_source = tuple(range(len(value.shape or ())))
    noted = value.metadata_props.get(ORDER_KEY, "").split(",")
    return tuple(map(int, noted)) if sorted(noted) == sorted(map(str, in_source)) else in_source


def is_read(value: ir.Value) -> bool:
    """Whether a node reads the value, or the graph gives it."""
    return bool(value.uses()) or value.is_graph_output()


class NodeSnapshot(Struct, frozen=True):
    """An immutable copy of a node before the rewrite, for the rule that the nodes of a class share."""

    domain: str
    op_type: str
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    attributes: Mapping[str, ir.Attr]

    @classmethod
    def of(cls, node: ir.Node) -> NodeSnapshot:
        return cls(node.domain, node.op_type, tuple(node.inputs), tuple(node.outputs), dict(node.attributes))


class Reading(Struct, frozen=True, eq=False):
    """A node under one opset. Methods raise `NoRuleError` for an unknown rank or number. `reads`: the constants
    read, and `NOTED_ORDER`."""

    node: NodeSnapshot
    opset: int
    reads: set[int] = set()

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def extents(self, index: int) -> tuple[Extent, ...]:
        extents = extents_of(self.node.inputs[index]) if self.has(index) else None
        if extents is None:
            raise NoRuleError
        return extents

    def space(self, index: int = 0) -> tuple[tuple[Extent, ...], tuple[int, ...]]:
        """The extents of an input, and its axes: the iteration space of a node with that operand alone."""
        extents = self.extents(index)
        return extents, tuple(range(len(extents)))

    def result_space(self) -> tuple[tuple[Extent, ...], tuple[int, ...]]:
        """The extents of the first result, and its axes: the iteration space of a node whose result has every axis."""
        extents = self.result_extents()
        return extents, tuple(range(len(extents)))

    def result_extents(self, index: int = 0) -> tuple[Extent, ...]:
        extents = extents_of(self.node.outputs[index])
        if extents is None:
            raise NoRuleError
        return extents

    def rank(self, index: int = 0) -> int:
        return len(self.extents(index))

    def is_single(self, index: int) -> bool:
        """Whether an input is absent or has one element."""
        return not self.has(index) or self.extents(index) in ((), (1,))

    def is_float(self) -> bool:
        """Whether the first result has floats of a type for which decompositions exist."""
        return self.node.outputs[0].dtype in FLOATS

    def used(self, index: int) -> bool:
        """Whether the node has this result and it has consumers."""
        if index >= len(self.node.outputs) or not self.node.outputs[index].name:
            return False
        return is_read(self.node.outputs[index])

    def constant(self, index: int) -> np.ndarray:
        array = self._array(index)
        if array is None:
            raise NoRuleError
        return array

    def is_known(self, index: int) -> bool:
        """Whether the node has this input and its numbers are known before the model runs."""
        return self._array(index) is not None

    def _array(self, index: int) -> np.ndarray | None:
        if not self.has(index):
            return None
        self.reads.add(index)
        return constant_array(self.node.inputs[index])

    def integers(self, index: int) -> tuple[int, ...]:
        return tuple(int(v) for v in self.constant(index).reshape(-1))

    def scalar(self, index: int) -> float:
        """The one number of a constant input."""
        array = self.constant(index)
        if array.size != 1:
            raise NoRuleError
        number: float = array.item()
        return number

    def integer_type(self, index: int) -> np.dtype:
        """The element type of input `index`, for another input that ONNX binds to the same type."""
        value = self.node.inputs[index]
        dtype = value.dtype if value is not None else None
        return dtype.numpy() if dtype is not None else np.dtype(np.int64)

    def noted_order(self) -> tuple[int, ...]:
        """The axes of the source in the order of the first result (see `noted_order`)."""
        self.reads.add(NOTED_ORDER)
        return noted_order(self.node.outputs[0])

    def attribute(self, name: str) -> ir.Attr | None:
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            raise NoRuleError  # an attribute of the enclosing function: its value is unknown here
        return attribute

    def integer(self, name: str, default: int | None = None) -> int:
        attribute = self.attribute(name)
        if attribute is not None:
            return attribute.as_int()
        if default is None:
            raise NoRuleError
        return default

    def ints(self, name: str) -> tuple[int, ...] | None:
        attribute = self.attribute(name)
        return tuple(attribute.as_ints()) if attribute is not None else None

    def string(self, name: str, default: str = "") -> str:
        attribute = self.attribute(name)
        return attribute.as_string() if attribute is not None else default

    def axis(self, default: int | None, rank: int) -> int:
        """The attribute `axis`, counted from the front."""
        return normal_axis(self.integer("axis", default), rank)

    def axes(self, index: int, rank: int) -> tuple[int, ...] | None:
        """The axes as attribute or as the constant input `index`, sorted and counted from the front; None if absent."""
        given = self.ints("axes")
        if given is None and self.has(index):
            given = self.integers(index)
        if given is None:
            return None
        return tuple(sorted(normal_axis(a, rank) for a in given))


def normal_axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise NoRuleError
    return axis % rank if rank else 0
