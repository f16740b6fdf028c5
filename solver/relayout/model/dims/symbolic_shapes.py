"""The shapes of results that shape arithmetic determines: a rule for each operator, in terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from relayout.layout.terms import GENERATED, Term, dividend_of, is_multiple, is_name, product, quotient, term_of
from relayout.model.dims.formula import formula_names
from relayout.model.dims.operand_facts import Operands
from relayout.model.dims.spatial_dims import KERNELS, behind_window, padded, resized, rounded_up
from relayout.model.dims.sums import Sum, named
from relayout.model.dims.symbolic_vectors import ONE, Dims, whole
from relayout.ops.elementwise import BROADCAST, UNARY

_UNBOUNDED = (1 << 31) - 1
"""From here on a bound of a Slice means the end, as exporters write it."""


def _is_given(term: Term) -> bool:
    """Whether the term is one dim with a name that the model gives."""
    return term.factor == 1 and len(term.names) == 1 and is_name(term.names[0]) and not is_generated(term)


def is_generated(dim: Term) -> bool:
    return dim.factor == 1 and len(dim.names) == 1 and dim.names[0].startswith(GENERATED)


def _matched(read: Operands) -> Dims | None:
    """The shape of a result that has the dims of its operands, where these turn out to be equal; a bound or a ratio is
    a scalar."""
    shapes = _shapes(read)
    return None if shapes is None else reduce(_broadcast_shapes, shapes)


def _shapes(read: Operands) -> list[Dims] | None:
    """The shapes of all operands; None where a rank is not known."""
    shapes = [read.dims(place) for place in range(len(read.names)) if read.has(place)]
    known = [shape for shape in shapes if shape is not None]
    return known if len(known) == len(shapes) else None


def _multiplied(read: Operands) -> Dims | None:
    """The shape of a product of matrices."""
    left, right = read.dims(0) or (), read.dims(1) or ()
    if len(left) < 2 or len(right) < 2:
        return None
    return (*_broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])


def _contracted(read: Operands) -> Dims | None:
    """The shape of an Einsum's result; None where the equation leaves it open."""
    shapes, equation = _shapes(read), read.attributes.get("equation", b"").decode()
    stated, _, made = equation.replace(" ", "").partition("->")
    terms = stated.split(",")
    if shapes is None or not made or "." in equation or [*map(len, terms)] != [*map(len, shapes)]:
        return None
    dims: dict[str, Term | None] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, dim in zip(term, shape, strict=True):
            dims[letter] = _broadcast(dims.get(letter, dim), dim)
    return tuple(dims.get(letter) for letter in made)


def _transposed(read: Operands) -> Dims | None:
    source = read.dims()
    if source is None:
        return None
    perm = read.attributes.get("perm", [*reversed(range(len(source)))])
    return tuple([source[axis] for axis in perm]) if sorted(perm) == [*range(len(source))] else None


def _squeezed(read: Operands) -> Dims | None:
    source = read.dims()
    places = None if source is None else _places(read, len(source))
    if source is None or places is None:
        return None
    return tuple([dim for place, dim in enumerate(source) if place not in places])


def _unsqueezed(read: Operands) -> Dims | None:
    source, axes = read.dims(), read.numbers(1, "axes")
    rank = len(source or ()) + len(axes or ())
    places = _places(read, rank)
    if source is None or places is None:
        return None
    kept = iter(source)
    return tuple([ONE if place in places else next(kept) for place in range(rank)])


def _places(read: Operands, rank: int) -> set[int] | None:
    """The axes that a Squeeze or an Unsqueeze is given, from 0 to the rank; None where they are not known."""
    axes = read.numbers(1, "axes")
    places = {axis % rank for axis in axes or () if -rank <= axis < rank}
    return places if axes and len(places) == len(axes) else None


def _in_blocks(read: Operands) -> Dims | None:
    """The shape of a SpaceToDepth or DepthToSpace, whose channels onnx leaves open where the image is open."""
    source, blocksize = read.dims(), read.attributes.get("blocksize", 0)
    if source is None or len(source) != 4 or blocksize < 1:
        return None
    size = Term(Fraction(blocksize))
    batch, channels, *image = source
    if read.operator == "SpaceToDepth":
        return (batch, product([channels, size, size]), *(whole(quotient(dim, size)) for dim in image))
    return (batch, quotient(channels, product([size, size])), *(product([dim, size]) for dim in image))


