"""Everything that must hold of legalizing one random graph, as a list of what does not."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from graphs import run
from random_graphs import RandomGraph
from random_settings import Settings

from relayout.candidates.axis_names import AxisNames
from relayout.candidates.tensors import collect_tensors
from relayout.errors import BackendError, InfeasibleError, OutOfTimeError, UsageError
from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.report.schema import Report
from relayout.report.totals import totals
from relayout.verification.memory_format import ATOMS, ORDER, parse_atoms
from relayout.verification.verifier import verify

__all__ = ["Failure", "check", "laid", "runs"]

# Those that ask a layout only of operators that can be written in it; Glow's ask it of GatherND and the like too.
_ALWAYS_FEASIBLE = frozenset(["auto-nhwc", "convert-layout", "nchw", "nhwc", "onnx", "tpu", "x86-nchwc", "xla-cpu"])
# Those whose conversions are Transposes.
_PLAIN = frozenset(["auto-nhwc", "canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"])


@dataclass(frozen=True)
class Failure:
    """One thing that does not hold. `kind` is a word or two, the same for failures that are probably one bug."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def runs(graph: RandomGraph) -> bool:
    """Whether this is a model at all: the checker accepts it and onnxruntime runs it."""
    try:
        onnx.checker.check_model(graph.model, full_check=True)
        run(graph.model, graph.feeds)
    except Exception:  # each of the two refuses in its own ways
        return False
    return True


def check(graph: RandomGraph, settings: Settings, *, deep: bool = False) -> list[Failure]:
    """What does not hold. `deep` adds the checks that take longer: the other engine, and the verifier's own run.

    A check that cannot even read what was written is a failure like any other.
    """
    try:
        return _check(graph, settings, deep=deep)
    except Exception as error:
        return [_crash("the check", error)]


def _check(graph: RandomGraph, settings: Settings, *, deep: bool) -> list[Failure]:
    found: list[Failure] = []
    try:
        legalized = _legalized(graph.model, settings, settings.input_layouts, settings.output_layouts)
    except InfeasibleError as error:
        return [Failure("infeasible", str(error))] if _is_feasible(settings) else []
    except BackendError as error:
        # Elsewhere than on x86 onnxruntime has no blocks.
        is_elsewhere = settings.backend == "x86-nchwc" and "option block" in f"{error.where} {error.hint}"
        return [] if is_elsewhere else [_crash("legalize", error)]
    except Exception as error:  # any other error is what we look for
        return [_crash("legalize", error)]
    if legalized is None:
        return []
    legal, report, options = legalized
    boundary = bool(options["input_layouts"] or options["output_layouts"])
    facts = _Facts(run(graph.model, graph.feeds), _shapes(graph.model), _shapes(legal))
    try:
        onnx.checker.check_model(legal, full_check=True)
    except Exception as error:
        found.append(Failure("checker", _line(error)))
    found += _numbers(graph, facts, legal, "numbers")
    found += _accounts(graph, facts, legal, report, settings, boundary)
    found += _verified(graph, facts, legal, report, settings, boundary, numeric=deep)
    found += _again(graph, facts, legal, report, settings)
    if not boundary:
        found += _elsewhere(graph, facts, legal, settings)
    if deep:
        found += _other_engine(graph, report, settings, options)
        found += _same_twice(graph, legal, settings, options)
    return found


def _is_feasible(settings: Settings) -> bool:
    """Whether a model must come of it."""
    return settings.backend in _ALWAYS_FEASIBLE


