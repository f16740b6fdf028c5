"""Shape arithmetic over dims that are not known before the run, as symbols.

Exporters write the shape of a Reshape as Shape, Gather, Cast, Div, Mul and Concat, and with a symbolic batch it is no
constant. Each element of such a vector is a term: a number times named dims, `2*batch*height`. Where all terms of a
value are numbers the value is a constant; where they are symbols, a Reshape by it has a shape of these symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import onnx

from relayout.layout.terms import (
    GENERATED,
    Term,
    dividend_of,
    is_name,
    product,
    quotient,
    remainder_of,
    rounded_down,
    term_of,
)
from relayout.model.dims.dim_unification import MadeUpNames
from relayout.model.dims.formula import LONGEST_FORMULA
from relayout.model.dims.spatial_dims import UNBOUNDED
from relayout.ops.elementwise import BROADCAST

__all__ = ["Symbols", "Vector"]

LONGEST = 64
"""Vectors of more elements are no shapes."""

_EXACT = 1 << 24
"""Up to here float32 has all integers."""
_KIND = "element type of the result"
_OF_FIRST = frozenset({"ReduceProd", "Squeeze"})
"""Operators of one vector, whose other operand has axes."""
_OF_MATRICES = frozenset({"Cast", "Identity", "Reshape", "Slice", "Transpose"})
"""Operators with a rule for matrices: exporters write the pads of PyTorch, last axis first, with these."""
_PRODUCTS = frozenset({"MatMul", "MatMulInteger"})
_MATCHED = _PRODUCTS | frozenset(BROADCAST) | {"Einsum"}
"""Operators whose result has the dims of its operands, where these turn out to be equal."""

_INTEGERS = {onnx.TensorProto.INT64, onnx.TensorProto.INT32}
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}


_ONE = Term(Fraction(1))


class Vector(NamedTuple):
    """A scalar, a vector, or a matrix of so many `columns`, of terms; None: an element that is not known."""

    terms: tuple[Term | None, ...]
    is_scalar: bool = False
    columns: int = 0

    @property
    def rows(self) -> list[tuple[Term | None, ...]]:
        """The rows of a matrix."""
        return [self.terms[at : at + self.columns] for at in range(0, len(self.terms), self.columns)]


_Dims = tuple[Term | None, ...]
_Operands = list[Vector]
_Read = list[Vector | None]
_Given = Mapping[str, Any]
_Rule = Callable[[_Operands, _Given], Vector | None]


class Symbols:
    """What a graph's shape arithmetic computes from the dims of values and from constants.

    `values` has the results of shape arithmetic. `shapes` has, for the result of each operator that one of them gives
    a shape (Reshape, Expand, Slice, Resize, Range), its shape by symbols and its shape in the graph.
    """

    def __init__(self, graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> None:
        self._known = known
        self._dims = _dims_of(graph)
        self._kinds = _element_types(graph)
        self._made_up = MadeUpNames(graph)
        # Names that stand for several extents.
        self._ambiguous: set[str] = set()
        self._follow_nodes(graph)
        while self._contradicted:
            self._ambiguous |= self._contradicted
            self._follow_nodes(graph)

    def _follow_nodes(self, graph: onnx.GraphProto) -> None:
        self.values: dict[str, Vector] = {}
        self.shapes: dict[str, tuple[_Dims, _Dims]] = {}
        # Made-up names, each with the term that such an operator shows to be equal.
        self._same: dict[str, Term] = {}
        self._contradicted: set[str] = set()
        # Quotients that Reshapes show to leave no remainder, each as a part of its dividend.
        self._exact: dict[str, Term] = {}
        for node in graph.node:
            if node.domain not in ("", "ai.onnx"):
                continue
            if node.op_type in _SHAPED or node.op_type in _MATCHED or node.op_type in ("Flatten", "Reshape", "Split"):
                self._follow_shape(node)
            if node.op_type in _RULES:
                self._follow(node)

    def constants(self) -> dict[str, np.ndarray]:
        """The values that are integers throughout, as arrays. A value of another element type is left out."""
        found = {}
        for name, (terms, is_scalar, columns) in self.values.items():
            kind = self._kinds.get(name)
            numbers = [term.factor for term in terms if term is not None and not term.names]
            if kind in _INTEGERS and len(numbers) == len(terms) and all(each.denominator == 1 for each in numbers):
                array = np.array([int(each) for each in numbers], onnx.helper.tensor_dtype_to_np_dtype(kind))
                found[name] = array.reshape(()) if is_scalar else array.reshape(-1, columns) if columns else array
        return found

    def better_shapes(self) -> Iterator[onnx.ValueInfoProto]:
        """The results whose shapes are better known than in the graph: an extent that was unknown or had a generated
        name has a number, or the name of another dim."""
        for name, (shape, known) in self.shapes.items():
            if not any(map(_is_better, shape, known)):
                continue
            hint = onnx.ValueInfoProto(name=name)
            hint.type.tensor_type.elem_type = self._kinds.get(name, 0)
            hint.type.tensor_type.shape.SetInParent()
            for new, old in zip(shape, known, strict=True):
                dim = hint.type.tensor_type.shape.dim.add()
                term = new if _is_better(new, old) else old
                if term is not None and not term.names:
                    dim.dim_value = int(term.factor)
                elif term is not None:
                    dim.dim_param = str(term)
            yield hint

    def equal_dims(self) -> Iterator[tuple[str, str]]:
        """Pairs of names of dims that turn out to be equal, the second made up. The first may be a formula."""
        for old, new in self._same.items():
            is_name = new.factor == 1 and len(new.names) == 1
            if is_name or self._is_formula_of_given(new):
                yield str(new), old

    def numbers(self) -> dict[str, int]:
        """The made-up names that turn out to be a number."""
        return {old: int(new.factor) for old, new in self._same.items() if not new.names and new.factor >= 0}

    def _follow(self, node: onnx.NodeProto) -> None:
        given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        given[_KIND] = self._kinds.get(node.output[0], 0)
        if node.op_type in ("Shape", "Size"):
            own = self._shape_of(node.input[0])
            read = [None if own is None else Vector(own)]
        else:
            read = [self._value(name) for name in (node.input[:1] if node.op_type in _OF_FIRST else node.input)]
        operands = [each for each in read if each is not None]
        if len(operands) < len(read) or (any(v.columns for v in operands) and node.op_type not in _OF_MATRICES):
            return
        vector = _RULES[node.op_type](operands, given)
        if vector is not None and len(vector.terms) <= LONGEST:
            self.values[node.output[0]] = vector

    def _follow_shape(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Split":
            source = self._shape_of(node.input[0])
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            if source is not None and -len(source) <= axis < len(source):
                place = axis % len(source)
                for name in node.output:
                    self._enter(name, (*source[:place], None, *source[place + 1 :]))
            return
        known = self._dims.get(node.output[0])
        if node.op_type not in _MATCHED:
            shape = self._given_shape(node)
        elif known is None or all(dim is not None and not self._is_open(dim) for dim in known):
            return
        else:
            shape = _matched(node, [self._shape_of(name) for name in node.input if name])
        if shape is not None:
            self._enter(node.output[0], shape)

    def _enter(self, name: str, shape: _Dims) -> None:
        """Compare the shape of a value with what the graph has of it."""
        known = self._dims.get(name)
        known = (None,) * len(shape) if known is None else known
        if len(known) != len(shape):
            return
        self.shapes[name] = shape, known
        for new, old in zip(shape, known, strict=True):
            if new is None or old is None or new.factor.denominator != 1 or self._is_made_up_formula(new):
                continue
            if not self._is_open(old) or old.names[0] in new.names:
                continue
            if _is_generated(old) or self._is_formula_of_given(new):
                found = self._same.setdefault(old.names[0], new)
                if found != new and not _is_generated(old):
                    self._contradicted.add(old.names[0])

    def _is_made_up_formula(self, term: Term) -> bool:
        """Whether it has a formula of names that may yet give way, which would not give way inside it."""
        return any(not is_name(name) and name in self._made_up for name in term.names)

    def _is_formula_of_given(self, term: Term) -> bool:
        is_given = not any(name in self._made_up for name in term.names)
        return is_given and term.is_formula and len(str(term)) <= LONGEST_FORMULA

    def _is_open(self, dim: Term) -> bool:
        """Whether the dim has a made-up name, for which a term can be found."""
        if dim.factor != 1 or len(dim.names) != 1 or dim.names[0] in self._ambiguous:
            return False
        return _is_generated(dim) or dim.names[0] in self._made_up

    def _given_shape(self, node: onnx.NodeProto) -> _Dims | None:
        source, given = self._shape_of(node.input[0]), [self._value(name) for name in node.input]
        stated = [each for each in node.attribute if each.name in _PLAIN]
        if source is None or any(onnx.helper.get_attribute_value(each) != _PLAIN[each.name] for each in stated):
            return None
        if node.op_type == "Pad" and any(node.input[3:]):
            return None  # it lists the axes
        if node.op_type == "Flatten":
            axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
            return product(source[:axis]), product(source[axis:])
        if node.op_type == "Reshape":
            shape = _reshape(source, given, self._exact)
            self._exact |= _exact_quotients(source, shape) if shape is not None else {}
            return shape
        return _SHAPED[node.op_type](source, given)

    def _value(self, name: str) -> Vector | None:
        if name not in self.values and name in self._known:
            vector = _constant(self._known[name])
            if vector is not None:
                self.values[name] = vector
        return self.values.get(name)

    def _shape_of(self, name: str) -> _Dims | None:
        dims = self._dims.get(name)
        if dims is None:
            return None
        return tuple(None if dim is None else self._same.get(dim.names[0], dim) if dim.names else dim for dim in dims)


def _element_types(graph: onnx.GraphProto) -> dict[str, int]:
    return {info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.output)}


def _dims_of(graph: onnx.GraphProto) -> dict[str, _Dims]:
    found: dict[str, _Dims] = {t.name: tuple(Term(Fraction(n)) for n in t.dims) for t in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            found[info.name] = tuple(_dim(dim) for dim in kind.shape.dim)
    return found


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Term | None:
    if dim.HasField("dim_value"):
        return Term(Fraction(dim.dim_value))
    if GENERATED in dim.dim_param:
        return Term(Fraction(1), (dim.dim_param,))
    return term_of(dim.dim_param) if dim.dim_param else None


def _is_better(new: Term | None, old: Term | None) -> bool:
    """Whether the new term says more of an extent: a number, or a name that was not generated. A formula of given names
    says more only than nothing. Others are not used."""
    if new is None or new.factor.denominator != 1:
        return False
    if new.names and (new.factor != 1 or len(new.names) > 1):
        return old is None and new.is_formula and len(str(new)) <= LONGEST_FORMULA
    if old is None:
        return True
    return bool(old.names) and new != old and (not new.names or _is_generated(old))


def _is_given(term: Term) -> bool:
    """Whether the term is one dim with a name that the model gives."""
    return term.factor == 1 and len(term.names) == 1 and is_name(term.names[0]) and not _is_generated(term)


def _is_generated(dim: Term) -> bool:
    return dim.factor == 1 and len(dim.names) == 1 and dim.names[0].startswith(GENERATED)


def _matched(node: onnx.NodeProto, shapes: Sequence[_Dims | None]) -> _Dims | None:
    """The shape of a result whose operands are broadcast: of all dims, of a product's batch, or by an equation."""
    if any(shape is None for shape in shapes):
        return None
    found = [shape for shape in shapes if shape is not None]
    if node.op_type == "Einsum":
        return _contracted(node.attribute[0].s.decode() if node.attribute else "", found)
    if node.op_type not in _PRODUCTS:
        return reduce(_broadcast_shapes, found)
    left, right = found[:2]
    if len(left) < 2 or len(right) < 2:
        return None
    return (*_broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])