def _like_offsets(read: Operands) -> Dims | None:
    """The shape of a DeformConv's result, each of whose pixels has offsets; of batch and channels nothing is said."""
    offsets = read.dims(2)
    return None if offsets is None else (None, None, *offsets[2:])


def _flattened(read: Operands) -> Dims | None:
    source, axis = read.dims(), read.attributes.get("axis", 1)
    return None if source is None else (product(source[:axis]), product(source[axis:]))


def reshaped(read: Operands, exact: Mapping[str, Term]) -> Dims | None:
    """The shape of a Reshape; 0 copies a dim, unless it is told not to, and -1 is what is left of the elements. `exact`
    quotients leave no remainder."""
    source, target, copies = read.dims(), read.terms(1), not read.attributes.get("allowzero")
    if source is None or target is None:
        return None
    shape = [
        (source[place] if place < len(source) else None) if copies and term == Term(Fraction(0)) else term
        for place, term in enumerate(target)
    ]
    rest = Term(Fraction(-1))
    if shape.count(rest) == 1:
        others = [term for term in shape if term != rest]
        elements, made = product(source), product(others)
        left = quotient(elements, made)
        if left is None or left.factor.denominator > 1:
            exactly = quotient(_with_parts(elements, exact), _with_parts(made, exact))
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


def _expanded(read: Operands) -> Dims | None:
    """The shape of an Expand: the two shapes, as operands are broadcast."""
    source, target = read.dims(), read.terms(1)
    return None if source is None or target is None else _broadcast_shapes(source, target)


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


def _tiled(read: Operands) -> Dims | None:
    source, repeats = read.dims(), read.terms(1)
    if source is None or repeats is None or len(source) != len(repeats):
        return None
    return tuple(product(pair) for pair in zip(source, repeats, strict=True))


def _counted(read: Operands) -> Dims | None:
    """The shape of a Range from 0 in steps of 1."""
    return read.terms(1) if read.terms(0) == (Term(Fraction(0)),) and read.terms(2) == (ONE,) else None


class _Cut(NamedTuple):
    """The bounds between which a Slice takes elements of an axis."""

    start: Term | None
    end: Term | None
    step: Term | None


def _cuts(read: Operands, rank: int) -> dict[int, _Cut] | None:
    """The cuts of a Slice by axis; None where it is not known which axes it cuts."""
    starts, ends = read.terms(1, "starts"), read.terms(2, "ends")
    axes = read.numbers(3, "axes")
    if not read.has(3) and "axes" not in read.attributes:
        axes = None if starts is None else [*range(len(starts))]
    if axes is None or not all(-rank <= axis < rank for axis in axes):
        return None
    steps = read.terms(4) if read.has(4) else (ONE,) * len(axes)
    # Bounds that are not known cut these axes alone.
    unknown = (None,) * len(axes)
    bounds = zip(starts or unknown, ends or unknown, steps or unknown, strict=False)
    return {axis % rank: _Cut(*each) for axis, each in zip(axes, bounds, strict=False)}


def _sliced(read: Operands) -> Dims | None:
    """The shape of a Slice: the dims that it does not cut, and those of which it takes all."""
    source = read.dims()
    cuts = None if source is None else _cuts(read, len(source))
    if source is None or cuts is None:
        return None
    return tuple([_cut_to(dim, cuts[axis]) if axis in cuts else dim for axis, dim in enumerate(source)])


