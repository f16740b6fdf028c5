"""Axis correspondence: operators must read the same axes as their counterparts in the original, as far as is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from relayout.ops.node_reader import constant_tensor
from relayout.report.schema import Finding
from relayout.verification.axis_classes import CommonNames
from relayout.verification.axis_names import input_places, names_by_places
from relayout.verification.axis_reads import AxesRead, Pair, numbered_axes, relation
from relayout.verification.counterparts import Counterparts, ancestors, source_name, through_transposes
from relayout.verification.memory_format import MemoryFormat, memory_format_of, whole
from relayout.verification.operator_facts import OURS, AxisNames, constant_ints, small_constant
from relayout.verification.requirements import node_label

_NUMBERED = {"Pad": (1,), "Resize": (1, 2, 3)}
"""The operands with numbers of axes: begins and ends, a region, scales or sizes."""


def check_axes_read(pairs: Counterparts) -> Iterator[Finding]:
    """Yield a finding for each operator that reads other axes of an operand than its counterpart in the original.

    Producer and reader may name an axis differently: a network may transpose its image. But both models must have the
    same difference, whatever the layouts; and an axis that is given by number must have the same name in both. The axes
    of a graph input are named by their index in the original.
    """
    model, original = pairs.model, pairs.original
    theirs, mine = original.made, names_by_places(model, input_places(model.model))
    for node, counterpart in pairs.nodes.items():
        if counterpart.op_type != node.op_type or len(counterpart.inputs) != len(node.inputs):
            continue
        for n in range(len(node.inputs)):
            # Position-wise attributes follow the layout on both sides; a standard operator's were rewritten.
            by_place = node.domain == OURS
            here, there = relation(node, n, mine, by_place), relation(counterpart, n, theirs, by_place)
            if here is not None and there is not None and not here.agree(there) and _alike(_made(here), _made(there)):
                yield _mismatch(node, n, there.known, here.known)
        graph = node.graph and pairs.graphs.get(node.graph)
        sources = [original.results.get((graph, source_name(value))) for value in node.outputs]
        yield from _check_results(node, counterpart, sources, (mine, theirs), original.common_names)
        yield from _check_numbers(node, counterpart, sources[0] if sources else None)
        axes_here, axes_there = numbered_axes(node, mine), numbered_axes(counterpart, theirs)
        if axes_here is None or axes_there is None or not _alike(axes_here.known, axes_there.known):
            continue
        if not axes_here.agree(axes_there):
            yield Finding(
                rule="axis-mismatch",
                node=node_label(node),
                operand=0,
                expected=f"axes {', '.join(sorted(axes_there.known.elements()))}",
                found=f"axes {', '.join(sorted(axes_here.known.elements()))}",
                message=f"this {node.op_type} works along other axes than in the original",
            )


def _contradict(name: str | None, other: str | None) -> bool:
    """Whether two names of one axis cannot both be right.

    An axis that no operator names has the name of its graph input (`x.0`), which matches any letter.
    """
    if name is None or other is None:
        return False
    return name != other and ("." in name) == ("." in other)


def _is_part(name: str | None, other: str | None) -> bool:
    """Whether one of the two is the inner tile of the other: `c` of `C`."""
    return name is not None and other is not None and len(name) == 1 and name != other and name.upper() == other.upper()


def _are_joined(name: str | None, other: str | None, source: ir.Value) -> bool:
    """Whether the two are axes of different inputs and the original makes the value from both: operators relate them
    then, possibly behind axes that are split and fused anew, where names do not propagate."""
    inputs = {text.rpartition(".")[0] for text in (name, other) if text is not None}
    return len(inputs) > 1 and inputs <= {each.name for each in ancestors([source]) if each.producer() is None}


def _made(relation: AxesRead[Pair]) -> list[str]:
    return [made for made, _ in relation.known]


def _alike(names: Iterable[str], others: Iterable[str]) -> bool:
    """Whether all names are letters, or all are axes of graph inputs: the two kinds cannot be compared."""
    return len({"." in name for name in (*names, *others)}) <= 1


def _check_results(
    node: ir.Node,
    counterpart: ir.Node,
    sources: Sequence[ir.Value | None],
    names: tuple[Mapping[ir.Value, AxisNames], Mapping[ir.Value, AxisNames]],
    common: CommonNames,
) -> Iterator[Finding]:
    """Yield a finding for each annotation whose permutation contradicts the names.

    The permuted names of the original's axes must be the value's own names, or those by another input of its producer.

    `names` are this model's and the original's by producers, `common` are the original's.

    The original's value is the one of the same name, as a Transpose between the two may be gone, or else the
    counterpart's.
    """
    mine, theirs = names
    for value, namesake, result in zip(node.outputs, sources, counterpart.outputs, strict=False):
        source = namesake or result
        here, there = mine.get(value), theirs.get(source)
        if here is None or there is None or value.shape is None or source.shape is None:
            continue
        format_ = _relative(value, source, len(there))
        if format_ is None:
            continue
        known = [name for name in there if name is not None]
        fits = not format_.fault(tuple(source.shape)) and len(format_.dims) == len(here)
        if not fits or len(set(known)) != len(known):
            continue
        expected = tuple(there[axis] if axis is not None else None for axis in format_.axes)
        if any(len({name.upper() for name in names if "." not in name}) > 1 for names in common.of(source)):
            continue  # A transposed image: the operators between decide which of them names an axis.
        for n, axis in enumerate(format_.axes):
            extent = value.shape[n]
            if axis is None or 1 in (extent, source.shape[axis]) or not _contradict(here[n], expected[n]):
                continue
            is_all = extent == source.shape[axis] and _is_part(here[n], expected[n])
            if not is_all and not _are_joined(here[n], expected[n], source):
                yield _disordered(node, value, expected, here)
                break


def _relative(value: ir.Value, source: ir.Value, rank: int) -> MemoryFormat | None:
    """The format of a value relative to the original's value of this rank; None where it is not known."""
    format_, earlier = memory_format_of(value) or whole(range(rank)), memory_format_of(source)
    if earlier is None:
        return format_
    # The original is itself a legal model, and both orders are relative to that one's source.
    if earlier.permutation is None or format_.permutation is None:
        return None
    if len(earlier.permutation) != len(format_.permutation):
        return None
    return whole([earlier.permutation.index(axis) for axis in format_.permutation])


