"""Whether operators read, of their operands, what their twins in the original read, as far as it can be derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from relayout.report import Finding
from relayout.verify.arrangement import arrangement_of, whole
from relayout.verify.borders import graphs_of
from relayout.verify.common_names import CommonNames
from relayout.verify.contract import node_label
from relayout.verify.derivation import SOURCE, Derivation, derive, fed, walk
from relayout.verify.operators import OURS, AxisNames, axis_names, constant_ints, named
from relayout.verify.resizing import placed_names

__all__ = ["check_meanings"]

Relation = frozenset[tuple[str, str]]
"""What the producer of a value calls each axis, and what a reader takes it for."""


def check_meanings(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """Each operator reads, of each operand, the axes that its twin in the original reads.

    A name clash between producer and reader is no fault: a network may turn its picture. But the same clash must be in
    both models, whatever layouts lie between; and an axis that is given by number must have the same meaning in both.
    The axes of a graph input are named for their place in the original's.
    """
    places = _places(original)
    theirs, mine = derive(original, places), derive(model, _places(model))
    common = CommonNames(original, beside_pieces=True, given=places)
    twins = _by_name(original)
    namesakes = {value.name: value for node in walk(original.graph) for value in node.outputs}
    for name, node in _by_name(model).items():
        twin = twins.get(name)
        if twin is None or twin.op_type != node.op_type or len(twin.inputs) != len(node.inputs):
            continue
        for n in range(len(node.inputs)):
            # What is said by place in a layout was said by place in the source; a standard operator's was rewritten.
            by_place = node.domain == OURS
            here, there = _relation(node, n, mine, by_place), _relation(twin, n, theirs, by_place)
            if here is not None and there is not None and here != there and _alike(_made(here), _made(there)):
                yield _mismatch(node, n, there, here)
        yield from _check_results(node, twin, namesakes, (mine, theirs), common)
        axes_here, axes_there = _numbered_axes(node, mine), _numbered_axes(twin, theirs)
        if axes_here is None or axes_there is None or not _alike(axes_here, axes_there):
            continue
        if axes_here != axes_there:
            yield Finding(
                rule="axis-mismatch",
                node=node_label(node),
                operand=0,
                expected=f"axes {', '.join(sorted(axes_there.elements()))}",
                found=f"axes {', '.join(sorted(axes_here.elements()))}",
                message=f"this {node.op_type} works along other axes than in the original",
            )


def _contradict(name: str | None, other: str | None) -> bool:
    """Whether two names of one axis cannot both be right.

    An axis that no operator names goes by the input that it comes from (`x.0`), which may be any letter.
    """
    if name is None or other is None:
        return False
    return name != other and ("." in name) == ("." in other)


def _is_part(name: str | None, other: str | None) -> bool:
    """Whether one of the two is the inner part of what the other is: `c` of `C`."""
    return name is not None and other is not None and len(name) == 1 and name != other and name.upper() == other.upper()


def _are_joined(name: str | None, other: str | None, source: ir.Value) -> bool:
    """Whether the two are axes of different inputs, and the original makes the value of both: then operators bring them
    together, if only where names do not reach, behind axes that are cut and merged anew."""
    inputs = {text.rpartition(".")[0] for text in (name, other) if text is not None}
    return len(inputs) > 1 and inputs <= _hangs_on(source)


def _hangs_on(value: ir.Value) -> set[str | None]:
    """The names of all that a value is computed from and that no node gives."""
    found: set[str | None] = set()
    seen, open_ = {value}, [value]
    while open_:
        each = open_.pop()
        node = each.producer()
        if node is None:
            found.add(each.name)
            continue
        inner = [read for graph in graphs_of(node) for within in walk(graph) for read in within.inputs]
        for read in (*node.inputs, *inner):
            if read is not None and read not in seen:
                seen.add(read)
                open_.append(read)
    return found


def _made(relation: Relation) -> list[str]:
    return [made for made, _ in relation]


def _alike(names: Iterable[str], others: Iterable[str]) -> bool:
    """Whether all these names are letters, or all are places of graph inputs: one may be the other."""
    return len({"." in name for name in (*names, *others)}) <= 1


def _check_results(
    node: ir.Node,
    twin: ir.Node,
    namesakes: Mapping[str | None, ir.Value],
    derivations: tuple[Derivation, Derivation],
    common: CommonNames,
) -> Iterator[Finding]:
    """An annotated order leads from the names of the original's axes to the names of the value's own, or to those of
    another input that the value is made of too.

    `derivations` are this model's and the original's, `common` is the original's.

    The original's value is the one of the same name, for a Transpose between the two may have gone, or else its twin's.
    """
    mine, theirs = derivations
    for value, result in zip(node.outputs, twin.outputs, strict=False):
        source = namesakes.get(value.metadata_props.get(SOURCE, value.name), result)
        here, there, arrangement = mine.made(value), theirs.made(source), arrangement_of(value)
        if here is None or there is None or value.shape is None or source.shape is None:
            continue
        arrangement = arrangement or whole(range(len(there)))
        known = [name for name in there if name is not None]
        fits = not arrangement.fault(tuple(source.shape)) and len(arrangement.dims) == len(here)
        if not fits or len(set(known)) != len(known):
            continue
        expected = tuple(there[axis] if axis is not None else None for axis in arrangement.axes)
        if any(len({name.upper() for name in names if "." not in name}) > 1 for names in common.of(source)):
            continue  # A picture that is turned: which operator gives an axis its letter hangs on what lies between.
        for n, axis in enumerate(arrangement.axes):
            extent = value.shape[n]
            if axis is None or extent == 1 or not _contradict(here[n], expected[n]):
                continue
            is_all = extent == source.shape[axis] and _is_part(here[n], expected[n])
            if not is_all and not _are_joined(here[n], expected[n], source):
                yield _disordered(node, value, expected, here)
                break


def _places(model: ir.Model) -> dict[ir.Value, AxisNames]:
    """Names for the axes of graph inputs that do not depend on how these lie: `x.1` is axis 1 of the original's x.

    Axes of extent 1 have none, for they may stand anywhere.
    """
    places: dict[ir.Value, AxisNames] = {}
    for value in fed(model):
        if value.shape is None:
            continue
        axes = (arrangement_of(value) or whole(range(len(value.shape)))).axes
        if len(axes) == len(value.shape):
            named_axes = zip(axes, value.shape, strict=True)
            places[value] = tuple(f"{value.name}.{a}" if a is not None and e != 1 else None for a, e in named_axes)
    return places


def _by_name(model: ir.Model) -> dict[str, ir.Node]:
    nodes = list(walk(model.graph))
    counts = Counter(node.name for node in nodes)
    return {node.name: node for node in nodes if node.name and counts[node.name] == 1}


def _relation(node: ir.Node, n: int, derivation: Derivation, by_place: bool) -> Relation | None:
    """What the producer calls each axis, beside what this operator reads it for; None where not all of it is known.

    Axes of extent 1 are left out: they may stand anywhere. The outer and the inner part of an axis are that axis, if
    the one is read for the outer and the other for the inner part.
    """
    value, read, facts = node.inputs[n], axis_names(node, "input", n), named(node)
    if facts is None and by_place and n == 0 and value is not None and value.shape is not None:
        read = placed_names(node, len(value.shape))
    made = derivation.made(value) if value is not None else None
    if value is None or value.shape is None or read is None or made is None or len(set(made)) != len(made):
        return None
    pairs: set[tuple[str, str]] = set()
    for a, b, extent in zip(made, read, value.shape, strict=True):
        reading = _reading(b, read, node)
        if reading is None or extent == 1:
            continue
        if a is None or b is None:
            return None
        is_part = (_axis(a, made) != a, _axis(b, read) != b)
        pairs.add((a, b) if is_part[0] != is_part[1] else (_axis(a, made), reading))
    return frozenset(pairs)


def _reading(name: str | None, names: AxisNames, node: ir.Node) -> str | None:
    """What an operator takes an axis that it names so for; None where it is nothing to it."""
    facts, axis = named(node), _axis(name, names) if name is not None else None
    if facts is not None and facts.pooled:
        return "kept" if axis in ("N", "C") else "reduced"
    return axis if facts is None or facts.spatial or axis == "C" else None


def _axis(name: str, names: AxisNames) -> str:
    """The axis that a name is, or is the inner part of."""
    return name.upper() if len(name) == 1 and name.upper() in names else name


_ALONG_AXES = frozenset({"Concat", "CumSum", "Gather", "Hardmax", "LogSoftmax", "Softmax", "Split", "TopK"})
# Before opset 13 they work on the axis and all that follow it as one.
_FLATTENING = frozenset({"Hardmax", "LogSoftmax", "Softmax"})
# They may work on whole blocks of an axis.
_IN_BLOCKS = frozenset({"Concat", "Gather", "Split"})


def _numbered_axes(node: ir.Node, derivation: Derivation) -> Counter[str] | None:
    """The names of the axes that an operator is given by number; None where it is given none, or one has no name."""
    value = node.inputs[0] if node.inputs else None
    made = derivation.made(value) if value is not None else None
    reduces = node.op_type.startswith("Reduce") or node.op_type in ("ArgMax", "ArgMin")
    if made is None or node.domain not in ("", "ai.onnx") or not (reduces or node.op_type in _ALONG_AXES):
        return None
    axes = (
        constant_ints(node, "axes", 1)
        if node.op_type.startswith("Reduce")
        else constant_ints(node, "axis", 1 if node.op_type == "CumSum" else len(node.inputs))
    )
    if axes is None or any(not -len(made) <= axis < len(made) for axis in axes):
        return None
    named_axes = {axis % len(made) for axis in axes}
    if node.op_type in _FLATTENING and node.graph is not None and node.graph.opset_imports.get("", 13) < 13:
        named_axes = set(range(min(named_axes), len(made)))
    if any(made[axis] is None and (node.op_type in _IN_BLOCKS or _extent(value, axis) != 1) for axis in named_axes):
        return None
    # An axis of extent 1 may stand anywhere.
    parts = {str(name) for axis, name in enumerate(made) if name is not None and _extent(value, axis) != 1}
    if node.op_type in _IN_BLOCKS:
        blocks = {str(made[axis]) for axis in named_axes}
        found = Counter(name for name in blocks if name in parts or (name.lower() in parts and name.isupper()))
        # What is put together of single slices says nothing where the other model knows no extents.
        return found or None
    names = {str(made[axis]) for axis in named_axes if _extent(value, axis) != 1}
    # Of an axis in parts all parts are meant, or else it is not the axis that is.
    return Counter({_whole_axis(name, names, parts, made) for name in names})


def _whole_axis(name: str, names: set[str], parts: set[str], made: AxisNames) -> str:
    axis = _axis(name, made)
    own = {part for part in parts if _axis(part, made) == axis}
    return axis if own <= names else f"part {name} of {axis}"


def _extent(value: ir.Value | None, axis: int) -> object:
    return value.shape[axis] if value is not None and value.shape is not None else None


def _mismatch(node: ir.Node, n: int, expected: Relation, found: Relation) -> Finding:
    def text(relation: Relation) -> str:
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
        message=f"value {value.name}: its order does not lead from the original's axes to its own",
    )
