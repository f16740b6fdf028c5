"""Operators that sum over an axis of two operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, permutations, product
from string import ascii_letters

from msgspec import Struct
from msgspec.structs import replace

from relayout.layout.memory_format import Extent, MemoryFormat
from relayout.ops.node_reader import NoRuleError, Reading, extents_of
from relayout.ops.registry import row
from relayout.ops.rule import (
    NO_EDIT,
    Axes,
    Decomposition,
    DecompositionWriter,
    Edit,
    Free,
    Listed,
    ListedAlternative,
    Replacement,
    Shared,
    Traffic,
    free,
)


@row("contract", "MatMul")
def matmul(node: Reading) -> Free:
    return product_rule(node, 1)


@row("contract", "MatMulInteger", since=10)
def matmul_integer(node: Reading) -> Free:
    if not node.is_single(2):
        raise NoRuleError  # a zero point per row is read along the rows
    rule = product_rule(node, 1)
    if node.is_single(3):
        return rule
    if node.rank(3) > 1:
        raise NoRuleError
    # A zero point per column is read along the columns, which stay in their order.
    return replace(rule, traits=(*rule.traits[:-1], replace(rule.traits[-1], permutable_within="")))


@row("contract", "QLinearMatMul", since=10)
def quantised_matmul(node: Reading) -> Free:
    if not all(map(node.is_single, (1, 2, 4, 5, 6, 7))):
        raise NoRuleError
    return product_rule(node, 3)


def product_rule(node: Reading, right: int) -> Free:
    """The product of inputs 0 and `right`. Batch axes are permuted alike, the last two stay. If the right operand is a
    matrix, every axis of the left but the last is a row axis, and row axes are in any order. Else the rows of each
    matrix are in one axis, in any order."""
    a, b = node.extents(0), node.extents(right)
    if len(a) < 2 or len(b) < 2:
        raise NoRuleError
    result = node.result_extents()
    rows = len(result) - 1
    contracted, column = rows, rows + 1
    extents: tuple[Extent, ...] = (*result[:-1], a[-1], result[-1])
    inputs: list[Axes | None] = [None] * len(node.node.inputs)
    inputs[0] = (*range(rows - len(a) + 1, rows), contracted)
    inputs[right] = (*range(rows - len(b) + 1, rows - 1), contracted, column)
    batch = tuple(range(rows - 1))
    batched = len(b) > 2
    product = _Product(contracted, column, batched, extents)
    decompositions, proposals = [], []
    if node.node.op_type == "MatMul":
        decompositions.append(Decomposition(product.write_transposed, product.is_transposed, product.extra))
        proposals.append(product.proposed)
        if node.opset >= _GEMM_WITHOUT_SUMMAND and node.is_float():
            decompositions.append(
                Decomposition(product.write_gemm, product.is_gemm, needs_constant=True, is_whole=True)
            )
            proposals.append(product.proposed_gemms)
    return free(
        extents,
        tuple(inputs),
        ((*range(rows), column),),
        allows=product.is_plain,
        broadcasts=batch,
        tileable=batch if batched else tuple(range(rows)),
        permutable_within=(rows - 1, contracted, column) if batched else (contracted, column),
        insertion_rule=_TransposedInsertion(contracted, column),
        suggested=lambda order: chain.from_iterable(proposed(order) for proposed in proposals),
        decompositions=tuple(decompositions),
    )


# Before, a Gemm has three operands.
_GEMM_WITHOUT_SUMMAND = 11


class _Product(Struct, frozen=True):
    """The axes of a product's iteration space. Axes 0 to `contracted` - 1 are the rows; if the right operand is
    `batched`, only the last of them is the matrix's own. `column` is the axis that the left operand lacks."""

    contracted: int
    column: int
    batched: bool
    extents: tuple[Extent, ...]

    @property
    def is_matrix(self) -> bool:
        """Whether the right operand is a matrix, but for unit axes."""
        return not self.batched or all(extent == 1 for extent in self.extents[: self.contracted - 1])

    def is_plain(self, order: Axes) -> bool:
        """Whether ONNX's operator supports its operands in this order."""
        if order[-2:] != (self.contracted, self.column):
            return False
        return not self.batched or order[-3] == self.contracted - 1

    def is_transposed(self, order: Axes) -> bool:
        """Whether this is a product of the transposes: columns before the contracted axis, rows innermost. The rows are
        merged into one axis; at most one of their extents may be unknown, or the result could not be split again."""
        at = order.index(self.contracted)
        inner, before = order[at + 1 :], order[:at]
        if not before or before[-1] != self.column or self.column in inner or not inner:
            return False
        # Of the tiles of an axis of unknown extent, the outermost alone has an unknown extent.
        if sum(not isinstance(self.extents[axis], int) for axis in {*inner}) > 1:
            return False
        return set(inner) == {self.contracted - 1} if self.batched else True

    def proposed(self, order: Axes) -> Iterator[Axes]:
        """A plain product transposed, with its last row innermost, and a transposed one plain, without unit axes."""
        working = [place for place, axis in enumerate(order) if axis in (self.contracted, self.column)]
        before = list(range(working[0])) if working else []
        inner = [*range(working[-1] + 1, len(order))] if working else []
        if not working or len(before) + len(working) + len(inner) != len(order):
            return
        transposed = [order[place] for place in working] == sorted((order[place] for place in working), reverse=True)
        if inner:
            if transposed:
                yield (*before, *inner, *reversed(working))
        elif before and (not self.batched or order[before[-1]] == self.contracted - 1):
            yield (*before[:-1], *reversed(working), before[-1])
        else:
            yield (*before, *reversed(working))

    def is_gemm(self, order: Axes) -> bool:
        """Whether this is a product of two matrices, each of which may be transposed, as may the result. The rows
        are neighbours in each operand, apart from those of extent 1, and become one axis as for `is_transposed`."""
        if not self.is_matrix or order.count(self.contracted) != 1 or order.count(self.column) != 1:
            return False
        if sum(not isinstance(self.extents[axis], int) for axis in {*order} - {self.contracted, self.column}) > 1:
            return False
        long = self._long_rows(order)
        others = [order.index(axis) for axis in (self.contracted, self.column)]
        return all(place < long[0] or place > long[-1] for place in others)

    def _long_rows(self, order: Axes) -> Axes:
        """The positions of the rows but for those of extent 1; one of these if there is no other."""
        rows = [place for place, axis in enumerate(order) if axis < self.contracted]
        return tuple([place for place in rows if self.extents[order[place]] != 1] or rows[:1])

    def proposed_gemms(self, order: Axes) -> Iterator[Axes]:
        """Every order of the rows, the contracted axis and the column, as positions of this order, which has no unit
        axes. Two rows or more only leave the place that they do not have in the source: else operands would get orders
        of which no other node knows."""
        if not self.is_matrix or (len(order) > 3 and self.is_plain(order)):
            return
        blocks = [
            tuple(own) for _, own in groupby(range(len(order)), lambda place: max(order[place], self.contracted - 1))
        ]
        if len(blocks) == 3:
            yield from (tuple(chain(*each)) for each in permutations(blocks))

    def write_gemm(self, writing: DecompositionWriter) -> None:
        """A Gemm, of the operands in the other order where the result is transposed."""
        order = writing.axes
        rows = tuple([place for place, axis in enumerate(order) if axis < self.contracted])
        first, contracted, column = self._long_rows(order)[0], order.index(self.contracted), order.index(self.column)
        is_flipped = [contracted < first, column < contracted]
        left = writing.read(0, [(contracted,), rows] if is_flipped[0] else [rows, (contracted,)])
        right = writing.read(1, [(column,), (contracted,)] if is_flipped[1] else [(contracted,), (column,)])
        operands, dims = [left, right], [rows, (column,)]
        if column < first:
            operands, dims = operands[::-1], dims[::-1]
            is_flipped = [not is_flipped[1], not is_flipped[0]]
        attributes = {f"trans{side}": int(own) for side, own in zip("AB", is_flipped, strict=True)}
        writing.set_result(0, writing.emit_dims("Gemm", operands, attributes, dims), dims)

    def write_transposed(self, writing: DecompositionWriter) -> None:
        """A MatMul of the transposes, in the other order."""
        at = writing.axes.index(self.contracted)
        batch = [(place,) for place in range(at - 1)]
        inner = (tuple(range(at + 1, len(writing.axes))),)
        data = writing.read(0, [*batch, (at,), *inner])
        other = writing.read(1, [*(batch if self.batched else []), (at - 1,), (at,)])
        dims = [*batch, (at - 1,), *inner]
        axes = writing.axes[: at - 1]
        order = (*[sorted(axes).index(axis) for axis in axes], at - 1, at)
        is_whole = self.batched and len({*axes}) == len(axes)
        made = writing.emit_dims("MatMul", [other, data], {}, dims, order=order if is_whole else ())
        writing.set_result(0, made, dims)

    def extra(self, order: Axes) -> Traffic:
        """The extra traffic: a matrix shared by the whole batch is read once for each product of the batch."""
        at = order.index(self.contracted)
        batch, matrix = () if self.batched else tuple(range(at - 1)), (at - 1, at)
        return (((*batch, *matrix), 1), (matrix, -1)) if batch else ()