def _check_numbers(node: ir.Node, counterpart: ir.Node, source: ir.Value | None) -> Iterator[Finding]:
    """Yield a finding for each vector with numbers of axes, one or two for each axis, in which a number is of another
    axis than in the original. Shapes do not show that where the vector is computed while the model runs. `source`: the
    original's value for which the result stands.
    """
    if node.op_type not in _NUMBERED or node.domain or counterpart.domain or source is None or source.shape is None:
        return
    format_ = _relative(node.outputs[0], source, len(source.shape))
    # None if other operators than Transposes make the value of the counterpart's result.
    behind = next((axes for each, axes in through_transposes(source) if each is counterpart.outputs[0]), None)
    if format_ is None or format_.permutation is None or behind is None or len(format_.permutation) != len(behind):
        return
    order = [behind[axis] for axis in format_.permutation]
    for n in _NUMBERED[node.op_type]:
        (base, found), (other, wanted) = _axes_of_numbers(node, n, order), _axes_of_numbers(counterpart, n)
        if base is None or other is None or source_name(base) != source_name(other) or found.keys() != wanted.keys():
            continue
        # An axis of extent 1 may be anywhere.
        shape = counterpart.outputs[0].shape
        if any(found[place] != axis for place, axis in wanted.items() if shape is None or shape[axis[0]] != 1):
            yield Finding(
                rule="axis-mismatch",
                node=node_label(node),
                operand=n,
                expected=f"numbers of the axes {_listed(wanted)}",
                found=f"numbers of the axes {_listed(found)}",
                message=f"operand {n} of this {node.op_type} has the numbers of other axes than in the original",
            )


_Numbers = dict[int, tuple[int, int]]
"""The original's axis of each number of a vector, and whether it is the first or the second number of this axis."""


def _axes_of_numbers(node: ir.Node, n: int, order: Sequence[int] = ()) -> tuple[ir.Value | None, _Numbers]:
    """The vector from which operand `n` is gathered, or that operand, and the axes of its numbers, of which `order` has
    the original's; no axes where these are not known."""
    value, shape = node.inputs[n] if n < len(node.inputs) else None, node.outputs[0].shape
    if value is None or shape is None or constant_tensor(value) is not None:
        return None, {}
    is_region = node.op_type == "Resize" and n == 1 and len(node.inputs) > 2  # before opset 11 the scales are there
    if is_region and node.attributes.get_string("coordinate_transformation_mode") != "tf_crop_and_resize":
        return None, {}  # no other mode reads it, and it may be empty
    rank = len(shape)
    has_axes = "axes" in node.attributes or (node.op_type == "Pad" and len(node.inputs) > 3)
    axes = constant_ints(node, "axes", 3) if has_axes else tuple(range(rank))
    if axes is None or not all(-rank <= axis < rank for axis in axes):
        return value, {}
    places: Sequence[int] = range(len(axes) * (1 if node.op_type == "Resize" and n > 1 else 2))
    gather = value.producer()
    if gather is not None and gather.op_type == "Gather" and gather.domain == "" and gather.inputs[1] is not None:
        chosen = small_constant(gather.inputs[1])
        if chosen is not None and len(chosen) == len(places):
            value, places = gather.inputs[0], chosen
    named = [order[axis % rank] if order else axis % rank for axis in axes]
    return value, {place: (named[i % len(named)], i // len(named)) for i, place in enumerate(places)}


def _listed(numbers: _Numbers) -> str:
    return ",".join(str(axis) for _, (axis, _) in sorted(numbers.items()))


def _mismatch(node: ir.Node, n: int, expected: Iterable[Pair], found: Iterable[Pair]) -> Finding:
    def text(relation: Iterable[Pair]) -> str:
        return ", ".join(f"{made} read as {read}" for made, read in sorted(relation))

    return Finding(
        rule="axis-mismatch",
        node=node_label(node),
        operand=n,
        expected=text(expected),
        found=text(found),
        message=f"operand {n} of this {node.op_type} reads other axes than in the original",
    )


def _disordered(node: ir.Node, value: ir.Value, expected: AxisNames, found: AxisNames) -> Finding:
    return Finding(
        rule="layout-annotation",
        node=node_label(node),
        expected="".join(name or "*" for name in expected),
        found="".join(name or "*" for name in found),
        message=f"the order does not lead from the original's axes to the value's ({value.name})",
    )
