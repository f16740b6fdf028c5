"""Operators that sum over an axis of two operands: the contracted axis stays in step on both sides."""

from __future__ import annotations

from itertools import product

from relayout.memory_format import Extent
from relayout.rules.reading import NoRuleError, Reading
from relayout.rules.registry import row
from relayout.rules.rule import NO_EDIT, Axes, Edit, Free, Listed


@row("contract", "MatMul")
def matmul(node: Reading) -> Free:
    return _matmul(node, 0, 1)


@row("contract", "MatMulInteger", since=10)
def matmul_integer(node: Reading) -> Free:
    if any(node.has(i) and node.rank(i) > 0 and node.extents(i) != (1,) for i in (2, 3)):
        raise NoRuleError  # a zero point per row stands where the rows stand
    return _matmul(node, 0, 1)


@row("contract", "QLinearMatMul", since=10)
def quantised_matmul(node: Reading) -> Free:
    if any(node.rank(i) > 0 and node.extents(i) != (1,) for i in (1, 2, 4, 5, 6, 7)):
        raise NoRuleError
    return _matmul(node, 0, 3)


def _matmul(node: Reading, left: int, right: int) -> Free:
    """Batch axes move in step, the last two stay; with a matrix on the right every axis of the left but the last is a
    row, and rows go in any order."""
    a, b = node.extents(left), node.extents(right)
    if len(a) < 2 or len(b) < 2:
        raise NoRuleError
    result = node.result_extents()
    rows = len(result) - 1
    contracted, column = rows, rows + 1
    extents: tuple[Extent, ...] = (*result[:-1], a[-1], result[-1])
    first = (*range(rows - len(a) + 1, rows), contracted)
    second = (*range(rows - len(b) + 1, rows - 1), contracted, column)

    def allows(order: Axes) -> bool:
        if order[-2:] != (contracted, column):
            return False
        return len(b) == 2 or order[-3] == rows - 1

    inputs: list[Axes | None] = [None] * len(node.node.inputs)
    inputs[left], inputs[right] = first, second
    batch = tuple(range(rows - 1))
    return Free(extents, tuple(inputs), ((*range(rows), column),), allows=allows, broadcasts=batch)


@row("contract", "Gemm")
def gemm(node: Reading) -> Listed:
    """Either operand may lie transposed: `transA` and `transB` say so."""
    flips = (node.integer("transA", 0), node.integer("transB", 0))
    alternatives = []
    for flip_a, flip_b in product((0, 1), repeat=2):
        orders: tuple[Axes, Axes] = ((1, 0) if flip_a else (0, 1), (1, 0) if flip_b else (0, 1))
        edit = Edit({"transA": flips[0] ^ flip_a, "transB": flips[1] ^ flip_b}) if flip_a or flip_b else NO_EDIT
        rest = (None,) * (len(node.node.inputs) - 2)
        alternatives.append(((*orders, *rest), (None,), edit))
    return Listed(tuple(alternatives))


@row("contract", "Einsum", since=12)
def einsum(node: Reading) -> Free:
    """One order of all subscripts orders every operand; the equation says it."""
    equation = node.string("equation").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or "." in equation or any(len(set(t)) != len(t) for t in (*operands, result)):
        raise NoRuleError
    subscripts = _in_source_order([*operands, result])
    lengths: dict[str, Extent] = {}
    for index, term in enumerate(operands):
        if len(term) != node.rank(index):
            raise NoRuleError
        for subscript, extent in zip(term, node.extents(index), strict=True):
            if lengths.get(subscript, 1) in (1, None):
                lengths[subscript] = extent
    inputs = tuple(tuple(subscripts.index(s) for s in term) for term in operands)

    def edit(order: Axes) -> Edit:
        def sort(term: str) -> str:
            return "".join(sorted(term, key=lambda s: order.index(subscripts.index(s))))

        return Edit({"equation": ",".join(sort(t) for t in operands) + "->" + sort(result)})

    output = tuple(subscripts.index(s) for s in result)
    return Free(tuple(lengths[s] for s in subscripts), inputs, (output,), edit=edit)


def _in_source_order(terms: list[str]) -> str:
    """All subscripts in an order that every term keeps; `NoRuleError` where the terms contradict each other."""
    before = {s: {t for term in terms if s in term for t in term[: term.index(s)]} for s in "".join(terms)}
    order = ""
    while len(order) < len(before):
        ready = sorted(s for s, earlier in before.items() if s not in order and earlier <= set(order))
        if not ready:
            raise NoRuleError
        order += ready[0]
    return order
