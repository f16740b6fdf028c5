"""Dims that have one size alone with which the model runs: a Reshape to known extents asks for it.

Values inside the graph have that size as their extent, and so the legal model declares it, whose Reshapes may be gone.
There the operators that read an input show it: their results have the number where the input has the name.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from fractions import Fraction
from itertools import islice
from math import isqrt

import onnx
import onnx_ir as ir
from msgspec import Struct

from relayout.layout.terms import GENERATED, NAME, Term, extent_term, is_name, product, term_of
from relayout.model.dims.formula import formula_size
from relayout.model.proto_graphs import STANDARD_DOMAINS, subgraphs_of
from relayout.ops import extents_of, graphs_of
from relayout.ops.elementwise import BROADCAST, UNARY

RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_ELEMENTWISE = frozenset({*UNARY, *BROADCAST})
_BY_BATCH = frozenset(
    "AveragePool BatchNormalization Conv ConvTranspose GlobalAveragePool GlobalMaxPool InstanceNormalization LpPool "
    "MaxPool".split()
)
"""Operators that keep the first axis of their first operand."""

_PRODUCTS = frozenset({"Gemm", "MatMul"})
_LIKE = frozenset({"Identity", "LogSoftmax", "Softmax"})
"""Further operators whose result has the shape of the operand."""

_LARGEST = 1 << 14
"""No larger size is tried for a dim."""

_TRIES = 256
"""So many ways to share a product among its dims are tried."""


Asked = tuple[tuple[str, ...], int]
"""The names of a product of dims, and the size that a node asks of it."""


class AskedSizes(Struct, frozen=True):
    """The sizes that the nodes of a model ask for: those with which they run, and with which operands fit too."""

    of_runs: tuple[Asked, ...]
    of_operands: tuple[Asked, ...]


def has_open_extents(model: ir.Model) -> bool:
    """Whether a value of known rank has an extent that is not known before the run."""
    # Values of equal type share a shape.
    shapes: dict[int, ir.Shape | None] = {}

    def collect(graph: ir.Graph) -> None:
        for value in graph.inputs:
            shapes[id(value.shape)] = value.shape
        for node in graph:
            for value in node.outputs:
                shapes[id(value.shape)] = value.shape
            for inner in graphs_of(node):
                collect(inner)

    collect(model.graph)
    return any(shape is not None and not shape.is_static() for shape in shapes.values())


def asked_sizes(model: ir.Model) -> AskedSizes:
    """The sizes that a model asks for, to be found once where many sizes of its inputs are tried."""
    return AskedSizes(tuple(_asked(model)), tuple(_asked(model, of_operands=True)))


def forced_sizes(model: ir.Model, asked: AskedSizes | None = None) -> dict[str, int]:
    """The one size of each dim with which the nodes run on which an output depends, those in branches and
    bodies too; the least of several. `asked`: what the model asks for, if that is known already."""
    found: dict[str, int] = {}
    for names, size in asked.of_runs if asked is not None else _asked(model):
        if len(names) == 1:
            found[names[0]] = min(size, found.get(names[0], size))
    return found


def sizes_of_all_runs(model: ir.Model) -> dict[str, int]:
    """The forced sizes, those of products such as `h*w` too, without those that only a branch or a body asks for, which
    need not run."""
    found: dict[str, set[int]] = {}
    for names, size in _asked(model, of_all_runs=True) if has_open_extents(model) else ():
        found.setdefault(_product_of(names), set()).add(size)
    return {name: min(sizes) for name, sizes in found.items() if len(sizes) == 1}


def fitting_sizes(
    model: ir.Model,
    known: Mapping[str, int],
    asked: AskedSizes | None = None,
    *,
    are_apart: bool = False,
    assumed: Set[str] = frozenset(),
) -> dict[str, int]:
    """Sizes with which formulas and products of dims are what nodes ask for, of names that are not `known`: with a
    Reshape of (64, h, w) to (64, 196), 14 for `h` and `w`; 7 and 28 if they `are_apart`. A product of matrices asks for
    as many columns of the one as the other has rows, and the sum with a constant for its extents.

    A product of dims for which none are found with the known sizes may give those that are only `assumed` another size.
    One for which none are found even so is left out.
    """
    found: dict[str, int] = {}
    every = asked.of_operands if asked is not None else _asked(model, of_operands=True)
    for names, size in sorted(set(every), key=lambda each: (len(each[0]), each)):
        # A name that inference makes up is another one in the legal model.
        if size > 0 and not any(GENERATED in name for name in names):
            fitting = _fitting(names, size, {**known, **found}, are_apart)
            if fitting is None and len(names) > 1 and not assumed.isdisjoint(names):
                sure = {name: each for name, each in known.items() if name not in assumed}
                fitting = _fitting(names, size, {**sure, **found}, are_apart)
            found |= fitting or {}
    return found


def _fitting(names: tuple[str, ...], size: int, known: Mapping[str, int], are_apart: bool) -> dict[str, int] | None:
    """Sizes with which the product of `names`, which are formulas, is `size`; None where they are not found soon."""
    open_ = []
    for name in names:
        own = formula_size(name, known)
        if own is None:
            open_.append(name)
        elif own < 1 or size % own:
            return None
        else:
            size //= own
    for shares in islice(_factorizations(size, len(open_), are_apart), _TRIES):
        found: dict[str, int] = {}
        for name, share in zip(open_, shares, strict=True):
            solution = _solution(name, share, {**known, **found})
            if solution is None:
                break
            found |= solution
        else:
            return found
    return None


def _factorizations(size: int, count: int, are_apart: bool) -> Iterator[tuple[int, ...]]:
    """The ways to write a number as so many factors, nearly equal ones first. If they are to be apart, a first factor
    that is the root of the number comes last.

    >>> [*_factorizations(6, 2, False)], next(_factorizations(36, 2, False)), next(_factorizations(36, 2, True))
    ([(2, 3), (3, 2), (1, 6), (6, 1)], (6, 6), (4, 9))
    """
    if count < 2:
        if count or size == 1:
            yield (size,) * count
        return
    middle = size ** (1 / count)
    small = [each for each in range(1, min(isqrt(size), _LARGEST) + 1) if size % each == 0]
    divisors = {*small, *(size // each for each in small)}
    for first in sorted(divisors, key=lambda each: (are_apart and each == middle, abs(each - middle), each)):
        for rest in _factorizations(size // first, count - 1, are_apart):
            yield (first, *rest)


def _solution(formula: str, size: int, known: Mapping[str, int]) -> dict[str, int] | None:
    """A size of the only name in a formula that is not known with which it has this size: of several, one that windows
    divide most often, as sizes of images are.

    >>> _solution("(((h - 1)//2)//2)//2 + 1", 28, {}), _solution("h//16", 14, {}), _solution("2*h", 7, {})
    ({'h': 224}, {'h': 224}, None)
    """
    unknown = sorted(_names_in(formula) - known.keys())
    if len(unknown) > 1:
        return None
    if not unknown:
        return {} if formula_size(formula, known) == size else None
    (name,) = unknown

    def at(each: int) -> int:
        return formula_size(formula, {**known, name: each}) or 0

    # The extents behind windows grow with the extent in front of them.
    first = bisect_left(range(_LARGEST), size, lo=1, key=at)
    end = bisect_right(range(_LARGEST), size, lo=1, key=at)
    return {name: max(range(first, end), key=lambda each: each & -each)} if first < end else None


def enter_sizes(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> bool:
    """Give the dims of results that have these names, or products of them, these sizes; returns whether there are some.

    Another formula of them is left to inference, but for one that an output declares.
    """
    if not sizes:
        return False
    is_new = False
    for each in subgraphs_of(graph):
        standard = {name for node in each.node if node.domain in STANDARD_DOMAINS for name in node.output}
        inner = each.input if each is not graph else ()
        for value in (*inner, *each.value_info, *each.output):
            for dim in value.type.tensor_type.shape.dim:
                if not dim.dim_param:
                    continue
                size = sized(dim.dim_param, sizes)
                is_new |= size != dim.dim_param
                if isinstance(size, int):
                    dim.dim_value = size
                elif _names_in(size).isdisjoint(sizes):
                    dim.dim_param = size
                elif value.name in standard and value not in each.output:
                    dim.Clear()
    return is_new


def sized(text: str, sizes: Mapping[str, int]) -> int | str:
    """A dim, of which the factors with sizes are numbers: the number, or what is left.

    >>> sized("n", {"n": 2}), sized("4*h*n", {"n": 2}), sized("n + 1", {"n": 2}), sized("(n + w)*n", {"n": 2})
    (2, '8*h', 3, '2*(n + w)')
    >>> sized("2*w*h", {"h*w": 6})
    12
    """
    term = term_of(text)
    if (size := sizes.get(_product_of(term.names))) is not None:
        return int(term.factor * size)
    known = [(name, _size_of(name, sizes)) for name in term.names]
    if all(size is None for _, size in known):
        return text
    rest = product(Term(Fraction(1), (name,)) if size is None else Term(Fraction(size)) for name, size in known)
    made = product((Term(term.factor), rest))
    assert made is not None
    return int(made.factor) if not made.names else str(made)


def _product_of(names: tuple[str, ...]) -> str:
    """The product of names as the key of its size."""
    return names[0] if len(names) == 1 else str(Term(Fraction(1), names))


def _size_of(text: str, sizes: Mapping[str, int]) -> int | None:
    """The size of a name, or of a formula of names that all have one."""
    if text in sizes or text.isidentifier():
        return sizes.get(text)
    size = formula_size(text, sizes) if _names_in(text) <= sizes.keys() else None
    return None if size is None or size < 0 else size


def _names_in(text: str) -> frozenset[str]:
    return frozenset(NAME.findall(text))


def _live(graph: ir.Graph) -> list[ir.Node]:
    """The nodes on which an output depends, those inside such nodes too, last ones first. Runtimes drop the others."""
    found: dict[ir.Node, None] = {}

    def follow(each: ir.Graph) -> None:
        for node in reversed(each):
            results = node.outputs
            if any(v.is_graph_output() or any(use.node in found for use in v.uses()) for v in results):
                found[node] = None
                for inner in graphs_of(node):
                    follow(inner)

    follow(graph)
    return [*found]


def _asked(model: ir.Model, *, of_all_runs: bool = False, of_operands: bool = False) -> Iterator[Asked]:
    """The sizes that live nodes ask of dims, or of products of dims; `of_all_runs`: those nodes that are not in a
    branch or a body; `of_operands`: the sizes with which operands fit too, those of matrices that are multiplied, and
    those with which none is broadcast."""
    for node in _live(model.graph):
        if of_all_runs and node.graph is not model.graph:
            continue
        read, made = (node.inputs[0] if node.inputs else None), node.outputs[0]
        if node.domain or made.shape is None or read is None or read.shape is None:
            continue
        if node.op_type in RESHAPES:
            found = _by_elements(read, made)
            # An extent of 1 may come and go beside other open ones: what reads the input leaves it open.
            if not (made.shape.is_static() or node.op_type == "Transpose" or of_operands):
                found = [(dim, size) for dim, size in found if size != 1]
            # A number in place of a formula is only declared, and the legal model may lack the Transpose.
            if node.op_type == "Transpose":
                found = [(dim, size) for dim, size in found if _has_names_alone(dim)]
        elif node.op_type in _ELEMENTWISE:
            found = _by_axis(node, made.shape, of_operands)
        elif node.op_type in _BY_BATCH and read.shape and made.shape:
            found = [(read.shape[0], made.shape[0])]
        elif of_operands and node.op_type in _PRODUCTS:
            found = _by_contraction(node)
        elif of_operands and node.op_type in _LIKE:
            # A model may declare the sizes of its example for an output.
            found = [*zip(read.shape, made.shape, strict=False)]
        else:
            continue
        for dim, size in found:
            if not isinstance(dim, int) and dim.value and isinstance(size, int):
                yield from _solved(dim.value, size)


def _has_names_alone(dim: ir.SymbolicDim | int) -> bool:
    return isinstance(dim, int) or dim.value is None or all(map(is_name, term_of(dim.value).names))


def _solved(dim: str, size: int) -> Iterator[Asked]:
    """The names in a product of this size, and their share of it.

    >>> [*_solved("n", 6)], [*_solved("30*n", 180)], [*_solved("4*n", 6)], [*_solved("2*h*w", 6)]
    ([(('n',), 6)], [(('n',), 6)], [], [(('h', 'w'), 3)])
    """
    term = term_of(dim)
    if term.names and term.factor and (size / term.factor).denominator == 1:
        yield term.names, int(size / term.factor)


def _by_elements(read: ir.Value, made: ir.Value) -> list[tuple[ir.SymbolicDim | int, ir.SymbolicDim | int]]:
    """The product of the dims that a reshaped value has and its result has not, with the size that is left for it."""
    before, after = (product(map(extent_term, extents_of(value) or ())) for value in (read, made))
    if before is None or after is None or not before.factor or not after.factor:
        return []
    lost, kept = Counter(before.names) - Counter(after.names), Counter(after.names) - Counter(before.names)
    size = after.factor / before.factor
    if not lost or kept or size.denominator != 1:
        return []
    return [(ir.SymbolicDim(_product_of((*lost.elements(),))), int(size))]


def _by_contraction(node: ir.Node) -> list[tuple[ir.SymbolicDim | int, ir.SymbolicDim | int]]:
    """The axis of each operand of a product of matrices over which it sums, with that of the other one."""
    left, right = (value.shape if value is not None else None for value in node.inputs[:2])
    if left is None or right is None or min(len(left), len(right)) < 2:
        return []
    columns = left[-2 if node.attributes.get_int("transA", 0) else -1]
    rows = right[-1 if node.attributes.get_int("transB", 0) else -2]
    return [(columns, rows), (rows, columns)]


def _by_axis(
    node: ir.Node, made: ir.Shape, of_operands: bool
) -> list[tuple[ir.SymbolicDim | int, ir.SymbolicDim | int]]:
    """The axes of an elementwise result, each with the dim that all operands have there which are not broadcast;
    `of_operands`: those too that differ, with the number that one of them has."""
    shapes = [value.shape for value in node.inputs if value is not None]
    if any(shape is None for shape in shapes):
        return []
    found = []
    for place, size in enumerate(reversed(made.dims), start=1):
        read = {shape.dims[-place] for shape in shapes if shape is not None and len(shape) >= place} - {1}
        if len(read) == 1:
            found.append((read.pop(), size))
        elif of_operands:
            found += [(dim, number) for number in read if isinstance(number, int) for dim in read]
    return found