def _contracted(equation: str, shapes: Sequence[_Dims]) -> _Dims | None:
    """The shape of an Einsum's result; None where the equation leaves it open."""
    read, _, made = equation.replace(" ", "").partition("->")
    terms = read.split(",")
    if not made or "." in equation or [*map(len, terms)] != [*map(len, shapes)]:
        return None
    dims: dict[str, Term | None] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, dim in zip(term, shape, strict=True):
            dims[letter] = _broadcast(dims.get(letter, dim), dim)
    return tuple(dims.get(letter) for letter in made)


def _reshape(source: _Dims, given: _Read, exact: Mapping[str, Term]) -> _Dims | None:
    """The shape of a Reshape; 0 copies a dim, and -1 is what is left of the elements. `exact` quotients leave no
    remainder."""
    target = _elements(given[-1])
    if target is None:
        return None
    shape = [
        (source[place] if place < len(source) else None) if term == Term(Fraction(0)) else term
        for place, term in enumerate(target)
    ]
    rest = Term(Fraction(-1))
    if shape.count(rest) == 1:
        others = [term for term in shape if term != rest]
        read, made = product(source), product(others)
        left = quotient(read, made)
        if left is None or left.factor.denominator > 1:
            whole = quotient(_with_parts(read, exact), _with_parts(made, exact))
            left = whole if whole is not None and whole.factor.denominator == 1 else left
        # It leaves no remainder, or the Reshape would fail.
        shape[shape.index(rest)] = _whole(left)
    return tuple(shape)


