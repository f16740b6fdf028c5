"""The shapes of results that shape arithmetic determines: a rule for each operator, in terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce

import onnx

from relayout.layout.terms import GENERATED, Term, dividend_of, is_multiple, is_name, product, quotient, term_of
from relayout.model.dims.spatial_dims import UNBOUNDED
from relayout.model.dims.symbolic_vectors import ONE, Dims, Read, added, elements, in_parentheses, integers, whole
from relayout.ops.elementwise import BROADCAST, UNARY

_PRODUCTS = frozenset({"MatMul", "MatMulInteger"})
MATCHED = _PRODUCTS | frozenset([*BROADCAST, *UNARY, "Clip", "Dropout", "Einsum", "Identity"])
"""Operators whose result has the dims of its operands, where these turn out to be equal; a bound or a ratio is a
scalar."""
_BLOCKS = frozenset({"DepthToSpace", "SpaceToDepth"})
TRANSPOSED = frozenset({"Squeeze", "Transpose", "Unsqueeze"}) | _BLOCKS
"""Operators whose result has the dims of its operand in another order, without some of extent 1 or with more, or with
blocks of the image as channels."""


def _is_given(term: Term) -> bool:
    """Whether the term is one dim with a name that the model gives."""
    return term.factor == 1 and len(term.names) == 1 and is_name(term.names[0]) and not is_generated(term)


def is_generated(dim: Term) -> bool:
    return dim.factor == 1 and len(dim.names) == 1 and dim.names[0].startswith(GENERATED)


def matched(node: onnx.NodeProto, shapes: Sequence[Dims | None]) -> Dims | None:
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


def _contracted(equation: str, shapes: Sequence[Dims]) -> Dims | None:
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


def transposed(node: onnx.NodeProto, source: Dims, given: Read) -> Dims | None:
    """The shape of the result of one of `TRANSPOSED`; None where its axes are not known."""
    if node.op_type in _BLOCKS:
        return _in_blocks(node, source)
    stated = {each.name: [*each.ints] for each in node.attribute}
    if node.op_type == "Transpose":
        perm = stated.get("perm", [*reversed(range(len(source)))])
        return tuple([source[axis] for axis in perm]) if sorted(perm) == [*range(len(source))] else None
    axes = stated.get("axes") or (integers(given[1]) if len(given) > 1 else None)
    if not axes:
        return None
    rank = len(source) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    places = {axis % rank for axis in axes if -rank <= axis < rank}
    if len(places) < len(axes):
        return None
    if node.op_type == "Squeeze":
        return tuple([dim for place, dim in enumerate(source) if place not in places])
    kept = iter(source)
    return tuple([ONE if place in places else next(kept) for place in range(rank)])


def _in_blocks(node: onnx.NodeProto, source: Dims) -> Dims | None:
    """The shape of a SpaceToDepth or DepthToSpace, whose channels onnx leaves open where the image is open."""
    sizes = [each.i for each in node.attribute if each.name == "blocksize"]
    if len(source) != 4 or len(sizes) != 1 or sizes[0] < 1:
        return None
    size = Term(Fraction(sizes[0]))
    batch, channels, *image = source
    if node.op_type == "SpaceToDepth":
        return (batch, product([channels, size, size]), *(whole(quotient(dim, size)) for dim in image))
    return (batch, quotient(channels, product([size, size])), *(product([dim, size]) for dim in image))


def reshape(source: Dims, given: Read, exact: Mapping[str, Term], *, copies: bool) -> Dims | None:
    """The shape of a Reshape; 0 copies a dim, if it `copies` any, and -1 is what is left of the elements. `exact`
    quotients leave no remainder."""
    target = elements(given[-1])
    if target is None:
        return None
    shape = [
        (source[place] if place < len(source) else None) if copies and term == Term(Fraction(0)) else term
        for place, term in enumerate(target)
    ]
    rest = Term(Fraction(-1))
    if shape.count(rest) == 1:
        others = [term for term in shape if term != rest]
        read, made = product(source), product(others)
        left = quotient(read, made)
        if left is None or left.factor.denominator > 1:
            exactly = quotient(_with_parts(read, exact), _with_parts(made, exact))
            left = exactly if exactly is not None and exactly.factor.denominator == 1 else left
        # It leaves no remainder, or the Reshape would fail.
        shape[shape.index(rest)] = whole(left)
    return tuple(shape)


def left_by_elements(source: Dims, known: Dims) -> Dims | None:
    """The shape of a Reshape of whose extents one is not known: what the others leave of the elements."""
    open_ = [place for place, term in enumerate(known) if term is None or is_generated(term)]
    if len(open_) != 1:
        return None
    (place,) = open_
    left = quotient(product(source), product(known[:place] + known[place + 1 :]))
    if left is None or left.factor.denominator > 1:
        return None
    return (*known[:place], left, *known[place + 1 :])


def exact_quotients(source: Dims, shape: Dims) -> dict[str, Term]:
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
    return product([Term(term.factor), *(exact.get(name, Term(ONE.factor, (name,))) for name in term.names)])


def _expand(source: Dims, given: Read) -> Dims | None:
    """The shape of an Expand: the two shapes, as operands are broadcast."""
    target = elements(given[-1])
    return None if target is None else _broadcast_shapes(source, target)


def _broadcast_shapes(one: Dims, other: Dims) -> Dims:
    rank = max(len(one), len(other))
    return tuple(map(_broadcast, *((ONE,) * (rank - len(each)) + each for each in (one, other))))


def _broadcast(one: Term | None, other: Term | None) -> Term | None:
    if one == other or other == ONE:
        return one
    if one == ONE:
        return other
    # Where a number is not 1, an extent that fits is 1 or the same, and so with a multiple; two other symbols may be
    # either.
    known = [term for term in (one, other) if term is not None]
    fixed = [term for term in known if not term.names]
    return next(iter(fixed or sorted(filter(is_multiple, known), key=str)), None)


def _tile(source: Dims, given: Read) -> Dims | None:
    repeats = elements(given[-1])
    if repeats is None or len(source) != len(repeats):
        return None
    return tuple(product(pair) for pair in zip(source, repeats, strict=True))


def _range(source: Dims, given: Read) -> Dims | None:
    start, limit, delta = map(elements, given) if len(given) == 3 else (None, None, None)
    return limit if start == (Term(Fraction(0)),) and delta == (ONE,) else None


def _sliced(source: Dims, given: Read) -> Dims | None:
    """The shape of a Slice: the dims that it does not cut, and those of which it takes all."""
    if len(given) < 3:
        return None  # before opset 10 its bounds are attributes, which inference reads
    starts, ends, *others = map(elements, given[1:])
    axes = integers(given[3]) if others else None if starts is None else list(range(len(starts)))
    if axes is None or not all(-len(source) <= axis < len(source) for axis in axes):
        return None
    steps = others[1] if len(others) > 1 else (ONE,) * len(axes)
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
    if step == ONE and not start.factor and dim == _rounded_up(end, dim.factor):
        return end
    from_first = not start.factor or start == Term(-dim.factor, dim.names)
    to_last = end == dim or (not end.names and end.factor >= UNBOUNDED)
    if step != ONE or not from_first:
        return None
    if not to_last and not start.factor and not dim.names and _is_given(end):
        return Term(ONE.factor, (f"min({dim.factor}, {end.names[0]})",))
    return dim if to_last else None


def _rounded_up(term: Term, to: Fraction) -> Term | None:
    """The least multiple of a whole number that is not below an extent."""
    if not term.names or to.denominator != 1 or to < 2:
        return None
    return Term(to, (f"({term} + {to - 1})//{to}",))


def _padded(source: Dims, given: Read) -> Dims | None:
    """The shape of a Pad of all axes, or of those that it lists."""
    pads = elements(given[1]) if len(given) > 1 else None
    axes = integers(given[3]) if len(given) > 3 else [*range(len(source))]
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return None
    if not all(-len(source) <= axis < len(source) for axis in axes):
        return None
    shape = [*source]
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        shape[axis] = _lengthened(shape[axis], before, behind)
    return tuple(shape)


def _lengthened(dim: Term | None, before: Term | None, behind: Term | None) -> Term | None:
    """An extent with what is added on both sides: numbers, or on one of them what the next multiple of a number needs,
    as windows do."""
    if dim is None or before is None or behind is None:
        return None
    pad = added(before, behind)
    if pad is not None and (not pad.factor or not (dim.names or pad.names)):
        return added(dim, pad)
    if pad is None or len(pad.names) != 1 or pad.factor != 1:
        return None
    text, own = pad.names[0], in_parentheses(dim)
    found = _TO_MULTIPLE.fullmatch(text)
    if found is not None and found["of"] == own:
        return _rounded_up(dim, Fraction(found["to"]))
    return _rounded_up(dim, Fraction(2)) if text == f"{own} % 2" else None


_TO_MULTIPLE = re.compile(r"\((?P<to>\d+) - (?P<of>.+) % (?P=to)\) % (?P=to)", re.ASCII)


SHAPED: dict[str, Callable[[Dims, Read], Dims | None]] = {
    "ConstantOfShape": lambda source, given: elements(given[-1]),
    "Expand": _expand,
    "Pad": _padded,
    "Range": _range,
    "Resize": lambda source, given: elements(given[3]) if len(given) > 3 else None,
    "Slice": _sliced,
    "Tile": _tile,
}
"""The shape of the result, from the shape of the first operand and the elements of all."""
PLAIN = {"axes": None, "keep_aspect_ratio_policy": b"stretch"}
"""Attributes of these that must be absent or have this value: with another the shape is another."""
