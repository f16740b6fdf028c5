"""The order of elements: operators read the elements along each axis that their counterparts in the original read.

Names of axes end at a Reshape, and annotations are claims. So all views are followed here, in both models: a dimension
of a value is a list of digits, each a stride in a row-major value of the original at the root, as NumPy counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod

import onnx_ir as ir

from relayout.report.schema import Finding
from relayout.verification.memory_format import memory_format_of, whole
from relayout.verification.model_index import ModelIndex, OperatorClass
from relayout.verification.numbered_axes import by_number, summed_axes
from relayout.verification.operator_facts import CONTRIBUTED, OURS, AxisNames, is_channels_only, is_contributed
from relayout.verification.order.digits import (
    Digits,
    composed,
    extent_of,
    grouped,
    normal,
    passed_on,
    places_in,
    reordered,
    row_major,
    text_of,
)
from relayout.verification.order.elements import ModelElements, Operand, ReadElements, is_view
from relayout.verification.order.number_vectors import check_axis_numbers, check_constant_numbers
from relayout.verification.requirements import node_label
from relayout.verification.subgraph_values import region_edges

# Attributes with an entry for each spatial axis, or two.
_BY_AXIS = ("dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides")
_SPATIAL = "DHW"


def check_element_order(known: ReadElements) -> Iterator[Finding]:
    """Yield a finding for each view whose annotated order is another than it makes, for each operand of which an
    operator reads, or passes on, other elements along an axis than its counterpart, and for each value that enters or
    leaves a graph inside a node in another order.

    Values with padding, and opaque ones, whose memory is in another order than their shape, are left out. Extents
    that are open have sizes that the formulas of a network divide, and those that nothing tells have sizes of their
    own; where one of the models alone knows such an extent, the two are not compared.
    """
    pairs = known.pairs
    for node in pairs.model.nodes:
        if is_view(node):
            yield from _check_view(node.outputs[0], known.mine)
    for node, other in pairs.nodes.items():
        if other.op_type == node.op_type and not is_view(node):
            operands = [*known.operands(node, other)]
            yield from _check_passed(node, other, known, operands)
            yield from _check_named(node, other, known, {each.place: each for each in operands})
            yield from _check_reduced(node, other, operands)
            yield from _check_added_axis(node, other, known)
            yield from _check_vectors(node, other, known, operands)
            yield from _check_unknown(node, known, operands)
            yield from _check_edges(node, other, known)


def note_unseen(known: ReadElements) -> Iterator[Finding]:
    """Yield a note where nodes read or make elements that are not known, so that only a run compares them."""
    kept = [each for each in known.pairs.nodes.items() if each[0].op_type == each[1].op_type and not is_view(each[0])]
    unseen = [node for node, other in kept if known.are_unknown(node, other) or _is_moved_unseen(node, other, known)]
    if unseen:
        message = f"no run compares elements whose order is not followed (nodes that read or make them: {len(unseen)})"
        yield Finding(rule="element-order", severity="note", node=node_label(unseen[0]), message=message)


def _is_moved_unseen(node: ir.Node, other: ir.Node, known: ReadElements) -> bool:
    """Whether an operand is in another order than in the original along axes of which no fact tells what the operator
    does with them."""
    if node.domain not in ("", CONTRIBUTED) or node in known.pairs.model.nesting:
        return False  # others must read their operands as they are, or have facts; values enter a graph by its edges
    for operand in known.operands(node, other):
        is_moved = operand.read != operand.wanted
        if is_moved and operand.data is not None:
            is_moved = operand.has_extents(operand.read, operand.wanted)
            is_moved = not is_moved or not operand.has(operand.read, operand.wanted)
        if not is_moved:
            continue
        here, there = (
            [dim for axis, dim in enumerate(dims) if dim and axis not in _followed(each, operand.place, index)]
            for each, dims, index in (
                (node, operand.read, known.pairs.model),
                (other, operand.wanted, known.pairs.original),
            )
        )
        if here != there or (here and operand.data is not None):
            return True
    return False


def _followed(node: ir.Node, n: int, index: ModelIndex) -> set[int]:
    """The axes of an operand of which is known what the operator does with them."""
    kind = index.class_of(node)
    facts, rank = kind.facts, len(getattr(node.inputs[n], "shape", None) or ())
    if facts is not None and (n in facts.inputs or n == facts.kernel or rank < 2):
        return set(range(rank))
    path, numbers, summed = _path(kind, n), by_number(node), summed_axes(node)
    found = {axis for axis in path or () if axis is not None}
    found |= numbers.axes if numbers is not None and numbers.operand == n else set()
    return found | ({summed[n]} if n in summed else set())


def _check_view(value: ir.Value, mine: ModelElements) -> Iterator[Finding]:
    """Yield a finding where a view gives other elements than its result is annotated with."""
    mixed = mine.mixed(value)
    is_stated = mixed is not None or memory_format_of(value) is not None or value in mine.outputs
    made, stated = mixed or mine[value], mine.stated(value) if is_stated else None
    if made is None or stated is None or made.root is not stated.root or (mixed is None and made.dims == stated.dims):
        return
    # An extent that is open in one of the models may be known in the other.
    if prod(map(extent_of, made.dims)) != prod(map(extent_of, stated.dims)):
        return
    yield Finding(
        rule="layout-annotation",
        node=str(value.name),
        expected=text_of(made.dims),
        found=text_of(stated.dims),
        message=f"the annotated order is not the one that the view makes ({value.name})",
    )


def _check_passed(node: ir.Node, other: ir.Node, known: ReadElements, operands: Sequence[Operand]) -> Iterator[Finding]:
    """Yield a finding for each operand of which other elements pass to a dimension of the result, or are summed."""
    made = known.result(node, other)
    if made is None:
        return
    result, shape = made
    summed = _summed(node, other, operands)
    for operand in operands:
        path = _path(known.pairs.model.class_of(node), operand.place)
        sources = _path(known.pairs.original.class_of(other), operand.place)
        dims = None if path is None or sources is None else _passed(operand.wanted, result, shape, path, sources)
        if dims is None or path is None:
            continue
        # Of an axis of which one element is left, any may be.
        left = {place for place, dim in zip(path, result, strict=True) if not dim}
        dims = {place: dim for place, dim in dims.items() if place not in left or not operand.read[place]}
        dims |= summed.get(operand.place, {})
        if operand.data is not None and len(dims) < len(operand.read):
            continue  # the data along one of its axes is no single vector
        places = sorted(dims)
        found, expected = [operand.read[place] for place in places], [dims[place] for place in places]
        if not operand.has(found, expected):
            yield _another_order(node, operand.place, expected, found)


def _path(kind: OperatorClass, n: int) -> Sequence[int | None] | None:
    """For each axis of the first result the axis of the operand that it is, by their names where the operator names
    them; None where that is not known."""
    path, facts, results = kind.path(n, 0), kind.facts, _numbered(kind, kind.results[0]) if kind.results else None
    names = _numbered(kind, kind.inputs[n]) if facts is not None and n in facts.inputs and not facts.pooled else None
    if path is not None or facts is None or names is None or results is None:
        return path
    # The channels of a product with a kernel are other ones.
    passing = {name for name in names if name is not None and (facts.kernel is None or name.upper() != "C")}
    return [names.index(name) if name in passing else None for name in results]


def _passed(
    wanted: Sequence[Digits],
    result: Sequence[Digits],
    shape: Sequence[int],
    path: Sequence[int | None],
    sources: Sequence[int | None],
) -> dict[int, Digits] | None:
    """The digits by dimension of what passes to a `result`, whose dimensions it is by `path`, where it is `wanted` in
    the original and passes by `sources` to a value of this shape; None where the ranks do not fit."""
    if len(path) != len(result) or len(sources) != len(shape):
        return None
    axes = [None if axis is None else wanted[axis] for axis in sources]
    steps = row_major(shape)
    passed = [(place, passed_on(dim, steps, axes)) for dim, place in zip(result, path, strict=True)]
    return {place: dim for place, dim in passed if place is not None and dim is not None}


def _check_edges(node: ir.Node, other: ir.Node, known: ReadElements) -> Iterator[Finding]:
    """Yield a finding for each value that another one stands for at the border of a graph inside the node, in another
    order."""
    edges = [*region_edges(node)] if node in known.pairs.model.nesting else []
    others = [*region_edges(other)] if edges else []
    if len(edges) != len(others):
        return
    for (source, target, path), (theirs, aim, sources) in zip(edges, others, strict=True):
        read, wanted = known.mine[source], known.theirs[theirs]
        made, shape = known.mine[target], known.theirs.shape(aim)
        if read is None or wanted is None or made is None or shape is None:
            continue
        if read.root is not wanted.root or made.root is not aim:
            continue
        dims = _passed(wanted.dims, made.dims, shape, path, sources) or {}
        found, expected = [read.dims[place] for place in dims], [*dims.values()]
        if [*map(extent_of, found)] == [*map(extent_of, expected)] and found != expected:
            yield Finding(
                rule="element-order",
                node=node_label(node),
                expected=text_of(expected),
                found=text_of(found),
                message=f"{source.name} has other elements along an axis than {target.name}, which stands for it",
            )


def _summed(node: ir.Node, other: ir.Node, operands: Iterable[Operand]) -> dict[int, dict[int, Digits]]:
    """The digits, by operand and dimension, along which a product of matrices sums: those of the original, in the order
    that the first of the two operands has that is no constant; none where it is not known."""
    axes, others = summed_axes(node), summed_axes(other)
    factors = sorted((each for each in operands if each.place in axes), key=lambda each: each.data is not None)
    if axes.keys() != others.keys() or not factors or factors[0].data is not None:
        return {}
    first, *rest = factors
    wanted = first.wanted[others[first.place]]
    order = places_in(first.read[axes[first.place]], wanted)
    if order is None:
        return {first.place: {axes[first.place]: wanted}}  # other elements are summed
    found: dict[int, dict[int, Digits]] = {}
    for each in rest:
        along = each.wanted[others[each.place]]
        inner = composed([order], [along]) if extent_of(along) == extent_of(order) else None
        if inner is not None:
            found[each.place] = {axes[each.place]: inner[0]}
    return found


def _check_named(
    node: ir.Node, other: ir.Node, known: ReadElements, operands: Mapping[int, Operand]
) -> Iterator[Finding]:
    """Yield a finding for each operand with other elements along an axis that the operator names, and for each kernel,
    vector of channels, and attribute of spatial axes that is in another order than the data."""
    kind, counterpart = known.pairs.model.class_of(node), known.pairs.original.class_of(other)
    facts = kind.facts
    if facts is None or counterpart.facts is None or facts.pooled:
        return
    for n in (each for each in facts.inputs if each in operands):
        names, others = _numbered(kind, kind.inputs[n]), _numbered(counterpart, counterpart.inputs[n])
        operand = operands[n]
        if operand.data is not None or names is None or others is None:
            continue
        here, there = _by_name(names, operand.read), _by_name(others, operand.wanted)
        for name in _SPATIAL if node.domain else ():
            if not operand.has([here.get(name, ())], [there.get(name, ())]):
                yield _another_order(node, n, [there.get(name, ())], [here.get(name, ())])
        # The spatial axes of a standard operator have no names but in their order.
        found, expected = ([each for name, each in axes.items() if _is_spatial(name)] for axes in (here, there))
        if not node.domain and not operand.has(sorted(filter(None, found)), sorted(filter(None, expected))):
            yield _another_order(node, n, expected, found)
            continue
        read, wanted = here.get("C", ()), there.get("C", ())
        channels = places_in(read, wanted)
        is_ordered = facts.ordered and read != wanted
        if (channels is None or is_ordered) and not operand.has([read], [wanted]):
            yield _another_order(node, n, [wanted], [read])
        elif n == facts.inputs[0] and channels is not None:
            # Axes of extent 1 may be anywhere.
            places = {i: expected.index(axis) for i, axis in enumerate(found) if axis and axis in expected}
            if node.domain in ("", CONTRIBUTED):
                yield from _check_entries(node, other, places, len(found))
            spatial = [name for name in there if _is_spatial(name)]
            turned = {} if node.domain else {spatial[i]: spatial[place] for i, place in places.items()}
            yield from _check_parameters(node, other, known, operands.values(), channels, turned)


def _check_parameters(
    node: ir.Node,
    other: ir.Node,
    known: ReadElements,
    operands: Iterable[Operand],
    channels: Digits,
    turned: Mapping[str, str],
) -> Iterator[Finding]:
    """Yield a finding for a kernel, and for each vector, that is in another order than the data and the result.
    `channels` are the data's in the order of the original, and `turned` are its spatial axes of other names there."""
    kind, counterpart = known.pairs.model.class_of(node), known.pairs.original.class_of(other)
    kernel = kind.facts.kernel if kind.facts is not None else None
    made = known.result(node, other) if kernel is not None else None
    names, others = kind.results[0], counterpart.results[0]
    along: Digits | None = channels if kernel is None and is_channels_only(node) else None
    if made is not None and names is not None and others is not None:
        whole = [(each,) for each in row_major(made[1])]
        along = places_in(_by_name(names, made[0]).get("C", ()), _by_name(others, whole).get("C", ()))
    for operand in operands:
        expected: list[Digits] | None = None
        if operand.place == kernel:
            pair = _numbered(kind, kind.inputs[kernel]), _numbered(counterpart, counterpart.inputs[kernel])
            expected = _laid_kernel(operand, *pair, along, channels, turned)
        elif kind.facts is not None and operand.place not in kind.facts.inputs and len(operand.wanted) == 1:
            vector = reordered(along, operand.wanted[0])
            expected = None if vector is None or len(operand.read) != 1 else [vector]
        if expected is not None and not operand.has(operand.read, expected):
            yield _another_order(node, operand.place, expected, operand.read)


