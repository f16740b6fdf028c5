"""Constants that dots alone read, column-major, and the dots that read them so.

ONNX's MatMul has no word for a column-major operand: it is written as Gemm with `transA` or `transB` or, where an
operand is no matrix, as Einsum. Those take their other operand, and give their result, in more orders than MatMul; so
while layouts are decided, each such dot is an Einsum, whose constant is row-major.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
import onnx_ir as ir

from relayout.backend import PLACE_KEY, rank_of
from relayout.tensors import relaid

__all__ = ["turn_constants", "write_dots"]

GEMM_NEEDS_NO_SUMMAND_SINCE = 11
EINSUM_SINCE = 12
_ONNX = ("", "ai.onnx")
_ROWS = "abcdefgh"
_TRANSPOSED = ("transA", "transB")
_NUMBERS = frozenset([ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE])


@dataclass(frozen=True, slots=True)
class _Dot:
    """A dot with a matrix as its operand `side`, 0 on the left or 1 on the right; `terms` are the subscripts of its
    operands and of its result."""

    node: ir.Node
    side: int
    terms: tuple[str, str, str]

    @property
    def is_turned(self) -> bool:
        """Whether it reads the matrix transposed, and sums over the rows of a left one, the columns of a right one."""
        (summed,) = set(self.terms[self.side]) - set(self.terms[2])
        return self.terms[self.side].index(summed) == self.side

    def turned(self) -> _Dot:
        """The same dot of the transposed matrix."""
        left, right, result = self.terms
        terms = (left[::-1], right, result) if self.side == 0 else (left, right[::-1], result)
        return _Dot(self.node, self.side, terms)

    def write(self) -> None:
        """Write the node as Einsum."""
        left, right, result = self.terms
        self.node.op_type = "Einsum"
        self.node.attributes.clear()
        self.node.attributes.add(ir.AttrString("equation", f"{left},{right}->{result}"))


def write_dots(model: ir.Model) -> bool:
    """Write as Einsum the dots of which a constant is column-major, or is to be; whether there are any."""
    opset = model.opset_imports.get("", 1)
    if opset < EINSUM_SINCE:
        return False
    found = _constants(model, opset, "", lambda dot: _is_alone(dot.node))
    for constant, dots in found.items():
        is_turned = dots[0].is_turned
        if is_turned:
            _turn(constant)
        for dot in dots:
            (dot.turned() if is_turned else dot).write()
    return bool(found)


def turn_constants(model: ir.Model, place: str) -> bool:
    """Turn the constants that dots alone read, all of them at `place`, and write these dots in ONNX's own words.

    Whether anything changed.
    """
    opset = model.opset_imports.get("", 1)
    changed = False
    for node in model.graph.all_nodes():
        changed |= _put_rows_first(node)
    for constant, dots in _constants(model, opset, place, lambda _: True).items():
        is_turned = dots[0].is_turned
        if not is_turned:
            _turn(constant)
        for dot in dots:
            changed |= _read_turned(dot if is_turned else dot.turned(), opset)
    return changed


def _constants(
    model: ir.Model, opset: int, place: str, suits: Callable[[_Dot], bool]
) -> dict[ir.Value, list[_Dot]]:
    """The matrices that dots alone read, all of which suit and read them in the same way, with these dots."""
    found: dict[ir.Value, list[_Dot]] = {}
    seen: set[ir.Value] = set()
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is None or value in seen or not _is_matrix(value):
                continue
            seen.add(value)
            dots = [_dot(user, side, opset, place) for user, side in value.uses()]
            known = [dot for dot in dots if dot is not None and suits(dot)]
            if len(known) == len(dots) and len({dot.is_turned for dot in known}) == 1:
                found[value] = known
    return found


def _is_matrix(value: ir.Value) -> bool:
    """Whether this is a constant matrix that is stored, and no output."""
    if value.const_value is None or rank_of(value) != 2 or value.is_graph_input() or value.is_graph_output():
        return False
    maker = value.producer()
    return maker is None or maker.op_type == "Constant"  # what is computed from constants stays computed


def _is_alone(node: ir.Node) -> bool:
    """Whether a dot computes nothing but the product, of one constant at most."""
    if sum(value is not None and value.const_value is not None for value in node.inputs) > 1:
        return False
    return node.op_type != "Gemm" or (len(node.inputs) == 2 and node.attributes.get_float("alpha", 1.0) == 1.0)


def _dot(node: ir.Node, side: int, opset: int, place: str) -> _Dot | None:
    """The node as a dot of this operand, if it is one at `place`, and can be written with the operand transposed."""
    if place and node.metadata_props.get(PLACE_KEY) != place:
        return None
    if node.domain not in _ONNX or side > 1 or node.outputs[0].dtype not in _NUMBERS:
        return None
    terms = _terms(node, side)
    if terms is None:
        return None
    own, result = set(terms[side]), set(terms[2])
    other = set(terms[1 - side])
    is_dot = len(own & result) == 1 and own - result <= other and not own & result & other
    is_written = opset >= EINSUM_SINCE or node.op_type == "Gemm" or rank_of(node.inputs[1 - side]) == 2
    return _Dot(node, side, terms) if is_dot and is_written else None


def _terms(node: ir.Node, side: int) -> tuple[str, str, str] | None:
    """The subscripts of a dot whose operand `side` is a matrix."""
    if node.op_type == "Einsum":
        operands, _, result = node.attributes["equation"].as_string().replace(" ", "").partition("->")
        left, comma, right = operands.partition(",")
        is_plain = comma and result and (left + right + result).isalpha()
        return (left, right, result) if is_plain else None
    if node.op_type == "Gemm":
        flips = [node.attributes.get_int(name, 0) for name in _TRANSPOSED]
        return ("ya" if flips[0] else "ay", "zy" if flips[1] else "yz", "az")
    rank = rank_of(node.inputs[1 - side]) if node.op_type == "MatMul" else 0
    if not 1 <= rank <= len(_ROWS):
        return None
    if side == 1:
        rows = _ROWS[: rank - 1]
        return f"{rows}y", "yz", f"{rows}z"
    batch, column = _ROWS[: max(rank - 2, 0)], "z" if rank > 1 else ""
    return "xy", f"{batch}y{column}", f"{batch}x{column}"


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


def _put_rows_first(node: ir.Node) -> bool:
    """Let the operand that has the rows of a product of two matrices, one of them a constant, be the left one; whether
    it was not."""
    if node.op_type != "Einsum" or node.domain not in _ONNX or len(node.inputs) != 2:
        return False
    terms = _terms(node, 1)
    known = any(value is not None and value.const_value is not None for value in node.inputs)
    if terms is None or not known or [*map(len, terms)] != [2, 2, 2] or terms[2][0] not in terms[1]:
        return False
    left, right = node.inputs
    node.replace_input_with(0, right)
    node.replace_input_with(1, left)
    _Dot(node, 0, (terms[1], terms[0], terms[2])).write()
    return True


def _read_turned(dot: _Dot, opset: int) -> bool:
    """Write the dot as Gemm, where both operands are matrices; whether it was not."""
    node, (left, right, result) = dot.node, dot.terms
    before = node.op_type, [*node.attributes.values()]
    if node.op_type == "Gemm":
        if node.attributes.get_int(_TRANSPOSED[dot.side], 0) != 1:
            node.attributes.add(ir.AttrInt64(_TRANSPOSED[dot.side], 1))
    elif [*map(len, dot.terms)] != [2, 2, 2]:
        dot.write()
    else:
        node.op_type = "Gemm"
        node.attributes.clear()
        for name, is_flipped in zip(_TRANSPOSED, (left[0] != result[0], right[1] != result[1]), strict=True):
            if is_flipped:
                node.attributes.add(ir.AttrInt64(name, 1))
        if opset < GEMM_NEEDS_NO_SUMMAND_SINCE:
            assert node.graph is not None
            _add_zero(node.graph, node)
    return before != (node.op_type, [*node.attributes.values()])


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
