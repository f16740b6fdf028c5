"""All checks of the legalization of one random graph. The result is a list of failures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from equivalence import Failure, first_difference, node_texts, one_line, raised_at, refused_by_checker
from graphs import run
from random_graphs import RandomGraph
from random_settings import Settings

from relayout.candidates.aliases import collect_tensors
from relayout.candidates.axis_names import AxisNames
from relayout.errors import BackendError, InfeasibleError, OutOfTimeError, UsageError
from relayout.layout.metadata_keys import ATOMS_KEY, ORDER_KEY
from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.report.schema import Report
from relayout.report.totals import totals
from relayout.verification.memory_format import parse_atoms
from relayout.verification.verifier import verify

# Backends that require a layout only of operators that can take it. Glow's require it of GatherND too, for example.
_ALWAYS_FEASIBLE = frozenset(["auto-nhwc", "convert-layout", "nchw", "nhwc", "onnx", "tpu", "x86-nchwc", "xla-cpu"])
# Backends whose conversions are all Transposes.
_PLAIN = frozenset(["auto-nhwc", "canonical", "convert-layout", "nchw", "nhwc", "onnx", "opencl"])


def runs(graph: RandomGraph) -> bool:
    """Whether the checker accepts the model and onnxruntime runs it."""
    try:
        onnx.checker.check_model(graph.model, full_check=True)
        run(graph.model, graph.feeds)
    except Exception:  # the two raise many types of errors
        return False
    return True


def check(graph: RandomGraph, settings: Settings, *, deep: bool = False) -> list[Failure]:
    """The failed checks. `deep` adds the slow ones: the other engine, and the verifier's numeric check.

    An error inside a check, such as one on reading the legal model, is a failure too.
    """
    try:
        return _check(graph, settings, deep=deep)
    except Exception as error:
        return [_crash("the check", error)]


def _check(graph: RandomGraph, settings: Settings, *, deep: bool) -> list[Failure]:
    try:
        legalized = _legalized(graph.model, settings)
    except InfeasibleError as error:
        return [Failure("infeasible", str(error))] if settings.backend in _ALWAYS_FEASIBLE else []
    except BackendError as error:
        # onnxruntime has blocked kernels on x86 only.
        is_not_x86 = settings.backend == "x86-nchwc" and "option block" in f"{error.where} {error.hint}"
        return [] if is_not_x86 else [_crash("legalize", error)]
    except Exception as error:  # any other error is a failure
        return [_crash("legalize", error)]
    if legalized is None:
        return []
    case = _Case(
        graph, settings, *legalized, run(graph.model, graph.feeds), *map(read_model, (graph.model, legalized[0]))
    )
    found = refused_by_checker(case.legal, "checker")
    found += _numbers(case, case.legal, "numbers")
    found += _accounts(case)
    found += _verified(case, numeric=deep)
    found += _idempotence(case)
    if not case.has_boundary:
        found += _second_backend(case)
    if deep:
        found += _other_engine(case)
        found += _determinism(case)
    return found


@dataclass(frozen=True)
class _Case:
    """A random graph legalized with its settings; `numbers` are the source's outputs. `source_read` and `legal_read`
    are the source and the legal model as relayout reads them."""

    graph: RandomGraph
    settings: Settings
    legal: onnx.ModelProto
    report: Report
    options: dict[str, Any]
    numbers: list[np.ndarray]
    source_read: ir.Model
    legal_read: ir.Model

    @property
    def has_boundary(self) -> bool:
        """Whether a layout of a graph input or output was asked for."""
        return bool(self.options["input_layouts"] or self.options["output_layouts"])

    @cached_property
    def source_shapes(self) -> list[ir.Shape | None]:
        return _shapes(self.source_read)

    @cached_property
    def legal_shapes(self) -> list[ir.Shape | None]:
        return _shapes(self.legal_read)

    @property
    def all_shapes_known(self) -> bool:
        return all(shape is not None and shape.is_static() for shape in (*self.source_shapes, *self.legal_shapes))


def _legalized(model: onnx.ModelProto, settings: Settings) -> tuple[onnx.ModelProto, Report, dict[str, Any]] | None:
    """Legalize; respell boundary layouts that do not fit by the tensor's axis names, or drop them."""
    inputs, outputs = dict(settings.input_layouts), dict(settings.output_layouts)
    for _ in range(20):
        options = {"objective": settings.objective, "input_layouts": inputs, "output_layouts": outputs}
        try:
            legal, report = legalize(model, settings.loaded(), **options)  # type: ignore[arg-type]
        except UsageError as error:
            match = re.fullmatch(r"options\.(input|output)_layouts\[(.+)\]", error.where)
            if match is None:
                raise
            given = inputs if match[1] == "input" else outputs
            wanted = given.pop(match[2])
            letters = re.match(r"the axis names (\S+) in any order", error.expected)
            if letters and wanted != "any" and "(" not in wanted:
                given[match[2]] = letters[1][::-1]
            continue
        return legal, report, options
    return None