def _exact_quotients(source: _Dims, shape: _Dims) -> dict[str, Term]:
    """The quotients of dims that a Reshape between these shapes shows to leave no remainder, as parts of their
    dividends: they are at most that, and only so the totals are equal."""
    read, made = product(source), product(shape)
    for one, other in ((read, made), (made, read)):
        if one is None or other is None or one == other:
            continue
        parts = {name: dividend_of(name) for name in {*one.names} - {*other.names}}
        found = {
            name: Term(Fraction(1, each[1]) * term_of(each[0]).factor, term_of(each[0]).names)
            for name, each in parts.items()
            if each is not None
        }
        if found and _with_parts(one, found) == other:
            return found
    return {}


def _with_parts(term: Term | None, exact: Mapping[str, Term]) -> Term | None:
    """The term with these quotients as parts of their dividends."""
    if term is None or exact.keys().isdisjoint(term.names):
        return term
    return product([Term(term.factor), *(exact.get(name, Term(_ONE.factor, (name,))) for name in term.names)])


def _expand(source: _Dims, given: _Read) -> _Dims | None:
    """The shape of an Expand: the two shapes, as operands are broadcast."""
    target = _elements(given[-1])
    return None if target is None else _broadcast_shapes(source, target)


def _broadcast_shapes(one: _Dims, other: _Dims) -> _Dims:
    rank = max(len(one), len(other))
    return tuple(map(_broadcast, *((_ONE,) * (rank - len(each)) + each for each in (one, other))))


