"""The two models made ready to be run side by side: cut where a runtime lacks an operator, their values paired."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import cast

import onnx_ir as ir

from relayout.ops import graphs_of
from relayout.report.schema import Finding
from relayout.verification.constants import constants_of
from relayout.verification.counterparts import source_name
from relayout.verification.memory_format import Extent, memory_format_of, whole
from relayout.verification.numeric.baseline import INNER_BYTES, Baseline, Feeds, Trial, baseline_of, behind
from relayout.verification.numeric.cut import Cut, Operators, cut, draws_anew, holding, lacking, nodes_run_by
from relayout.verification.numeric.inputs import Array
from relayout.verification.numeric.kept_results import kept_behind, refused
from relayout.verification.numeric.symbolic_sizes import Sampling

RANDOM_RESULT = "it depends on numbers drawn without a seed"

_MOST_CUTS = 4


@dataclass(frozen=True)
class Prepared:
    """Two models that run, the original's results, and the pairs of values to compare.

    `inner` has the original's name of each inner value of the model. `supplied` are the model's inputs in place of
    results of operators that were cut out, with the original's names. `asked` are the original's values that the run
    gives besides its outputs, and `left_out` are outputs that cannot be computed or that differ from run to run.
    `kept` are those of them that the model computes as the original does from inner values that are compared, with the
    names of these. `notes` say where a model was cut.
    """

    model: ir.Model
    original: ir.Model
    baseline: Baseline
    supplied: Mapping[str, str]
    inner: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Set[str]] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()

    def feeds(self, trial: Trial) -> Feeds:
        """The model's inputs for the samples of a trial, in its formats."""
        inputs = {str(value.name): value for value in self.model.graph.inputs}
        sources = values_of(self.original)
        feeds = []
        for feed, results in zip(trial.feeds, trial.results, strict=True):
            own = {name: (name, array) for name, array in feed.items() if name in inputs}
            own |= {name: (source, _one(feed, results, source)) for name, source in self.supplied.items()}
            feeds.append(
                {name: in_format(array, inputs[name], sources[source]) for name, (source, array) in own.items()}
            )
        return feeds


def _one(feed: Mapping[str, Array], results: Mapping[str, list[Array]], name: str) -> Array:
    return feed[name] if name in feed else results[name][0]


def values_of(model: ir.Model) -> dict[str, ir.Value]:
    """The values of the graph, without those inside nodes, by name."""
    made = [value for node in model.graph for value in node.outputs]
    return {str(value.name): value for value in (*model.graph.inputs, *made, *model.graph.outputs)}


def in_format(array: Array, value: ir.Value, source: ir.Value) -> Array:
    """The array of `source`, a value of the original, in the format of `value`; unchanged if no annotation fits."""
    format_, earlier = memory_format_of(value), memory_format_of(source)
    if format_ == earlier:
        return array
    if earlier is not None:
        # The original is itself a legal model, and both annotations are relative to that one's source.
        extents = earlier.source_extents(array.shape)
        whole_array = earlier.back(array, cast(tuple[int, ...], extents)) if extents is not None else None
        if whole_array is None:
            return array
        array = whole_array
    permuted = format_.of(array) if format_ is not None else None
    return array if permuted is None else permuted


def _never(node: ir.Node) -> bool:
    return False


def prepare(model: ir.Model, original: ir.Model, opaque: Set[str], sampling: Sampling) -> Prepared | str:
    """Both models with the original's results, or the fault of the original, as a text.

    `opaque` are the model's values whose memory is not in the order of their shape. Operators that draw numbers without
    a seed are cut out, so that both models get the same ones. They stay where the original takes no other numbers.
    """
    is_random = any(map(draws_anew, original.graph.all_nodes()))
    found = _prepared(model, original, opaque, sampling, is_drawn=draws_anew) if is_random else ""
    return found if isinstance(found, Prepared) else _prepared(model, original, opaque, sampling, _never)