def _laid_kernel(
    operand: Operand,
    names: AxisNames | None,
    others: AxisNames | None,
    made: Digits | None,
    channels: Digits,
    turned: Mapping[str, str],
) -> list[Digits] | None:
    """The dimensions of a kernel for data and a result in these orders of channels; None where they are not known."""
    if names is None or others is None:
        return None
    there = _by_name(others, operand.wanted)
    laid: dict[int, Digits] = {}
    for name in dict.fromkeys(str(each).upper() for each in names):
        digits = there.get(turned.get(name, name), ())
        axis = reordered(made, digits) if name == "O" else reordered(channels, digits) if name == "I" else digits
        tiles = sorted((i for i, each in enumerate(names) if str(each).upper() == name), key=lambda i: str(names[i]))
        extents = [extent_of(operand.read[i]) for i in tiles]
        pieces = grouped(axis, extents) if axis is not None and prod(extents) == extent_of(axis) else None
        if pieces is None:
            return None
        laid |= dict(zip(tiles, pieces, strict=True))
    return [laid[i] for i in range(len(operand.read))]


def _check_entries(node: ir.Node, other: ir.Node, places: Mapping[int, int], rank: int) -> Iterator[Finding]:
    """Yield a finding for each attribute with the entry of another axis than in the original. `places` are the
    original's places of spatial axes, of which there are `rank`.
    """
    for name in _BY_AXIS:
        mine, theirs = node.attributes.get_ints(name), other.attributes.get_ints(name)
        if not mine or not theirs or len(mine) != len(theirs) or len(mine) % rank:
            continue
        turned = [theirs[places.get(i % rank, i % rank) + i // rank * rank] for i in range(len(mine))]
        if any(mine[i] != turned[i] for i in range(len(mine)) if i % rank in places):
            yield Finding(
                rule="attribute",
                node=node_label(node),
                expected=f"{name} {turned}",
                found=f"{name} {list(mine)}",
                message=f"this {node.op_type} has the {name} of other axes than in the original",
            )


def _check_reduced(node: ir.Node, other: ir.Node, operands: Iterable[Operand]) -> Iterator[Finding]:
    """Yield a finding where an operator that works along axes by number has other elements along them."""
    here, there = by_number(node), by_number(other)
    if here is None or there is None:
        return
    for operand in operands:
        if operand.place == here.operand == there.operand and operand.data is None:
            found = _as_set(operand.read[axis] for axis in here.axes)
            expected = _as_set(operand.wanted[axis] for axis in there.axes)
            if here.in_blocks or there.in_blocks:
                if not _are_nested(found, expected):
                    yield _another_order(node, operand.place, [expected], [found])
            elif not (operand.has_extents([found], [expected]) and operand.has([found], [expected])):
                yield _another_order(node, operand.place, [expected], [found])


def _check_added_axis(node: ir.Node, other: ir.Node, known: ReadElements) -> Iterator[Finding]:
    """Yield a finding for a OneHot that puts its classes along another axis of the result."""
    made = known.result(node, other) if node.op_type == "OneHot" and not node.domain else None
    if made is None:
        return
    result, steps = made[0], [normal([each]) for each in row_major(made[1])]
    here, there = (each.attributes.get_int("axis", -1) for each in (node, other))
    if -len(result) <= here < len(result) and -len(steps) <= there < len(steps) and result[here] != steps[there]:
        yield Finding(
            rule="element-order",
            node=node_label(node),
            expected=text_of([steps[there]]),
            found=text_of([result[here]]),
            message="this OneHot has its classes along another axis than in the original",
        )


def _check_vectors(
    node: ir.Node, other: ir.Node, known: ReadElements, operands: Sequence[Operand]
) -> Iterator[Finding]:
    """Yield the findings on vectors with numbers of the axes of the result."""
    result, shape = known.result(node, other) or ((), ())
    axes = [normal([each]) for each in row_major(shape)]
    if not shape or any(each not in axes for each in result):
        return
    yield from check_axis_numbers(node, other, [axes.index(each) for each in result])
    data = operands[0] if operands and operands[0].place == 0 and operands[0].data is None else None
    if data is not None and len(data.read) == len(data.wanted) == len(result):
        # An axis of one element before or behind the operator is known on the other side.
        places = [(data.wanted, each) if each else (axes, made) for each, made in zip(data.read, result, strict=True)]
        if all(each in among for among, each in places):
            order = {axis: among.index(each) for axis, (among, each) in enumerate(places) if each}
            yield from check_constant_numbers(node, other, order)


def _check_unknown(node: ir.Node, known: ReadElements, operands: Iterable[Operand]) -> Iterator[Finding]:
    """Yield a finding for each operand in another order of an operator of another domain, whose effect on axes is not
    known and whose results are in the original's order. ONNX's own, such as Size, may read any order; where results
    are annotated with another order, a backend's `rewrite` wrote the operator in that order."""
    has_facts = known.pairs.model.class_of(node).facts is not None
    formats = [memory_format_of(result) for result in node.outputs]
    is_rewritten = any(each is not None and each != whole(range(len(each.dims))) for each in formats)
    if node.domain in ("", OURS) or has_facts or is_contributed(node) or is_rewritten:
        return
    for operand in operands:
        if not (operand.has_extents(operand.read, operand.wanted) and operand.has(operand.read, operand.wanted)):
            yield _another_order(node, operand.place, operand.wanted, operand.read)


def _are_nested(one: Digits, other: Digits) -> bool:
    """Whether one of two dimensions of a root may be made of blocks of the other: its steps are among the other's."""
    spans = [[(digit.stride, digit.stride * digit.extent) for digit in digits] for digits in (one, other)]
    (first, second) = spans
    return any(
        all(any(low <= least and most <= high for low, high in around) for least, most in inside)
        for inside, around in ((first, second), (second, first))
    )


def _as_set(dims: Iterable[Digits]) -> Digits:
    """The digits of all these dimensions, for operators to which their order is the same."""
    return normal(sorted(chain.from_iterable(dims), key=lambda digit: -digit.stride))


def _numbered(kind: OperatorClass, names: AxisNames | None) -> AxisNames | None:
    """These names of an operand's axes. The spatial axes of a standard operator have no letters from rank 6 on: each
    has its number as its name."""
    if names is None or kind.facts is None or kind.node.domain or not kind.facts.spatial:
        return names
    return tuple(str(axis) if name is None else name for axis, name in enumerate(names))


def _is_spatial(name: str) -> bool:
    return name in _SPATIAL or name.isdigit()


def _by_name(names: Iterable[str | None], dims: Sequence[Digits]) -> dict[str, Digits]:
    """The digits along each axis that has a name: those of the outer tile before those of the inner one."""
    found: dict[str, Digits] = {}
    for name, digits in sorted(zip(names, dims, strict=True), key=lambda each: str(each[0]).islower()):
        if name is not None:
            found[name.upper()] = normal((*found.get(name.upper(), ()), *digits))
    return found


def _another_order(node: ir.Node, n: int, expected: Iterable[Digits], found: Iterable[Digits]) -> Finding:
    return Finding(
        rule="element-order",
        node=node_label(node),
        operand=n,
        expected=text_of(expected),
        found=text_of(found),
        message=f"operand {n} of this {node.op_type} has other elements along an axis than in the original",
    )