def _broadcast(one: Term | None, other: Term | None) -> Term | None:
    if one == other or other == _ONE:
        return one
    if one == _ONE:
        return other
    # Where a number is not 1, an extent that fits is 1 or the same; two different symbols may be either.
    return next((term for term in (one, other) if term is not None and not term.names), None)


def _tile(source: _Dims, given: _Read) -> _Dims | None:
    repeats = _elements(given[-1])
    if repeats is None or len(source) != len(repeats):
        return None
    return tuple(product(pair) for pair in zip(source, repeats, strict=True))


def _resized(source: _Dims, given: _Read) -> _Dims | None:
    """The shape of a Resize that has sizes."""
    return _elements(given[3]) if len(given) > 3 else None


def _filled(source: _Dims, given: _Read) -> _Dims | None:
    return _elements(given[-1])


def _range(source: _Dims, given: _Read) -> _Dims | None:
    start, limit, delta = map(_elements, given) if len(given) == 3 else (None, None, None)
    return limit if start == (Term(Fraction(0)),) and delta == (_ONE,) else None


def _sliced(source: _Dims, given: _Read) -> _Dims | None:
    """The shape of a Slice: the dims that it does not cut, and those of which it takes all."""
    if len(given) < 3:
        return None  # before opset 10 its bounds are attributes, which inference reads
    starts, ends, *others = map(_elements, given[1:])
    axes = _integers(given[3]) if others else None if starts is None else list(range(len(starts)))
    if axes is None or not all(-len(source) <= axis < len(source) for axis in axes):
        return None
    steps = others[1] if len(others) > 1 else (_ONE,) * len(axes)
    # Bounds that are not known cut these axes alone.
    unknown = (None,) * len(axes)
    starts, ends, steps = starts or unknown, ends or unknown, steps or unknown
    shape = list(source)
    for axis, *bounds in zip(axes, starts, ends, steps, strict=False):
        shape[axis] = _cut_to(shape[axis], *bounds)
    return tuple(shape)