def _prepared(
    model: ir.Model,
    original: ir.Model,
    opaque: Set[str],
    sampling: Sampling,
    is_drawn: Callable[[ir.Node], bool],
) -> Prepared | str:
    """The same, without the operators of which `is_drawn` is true."""
    theirs, own = lacking(original), lacking(model)
    declined: dict[tuple[str, str], str] = {}
    fault = ""
    for _ in range(_MOST_CUTS):
        unknown = theirs | own
        is_gone = _either(unknown, is_drawn)
        right = cut(original, _either(theirs, is_drawn))
        left = cut(model, is_gone, _sources(model, right, opaque))
        drawn = behind(right.model, draws_anew)
        inner = {name: other for name, other in _inner(left.model, right.model, opaque).items() if other not in drawn}
        inner |= dict(_operands(model, original, left, right, holding(model, is_gone), opaque))
        supplied = {str(value.name): source_name(value) for value in left.given}
        results = {str(value.name) for node in right.model.graph for value in node.outputs}
        kept = _kept(model, original, {*right.left_out, *left.left_out}, inner, opaque)
        needed = {name for name in supplied.values() if name in results}
        needed.update(inner[name] for names in kept.values() for name in names)
        asked = tuple(dict.fromkeys((*sorted(needed), *inner.values())))
        if not asked and not right.model.graph.outputs:
            return fault or f"nothing is left of it without {shown(theirs)}"
        baseline = baseline_of(right.model, asked, sampling, needed)
        if isinstance(baseline, Baseline):
            asked = baseline.inner
            inner = {name: other for name, other in inner.items() if other in asked}
            notes = (
                *cut_notes(theirs, own, len(inner), declined),
                *_random_notes(filter(is_drawn, original.graph.all_nodes())),
            )
            lost, outputs = {*right.left_out, *left.left_out}, [str(value.name) for value in original.graph.outputs]
            # An output is random where the original's is, and nothing else keeps it from being compared.
            unrun = (behind(each, holding(each, _either(unknown))) for each in (original, model))
            random = behind(original, draws_anew).difference(*unrun)
            gone = shown(frozenset(node.op_identifier()[:2] for node in nodes_run_by(model) if is_gone(node)))
            left_out = {
                name: RANDOM_RESULT if name in random else f"it depends on {gone or shown(unknown)}"
                for name in outputs
                if name in lost | drawn
            }
            return Prepared(left.model, right.model, baseline, supplied, inner, asked, left_out, kept, notes)
        fault = fault or "; ".join(baseline)
        more = lacking(right.model, baseline[0])
        if not more:
            more = refused(model, original, baseline[0])
            declined |= dict.fromkeys(more, baseline[0])
        if not more:
            break
        theirs |= more
        own |= more
    return fault


def _kept(
    model: ir.Model, original: ir.Model, lost: Set[str], inner: Mapping[str, str], opaque: Set[str]
) -> dict[str, set[str]]:
    """Of the outputs that are `lost`, those that the model computes as the original does; see `Prepared`."""

    def is_compared(value: ir.Value, source: ir.Value) -> bool:
        return inner.get(str(value.name)) == source.name

    functions = model.functions.keys() | original.functions.keys()
    found = {
        str(mine.name): kept_behind(mine, theirs, is_compared, opaque, functions)
        for mine, theirs in zip(model.graph.outputs, original.graph.outputs, strict=True)
        if mine.name in lost
    }
    return {name: names for name, names in found.items() if names is not None}


def _either(operators: Operators, is_drawn: Callable[[ir.Node], bool] = _never) -> Callable[[ir.Node], bool]:
    return lambda node: node.op_identifier()[:2] in operators or is_drawn(node)


def cut_notes(
    theirs: Operators, own: Operators, pairs: int, declined: Mapping[tuple[str, str], str] | None = None
) -> Iterator[Finding]:
    """A note for the operators that no runtime has, of the original and of the model, and for each that onnxruntime
    `declined` to run, with its message; `pairs` values are compared."""
    around = f"what lies around them was run, and {pairs} value{'' if pairs == 1 else 's'} compared"
    declined = declined or {}
    for names in (theirs - declined.keys(), own - theirs):
        if names:
            message = f"no runtime has these operators for operands of their types: {around}"
            yield Finding(rule="cut", severity="note", found=shown(names), message=message)
    for name, fault in declined.items():
        message = f"onnxruntime refuses these operators, which are the original's: {around}"
        yield Finding(rule="cut", severity="note", found=f"{shown(frozenset([name]))}: {fault}", message=message)


def _random_notes(nodes: Iterable[ir.Node]) -> Iterator[Finding]:
    if names := shown(frozenset(node.op_identifier()[:2] for node in nodes)):
        message = (
            "these operators draw numbers without a seed: both models were given the same in place of their results"
        )
        yield Finding(rule="random", severity="note", found=names, message=message)


