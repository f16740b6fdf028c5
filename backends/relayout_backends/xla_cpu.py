"""`xla-cpu`: a constant that dots alone read is column-major, and operands of custom calls lie as the calls say.

After XLA's CPU backend, which makes a constant column-major when all of its users are dots, and its GPU backend, which
constrains the operands of a custom call. ONNX's MatMul has no word for a column-major operand: it is written as Gemm
with `transA` or `transB` or, where its other operand is no matrix, as Einsum.

    calls = {"com.acme::Convolve": {"operands": ["{1,3,2,0}", "{0,1,3,2}"], "result": "{1,3,2,0}"}}
    load_backend("xla-cpu", options={"custom_calls": calls})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from relayout.backend import PLACE_KEY, Backend, Implementation, rank_of
from relayout.errors import LayoutSyntaxError, UsageError
from relayout.layout import Layout
from relayout.tensors import relaid

if TYPE_CHECKING:
    from relayout.writing import Writing

__all__ = ["CustomCall", "XlaCpu"]

CONSTRAINTS = "operand_layout_constraints"
GEMM_NEEDS_NO_SUMMAND_SINCE = 11
EINSUM_SINCE = 12
_ONNX = ("", "ai.onnx")
_ROWS = "abcdefgh"
_TRANSPOSED = ("transA", "transB")
_NUMBERS = frozenset([ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE])


class XlaCpu(Backend):
    """Constants that dots alone read are column-major; everything else is as ONNX has it.

    `custom_calls` has operators (`domain::Name`, of one result, without a body in the model) whose operands must lie as
    said: the layouts of the `operands` and of the `result`, minor to major. Such a call is written with the attribute
    `operand_layout_constraints`, and reads its operands as they lie.
    """

    name = "xla-cpu"

    def __init__(
        self,
        context: Backend | None = None,
        *,
        custom_calls: Mapping[str, Mapping[str, str | Sequence[str]]] | None = None,
    ) -> None:
        """`custom_calls`: by operator (`domain::Name`), a table of its `operands` and its `result`, minor to major."""
        super().__init__(context)
        self._calls = {name: CustomCall.read(name, layouts) for name, layouts in (custom_calls or {}).items()}

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        call = self._calls.get(f"{node.domain}::{node.op_type}")
        if call is not None and CONSTRAINTS not in node.attributes:
            return (call.implementation(node),)
        return super().implementations(node)

    def finish(self, model: ir.Model, place: str = "") -> bool:
        """Turn the constants, now that all else is decided: a constant costs nothing in any order."""
        turned: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
        for node in model.graph.all_nodes():
            for value in node.inputs:
                if value is not None and value not in turned and _is_column_major(value, place):
                    turned[value] = [(dot, side) for dot, side in value.uses()]
        for constant, uses in turned.items():
            _turn(constant)
            for dot, side in uses:
                _read_turned(dot, side)
        return bool(turned)


def _is_column_major(value: ir.Value, place: str) -> bool:
    """Whether this is a constant that dots alone read, all of them at `place`."""
    if value.const_value is None or rank_of(value) != 2:
        return False
    maker = value.producer()
    if value.is_graph_input() or value.is_graph_output() or (maker is not None and maker.op_type != "Constant"):
        return False  # what is computed from constants stays computed
    uses = value.uses()
    return bool(uses) and all(_is_dot(node, side, place) for node, side in uses)


def _is_dot(node: ir.Node, side: int, place: str) -> bool:
    """Whether `node` is a dot that reads this operand as it is, and that can be written with the operand transposed."""
    if place and node.metadata_props.get(PLACE_KEY) != place:
        return False
    if node.domain not in _ONNX or node.op_type not in ("MatMul", "Gemm") or side > 1:
        return False
    if node.attributes.get_int(_TRANSPOSED[side], 0) == 1:
        return False
    opset = node.graph.opset_imports.get("", 1) if node.graph is not None else 1
    rank, result = rank_of(node.inputs[1 - side]), node.outputs[0]
    if result.dtype not in _NUMBERS:
        return False
    return rank == 2 or (opset >= EINSUM_SINCE and 1 <= rank <= len(_ROWS))


def _turn(constant: ir.Value) -> None:
    tensor = constant.const_value
    assert tensor is not None
    turned = relaid(tensor, [{"op": "transpose", "perm": [1, 0]}])
    turned.name = constant.name
    constant.const_value, constant.shape = turned, ir.Shape(turned.shape.numpy())
    maker = constant.producer()
    if maker is not None:
        maker.attributes.clear()
        maker.attributes.add(ir.AttrTensor("value", turned))


def _read_turned(dot: ir.Node, side: int) -> None:
    """Write the dot for an operand that is turned, each in ONNX's own words."""
    if dot.op_type == "Gemm":
        dot.attributes.add(ir.AttrInt64(_TRANSPOSED[side], 1))
        return
    graph, rank = dot.graph, rank_of(dot.inputs[1 - side])
    assert graph is not None
    if rank == 2:
        dot.op_type = "Gemm"
        dot.attributes.add(ir.AttrInt64(_TRANSPOSED[side], 1))
        if graph.opset_imports.get("", 1) < GEMM_NEEDS_NO_SUMMAND_SINCE:
            _add_zero(graph, dot)
        return
    dot.op_type = "Einsum"
    dot.attributes.add(ir.AttrString("equation", _equation(rank, side)))