def _cut_to(dim: Term | None, start: Term | None, end: Term | None, step: Term | None) -> Term | None:
    """The extent of what a Slice takes of a dim: the dim itself, a number where all are numbers, or the first elements
    of a table, as a formula that stands for a name."""
    if dim is None or start is None or end is None or step is None:
        return None
    if not any(term.names for term in (dim, start, end, step)):
        bounds = slice(*(int(term.factor) for term in (start, end, step))) if step.factor else slice(0, 0)
        return Term(Fraction(len(range(int(dim.factor))[bounds])))
    if step == _ONE and not start.factor and dim == _rounded_up(end, dim.factor):
        return end
    from_first = not start.factor or start == Term(-dim.factor, dim.names)
    to_last = end == dim or (not end.names and end.factor >= UNBOUNDED)
    if step != _ONE or not from_first:
        return None
    if not to_last and not start.factor and not dim.names and _is_given(end):
        return Term(_ONE.factor, (f"min({dim.factor}, {end.names[0]})",))
    return dim if to_last else None


def _rounded_up(term: Term, to: Fraction) -> Term | None:
    """The least multiple of a whole number that is not below an extent."""
    if not term.names or to.denominator != 1 or to < 2:
        return None
    return Term(to, (f"({term} + {to - 1})//{to}",))


def _padded(source: _Dims, given: _Read) -> _Dims | None:
    """The shape of a Pad of all axes."""
    pads = _elements(given[1]) if len(given) > 1 else None
    if pads is None or len(pads) != 2 * len(source):
        return None
    return tuple(map(_lengthened, source, pads[: len(source)], pads[len(source) :]))


def _lengthened(dim: Term | None, before: Term | None, behind: Term | None) -> Term | None:
    """An extent with what is added on both sides: numbers, or on one of them what the next multiple of a number needs,
    as windows do."""
    if dim is None or before is None or behind is None:
        return None
    added = _added(before, behind)
    if added is not None and (not added.factor or not (dim.names or added.names)):
        return _added(dim, added)
    if added is None or len(added.names) != 1 or added.factor != 1:
        return None
    text, own = added.names[0], _in_parentheses(dim)
    found = _TO_MULTIPLE.fullmatch(text)
    if found is not None and found["of"] == own:
        return _rounded_up(dim, Fraction(found["to"]))
    return _rounded_up(dim, Fraction(2)) if text == f"{own} % 2" else None


def _in_parentheses(term: Term) -> str:
    text = str(term)
    return text if is_name(text) else f"({text})"