def shown(operators: Operators) -> str:
    return ", ".join(sorted(f"{domain}::{name}" if domain else name for domain, name in operators))


def _sources(model: ir.Model, right: Cut, opaque: Set[str]) -> set[str]:
    """The model's values that the original's run supplies, in the format that they are annotated with."""
    known = values_of(right.model)
    return {
        str(value.name)
        for node in model.graph
        for value in node.outputs
        if value.name not in opaque and (source := known.get(source_name(value))) and fits(value, source)
    }


def _operands(
    model: ir.Model,
    original: ir.Model,
    left: Cut,
    right: Cut,
    is_gone: Callable[[ir.Node], bool],
    opaque: Set[str],
) -> Iterator[tuple[str, str]]:
    """The operands of nodes that are cut out in both models, the model's beside the original's."""
    made = {str(value.name): node for node in original.graph for value in node.outputs}
    for node in model.graph:
        other = made.get(source_name(node.outputs[0])) if node.outputs else None
        if other is None or other.op_identifier() != node.op_identifier():
            continue
        if not any(map(is_gone, (node, *(inner for body in graphs_of(node) for inner in body.all_nodes())))):
            continue
        for mine, theirs in zip(node.inputs, other.inputs, strict=False):
            if mine is None or theirs is None or mine.name in opaque:
                continue
            if mine.name in left.asked and theirs.name in right.asked and fits(mine, theirs):
                yield str(mine.name), str(theirs.name)


def _inner(model: ir.Model, original: ir.Model, opaque: Set[str]) -> dict[str, str]:
    """Inner values that both models have, and the original's name for each: small ones, within a budget of bytes.

    Two values are the same if they have the same name, or one is annotated with the other's name, or if operators of
    the same name and type make them.

    Inner values are compared because a saturated output can hide a fault. A value that is not in the source's format is
    annotated. Integers without an annotation are excluded: they may be a shape or indices, which change with the layout
    of another value.
    """
    sources: dict[object, ir.Value] = {}
    for node in original.graph:
        for m, value in enumerate(node.outputs):
            sources[value.name] = value
            if node.name:
                sources[node.name, node.op_type, m] = value
    constants = constants_of(model.graph) | constants_of(original.graph)
    inner: list[tuple[bool, int, str, str]] = []
    for node in model.graph:
        for m, value in enumerate(node.outputs):
            name = source_name(value)
            source = sources.get(name) or sources.get((node.name, node.op_type, m))
            if source is None or value in constants or source in constants or value.name in opaque:
                continue
            if not _is_comparable(value, source):
                continue
            size = 4 * math.prod(extent if isinstance(extent, int) else 64 for extent in value.shape or ())
            inner.append((memory_format_of(value) is None, size, str(value.name), str(source.name)))
    spent = 0
    names = {}
    for _, size, mine, theirs in sorted(inner):
        spent += size
        if spent <= INNER_BYTES:
            names[mine] = theirs
    return names


def _is_comparable(value: ir.Value, source: ir.Value) -> bool:
    """Whether both are the same inside the graph; integers may be of another meaning unless they are annotated."""
    if value.is_graph_output() or value.dtype is None:
        return False
    return (memory_format_of(value) is not None or value.dtype.is_floating_point()) and fits(value, source)


def fits(value: ir.Value, source: ir.Value) -> bool:
    """Whether both are tensors of the same type, and one has the other's extents in its format."""
    if value.dtype is None or value.dtype != source.dtype or value.shape is None or source.shape is None:
        return False
    format_, earlier = memory_format_of(value), memory_format_of(source)
    extents: tuple[Extent, ...] | None = tuple(source.shape)
    if format_ != earlier and earlier is not None:
        # The original is itself a legal model, and both annotations are relative to that one's source.
        extents = earlier.source_extents(tuple(source.shape))
    if extents is None:
        return False
    if format_ == earlier or format_ is None:
        format_ = whole(range(len(extents)))
    if format_.fault(extents) is not None or len(format_.dims) != len(value.shape):
        return False
    expected = format_.shape(extents)
    return all(mine == theirs or theirs is None for mine, theirs in zip(value.shape, expected, strict=True))