def _equation(rank: int, side: int) -> str:
    """The product of a turned matrix and the other operand, of `rank` dimensions; `y` is summed over.

    >>> _equation(3, 1), _equation(3, 0), _equation(1, 0)
    ('aby,zy->abz', 'yx,ayz->axz', 'yx,y->x')
    """
    if side == 1:
        rows = _ROWS[: rank - 1]
        return f"{rows}y,zy->{rows}z"
    batch, column = _ROWS[: max(rank - 2, 0)], "z" if rank > 1 else ""
    return f"yx,{batch}y{column}->{batch}x{column}"


def _add_zero(graph: ir.Graph, dot: ir.Node) -> None:
    """The summand that Gemm cannot do without."""
    result = dot.outputs[0]
    assert result.dtype is not None
    taken = {value.name for node in graph.all_nodes() for value in (*node.inputs, *node.outputs) if value is not None}
    taken |= {value.name for value in graph.inputs} | set(graph.initializers)
    name = next(name for n in count() if (name := f"{result.name}_zero" + (f"_{n}" if n else "")) not in taken)
    zero = ir.tensor(np.zeros((1, 1), result.dtype.numpy()), name=name)
    summand = ir.Value(name=name, shape=ir.Shape(zero.shape.numpy()), type=ir.TensorType(zero.dtype), const_value=zero)
    graph.register_initializer(summand)
    dot.resize_inputs(3)
    dot.replace_input_with(2, summand)


@dataclass(frozen=True, slots=True)
class CustomCall:
    """How the operands and the result of one custom operator lie; a result of None as in the source."""

    operands: tuple[Layout, ...]
    result: Layout | None

    @classmethod
    def read(cls, name: str, layouts: Mapping[str, str | Sequence[str]]) -> CustomCall:
        """The constraints that an option states. Raises UsageError."""
        where = f"custom call {name}"
        unknown = sorted({*layouts} - {"operands", "result"})
        if unknown:
            raise UsageError("an unknown key", where=where, expected="operands or result", found=unknown[0])
        operands, result = layouts.get("operands", ()), layouts.get("result")
        if isinstance(operands, str) or not isinstance(result, str | None):
            expected, found = "a list of operands' layouts, and the result's", f"{operands!r} and {result!r}"
            raise UsageError("not the layouts of a call", where=where, expected=expected, found=found)
        return cls(tuple(_read(text, where) for text in operands), None if result is None else _read(result, where))

    def implementation(self, node: ir.Node) -> Implementation:
        """`node` with its operands as they must lie."""
        given = zip_longest(self.operands[: len(node.inputs)], _any(node.inputs))
        results = _any(node.outputs) if self.result is None else (self.result,)
        return Implementation(tuple(wished or usual for wished, usual in given), results, rewrite=self._write)

    def _write(self, writing: Writing) -> None:
        node = writing.node
        operands = [self._operand(writing, n) for n in range(len(node.inputs))]
        attributes = {**node.attributes, CONSTRAINTS: [str(layout) for layout in self.operands]}
        if self.result is not None:
            attributes["result_layout"] = str(self.result)
        version = node.graph.opset_imports.get(node.domain, 1) if node.graph is not None else 1
        made = writing.emit(
            node.op_type,
            operands,
            attributes,
            shape=writing.shape_of(0, is_result=True),
            domain=node.domain,
            version=version,
            like=node.outputs[0],
        )
        writing.give(0, made)

    def _operand(self, writing: Writing, n: int) -> ir.Value | None:
        source = writing.node.inputs[n]
        if source is None:
            return None
        if source.const_value is None or source.is_graph_input() or n >= len(self.operands):
            return writing.read(n)
        return writing.laid(n, [{"op": "transpose", "perm": [int(axis) for axis in self.operands[n].names]}])


def _read(text: str, where: str) -> Layout:
    """A layout of numbers. Raises UsageError."""
    try:
        layout = Layout.parse(text)
    except LayoutSyntaxError as error:
        found = f"{error.found} in {text!r}, column {error.column}"
        raise UsageError("not a layout", where=where, expected=error.expected, found=found) from error
    if not layout.is_numbered:
        expected = "numbers of axes, minor to major, as in {1,3,2,0}"
        raise UsageError("a custom operator's axes have no names", where=where, expected=expected, found=text)
    return layout


def _any(values: Sequence[ir.Value | None]) -> tuple[Layout, ...]:
    return tuple(Layout.any(rank_of(value)) for value in values)