def _numbers(case: _Case, legal: onnx.ModelProto, kind: str) -> list[Failure]:
    graph = case.graph
    names, expected = (
        [[value.name for value in values] for values in (model.graph.input, model.graph.output)]
        for model in (legal, graph.model)
    )
    if names != expected:
        return [Failure("names", f"{names}")]
    feeds = {value.name: in_boundary_format(value, graph.feeds[value.name]) for value in legal.graph.input}
    try:
        got = run(legal, feeds)
    except Exception as error:
        return [Failure(f"{kind}, cannot run", one_line(error))]
    found = []
    for value, one, other in zip(legal.graph.output, case.numbers, got, strict=True):
        one = in_boundary_format(value, one)
        if one.shape != other.shape or one.dtype != other.dtype:
            text = f"{value.name}: {one.shape} {one.dtype}, got {other.shape} {other.dtype}"
            found.append(Failure(f"{kind}, shape", text))
        elif one.dtype.kind == "f":
            allowed = graph.tolerances[value.name]
            most = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))
            if not most <= allowed:
                found.append(Failure(kind, f"{value.name}: {most:.3g} apart, allowed {allowed:.3g}"))
        elif not np.array_equal(one, other):
            found.append(Failure(kind, f"{value.name}: {int((one != other).sum())} of {one.size} differ"))
    return found


def in_boundary_format(value: onnx.ValueInfoProto, array: np.ndarray) -> np.ndarray:
    """The source's array in the format of the legal model's input or output."""
    metadata = {entry.key: entry.value for entry in value.metadata_props}
    if ATOMS_KEY in metadata:
        format_ = parse_atoms(metadata[ATOMS_KEY])
        converted = format_.of(array) if format_ is not None else None
        assert converted is not None, f"{value.name}: {metadata[ATOMS_KEY]} of {array.shape}"
        return np.ascontiguousarray(converted)
    order = [int(axis) for axis in metadata[ORDER_KEY].split(",")] if ORDER_KEY in metadata else list(range(array.ndim))
    return np.ascontiguousarray(array.transpose(order)).reshape([array.shape[axis] for axis in order])


def _accounts(case: _Case) -> list[Failure]:
    found = []
    report, settings = case.report, case.settings
    if report.status != "optimal" or report.bound != report.cost:
        found.append(Failure("status", f"{report.status}, cost {report.cost}, bound {report.bound}"))
    in_bytes = settings.objective == "bytes"
    own = sum(c.bytes for c in report.conversions)
    own_cost = own if in_bytes else sum(c.passes for c in report.conversions)
    if report.cost < own_cost:  # the rest is the cost of implementations
        found.append(Failure("cost", f"cost {report.cost}, {len(report.conversions)} conversions of {own} bytes"))
    if not case.all_shapes_known:
        return found  # the estimates of an unknown dim may differ before and after a Reshape
    counted = totals(case.legal_read, {})
    if (counted.transposes, counted.bytes) != (report.after.transposes, report.after.bytes):
        found.append(Failure("totals", f"report says {report.after}, the legal model has {counted}"))
    # The objective's own measure first, then the other one.
    earlier, later = (
        (each.bytes, each.transposes) if in_bytes else (each.transposes, each.bytes)
        for each in (report.before, report.after)
    )
    # Transposes inside functions remain, and are not conversions.
    functions = any(node.domain not in ("", "relayout") for node in case.graph.model.graph.node)
    if settings.backend in _PLAIN and (later[0] < own_cost or (later[0] != own_cost and not functions)):
        found.append(Failure("accounts", f"conversions cost {own_cost}, counted {counted}"))
    if settings.backend == "onnx" and not case.has_boundary and later > earlier:
        found.append(Failure("worse", f"{report.before} became {report.after}"))
    return found