class _TransposedInsertion(Struct, frozen=True):
    """Inserts the axis that only the other operand or the result has. If the rows are innermost, the product is
    transposed: its columns come directly before the contracted axis."""

    contracted: int
    column: int

    def __call__(self, order: Axes, axis: int) -> int | None:
        other = {self.contracted: self.column, self.column: self.contracted}.get(axis)
        if other is None or other not in order:
            return None
        last = max(place for place, a in enumerate(order) if a == other)
        first = order.index(other)
        transposed = last < len(order) - 1
        if axis == self.column:
            return first if transposed else last + 1
        return last + 1 if transposed else first


@row("contract", "Gemm")
def gemm(node: Reading, ranks: tuple[int, int] = (2, 2)) -> Listed:
    """Either operand may be transposed in its last two axes, by `transA` and `transB`. If no batch is broadcast,
    onnxruntime's `transBatchA` and `transBatchB` also take the first of these two from in front of the batch. The
    transposed result is the product of the transposes, in the other order."""
    own = [(int(node.integer(f"trans{side}", 0) != 0), int(node.integer(f"transBatch{side}", 0) != 0)) for side in "AB"]
    laid = [_matrix_order(rank, *form) for rank, form in zip(ranks, own, strict=True)]
    batches = [[node.extents(n)[order.index(axis)] for axis in range(ranks[n] - 2)] for n, order in enumerate(laid)]
    is_batched = batches[0] == batches[1] != [] and None not in batches[0]
    if not is_batched and any(behind for _, behind in own):
        raise NoRuleError
    flips = [(flip, batch) for batch in ((0, 1) if is_batched else (0,)) for flip in (0, 1)]
    rank, alternatives = max(ranks), list[ListedAlternative]()
    transposed = (*range(rank - 2), rank - 1, rank - 2)
    is_known = all(extents_of(value) is not None for value in (*node.node.inputs[:2], node.node.outputs[0]))
    for flipped in product(flips, repeat=2):
        forms = [(one ^ flip, two ^ batch) for (one, two), (flip, batch) in zip(own, flipped, strict=True)]
        others = [_matrix_order(rank, *form) for rank, form in zip(ranks, forms, strict=True)]
        orders = [tuple(map(before.index, after)) for before, after in zip(laid, others, strict=True)]
        chosen = {f"trans{side}": form[0] for side, form in zip("AB", forms, strict=True)}
        if is_batched:
            chosen |= {f"transBatch{side}": form[1] for side, form in zip("AB", forms, strict=True)}
        rest = (None,) * (len(node.node.inputs) - 2)
        alternatives.append(((*orders, *rest), (None,), Edit(chosen) if forms != own else NO_EDIT))
        if is_known:
            summand = ((1, 0),) if node.has(2) and node.rank(2) == 2 else rest
            alternatives.append(((*orders, *summand), (transposed,), _exchanged(node, forms)))
    contracted = (False, 0, laid[0].index(ranks[0] - 1)), (False, 1, laid[1].index(ranks[1] - 2))
    columns: Shared = ((False, 1, laid[1].index(ranks[1] - 1)), (True, 0, max(ranks) - 1))
    rows: Shared = ((False, 0, laid[0].index(ranks[0] - 2)), (True, 0, max(ranks) - 2))
    bias = node.extents(2) if node.has(2) else ()
    if bias and bias[-1] != 1:
        columns = (*columns, (False, 2, len(bias) - 1))
    if len(bias) > 1 and bias[-2] != 1:
        rows = (*rows, (False, 2, len(bias) - 2))
    return Listed(tuple(alternatives), (contracted, columns, rows))