def _legalized(
    model: onnx.ModelProto, settings: Settings, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> tuple[onnx.ModelProto, Report, dict[str, Any]] | None:
    """Legalize with these boundary layouts; one that does not fit is spelled with the tensor's letters, or dropped."""
    inputs, outputs = dict(inputs), dict(outputs)
    for _ in range(20):
        options = {"objective": settings.objective, "input_layouts": inputs, "output_layouts": outputs}
        try:
            legal, report = legalize(model, settings.loaded(), **options)  # type: ignore[arg-type]
        except UsageError as error:
            said = re.match(r"--(input|output)-layout (\S+)", error.where)
            if said is None:
                raise
            given = inputs if said[1] == "input" else outputs
            wanted = given.pop(said[2])
            letters = re.match(r"the letters of (\S+) in any order", error.expected)
            if letters and wanted != "any" and "(" not in wanted:
                given[said[2]] = letters[1][::-1]
            continue
        return legal, report, options
    return None


def _numbers(graph: RandomGraph, facts: _Facts, legal: onnx.ModelProto, kind: str) -> list[Failure]:
    if [v.name for v in legal.graph.input] != [v.name for v in graph.model.graph.input] or (
        [v.name for v in legal.graph.output] != [v.name for v in graph.model.graph.output]
    ):
        return [Failure("names", f"{[v.name for v in (*legal.graph.input, *legal.graph.output)]}")]
    feeds = {}
    for value in legal.graph.input:
        feeds[value.name] = laid(value, graph.feeds[value.name])
    try:
        got = run(legal, feeds)
    except Exception as error:
        return [Failure(f"{kind}, cannot run", _line(error))]
    found = []
    for value, one, other in zip(legal.graph.output, facts.numbers, got, strict=True):
        one = laid(value, one)
        if one.shape != other.shape or one.dtype != other.dtype:
            found.append(
                Failure(f"{kind}, shape", f"{value.name}: {one.shape} {one.dtype}, got {other.shape} {other.dtype}")
            )
        elif one.dtype.kind == "f":
            apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
            most = float(apart.max(initial=0.0))
            if not most <= graph.tolerances[value.name]:
                found.append(
                    Failure(kind, f"{value.name}: {most:.3g} apart, allowed {graph.tolerances[value.name]:.3g}")
                )
        elif not np.array_equal(one, other):
            found.append(Failure(kind, f"{value.name}: {int((one != other).sum())} of {one.size} differ"))
    return found


def laid(value: onnx.ValueInfoProto, array: np.ndarray) -> np.ndarray:
    """The source's array as the legal model's input or output holds it."""
    told = {entry.key: entry.value for entry in value.metadata_props}
    if ATOMS in told:
        arrangement = parse_atoms(told[ATOMS])
        arranged = arrangement.of(array) if arrangement is not None else None
        assert arranged is not None, f"{value.name}: {told[ATOMS]} of {array.shape}"
        return np.ascontiguousarray(arranged)
    order = [int(axis) for axis in told[ORDER].split(",")] if ORDER in told else list(range(array.ndim))
    return np.ascontiguousarray(array.transpose(order)).reshape([array.shape[axis] for axis in order])


def _accounts(
    graph: RandomGraph,
    facts: _Facts,
    legal: onnx.ModelProto,
    report: Report,
    settings: Settings,
    boundary: bool,
) -> list[Failure]:
    found = []
    if report.status != "optimal" or report.bound != report.cost:
        found.append(Failure("status", f"{report.status}, cost {report.cost}, bound {report.bound}"))
    own = sum(c.bytes for c in report.conversions)
    own_cost = own if settings.objective == "bytes" else sum(c.passes for c in report.conversions)
    if report.cost < own_cost:  # what an implementation costs comes on top
        found.append(Failure("cost", f"cost {report.cost}, {len(report.conversions)} conversions of {own} bytes"))
    if not facts.all_shapes_known:
        return found  # a dim of unknown size may be priced by one number before a Reshape and by another after it
    counted = totals(read_model(legal), {})
    if (counted.transposes, counted.bytes) != (report.after.transposes, report.after.bytes):
        found.append(Failure("totals", f"report says {report.after}, the legal model has {counted}"))
    # Transposes inside functions stay, and are no conversions.
    functions = any(node.domain not in ("", "relayout") for node in graph.model.graph.node)
    amount, count = report.after.bytes, report.after.transposes
    counts = amount if settings.objective == "bytes" else count
    if settings.backend in _PLAIN and (counts < own_cost or (counts != own_cost and not functions)):
        found.append(Failure("accounts", f"conversions cost {own_cost}, counted {counted}"))
    if settings.backend == "onnx" and not boundary:
        earlier = (report.before.bytes, report.before.transposes)
        later = (amount, count)
        if (later if settings.objective == "bytes" else later[::-1]) > (
            earlier if settings.objective == "bytes" else earlier[::-1]
        ):
            found.append(Failure("worse", f"{report.before} became {report.after}"))
    return found


def _shapes(model: onnx.ModelProto) -> list[Any]:
    read = read_model(model)
    values = [*read.graph.inputs, *(value for node in read.graph.all_nodes() for value in node.outputs)]
    return [value.shape for value in values if value.name]


@dataclass(frozen=True)
class _Facts:
    """What the source computes, and what is known of its shapes and of the legal model's."""

    numbers: list[np.ndarray]
    source: list[Any]
    legal: list[Any]

    @property
    def all_shapes_known(self) -> bool:
        return all(shape is not None and shape.is_static() for shape in (*self.source, *self.legal))

    @property
    def all_ranks_known(self) -> bool:
        """Whether a rank is known of every value, in the source as in the legal model."""
        return all(shape is not None for shape in (*self.source, *self.legal))


def _again(
    graph: RandomGraph, facts: _Facts, legal: onnx.ModelProto, report: Report, settings: Settings
) -> list[Failure]:
    try:
        twice, second = legalize(legal, settings.loaded(), objective=settings.objective)
    except Exception as error:
        return [_crash("again", error)]
    # What a decomposition cost is not asked of its parts again.
    if second.cost > report.cost and facts.all_shapes_known:
        return [Failure("again, cost", f"{report.cost} first, {second.cost} the second time")]
    if not facts.all_shapes_known and (second.cost, second.after.bytes) != (report.cost, report.after.bytes):
        return []  # what is not known of a shape is priced by what is known of its neighbours
    if not facts.all_ranks_known:
        return []  # what onnx knows of the legal model may be more than it knew of the source
    if _text(twice) == _text(legal):
        return []
    if second.cost < report.cost and _has_two_names(graph.model):
        # Where operators call one axis by different names, which of them counts for an operator between hangs on their
        # order.
        return _numbers(graph, facts, twice, "numbers, again")
    return [Failure("again, nodes", _first_difference(legal, twice))]


def _has_two_names(model: onnx.ModelProto) -> bool:
    read = read_model(model)
    return AxisNames(collect_tensors(read.graph, read.opset_imports)).has_conflicting


def _text(model: onnx.ModelProto) -> list[bytes]:
    """The nodes, without what is only known of the shapes inside their subgraphs."""
    nodes = []
    for node in model.graph.node:
        bare = onnx.NodeProto()
        bare.CopyFrom(node)
        for attribute in bare.attribute:
            attribute.g.ClearField("value_info")
            for value in attribute.g.output:
                value.ClearField("type")
        nodes.append(bare.SerializeToString(deterministic=True))
    return nodes


def _first_difference(one: onnx.ModelProto, other: onnx.ModelProto) -> str:
    for a, b in zip(one.graph.node, other.graph.node, strict=False):
        if a != b:
            return f"{a.op_type} {list(a.input)} -> {b.op_type} {list(b.input)}"
    return f"{len(one.graph.node)} nodes became {len(other.graph.node)}"


def _elsewhere(graph: RandomGraph, facts: _Facts, legal: onnx.ModelProto, settings: Settings) -> list[Failure]:
    """A legal model is a model: another backend takes it, and it still computes the same."""
    try:
        moved, _ = legalize(legal, settings.loaded(settings.second))
    except InfeasibleError as error:
        return [Failure("infeasible, elsewhere", str(error))] if settings.second in _ALWAYS_FEASIBLE else []
    except BackendError as error:
        return [] if settings.second == "x86-nchwc" else [_crash("elsewhere", error)]
    except Exception as error:
        return [_crash("elsewhere", error)]
    try:
        onnx.checker.check_model(moved, full_check=True)
    except Exception as error:
        return [Failure("checker, elsewhere", _line(error))]
    return _numbers(graph, facts, moved, f"numbers, {settings.backend} then {settings.second}")


def _verified(
    graph: RandomGraph,
    facts: _Facts,
    legal: onnx.ModelProto,
    report: Report,
    settings: Settings,
    boundary: bool,
    *,
    numeric: bool,
) -> list[Failure]:
    if not all(shape is not None for shape in facts.legal):
        return []  # a requirement of a tensor without a rank cannot be bound
    against = None if boundary else graph.model
    try:
        priced = report if facts.all_shapes_known else None
        checked = verify(legal, settings.loaded(), against=against, run=numeric, report=priced)
    except Exception as error:
        return [_crash("verify", error)]
    return [
        Failure(
            f"verifier, {finding.rule}",
            f"{finding.node} {finding.operand}: {finding.message}; {finding.expected}, {finding.found}",
        )
        for finding in checked.findings
        if finding.severity == "error"
    ]


def _other_engine(graph: RandomGraph, report: Report, settings: Settings, options: Mapping[str, Any]) -> list[Failure]:
    try:
        _, other = legalize(graph.model, settings.loaded(), engine="cp-sat", time_limit=20, **options)
    except OutOfTimeError:
        return []
    except Exception as error:
        return [_crash("cp-sat", error)]
    if other.status == "optimal" and other.cost != report.cost:
        return [Failure("engines", f"auto {report.cost}, cp-sat {other.cost}")]
    return []


def _same_twice(
    graph: RandomGraph, legal: onnx.ModelProto, settings: Settings, options: Mapping[str, Any]
) -> list[Failure]:
    other, _ = legalize(graph.model, settings.loaded(), **options)
    if other.SerializeToString(deterministic=True) != legal.SerializeToString(deterministic=True):
        return [Failure("not the same twice", _first_difference(legal, other))]
    return []


def _crash(stage: str, error: Exception) -> Failure:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    return Failure(f"{stage} crashes, {type(error).__name__} at {place}", _line(error))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