def _shapes(read: ir.Model) -> list[ir.Shape | None]:
    values = [*read.graph.inputs, *(value for node in read.graph.all_nodes() for value in node.outputs)]
    return [value.shape for value in values if value.name]


def _idempotence(case: _Case) -> list[Failure]:
    report = case.report
    try:
        twice, second = legalize(case.legal, case.settings.loaded(), objective=case.settings.objective, verify=False)
    except Exception as error:
        return [_crash("again", error)]
    # The cost of a decomposition does not recur: its parts have none.
    if second.cost > report.cost and case.all_shapes_known:
        return [Failure("again, cost", f"{report.cost} first, {second.cost} the second time")]
    if not case.all_shapes_known and (second.cost, second.after.bytes) != (report.cost, report.after.bytes):
        return []  # unknown dims are estimated from neighbours, and these differ
    if any(shape is None for shape in (*case.source_shapes, *case.legal_shapes)):
        return []  # onnx may infer more of the legal model than of the source
    if node_texts(twice) == node_texts(case.legal):
        return []
    read = case.source_read
    if second.cost < report.cost and AxisNames(collect_tensors(read.graph, read.opset_imports)).has_conflicting:
        # If operators name one axis differently, the name that an operator between them uses depends on their order.
        return _numbers(case, twice, "numbers, again")
    return [Failure("again, nodes", first_difference(case.legal, twice))]


def _second_backend(case: _Case) -> list[Failure]:
    """Legalize the legal model for a second backend; the numbers must stay the same."""
    first, second = case.settings.backend, case.settings.second
    try:
        moved, _ = legalize(case.legal, case.settings.loaded(second), verify=False)
    except InfeasibleError as error:
        return [Failure("infeasible, elsewhere", str(error))] if second in _ALWAYS_FEASIBLE else []
    except BackendError as error:
        return [] if second == "x86-nchwc" else [_crash("elsewhere", error)]
    except Exception as error:
        return [_crash("elsewhere", error)]
    return refused_by_checker(moved, "checker, elsewhere") or _numbers(case, moved, f"numbers, {first} then {second}")


def _verified(case: _Case, *, numeric: bool) -> list[Failure]:
    if not all(shape is not None for shape in case.legal_shapes):
        return []  # a requirement cannot bind to a tensor without a rank
    against = None if case.has_boundary else case.graph.model
    try:
        checked = verify(
            case.legal, case.settings.loaded(), against=against, run=numeric, report=case.report, static=True
        )
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


def _other_engine(case: _Case) -> list[Failure]:
    try:
        options = {**case.options, "engine": "cp-sat", "time_limit": 20, "verify": False}
        _, other = legalize(case.graph.model, case.settings.loaded(), **options)
    except OutOfTimeError:
        return []
    except Exception as error:
        return [_crash("cp-sat", error)]
    if other.status == "optimal" and other.cost != case.report.cost:
        return [Failure("engines", f"auto {case.report.cost}, cp-sat {other.cost}")]
    return []


def _determinism(case: _Case) -> list[Failure]:
    other, _ = legalize(case.graph.model, case.settings.loaded(), **case.options)
    if other.SerializeToString(deterministic=True) != case.legal.SerializeToString(deterministic=True):
        return [Failure("not the same twice", first_difference(case.legal, other))]
    return []


def _crash(stage: str, error: Exception) -> Failure:
    return Failure(f"{stage} crashes, {type(error).__name__} at {raised_at(error)}", one_line(error))