def _exchanged(node: Reading, forms: Sequence[tuple[int, int]]) -> Replacement:
    """The product of the transposes: the operands change places, and a vector that is added becomes a column."""
    attributes = dict[str, int]()
    for side, (is_flipped, is_behind) in zip("AB", reversed(forms), strict=True):
        attributes[f"trans{side}"] = 1 - is_flipped
        if is_behind or node.attribute(f"transBatch{side}") is not None:
            attributes[f"transBatch{side}"] = is_behind
    summand = (2, ((0,), ()) if node.rank(2) == 1 else None) if node.has(2) else None
    return Replacement(((1, None), (0, None), *([summand] if summand else [])), attributes)


def _matrix_order(rank: int, is_flipped: int, is_behind: int) -> Axes:
    """The axes of batches of matrices as they lie: the last two perhaps swapped, the first of them perhaps in front."""
    batch, last = tuple(range(rank - 2)), (rank - 1, rank - 2) if is_flipped else (rank - 2, rank - 1)
    return (last[0], *batch, last[1]) if is_behind else (*batch, *last)


@row("contract", "Einsum", since=12)
def einsum(node: Reading) -> Free:
    """A sum of products: each operand is in an order of its own, by its subscripts. An Einsum of one operand, or that
    sums over no axis, only moves elements or multiplies them: one order of all subscripts orders every operand, as for
    an elementwise operator. A tiled axis has a subscript for each tile."""
    terms = _terms(node)
    is_product = len(terms) > 2 and not {*"".join(terms[:-1])} <= {*terms[-1]}
    subscripts = "".join(dict.fromkeys("".join(terms))) if is_product else _in_source_order(terms)
    lengths: dict[str, Extent] = {}
    uneven: set[str] = set()
    for index, term in enumerate(terms[:-1]):
        for subscript, extent in zip(term, node.extents(index), strict=True):
            if lengths.setdefault(subscript, extent) != extent:
                uneven.add(subscript)
            if lengths[subscript] in (1, None):
                lengths[subscript] = extent
    *inputs, output = (tuple([subscripts.index(s) for s in term]) for term in terms)

    def edit(order: Axes) -> Edit:
        names = _Subscripts(subscripts)
        found = [(axis, names.of(axis, order[:place].count(axis))) for place, axis in enumerate(order)]
        return _equation(["".join(name for axis, name in found if axis in own) for own in (*inputs, output)])

    def edit_operands(orders: Sequence[MemoryFormat], results: Sequence[MemoryFormat]) -> Edit:
        names = _Subscripts(subscripts)
        sides = zip((*inputs, output), (*orders, *results), strict=True)
        # The `outer` of a whole axis, and of its outermost tile, is 0.
        return _equation(["".join(names.of(axes[atom.axis], atom.outer) for atom in own) for axes, own in sides])

    return free(
        tuple(lengths[s] for s in subscripts),
        tuple(inputs),
        (output,),
        allows=lambda order: len(order) <= len(ascii_letters),
        edit=edit,
        edit_operands=edit_operands if is_product else None,
        # There are letters for one more tile of each axis.
        tileable=()
        if 2 * len(subscripts) > len(ascii_letters)
        else tuple([axis for axis, subscript in enumerate(subscripts) if subscript not in uneven]),
    )