_TO_MULTIPLE = re.compile(r"\((?P<to>\d+) - (?P<of>.+) % (?P=to)\) % (?P=to)", re.ASCII)


def _elements(vector: Vector | None) -> _Dims | None:
    return None if vector is None or vector.columns else vector.terms


def _constant(array: np.ndarray) -> Vector | None:
    if array.ndim > 1 or array.size > LONGEST or array.dtype.kind not in "iufb" or not np.isfinite(array).all():
        return None
    return Vector(tuple(Term(Fraction(each)) for each in array.reshape(-1).tolist()), array.ndim == 0)


def _integers(vector: Vector | None) -> list[int] | None:
    """The elements as numbers; None if one is not known."""
    if vector is None or any(term is None or term.names or term.factor.denominator != 1 for term in vector.terms):
        return None
    return [int(term.factor) for term in vector.terms if term is not None]


def _shape(operands: _Operands, given: _Given) -> Vector | None:
    return Vector(operands[0].terms[slice(given.get("start", 0), given.get("end"))])


def _size(operands: _Operands, given: _Given) -> Vector | None:
    return Vector((product(operands[0].terms),), is_scalar=True)


def _same(operands: _Operands, given: _Given) -> Vector | None:
    return operands[0]


def _cast(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    if given.get("to") not in _INTEGERS | _FLOATS:
        return None
    if given["to"] in _FLOATS:
        return own
    # To an integer a number is cut off, which of a symbol is not known unless it is whole.
    return own._replace(terms=tuple(_cut(term) for term in own.terms))


def _cut(term: Term | None) -> Term | None:
    if term is None or term.factor.denominator == 1:
        return term
    return None if term.names else Term(Fraction(int(term.factor)))


def _floor(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    # Lengths are not negative, so that cutting off is rounding down; of others nothing is said.
    return Vector(tuple(None if t is None or t.factor < 0 else _cut(t) for t in own.terms), own.is_scalar)


def _gather(operands: _Operands, given: _Given) -> Vector | None:
    own, places = operands[0], _integers(operands[1])
    if places is None or own.is_scalar or not all(-len(own.terms) <= place < len(own.terms) for place in places):
        return None
    return Vector(tuple(own.terms[place] for place in places), operands[1].is_scalar)


def _slice(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    names = ("starts", "ends", "axes", "steps")
    read = [_integers(each) for each in operands[1:]]
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


def _turned(operands: _Operands, given: _Given) -> Vector | None:
    """A Transpose of a matrix."""
    own = operands[0]
    if not own.columns or given.get("perm", [1, 0]) != [1, 0]:
        return None
    rows = own.rows
    return Vector(tuple(term for column in zip(*rows, strict=True) for term in column), columns=len(rows))


def _concat(operands: _Operands, given: _Given) -> Vector | None:
    if any(each.is_scalar for each in operands):
        return None
    return Vector(tuple(term for each in operands for term in each.terms))


def _unsqueeze(operands: _Operands, given: _Given) -> Vector | None:
    own, axes = operands[0], _integers(operands[1]) if len(operands) > 1 else given.get("axes")
    return Vector(own.terms) if own.is_scalar and axes is not None and len(axes) == 1 else None


def _squeeze(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    return Vector(own.terms, is_scalar=True) if len(own.terms) == 1 else None


def _flat(operands: _Operands, given: _Given) -> Vector | None:
    """A Reshape to a scalar, a vector or a matrix."""
    own, target = operands[0], _integers(operands[1])
    if target is not None and len(target) == 2 and target[1] > 0 and len(own.terms) in range(0, LONGEST, target[1]):
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

    def rule(operands: _Operands, given: _Given) -> Vector | None:
        allowed = _in_floats if given[_KIND] in _FLOATS else _in_integers
        return _elementwise(operands, lambda *pair: combine(*pair) if all(map(allowed, pair)) else None)

    return rule


def _in_integers(term: Term | None) -> bool:
    return term is not None and term.factor.denominator == 1


def _in_floats(term: Term | None) -> bool:
    """Whether arithmetic in float32 is exact for the term, up to a quotient that is cut off next: a small integer."""
    return _in_integers(term) and term is not None and not term.names and abs(term.factor) < _EXACT


def _added(one: Term | None, other: Term | None) -> Term | None:
    if one is None or other is None or (one.names != other.names and one.factor and other.factor):
        return None
    kept = one if one.factor else other
    return Term(one.factor + other.factor, kept.names)


def _product_of(one: Term | None, other: Term | None) -> Term | None:
    return product((one, other))


def _negated(operands: _Operands, given: _Given) -> Vector | None:
    return _each(_product_of)([operands[0], Vector((Term(Fraction(-1)),), is_scalar=True)], given)


def _subtracted(one: Term | None, other: Term | None) -> Term | None:
    if one is not None and other is not None and not one.names and (found := remainder_of(str(other))) is not None:
        # What is missing to the next multiple, if the remainder is not 0.
        return Term(_ONE.factor, (f"{one.factor} - {other}",)) if one.factor == found[1] else None
    return _added(one, None if other is None else Term(-other.factor, other.names))


def _modulo(operands: _Operands, given: _Given) -> Vector | None:
    """The remainders of integers, which have the sign of the divisor."""
    is_whole = given[_KIND] in _INTEGERS and not given.get("fmod", 0)
    return _each(_remainder)(operands, given) if is_whole else None


def _remainder(one: Term | None, other: Term | None) -> Term | None:
    """A remainder by a number above 0: a number, or a formula that stands for a name."""
    if one is None or other is None or other.names or other.factor < 1:
        return None
    if not one.names or not one.factor % other.factor:
        return Term(one.factor % other.factor)
    text = f"{_in_parentheses(one)} % {other.factor}"
    return None if GENERATED in text or len(text) > LONGEST_FORMULA else Term(_ONE.factor, (text,))


def _reduced(operands: _Operands, given: _Given) -> Vector | None:
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


def _where(operands: _Operands, given: _Given) -> Vector | None:
    """Elements of the second and the third operand."""
    return _elementwise(operands, _picked)


def _picked(mask: Term | None, one: Term | None, other: Term | None) -> Term | None:
    if one == other:
        return one
    return None if mask is None or mask.names else one if mask.factor else other


def _divided(operands: _Operands, given: _Given) -> Vector | None:
    found = _each(quotient)(operands, given)
    if found is None or given[_KIND] in _FLOATS:
        return found
    return Vector(tuple(map(_whole, found.terms)), found.is_scalar) if given[_KIND] in _INTEGERS else None


def _whole(term: Term | None) -> Term | None:
    """A quotient of integers: of lengths, which are not negative, as a formula that stands for a name."""
    if term is None or not term.names or term.factor.denominator == 1 or term.factor < 0:
        return _cut(term)
    whole = rounded_down(term)
    return None if GENERATED in str(whole) or len(str(whole)) > LONGEST_FORMULA else whole


_RULES: dict[str, _Rule] = {
    "Add": _each(_added),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _divided,
    "Equal": _each(_equal),
    "Floor": _floor,
    "Gather": _gather,
    "Identity": _same,
    "Mod": _modulo,
    "Mul": _each(_product_of),
    "ReduceProd": _reduced,
    "Neg": _negated,
    "Reshape": _flat,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _each(_subtracted),
    "Transpose": _turned,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}

_SHAPED: dict[str, Callable[[_Dims, _Read], _Dims | None]] = {
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "Pad": _padded,
    "Range": _range,
    "Resize": _resized,
    "Slice": _sliced,
    "Tile": _tile,
}
"""The shape of the result, from the shape of the first operand and the elements of all."""
_PLAIN = {"allowzero": 0, "axes": None, "keep_aspect_ratio_policy": b"stretch"}
"""Attributes of these that must be absent or have this value: with another the shape is another."""
