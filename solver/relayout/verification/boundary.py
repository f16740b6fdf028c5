"""The shapes of a legal model against its report and its original: of inputs, outputs, and annotated values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain

import onnx_ir as ir

from relayout.errors import InputError
from relayout.layout.terms import is_given
from relayout.model.dims.output_dims import noted_extents
from relayout.model.io import declared_extents, read_without_outputs
from relayout.model.reading import Declared
from relayout.ops.node_reader import extents_of
from relayout.report.schema import Finding, Report
from relayout.verification.axis_names import declared_layout
from relayout.verification.counterparts import VIEWS, source_name
from relayout.verification.memory_format import Extent, MemoryFormat, memory_format_of, whole
from relayout.verification.operator_facts import OURS
from relayout.verification.requirements import node_label
from relayout.verification.subgraph_values import walk


def check_boundary(report: Report, model: ir.Model, *, is_fresh: bool = False) -> Iterator[Finding]:
    """Yield a finding for each side of the model whose values are not those that the report lists, in order, each with
    its shape. `is_fresh`: the model is as legalization left it, and was not read from what it declares."""
    if report.status not in ("optimal", "feasible"):
        return
    given = _given_names(each.shape for each in report.boundary)
    doubtful: list[tuple[ir.Value, Mapping[int, int], Finding]] = []
    for side, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        listed = [each for each in report.boundary if each.side == side]
        wanted, names = [each.name for each in listed], [value.name or "" for value in values]
        if names != wanted:
            message = f"the {side}s of the model are not those of the report"
            yield Finding(
                rule="boundary", expected=", ".join(wanted) or "none", found=", ".join(names) or "none", message=message
            )
            continue
        for each, value in zip(listed, values, strict=True):
            found = noted_extents(value) if is_fresh else declared_extents(model, side)[value.name or ""]
            if each.shape is None:
                continue
            message = f"the {side} has another shape than the report says"
            finding = Finding(
                rule="boundary", node=value.name, expected=_shown(each.shape), found=_shown(found), message=message
            )
            numbers = _numbers_for_open_dims(value, found, each.shape, each.shape, given)
            if numbers != {}:
                doubtful.append((value, numbers or {}, finding))
    yield from _unproven(model, doubtful)


def check_side(kind: str, mine: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> Iterator[Finding]:
    """Yield a finding for each input, or output, by `kind`, that is not the original's in its format, as far as the
    extents of both are known."""
    names, wanted = [str(value.name) for value in mine], [str(value.name) for value in theirs]
    if names != wanted:
        message = f"the graph's {kind}s are not the original's"
        yield Finding(rule="boundary", expected=", ".join(wanted), found=", ".join(names), message=message)
        return
    for value, source in zip(mine, theirs, strict=True):
        if value.dtype != source.dtype:
            yield _boundary(kind, value, str(source.dtype), str(value.dtype), "another type of element")
        elif None not in (value.type, source.type) and value.type != source.type:
            yield _boundary(kind, value, str(source.type), str(value.type), "another type")
        elif not _same_shape(value, source):
            expected = _in_format(source, memory_format_of(value))
            yield _boundary(kind, value, _shown(expected), _shown(value.shape), "another shape, as its layout has it")


def note_layouts(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """Yield a note for each input and output in another layout than in the original. Callers may have asked for it, or
    not: only a report says."""
    for kind, mine, theirs in (
        ("input", model.graph.inputs, original.graph.inputs),
        ("output", model.graph.outputs, original.graph.outputs),
    ):
        sources = {value.name: value for value in theirs}
        for value in mine:
            own, given = _layout_text(value), _layout_text(sources.get(value.name, value))
            if own != given:
                finding = _boundary(kind, value, given, own, "another layout than in the original")
                yield finding.model_copy(update={"severity": "note"})


def _layout_text(value: ir.Value) -> str:
    """The memory format of an input or output, and its layout where that has black boxes, as a text."""
    format_, layout = memory_format_of(value), declared_layout(value)
    is_plain = format_ is None or format_ == whole(range(len(format_.dims)))
    boxes = layout is not None and any(layout.boxes(i) for i in range(layout.rank))
    return " ".join([f"axes {format_}"] * (not is_plain) + [str(layout)] * boxes) or "as in the source"


def check_declared(model: ir.Model, original: ir.Model) -> Iterator[Finding]:
    """Yield a finding for each input whose default is not the original's to replace, and for each input or output that
    the model declares with other extents, in its format, than the original does.

    Both models are as `read_model` makes them. Inference may know more than the files declare, so the declarations are
    compared.
    """
    mine, theirs = ({str(value.name): value for value in each.graph.inputs} for each in (model, original))
    defaults = [{name for name, value in each.items() if value.is_initializer()} for each in (mine, theirs)]
    if defaults[0] != defaults[1]:
        found, wanted = (", ".join(sorted(names)) or "none" for names in defaults)
        message = "the inputs with a default are not the original's"
        yield Finding(rule="boundary", expected=wanted, found=found, message=message)
    declared = {side: declared_extents(original, side) for side in ("input", "output")}
    given = _given_names(chain.from_iterable(each.values() for each in declared.values()))
    doubtful: list[tuple[ir.Value, Mapping[int, int], Finding]] = []
    for side, values, others in (
        ("input", model.graph.inputs, original.graph.inputs),
        ("output", model.graph.outputs, original.graph.outputs),
    ):
        found_in, sources = declared_extents(model, side), {str(value.name): value for value in others}
        for value in values:
            name = str(value.name)
            source = sources.get(name)
            if source is None or source.shape is None or not _same_shape(value, source):
                continue
            extents, stated, format_ = found_in[name], declared[side][name], memory_format_of(value)
            if extents is None and stated is None:
                continue
            dims = (None,) * len(source.shape) if stated is None else stated
            expected, known = (_in_format(source, format_, each) or () for each in (dims, extents_of(source)))
            finding = _boundary(
                side, value, _shown(expected), _shown(extents), "other extents than the original declares"
            )
            numbers = _numbers_for_open_dims(value, extents, expected, known, given)
            if numbers != {}:
                doubtful.append((value, numbers or {}, finding))
    yield from _unproven(model, doubtful)


def _numbers_for_open_dims(
    value: ir.Value,
    found: Sequence[Declared] | None,
    wanted: Sequence[Extent],
    known: Sequence[Extent],
    given: Set[str],
) -> dict[int, int] | None:
    """The numbers, by the index of the dim, that an input or output is declared with where a dim is open; None where it
    is declared otherwise than is `wanted`, or `known` by inference.

    A number stays that number, and a name in `given` that name. Any other open dim stays open under any name that is
    not in `given`, or becomes a number.
    """
    if found is None or len(found) != len(wanted):
        return None
    numbers = {}
    for place, (mine, theirs, inferred) in enumerate(zip(found, wanted, known, strict=True)):
        if mine in (theirs, inferred):
            continue
        if isinstance(theirs, int) or (not isinstance(mine, int) and (theirs in given or mine in given)):
            return None
        if isinstance(mine, int):
            numbers[place] = mine
    format_ = memory_format_of(value)
    if format_ is not None and format_.permutation is None:
        # The extent of a part of an axis is not known here.
        numbers = {place: number for place, number in numbers.items() if format_.axes[place] is not None}
    return numbers


def _unproven(model: ir.Model, doubtful: Sequence[tuple[ir.Value, Mapping[int, int], Finding]]) -> Iterator[Finding]:
    """Yield the findings on inputs, and on outputs whose numbers, by the index of the dim, are not those that the rest
    of the model gives them: all that is declared for inputs and for the outputs that are not doubtful."""
    if not doubtful:
        return
    names = {str(value.name) for value, _, _ in doubtful if value.is_graph_output()}
    try:
        given = {each.name: extents_of(each) or () for each in read_without_outputs(model, names).graph.outputs}
    except InputError:
        given = {}
    for value, numbers, finding in doubtful:
        extents = given.get(value.name, ()) if value.is_graph_output() else ()
        if not numbers or any(extents[place : place + 1] != (number,) for place, number in numbers.items()):
            yield finding


def _given_names(shapes: Iterable[Iterable[Declared] | None]) -> frozenset[str]:
    """The names that tie dims of these shapes to each other. Any other name says as much as none."""
    names = Counter(extent for shape in shapes for extent in shape or () if isinstance(extent, str))
    return frozenset(name for name, count in names.items() if count > 1 and is_given(name))


def _boundary(kind: str, value: ir.Value, expected: str, found: str, message: str) -> Finding:
    text = f"{kind} {value.name} has {message}"
    return Finding(rule="boundary", node=value.name, expected=expected, found=found, message=text)


def _same_shape(value: ir.Value, source: ir.Value) -> bool:
    """Whether `value` has the extents of `source` in its annotated format, as far as both are known."""
    expected = _in_format(source, memory_format_of(value))
    if expected is None or value.shape is None:
        return True
    if len(expected) != len(value.shape):
        return False
    return not any(
        isinstance(mine, int) and isinstance(theirs, int) and mine != theirs
        for mine, theirs in zip(value.shape, expected, strict=True)
    )


def _in_format(
    source: ir.Value, format_: MemoryFormat | None, shape: Sequence[Extent] | None = None
) -> tuple[Extent, ...] | None:
    """The source's extents, or `shape` in their place, in the annotated format; unchanged where the format does not fit
    them."""
    extents = extents_of(source) if shape is None else tuple(shape)
    if extents is not None and format_ is not None and (earlier := memory_format_of(source)) is not None:
        # The original is itself a legal model, and both annotations are relative to that one's source.
        extents = earlier.source_extents(extents)
    if extents is None:
        return None
    return extents if format_ is None or format_.fault(extents) else format_.shape(extents)


def _shown(shape: object) -> str:
    return "unknown" if shape is None else f"[{', '.join(map(str, shape))}]"  # type: ignore[call-overload]


def _has_axes_exchanged(value: ir.Value, source: ir.Value | None) -> bool:
    """Whether two values without annotations have the same extents in another order."""
    if source is None or value.shape is None or source.shape is None or memory_format_of(source) is not None:
        return False
    is_known = value.shape.is_static() and source.shape.is_static()
    return is_known and sorted(value.shape.numpy()) == sorted(source.shape.numpy()) and value.shape != source.shape


def check_inner_shapes(
    model: ir.Model, original: ir.Model, constants: Set[ir.Value] | None = None
) -> Iterator[Finding]:
    """Yield a finding for each result, in graphs inside nodes too, whose extents are not those of the source of its
    name in the annotated format. A result without an annotation may be padded, but has no axes exchanged; the
    `constants`, and without them all of these, are left out: a computed constant has no annotation in any format."""
    made = [value for node in walk(original.graph) for value in node.outputs]
    # Two branches may each have a value of one name.
    counts = Counter(value.name for value in made)
    sources = {value.name: value for value in made if counts[value.name] == 1}
    outputs = set(model.graph.outputs)
    for node in walk(model.graph):
        for value in node.outputs:
            source = sources.get(source_name(value))
            format_ = memory_format_of(value)
            # A view is followed, whatever its name (see `relayout.verification.order`), and an operator that a
            # post-pass has fused from several has the name of the last one.
            is_free = constants is None or value in constants or node.op_type in VIEWS or node.domain not in ("", OURS)
            is_left_out = format_ is None and (is_free or not _has_axes_exchanged(value, source))
            if source is None or is_left_out or value in outputs or _same_shape(value, source):
                continue
            order = "no annotated order leads" if format_ is None else "the annotated order does not lead"
            yield Finding(
                rule="layout-annotation",
                node=node_label(node),
                expected=_shown(_in_format(source, format_)),
                found=_shown(value.shape),
                message=f"{order} from the source's shape to the value's ({value.name})",
            )
