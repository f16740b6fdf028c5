"""Scalars, vectors and matrices of terms, and what shape arithmetic makes of them: a rule for each operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import onnx

from relayout.layout.terms import GENERATED, Term, is_name, product, quotient, remainder_of, rounded_down
from relayout.model.dims.formula import LONGEST_FORMULA

LONGEST = 64
"""Vectors of more elements are no shapes."""

_EXACT = 1 << 24
"""Up to here float32 has all integers."""
KIND = "element type of the result"
"""The key of that type among the attributes that a rule is given."""
OF_FIRST = frozenset({"ReduceProd", "Squeeze"})
"""Operators of one vector, whose other operand has axes."""
OF_MATRICES = frozenset({"Cast", "Identity", "Reshape", "Slice", "Transpose"})
"""Operators with a rule for matrices: exporters write the pads of PyTorch, last axis first, with these."""

INTEGERS = {onnx.TensorProto.INT64, onnx.TensorProto.INT32}
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}


ONE = Term(Fraction(1))


class Vector(NamedTuple):
    """A scalar, a vector, or a matrix of so many `columns`, of terms; None: an element that is not known."""

    terms: tuple[Term | None, ...]
    is_scalar: bool = False
    columns: int = 0

    @property
    def rows(self) -> list[tuple[Term | None, ...]]:
        """The rows of a matrix."""
        return [self.terms[at : at + self.columns] for at in range(0, len(self.terms), self.columns)]


Dims = tuple[Term | None, ...]
_Operands = list[Vector]
Given = Mapping[str, Any]
_Rule = Callable[[_Operands, Given], Vector | None]


def in_parentheses(term: Term) -> str:
    """The text of a term as an operand: a name, or a formula in parentheses."""
    text = str(term)
    return text if is_name(text) else f"({text})"


def elements(vector: Vector | None) -> Dims | None:
    """The elements of a scalar or a vector; None for a matrix, and for one that is not known."""
    return None if vector is None or vector.columns else vector.terms


def constant(array: np.ndarray) -> Vector | None:
    """The numbers of a small scalar or vector; None for another array."""
    if array.ndim > 1 or array.size > LONGEST or array.dtype.kind not in "iufb" or not np.isfinite(array).all():
        return None
    return Vector(tuple(Term(Fraction(each)) for each in array.reshape(-1).tolist()), array.ndim == 0)


def integers(vector: Vector | None) -> list[int] | None:
    """The elements as numbers; None if one is not known."""
    if vector is None or any(term is None or term.names or term.factor.denominator != 1 for term in vector.terms):
        return None
    return [int(term.factor) for term in vector.terms if term is not None]


def _shape(operands: _Operands, given: Given) -> Vector | None:
    return Vector(operands[0].terms[slice(given.get("start", 0), given.get("end"))])


def _cast(operands: _Operands, given: Given) -> Vector | None:
    own = operands[0]
    if given.get("to") not in INTEGERS | _FLOATS:
        return None
    if given["to"] in _FLOATS:
        return own
    # To an integer a number is cut off, which of a symbol is not known unless it is whole.
    return own._replace(terms=tuple(_cut(term) for term in own.terms))


def _cut(term: Term | None, rounded: Callable[[Fraction], int] = int) -> Term | None:
    """A number as a whole one: cut off, or `rounded`. A symbol stays where it is whole, and else is not known."""
    if term is None or term.factor.denominator == 1:
        return term
    return None if term.names else Term(Fraction(rounded(term.factor)))


def _floor(operands: _Operands, given: Given) -> Vector | None:
    own = operands[0]
    # Lengths are not negative, so that cutting off is rounding down; of others nothing is said.
    return Vector(tuple(None if t is None or t.factor < 0 else _cut(t) for t in own.terms), own.is_scalar)


def _rounded_up(operands: _Operands, given: Given) -> Vector | None:
    own = operands[0]
    return own._replace(terms=tuple(_cut(term, ceil) for term in own.terms))


def _clipped(operands: _Operands, given: Given) -> Vector | None:
    """Numbers between bounds that are operands; of a symbol nothing is said."""
    if len(operands) < 2:
        return None  # before opset 11 the bounds are attributes
    raised = _elementwise(operands[:2], _extreme(max))
    return raised if raised is None or len(operands) < 3 else _elementwise([raised, operands[2]], _extreme(min))


def _extreme(function: Callable[..., Fraction]) -> Callable[..., Term | None]:
    """The least or the greatest of terms: of numbers, and of equal symbols; None where one is not known."""

    def combined(*terms: Term | None) -> Term | None:
        if len({*terms}) == 1:
            return terms[0]
        numbers = [term.factor for term in terms if term is not None and not term.names]
        return Term(function(numbers)) if len(numbers) == len(terms) else None

    return combined


def _gather(operands: _Operands, given: Given) -> Vector | None:
    own, places = operands[0], integers(operands[1])
    if places is None or own.is_scalar or not all(-len(own.terms) <= place < len(own.terms) for place in places):
        return None
    return Vector(tuple(own.terms[place] for place in places), operands[1].is_scalar)


def _slice(operands: _Operands, given: Given) -> Vector | None:
    own = operands[0]
    names = ("starts", "ends", "axes", "steps")
    read = [integers(each) for each in operands[1:]]
    if own.is_scalar or None in read:
        return None
    bounds = dict(zip(names, read, strict=False)) or {name: given.get(name) for name in names}
    starts, ends, steps = bounds.get("starts"), bounds.get("ends"), bounds.get("steps") or [1]
    if not starts or not ends or len(starts) != 1 or not steps[0]:
        return None
    axis, taken = (bounds.get("axes") or [0])[0], slice(starts[0], ends[0], steps[0])
    if own.columns:
        terms = tuple(term for row in own.rows[taken] for term in row)
        return own._replace(terms=terms) if axis in (0, -2) else None
    return Vector(own.terms[taken]) if axis in (0, -1) else None


def _turned(operands: _Operands, given: Given) -> Vector | None:
    """A Transpose of a matrix."""
    own = operands[0]
    if not own.columns or given.get("perm", [1, 0]) != [1, 0]:
        return None
    rows = own.rows
    return Vector(tuple(term for column in zip(*rows, strict=True) for term in column), columns=len(rows))


def _concat(operands: _Operands, given: Given) -> Vector | None:
    if any(each.is_scalar for each in operands):
        return None
    return Vector(tuple(term for each in operands for term in each.terms))


def _unsqueeze(operands: _Operands, given: Given) -> Vector | None:
    own, axes = operands[0], integers(operands[1]) if len(operands) > 1 else given.get("axes")
    return Vector(own.terms) if own.is_scalar and axes is not None and len(axes) == 1 else None


def _squeeze(operands: _Operands, given: Given) -> Vector | None:
    own = operands[0]
    return Vector(own.terms, is_scalar=True) if len(own.terms) == 1 else None


def _flat(operands: _Operands, given: Given) -> Vector | None:
    """A Reshape to a scalar, a vector or a matrix."""
    own, target = operands[0], integers(operands[1])
    if target is not None and len(target) == 2 and target[1] > 0 and not len(own.terms) % target[1]:
        rows = len(own.terms) // target[1]
        return Vector(own.terms, columns=target[1]) if rows and target[0] in (-1, rows) else None
    if target is None or len(target) > 1:
        return None
    return Vector(own.terms, is_scalar=not target) if target or len(own.terms) == 1 else None


def _elementwise(operands: _Operands, combine: Callable[..., Term | None]) -> Vector | None:
    """The results of `combine` on the elements of the operands, each of one length or a single element."""
    lengths = {len(each.terms) for each in operands}
    if 0 in lengths or lengths - {1, max(lengths)}:
        return None
    columns = zip(*[each.terms * (max(lengths) // len(each.terms)) for each in operands], strict=True)
    return Vector(tuple(combine(*column) for column in columns), all(each.is_scalar for each in operands))


def _each(combine: Callable[[Term | None, Term | None], Term | None]) -> _Rule:
    """An elementwise operator of two operands."""

    def rule(operands: _Operands, given: Given) -> Vector | None:
        allowed = _in_floats if given[KIND] in _FLOATS else _in_integers
        return _elementwise(operands, lambda *pair: combine(*pair) if all(map(allowed, pair)) else None)

    return rule


def _in_integers(term: Term | None) -> bool:
    return term is not None and term.factor.denominator == 1


def _in_floats(term: Term | None) -> bool:
    """Whether arithmetic in float32 is exact for the term, up to a quotient that is cut off next: a small integer."""
    return _in_integers(term) and term is not None and not term.names and abs(term.factor) < _EXACT


def added(one: Term | None, other: Term | None) -> Term | None:
    """The sum of two terms of the same names, or of one and 0; None for others, whose sum is no term."""
    if one is None or other is None or (one.names != other.names and one.factor and other.factor):
        return None
    kept = one if one.factor else other
    return Term(one.factor + other.factor, kept.names)


def _subtracted(one: Term | None, other: Term | None) -> Term | None:
    if one is not None and other is not None and not one.names and (found := remainder_of(str(other))) is not None:
        # The number of elements up to the next multiple; the divisor itself where the remainder is 0.
        return Term(ONE.factor, (f"{one.factor} - {other}",)) if one.factor == found[1] else None
    return added(one, None if other is None else Term(-other.factor, other.names))


def _modulo(operands: _Operands, given: Given) -> Vector | None:
    """The remainders of integers, which have the sign of the divisor."""
    is_whole = given[KIND] in INTEGERS and not given.get("fmod", 0)
    return _each(_remainder)(operands, given) if is_whole else None


def _remainder(one: Term | None, other: Term | None) -> Term | None:
    """A remainder by a number above 0: a number, or a formula that stands for a name."""
    if one is None or other is None or other.names or other.factor < 1:
        return None
    if not one.names or not one.factor % other.factor:
        return Term(one.factor % other.factor)
    text = f"{in_parentheses(one)} % {other.factor}"
    return None if GENERATED in text or len(text) > LONGEST_FORMULA else Term(ONE.factor, (text,))


def _one_hot(operands: _Operands, given: Given) -> Vector | None:
    """A row for each index. PyTorch's exporter writes the repeats of `repeat_interleave` so: one axis has a number."""
    places, depth, values = integers(operands[0]), integers(operands[1]), operands[2].terms
    if not places or min(places) < 0 or depth is None or not 0 < depth[0] <= LONGEST or given.get("axis", -1) != -1:
        return None
    off, on = values
    terms = tuple([on if column == place else off for place in places for column in range(depth[0])])
    return Vector(terms) if operands[0].is_scalar else Vector(terms, columns=depth[0])


