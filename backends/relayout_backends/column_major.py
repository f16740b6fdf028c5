"""Column-major constants: constants that only dots read, and the dots that read them column-major.

ONNX's MatMul cannot have a column-major operand. It is written as Gemm with `transA` or `transB`, or as Einsum if an
operand is not a matrix. These accept their other operand and their result in more orders than MatMul, so each dot of a
constant is an Einsum while layouts are decided. It becomes a MatMul again if no other order is used: a constant that
other nodes read too, or that the model computes, may become one that only this dot reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import onnx_ir as ir

from relayout.backend import DEVICE_KEY, rank_of
from relayout.layout.relaid_constant import note_transform, relaid
from relayout.model.constants import constant_values
from relayout.ops.node_reader import constant_tensor

GEMM_NEEDS_NO_SUMMAND_SINCE = 11
EINSUM_SINCE = 12
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
    def is_transposed(self) -> bool:
        """Whether it reads the matrix transposed: it sums over the rows of a left one, the columns of a right one."""
        (summed,) = set(self.terms[self.side]) - set(self.terms[2])
        return self.terms[self.side].index(summed) == self.side

    @property
    def is_of_matrices(self) -> bool:
        return [*map(len, self.terms)] == [2, 2, 2]

    @property
    def is_in_order(self) -> bool:
        """Whether one order of all subscripts is that of each term: the library converts such operands."""
        left, right, result = self.terms
        return not (len(left) == len(right) == 2 and left[0] not in result and right[-1] not in result)

    def transposed(self) -> _Dot:
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
    """Write the dots of a constant as Einsum with the rows' operand on the left, and column-major constants row-major;
    whether anything changed."""
    graph = _Graph(model)
    is_exchanged = _put_rows_first(model, graph)
    dots = [dot for node in model.graph.all_nodes() if (dot := graph.dot_of_constant(node)) is not None]
    products = {dot.node: dot for dot in dots if _is_product(dot.node)} if graph.opset >= EINSUM_SINCE else {}
    for constant, readers in graph.constants().items():
        if readers[0].is_transposed and all(dot.node in products for dot in readers):
            _turn(constant)
            products.update({dot.node: dot.transposed() for dot in readers})
    for dot in products.values():
        if dot.is_in_order:
            dot.write()
    return is_exchanged or bool(products)


def turn_constants(model: ir.Model, device: str) -> bool:
    """Transpose the constants that dots alone read, all of them on `device`, and write the dots as ONNX's operators.

    Whether anything changed.
    """
    graph = _Graph(model, device)
    changed = _put_rows_first(model, graph)
    read: set[ir.Node] = set()
    for constant, dots in graph.constants().items():
        is_transposed = dots[0].is_transposed
        if not is_transposed:
            _turn(constant)
        for dot in dots:
            read.add(dot.node)
            changed |= _read_transposed(dot if is_transposed else dot.transposed(), graph.opset)
    for node in model.graph.all_nodes():
        plain = graph.dot_of_constant(node) if node.op_type == "Einsum" and node not in read else None
        changed |= plain is not None and _write_plain(plain)
    return changed


class _Graph:
    """The dots of a model on `device`."""

    def __init__(self, model: ir.Model, device: str = "") -> None:
        self.opset = model.opset_imports.get("", 1)
        self._nodes = tuple(model.graph.all_nodes())
        self._device = device
        self._constants = constant_values(model.graph)

    def constants(self) -> dict[ir.Value, list[_Dot]]:
        """The matrices that only dots read, all in the same order, each with its dots."""
        stored = dict.fromkeys(v for node in self._nodes for v in node.inputs if v is not None and _is_stored(v))
        found: dict[ir.Value, list[_Dot]] = {}
        for value in stored:
            dots = [self._dot(user, side) for user, side in value.uses()]
            known = [dot for dot in dots if dot is not None]
            if rank_of(value) == 2 and len(known) == len(dots) and len({dot.is_transposed for dot in known}) == 1:
                found[value] = known
        return {value: dots for value, dots in found.items() if not value.is_graph_output()}

    def dot_of_constant(self, node: ir.Node) -> _Dot | None:
        """The node as a dot of the one of its two operands that is a constant matrix, else None."""
        constants = [value for value in node.inputs if value is not None and value in self._constants]
        return next(self.dots_of_constants(node), None) if len(constants) == 1 else None

    def dots_of_constants(self, node: ir.Node) -> Iterator[_Dot]:
        """The node as a dot of each of its two operands that is a constant matrix."""
        if node.op_type not in ("MatMul", "Gemm", "Einsum") or len(node.inputs) != 2:
            return
        for side, value in enumerate(node.inputs):
            is_constant = value is not None and value in self._constants and rank_of(value) == 2
            dot = self._dot(node, side) if is_constant else None
            if dot is not None:
                yield dot

    def _dot(self, node: ir.Node, side: int) -> _Dot | None:
        is_own = not self._device or node.metadata_props.get(DEVICE_KEY) == self._device
        return _dot(node, side, self.opset) if is_own else None


def _is_stored(value: ir.Value) -> bool:
    maker = value.producer()
    if value.is_graph_input() or (maker is not None and maker.op_type != "Constant"):
        return False
    return constant_tensor(value) is not None


def _is_product(node: ir.Node) -> bool:
    """Whether a dot of two operands computes only the product."""
    return node.op_type != "Gemm" or node.attributes.get_float("alpha", 1.0) == 1.0


def _dot(node: ir.Node, side: int, opset: int) -> _Dot | None:
    """The node as a dot of this operand, if it is one, and can be written with the operand transposed."""
    if node.domain != "" or side > 1 or node.outputs[0].dtype not in _NUMBERS:
        return None
    terms = _terms(node, side)
    if terms is None:
        return None
    own, result = set(terms[side]), set(terms[2])
    other = set(terms[1 - side])
    is_dot = len(own & result) == 1 and own - result <= other and not own & result & other
    is_dot = is_dot and (node.op_type != "Einsum" or _are_as_many(node, terms))
    is_written = opset >= EINSUM_SINCE or node.op_type == "Gemm" or rank_of(node.inputs[1 - side]) == 2
    return _Dot(node, side, terms) if is_dot and is_written else None


def _are_as_many(node: ir.Node, terms: tuple[str, str, str]) -> bool:
    """Whether the axes of an Einsum with one letter are known to have equal extents: runtimes broadcast an extent of 1,
    which a product does not."""
    extents: dict[str, set[int | str | None]] = {}
    for letters, value in zip(terms, node.inputs, strict=False):
        for letter, extent in zip(letters, (value.shape if value is not None else None) or (), strict=False):
            extents.setdefault(letter, set()).add(extent.value if isinstance(extent, ir.SymbolicDim) else extent)
    shared = [extents.get(letter, {None}) for letter in set(terms[0]) & set(terms[1])]
    return all(len(found) == 1 and None not in found for found in shared)


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
    tensor = constant_tensor(constant)
    assert tensor is not None
    transposed = relaid(tensor, [{"op": "transpose", "perm": [1, 0]}])
    transposed.name = constant.name
    constant.const_value, constant.shape = transposed, ir.Shape(transposed.shape.numpy())
    note_transform(constant, constant, tensor)
    maker = constant.producer()
    if maker is not None:
        maker.attributes.clear()
        maker.attributes.add(ir.AttrTensor("value", transposed))


def _put_rows_first(model: ir.Model, graph: _Graph) -> bool:
    """Make the operand with the rows of a product of two matrices the left one. Returns whether any was not."""
    changed = False
    for node in model.graph.all_nodes():
        dot = next(graph.dots_of_constants(node), None) if node.op_type == "Einsum" else None
        if dot is None or not dot.is_of_matrices or dot.terms[2][0] in dot.terms[0]:
            continue
        (left, right), terms = node.inputs, dot.terms
        node.replace_input_with(0, right)
        node.replace_input_with(1, left)
        _Dot(node, 1 - dot.side, (terms[1], terms[0], terms[2])).write()
        changed = True
    return changed


def _read_transposed(dot: _Dot, opset: int) -> bool:
    """Write the dot as Gemm, where both operands are matrices; whether it was not."""
    node = dot.node
    before = node.op_type, [*node.attributes.values()]
    if node.op_type == "Gemm":
        if node.attributes.get_int(_TRANSPOSED[dot.side], 0) != 1:
            node.attributes.add(ir.AttrInt64(_TRANSPOSED[dot.side], 1))
    elif not dot.is_of_matrices:
        dot.write()
    else:
        _write_gemm(dot)
        if opset < GEMM_NEEDS_NO_SUMMAND_SINCE:
            assert node.graph is not None
            _add_zero(node.graph, node)
    return before != (node.op_type, [*node.attributes.values()])


def _write_plain(dot: _Dot) -> bool:
    """Write an Einsum that is only a product as MatMul, or as Gemm; whether it was one."""
    left, right, result = dot.terms
    rows, summed = (left[:-1], left[-1:]) if dot.side == 1 else (left[:1], left[1:])
    columns = right[1:] if dot.side == 1 or len(right) == 1 else right[-1:]
    batch = right[: len(right) - 1 - len(columns)]
    if (batch + summed + columns, batch + rows + columns) == (right, result):
        dot.node.op_type = "MatMul"
        dot.node.attributes.clear()
    elif dot.is_of_matrices:
        _write_gemm(dot)
    else:
        return False
    return True


def _write_gemm(dot: _Dot) -> None:
    """Write a product of two matrices as Gemm, with the operand that has the rows on the left."""
    left, right, result = dot.terms
    dot.node.op_type = "Gemm"
    dot.node.attributes.clear()
    for name, is_flipped in zip(_TRANSPOSED, (left[0] != result[0], right[1] != result[1]), strict=True):
        if is_flipped:
            dot.node.attributes.add(ir.AttrInt64(name, 1))


def _add_zero(graph: ir.Graph, dot: ir.Node) -> None:
    """The summand that Gemm requires."""
    result = dot.outputs[0]
    assert result.dtype is not None
    taken = {value.name for node in graph.all_nodes() for value in (*node.inputs, *node.outputs) if value is not None}
    taken |= {value.name for value in graph.inputs} | set(graph.initializers)
    name = next(name for n in count() if (name := f"{result.name}_zero" + (f"_{n}" if n else "")) not in taken)
    summand = ir.val(name, const_value=ir.tensor(np.zeros((1, 1), result.dtype.numpy()), name=name))
    graph.register_initializer(summand)
    dot.resize_inputs(3)
    dot.replace_input_with(2, summand)
