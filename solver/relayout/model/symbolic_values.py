"""Shape arithmetic over dims that are not known before the run, as symbols.

Exporters write the shape of a Reshape as Shape, Gather, Cast, Div, Mul and Concat, and with a symbolic batch it is no
constant. Each element of such a vector is a term: a number times named dims, `2*batch*height`. Where all terms of a
value are numbers the value is a constant; where they are symbols, a Reshape by it has a shape of these symbols.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import onnx

from relayout.model.dim_unification import GENERATED

__all__ = ["constants_among", "equal_dims", "reshaped", "symbolic_values"]

LONGEST = 64
"""Vectors of more elements are no shapes."""

_EXACT = 1 << 24
"""Up to here float32 has all integers."""
_KIND = "element type of the result"

_INTEGERS = {onnx.TensorProto.INT64, onnx.TensorProto.INT32}
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}


class _Term(NamedTuple):
    """A number times dims, by name, in alphabetical order."""

    factor: Fraction
    names: tuple[str, ...] = ()


class Vector(NamedTuple):
    """A scalar or a vector of terms; None: an element that is not known."""

    terms: tuple[_Term | None, ...]
    is_scalar: bool = False


_Dims = tuple[_Term | None, ...]


def symbolic_values(graph: onnx.GraphProto, known: Mapping[str, np.ndarray]) -> dict[str, Vector]:
    """The values that shape arithmetic computes from the dims of other values, and the constants in `known`."""
    dims, kinds = _dims_of(graph), _element_types(graph)
    found: dict[str, Vector] = {}

    def value(name: str) -> Vector | None:
        if name not in found and name in known:
            vector = _constant(known[name])
            if vector is not None:
                found[name] = vector
        return found.get(name)

    for node in graph.node:
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None or not node.output:
            continue
        operands = [value(name) for name in node.input]
        given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        given[_KIND] = kinds.get(node.output[0], 0)
        if node.op_type in ("Shape", "Size"):
            own = dims.get(node.input[0])
            vector = None if own is None else rule([Vector(own)], given)
        else:
            first = operands[0] if operands else None
            # A Concat may have elements that are not known; any other operator of an unknown vector is unknown.
            is_open = first is None and node.op_type != "Concat"
            vector = None if is_open else rule(operands, given)
        if vector is not None and len(vector.terms) <= LONGEST:
            found[node.output[0]] = vector
    return found


def constants_among(graph: onnx.GraphProto, values: Mapping[str, Vector]) -> dict[str, np.ndarray]:
    """Those of the values that are integers throughout, as arrays. A value of another element type is left out."""
    kinds, found = _element_types(graph), {}
    for name, (terms, is_scalar) in values.items():
        kind = kinds.get(name)
        numbers = [term.factor for term in terms if term is not None and not term.names]
        if kind in _INTEGERS and len(numbers) == len(terms) and all(each.denominator == 1 for each in numbers):
            array = np.array([int(each) for each in numbers], onnx.helper.tensor_dtype_to_np_dtype(kind))
            found[name] = array.reshape(()) if is_scalar else array
    return found


def reshaped(graph: onnx.GraphProto, values: Mapping[str, Vector]) -> Iterator[onnx.ValueInfoProto]:
    """The results of Reshapes whose shapes these values make better known than in `graph`: an extent that was unknown
    or had a generated name has a number, or the name of another dim."""
    for info, shape, known in _reshapes(graph, values):
        if not any(map(_is_better, shape, known)):
            continue
        hint = onnx.ValueInfoProto(name=info.name)
        hint.type.tensor_type.elem_type = info.type.tensor_type.elem_type
        hint.type.tensor_type.shape.SetInParent()
        for new, old in zip(shape, known, strict=True):
            dim = hint.type.tensor_type.shape.dim.add()
            term = new if _is_better(new, old) else old
            if term is not None and not term.names:
                dim.dim_value = int(term.factor)
            elif term is not None:
                dim.dim_param = term.names[0]
        yield hint


def equal_dims(graph: onnx.GraphProto, values: Mapping[str, Vector]) -> Iterator[tuple[str, str]]:
    """Pairs of names of dims that a Reshape by these values shows to be equal."""
    for _, shape, known in _reshapes(graph, values):
        for new, old in zip(shape, known, strict=True):
            if new is not None and old is not None and new.factor == old.factor == 1 and new != old:
                if len(new.names) == len(old.names) == 1:
                    yield new.names[0], old.names[0]


def _reshapes(
    graph: onnx.GraphProto, values: Mapping[str, Vector]
) -> Iterator[tuple[onnx.ValueInfoProto, _Dims, _Dims]]:
    """The result of each Reshape by one of these values, its shape by symbols, and its shape in the graph."""
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    dims = _dims_of(graph)
    for node in graph.node:
        if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx") or len(node.input) < 2:
            continue
        target, source, info = values.get(node.input[1]), dims.get(node.input[0]), infos.get(node.output[0])
        if target is None or source is None or info is None or any(each.i for each in node.attribute):
            continue
        shape = _reshape(source, target.terms)
        known = dims.get(node.output[0]) or (None,) * len(shape)
        if len(known) == len(shape):
            yield info, shape, known


def _element_types(graph: onnx.GraphProto) -> dict[str, int]:
    return {info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.output)}


def _dims_of(graph: onnx.GraphProto) -> dict[str, _Dims]:
    found: dict[str, _Dims] = {t.name: tuple(_Term(Fraction(n)) for n in t.dims) for t in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            found[info.name] = tuple(_dim(dim) for dim in kind.shape.dim)
    return found


def _dim(dim: onnx.TensorShapeProto.Dimension) -> _Term | None:
    if dim.HasField("dim_value"):
        return _Term(Fraction(dim.dim_value))
    return _Term(Fraction(1), (dim.dim_param,)) if dim.dim_param else None


def _is_better(new: _Term | None, old: _Term | None) -> bool:
    """Whether the new term says more of an extent: a number, or a name that was not generated. Others are not used."""
    if new is None or new.factor.denominator != 1 or (new.names and (new.factor != 1 or len(new.names) > 1)):
        return False
    if old is None:
        return True
    return bool(old.names) and new != old and (not new.names or old.names[0].startswith(GENERATED))


def _reshape(source: _Dims, target: Sequence[_Term | None]) -> _Dims:
    """The shape of a Reshape; 0 copies a dim, and -1 is what is left of the elements."""
    shape = [
        (source[place] if place < len(source) else None) if term == _Term(Fraction(0)) else term
        for place, term in enumerate(target)
    ]
    rest = _Term(Fraction(-1))
    if shape.count(rest) == 1:
        others = [term for term in shape if term != rest]
        shape[shape.index(rest)] = _quotient(_product(source), _product(others))
    return tuple(shape)


def _product(terms: Sequence[_Term | None]) -> _Term | None:
    factor, names = Fraction(1), []
    for term in terms:
        if term is None:
            return None
        factor *= term.factor
        names += term.names
    return _Term(factor, tuple(sorted(names)))


def _quotient(one: _Term | None, other: _Term | None) -> _Term | None:
    """The quotient of two terms where the names of the second cancel."""
    if one is None or other is None or not other.factor:
        return None
    left, gone = Counter(one.names), Counter(other.names)
    if not gone <= left:
        return None
    return _Term(one.factor / other.factor, tuple(sorted((left - gone).elements())))


def _constant(array: np.ndarray) -> Vector | None:
    if array.ndim > 1 or array.size > LONGEST or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        return None
    return Vector(tuple(_Term(Fraction(each)) for each in array.reshape(-1).tolist()), array.ndim == 0)


def _integers(vector: Vector | None) -> list[int] | None:
    """The elements as numbers; None if one is not known."""
    if vector is None or any(term is None or term.names or term.factor.denominator != 1 for term in vector.terms):
        return None
    return [int(term.factor) for term in vector.terms if term is not None]


_Operands = list[Vector | None]
_Given = Mapping[str, Any]


def _shape(operands: _Operands, given: _Given) -> Vector | None:
    (own,) = operands
    assert own is not None
    return Vector(own.terms[slice(given.get("start", 0), given.get("end"))])


def _size(operands: _Operands, given: _Given) -> Vector | None:
    (own,) = operands
    assert own is not None
    return Vector((_product(own.terms),), is_scalar=True)


def _same(operands: _Operands, given: _Given) -> Vector | None:
    return operands[0]


def _cast(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    if own is None or given.get("to") not in _INTEGERS | _FLOATS:
        return None
    if given["to"] in _FLOATS:
        return own
    # To an integer a number is cut off, which of a symbol is not known unless it is whole.
    return Vector(tuple(_cut(term) for term in own.terms), own.is_scalar)


def _cut(term: _Term | None) -> _Term | None:
    if term is None or term.factor.denominator == 1:
        return term
    return None if term.names else _Term(Fraction(int(term.factor)))


def _floor(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    if own is None:
        return None
    # Lengths are not negative, so that cutting off is rounding down; of others nothing is said.
    return Vector(tuple(None if t is None or t.factor < 0 else _cut(t) for t in own.terms), own.is_scalar)


def _gather(operands: _Operands, given: _Given) -> Vector | None:
    own, places = operands[0], _integers(operands[1])
    if own is None or places is None or own.is_scalar or operands[1] is None:
        return None
    if not all(-len(own.terms) <= place < len(own.terms) for place in places):
        return None
    return Vector(tuple(own.terms[place] for place in places), operands[1].is_scalar)


def _slice(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    if own is None or own.is_scalar:
        return None
    names = ("starts", "ends", "axes", "steps")
    read = [_integers(each) for each in operands[1:]]
    if any(each is None for each in read):
        return None
    bounds = dict(zip(names, read, strict=False)) or {name: given.get(name) for name in names}
    starts, ends, steps = bounds.get("starts"), bounds.get("ends"), bounds.get("steps") or [1]
    if not starts or not ends or len(starts) != 1 or (bounds.get("axes") or [0])[0] not in (0, -1):
        return None
    return Vector(own.terms[slice(starts[0], ends[0], steps[0])]) if steps[0] else None


def _concat(operands: _Operands, given: _Given) -> Vector | None:
    if any(each is None or each.is_scalar for each in operands):
        return None
    return Vector(tuple(term for each in operands if each is not None for term in each.terms))


def _unsqueeze(operands: _Operands, given: _Given) -> Vector | None:
    own, axes = operands[0], _integers(operands[1]) if len(operands) > 1 else given.get("axes")
    return Vector(own.terms) if own is not None and own.is_scalar and axes is not None and len(axes) == 1 else None


def _squeeze(operands: _Operands, given: _Given) -> Vector | None:
    own = operands[0]
    return Vector(own.terms, is_scalar=True) if own is not None and len(own.terms) == 1 else None


def _flat(operands: _Operands, given: _Given) -> Vector | None:
    """A Reshape to a scalar or a vector."""
    own, target = operands[0], _integers(operands[1])
    if own is None or target is None or len(target) > 1:
        return None
    return Vector(own.terms, is_scalar=not target) if target or len(own.terms) == 1 else None


def _each(combine: Callable[[_Term | None, _Term | None], _Term | None]) -> Callable[[_Operands, _Given], Vector | None]:
    """An elementwise operator of two operands, of one length or one of them a single element."""

    def rule(operands: _Operands, given: _Given) -> Vector | None:
        one, other = operands
        if one is None or other is None or not one.terms or not other.terms:
            return None
        length = max(len(one.terms), len(other.terms))
        if {len(one.terms), len(other.terms)} - {1, length}:
            return None
        pairs = zip(one.terms * (length // len(one.terms)), other.terms * (length // len(other.terms)), strict=True)
        allowed = _in_floats if given[_KIND] in _FLOATS else _in_integers
        found = tuple(combine(*pair) if all(map(allowed, pair)) else None for pair in pairs)
        return Vector(found, one.is_scalar and other.is_scalar)

    return rule


def _in_integers(term: _Term | None) -> bool:
    return term is not None and term.factor.denominator == 1


def _in_floats(term: _Term | None) -> bool:
    """Whether arithmetic in float32 is exact for the term, up to a quotient that is cut off next: a small integer."""
    return _in_integers(term) and term is not None and not term.names and abs(term.factor) < _EXACT


def _added(one: _Term | None, other: _Term | None) -> _Term | None:
    if one is None or other is None or (one.names != other.names and one.factor and other.factor):
        return None
    kept = one if one.factor else other
    return _Term(one.factor + other.factor, kept.names)


def _subtracted(one: _Term | None, other: _Term | None) -> _Term | None:
    return _added(one, None if other is None else _Term(-other.factor, other.names))


def _reduced(operands: _Operands, given: _Given) -> Vector | None:
    """A ReduceProd of a vector."""
    own = operands[0]
    if own is None or own.is_scalar:
        return None
    return Vector((_product(own.terms),), is_scalar=not given.get("keepdims", 1))


def _divided(operands: _Operands, given: _Given) -> Vector | None:
    found = _each(_quotient)(operands, given)
    if found is None or given[_KIND] in _FLOATS:
        return found
    return Vector(tuple(map(_cut, found.terms)), found.is_scalar) if given[_KIND] in _INTEGERS else None


_RULES: dict[str, Callable[[_Operands, _Given], Vector | None]] = {
    "Add": _each(_added),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _divided,
    "Floor": _floor,
    "Gather": _gather,
    "Identity": _same,
    "Mul": _each(lambda one, other: _product((one, other))),
    "ReduceProd": _reduced,
    "Reshape": _flat,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _each(_subtracted),
    "Unsqueeze": _unsqueeze,
}