def _cut_to(dim: Term | None, cut: _Cut) -> Term | None:
    """The extent of what a Slice takes of a dim, as a number or a formula: `n + 1` tokens without the first are `n`,
    and the last 8 tokens of a window are `min(8, n)`."""
    start, end, step = cut
    if dim is None or start is None or end is None or step is None:
        return None
    if not any(term.names for term in (dim, start, end, step)):
        bounds = slice(*(int(term.factor) for term in (start, end, step))) if step.factor else slice(0, 0)
        return Term(Fraction(len(range(int(dim.factor))[bounds])))
    if step != ONE:
        return None
    is_to_last = _is_last(end, dim)
    if not start.factor and dim == rounded_up(end, dim.factor):
        return end
    if is_to_last and (not start.factor or start == Term(-dim.factor, dim.names)):
        return dim
    if not start.factor and not dim.names and _is_given(end):
        return _least(dim.factor, end)
    if start.names or (end.names and not is_to_last):
        return None
    if is_to_last and start.factor < 0:
        return _least(-start.factor, dim)
    if not is_to_last and not start.factor and end.factor > 0:
        return _least(end.factor, dim)
    if start.factor < 0 or (end.factor >= 0 and not is_to_last):
        return None
    total = Sum.of([dim])
    removed = int(start.factor if is_to_last else start.factor - end.factor)
    # No more than the number in the formula is sure to be there.
    return total.term(-removed) if total is not None and total.number >= removed else None


def _is_last(end: Term | None, dim: Term | None) -> bool:
    return end is not None and (end == dim or (not end.names and end.factor >= _UNBOUNDED))


def _least(number: Fraction, extent: Term) -> Term | None:
    """An extent, or a number where that is smaller; None where the extent is no formula."""
    text = str(extent)
    return None if GENERATED in text or formula_names(text) is None else named(f"min({number}, {extent})")


def _joined(read: Operands) -> Dims | None:
    """The extent of the axis along which values are joined: the sum of theirs, such as `past + new` of a cache."""
    shapes, axis = _shapes(read), read.attributes.get("axis", 0)
    rank = len(shapes[0]) if shapes else 0
    if not shapes or any(len(shape) != rank for shape in shapes) or not -rank <= axis < rank:
        return None
    total = Sum.of([shape[axis] for shape in shapes])
    extent = _shifted(read, axis % rank) or (None if total is None else total.term())
    return tuple([extent if place == axis % rank else None for place in range(rank)])


def _shifted(read: Operands, axis: int) -> Term | None:
    """The extent of an axis behind a cyclic shift, which joins the end of a tensor and its beginning, as in Swin: it
    stays the same, wherever the cut is."""
    slices = [read.sliced(place) for place in range(len(read.names))]
    if len(slices) != 2 or slices[0] is None or slices[1] is None or slices[0].names[0] != slices[1].names[0]:
        return None
    source = slices[0].dims()
    cuts = [None if source is None else _cuts(each, len(source)) for each in slices if each is not None]
    if source is None or any(cut is None or cut.keys() != {axis} for cut in cuts):
        return None
    behind, before = (cut[axis] for cut in cuts if cut is not None)
    is_whole = before.start == Term(Fraction(0)) and behind.start == before.end and _is_last(behind.end, source[axis])
    return source[axis] if is_whole and behind.step == before.step == ONE else None


Rule = Callable[[Operands], Dims | None]

SHAPED: Mapping[str, Rule] = {
    "ConstantOfShape": lambda read: read.terms(0),
    "Expand": _expanded,
    "Flatten": _flattened,
    "Pad": padded,
    "Range": _counted,
    "Resize": resized,
    "Slice": _sliced,
    "Tile": _tiled,
}
"""The shape of the result of an operator that elements of its operands give a shape."""
KEPT: Mapping[str, Rule] = {
    **dict.fromkeys([*BROADCAST, *UNARY, "Clip", "Dropout", "Identity"], _matched),
    "DeformConv": _like_offsets,
    "DepthToSpace": _in_blocks,
    "Einsum": _contracted,
    "MatMul": _multiplied,
    "MatMulInteger": _multiplied,
    "SpaceToDepth": _in_blocks,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}
"""The shape of the result of an operator that has the dims of its operands, or products of them, where these turn out
to be equal."""
COMPUTED: Mapping[str, Rule] = {**dict.fromkeys(KERNELS, behind_window), "Concat": _joined, "Upsample": resized}
"""The shape of the result of an operator that computes new extents, as formulas."""