def _reduced(operands: _Operands, given: Given) -> Vector | None:
    """A ReduceProd of a vector."""
    own = operands[0]
    return None if own.is_scalar else Vector((product(own.terms),), is_scalar=not given.get("keepdims", 1))


def _equal(one: Term | None, other: Term | None) -> Term | None:
    """1 or 0. An extent is not negative: a symbol differs from each negative number."""
    if one is None or other is None:
        return None
    has_symbols = bool(one.names), bool(other.names)
    if one == other or not any(has_symbols) or (not all(has_symbols) and one.factor * other.factor < 0):
        return Term(Fraction(one == other))
    return None


def _picked(mask: Term | None, one: Term | None, other: Term | None) -> Term | None:
    """An element of the second or the third operand of a Where."""
    if one == other:
        return one
    return None if mask is None or mask.names else one if mask.factor else other


def _divided(operands: _Operands, given: Given) -> Vector | None:
    found = _each(quotient)(operands, given)
    if found is None or given[KIND] in _FLOATS:
        return found
    return Vector(tuple(map(whole, found.terms)), found.is_scalar) if given[KIND] in INTEGERS else None


def whole(term: Term | None) -> Term | None:
    """A quotient of integers: of lengths, which are not negative, as a formula that stands for a name."""
    if term is None or not term.names or term.factor.denominator == 1 or term.factor < 0:
        return _cut(term)
    found = rounded_down(term)
    return None if GENERATED in str(found) or len(str(found)) > LONGEST_FORMULA else found


_times = _each(lambda *pair: product(pair))
_MINUS_ONE = Vector((Term(Fraction(-1)),), is_scalar=True)

RULES: dict[str, _Rule] = {
    "Add": _each(added),
    "Cast": _cast,
    "Ceil": _rounded_up,
    "Clip": _clipped,
    "Concat": _concat,
    "Div": _divided,
    "Equal": _each(_equal),
    "Floor": _floor,
    "Gather": _gather,
    "Identity": lambda operands, given: operands[0],
    "Max": lambda operands, given: _elementwise(operands, _extreme(max)),
    "Min": lambda operands, given: _elementwise(operands, _extreme(min)),
    "Mod": _modulo,
    "Mul": _times,
    "ReduceProd": _reduced,
    "Neg": lambda operands, given: _times([operands[0], _MINUS_ONE], given),
    "OneHot": _one_hot,
    "Reshape": _flat,
    "Shape": _shape,
    "Size": lambda operands, given: Vector((product(operands[0].terms),), is_scalar=True),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _each(_subtracted),
    "Transpose": _turned,
    "Unsqueeze": _unsqueeze,
    "Where": lambda operands, given: _elementwise(operands, _picked),
}