def _equation(terms: Sequence[str]) -> Edit:
    return Edit({"equation": ",".join(terms[:-1]) + "->" + terms[-1]})


def _terms(node: Reading) -> list[str]:
    """The subscripts of each operand of an Einsum, and then of its result. Those of an ellipsis are letters that the
    equation lacks. Raises `NoRuleError` where an operand has a subscript twice, or where the ranks do not fit."""
    left, arrow, result = node.string("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if arrow and ("..." in left) != ("..." in result):
        raise NoRuleError
    if not arrow:
        once = [letter for letter in sorted({*left} - {*".,"}) if left.count(letter) == 1]
        result = "..." * ("..." in left) + "".join(once)
    ranks = [node.rank(index) for index in range(len(terms))]
    hidden = [rank - len(t.replace("...", "")) for rank, t in zip(ranks, terms, strict=True) if "..." in t]
    letters = [letter for letter in ascii_letters if letter not in left][: max(hidden, default=0)]
    found = []
    for term, rank in zip((*terms, result), (*ranks, len(node.result_extents())), strict=True):
        covered = rank - len(term.replace("...", ""))
        if covered < 0 or (covered and "..." not in term) or covered > len(letters):
            raise NoRuleError
        term = term.replace("...", "".join(letters[len(letters) - covered :]))
        if len({*term}) != len(term) or not {*term} <= {*ascii_letters}:
            raise NoRuleError
        found.append(term)
    if not {*found[-1]} <= {*"".join(found[:-1])}:
        raise NoRuleError
    return found


def _in_source_order(terms: Sequence[str]) -> str:
    """All subscripts in an order that agrees with every term. Raises `NoRuleError` where there is none."""
    before = {s: {t for term in terms if s in term for t in term[: term.index(s)]} for s in "".join(terms)}
    order = ""
    while len(order) < len(before):
        ready = sorted(s for s, earlier in before.items() if s not in order and earlier <= set(order))
        if not ready:
            raise NoRuleError
        order += ready[0]
    return order


class _Subscripts:
    """The subscript of each tile of an axis: the axis's own for its outermost tile, a new one for each other."""

    def __init__(self, subscripts: str) -> None:
        self._own = subscripts
        self._free = iter([letter for letter in ascii_letters if letter not in subscripts])
        self._known: dict[tuple[int, int], str] = {}

    def of(self, axis: int, tile: int) -> str:
        """The subscript of a tile of this number; 0 is the outermost one."""
        if tile and (axis, tile) not in self._known:
            self._known[axis, tile] = next(self._free)
        return self._known[axis, tile] if tile else self._own[axis]
