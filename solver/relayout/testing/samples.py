"""Sample nodes: each operator of ONNX on data of several ranks, channels and types, to be asked about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from relayout.ops.operand_roles import DATA, KERNEL, OPERATORS, native_role

_SPATIAL = 8
_QUANTIZED = ("ConvInteger", "QLinearConv")


@dataclass(frozen=True, slots=True)
class Sample:
    """The properties of a sample node. `words` tell how it differs from the usual one of its rank."""

    rank: int
    words: str = ""
    channels: int = 16
    dtype: ir.DataType = ir.DataType.FLOAT
    group: int = 1
    has_constant_kernel: bool = True

    def node(self, operator: str) -> ir.Node:
        """The node. Operands without a role are few: as many as the operator needs."""
        schema = onnx.defs.get_schema(operator)
        dtype = ir.DataType.UINT8 if operator in _QUANTIZED else self.dtype
        inputs = [self._input(operator, n, dtype) for n in range(schema.min_input)]
        count = 2 if operator == "MaxPool" else max(schema.min_output, 1)
        shape = self._data_shape()
        outputs = [ir.Value(name=f"result{n}", shape=ir.Shape(shape), type=ir.TensorType(dtype)) for n in range(count)]
        return ir.Node("", operator, inputs, self._attributes(operator), outputs=outputs, name=operator.lower())

    def _data_shape(self) -> tuple[int, ...]:
        return (1, self.channels, *[_SPATIAL] * (self.rank - 2))

    def _input(self, operator: str, n: int, dtype: ir.DataType) -> ir.Value:
        role = native_role(operator, 0, n)
        name = f"input{n}"
        if role == KERNEL:
            ends = (16, self.channels // self.group) if self.group == 1 else (self.channels, 1)
            shape: tuple[int, ...] = (*ends, *[3] * (self.rank - 2))
        elif role == DATA or operator not in OPERATORS:
            return ir.Value(name=name, shape=ir.Shape(self._data_shape()), type=ir.TensorType(dtype))
        else:
            shape = () if operator in _QUANTIZED else (self.channels,)
        if role == KERNEL and not self.has_constant_kernel:
            return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        return ir.val(name, const_value=ir.tensor(np.ones(shape, dtype.numpy()), name=name))

    def _attributes(self, operator: str) -> list[ir.Attr]:
        """The attributes that the operator's schema requires, and the window of a convolution."""
        spatial = self.rank - 2
        given: dict[str, Any] = {}
        if operator in OPERATORS and any(native_role(operator, 0, n) == KERNEL for n in range(4)):
            given = {"kernel_shape": [3] * spatial, "group": self.group, "pads": [1] * (2 * spatial)}
        kinds = onnx.defs.OpSchema.AttrType
        several = [2] * max(spatial, 1)
        defaults: dict[Any, Any] = {kinds.INT: 1, kinds.INTS: several, kinds.FLOAT: 1.0, kinds.STRING: "LEFT"}
        for name, attribute in onnx.defs.get_schema(operator).attributes.items():
            if attribute.required and name not in given:
                given[name] = 2 if name == "blocksize" else defaults[attribute.type]
        return [ir.convenience.convert_attribute(name, value) for name, value in given.items()]


@cache
def operator_names() -> tuple[str, ...]:
    """The operators with named axes, then the rest of ONNX's that need no graph inside them."""
    graph = onnx.defs.OpSchema.AttrType.GRAPH
    others = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if not schema.domain and not any(each.required and each.type == graph for each in schema.attributes.values())
    }
    return (*OPERATORS, *sorted(others - {*OPERATORS}))


def ranks_of(operator: str) -> tuple[int, ...]:
    """The ranks of an operator's sample nodes: with one, two and three spatial axes, and without one where its axes
    have no names."""
    if operator == "Gemm":
        return (2,)
    return (3, 4, 5) if operator in OPERATORS else (2, 3, 4, 5)


def samples(operator: str, rank: int) -> Iterator[Sample]:
    """The usual node of this rank first, then others that a backend may treat differently."""
    usual = Sample(rank)
    yield usual
    if operator not in OPERATORS:
        return
    yield replace(usual, words="3 channels", channels=3)
    yield replace(usual, words="64 channels", channels=64)
    if operator not in _QUANTIZED:
        yield replace(usual, words="float16", dtype=ir.DataType.FLOAT16)
    if any(native_role(operator, 0, n) == KERNEL for n in range(4)):
        yield replace(usual, words="depthwise", group=16)
        yield replace(usual, words="the kernel is no constant", has_constant_kernel=False)
