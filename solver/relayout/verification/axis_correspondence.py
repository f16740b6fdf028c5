"""Axis correspondence: operators must read the same axes as their counterparts in the original, as far as is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from relayout.report.schema import Finding
from relayout.verification.axis_classes import CommonNames
from relayout.verification.axis_names import input_places, names_by_places
from relayout.verification.axis_reads import AxesRead, Pair, numbered_axes, relation
from relayout.verification.counterparts import OriginalIndex, ancestors, paired_graphs, source_name
from relayout.verification.memory_format import memory_format_of, whole
from relayout.verification.model_index import ModelIndex
from relayout.verification.operator_facts import OURS, AxisNames
from relayout.verification.requirements import node_label

__all__ = ["check_axes_read"]


def check_axes_read(model: ModelIndex, original: OriginalIndex) -> Iterator[Finding]:
    """Yield a finding for each operator that reads other axes of an operand than its counterpart in the original.

    Producer and reader may name an axis differently: a network may transpose its image. But both models must have the
    same difference, whatever the layouts; and an axis that is given by number must have the same name in both. The axes
    of a graph input are named by their index in the original.
    """
    theirs, mine = original.made, names_by_places(model, input_places(model.model))
    graphs = paired_graphs(model, original)
    for name, node in model.by_name.items():
        counterpart = original.by_name.get(name)
        if counterpart is None or counterpart.op_type != node.op_type or len(counterpart.inputs) != len(node.inputs):
            continue
        for n in range(len(node.inputs)):
            # Position-wise attributes follow the layout on both sides; a standard operator's were rewritten.
            by_place = node.domain == OURS
            here, there = relation(node, n, mine, by_place), relation(counterpart, n, theirs, by_place)
            if here is not None and there is not None and not here.agree(there) and _alike(_made(here), _made(there)):
                yield _mismatch(node, n, there.known, here.known)
        graph = node.graph and graphs.get(node.graph)
        sources = [original.results.get((graph, source_name(value))) for value in node.outputs]
        yield from _check_results(node, counterpart, sources, (mine, theirs), original.common_names)
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
        here, there, format_ = mine.get(value), theirs.get(source), memory_format_of(value)
        if here is None or there is None or value.shape is None or source.shape is None:
            continue
        format_ = format_ or whole(range(len(there)))
        earlier = memory_format_of(source)
        if earlier is not None:
            # The original is itself a legal model, and both orders are relative to that one's source.
            if earlier.permutation is None or format_.permutation is None:
                continue
            if len(earlier.permutation) != len(format_.permutation):
                continue
            format_ = whole([earlier.permutation.index(axis) for axis in format_.permutation])
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
