"""Everything that must hold of legalizing one random graph, as a list of what does not."""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from graphs import run
from random_graphs import RandomGraph

from relayout.backend import Backend, load_backend
from relayout.errors import InfeasibleError, UsageError
from relayout.legalize import legalize
from relayout.model_io import read_model
from relayout.report import Report
from relayout.totals import totals
from relayout.verify import verify

__all__ = ["Failure", "Settings", "check", "draw_settings", "runs"]

_NEVER_INFEASIBLE = ("onnx", "nchw")


@dataclass(frozen=True)
class Settings:
    """What the graph is legalized with."""

    backend: str = "onnx"
    objective: str = "bytes"
    desired_layouts: Mapping[str, Sequence[str]] | None = None
    input_layouts: Mapping[str, str] = field(default_factory=dict)
    output_layouts: Mapping[str, str] = field(default_factory=dict)
    second: str = "onnx"

    def loaded(self, backend: str = "") -> Backend:
        name = backend or self.backend
        wishes = self.desired_layouts if name == "convert-layout" else None
        return load_backend(name, options={"desired_layouts": wishes} if wishes else {})


@dataclass(frozen=True)
class Failure:
    """One thing that does not hold. `kind` is a word or two, the same for failures that are probably one bug."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def draw_settings(graph: RandomGraph) -> Settings:
    """A shipped backend, an objective, and sometimes boundary layouts."""
    draw = random.Random(graph.seed * 7919 + 13)
    backends = ["onnx"] * 5 + ["nhwc"] * 3 + ["nchw", "canonical", "opencl", "convert-layout", "convert-layout"]
    backend = draw.choice(backends)
    wishes = None
    if backend == "convert-layout":
        layouts = {
            "Conv": draw.choice(
                [("NHWC",), ("NHWC", "OHWI"), ("NCHW",), ("NHWC", "default"), ("HWNC",), ("NWC",), ("NDHWC",)]
            ),
            "ConvTranspose": draw.choice([("NHWC",), ("NHWC", "HWIO")]),
            "MaxPool": draw.choice([("NHWC",), ("NWC",), ("NHCW",)]),
            "AveragePool": ("NHWC",),
            "Resize": ("NHWC",),
            "QLinearConv": ("NHWC", "HWIO"),
            "DepthToSpace": ("NHWC",),
        }
        names = draw.sample(sorted(layouts), draw.randint(1, 4))
        wishes = {name: layouts[name] for name in names}
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    if draw.random() < 0.3:
        for values, chosen in ((graph.model.graph.input, inputs), (graph.model.graph.output, outputs)):
            for value in values:
                if draw.random() < 0.4:
                    rank = len(value.type.tensor_type.shape.dim)
                    letters = {3: "NCW", 4: "NCHW", 5: "NCDHW"}.get(rank, "")
                    mixed = "".join(draw.sample(letters, len(letters)))
                    chosen[value.name] = draw.choice(["any", mixed or "any"])
    return Settings(
        backend,
        "transposes" if draw.random() < 0.25 else "bytes",
        wishes,
        inputs,
        outputs,
        draw.choice(["onnx", "onnx", "nhwc", "nchw", "canonical"]),
    )


def runs(graph: RandomGraph) -> bool:
    """Whether this is a model at all: the checker accepts it and onnxruntime runs it."""
    try:
        onnx.checker.check_model(graph.model, full_check=True)
        run(graph.model, graph.feeds)
    except Exception:  # each of the two refuses in its own ways
        return False
    return True


def check(graph: RandomGraph, settings: Settings, *, deep: bool = False) -> list[Failure]:
    """What does not hold. `deep` adds the checks that take longer: the other engine, and the verifier's own run."""
    found: list[Failure] = []
    try:
        legalized = _legalized(graph.model, settings, settings.input_layouts, settings.output_layouts)
    except InfeasibleError as error:
        return [Failure("infeasible", str(error))] if settings.backend in _NEVER_INFEASIBLE else []
    except Exception as error:  # any other error is what we look for
        return [_crash("legalize", error)]
    if legalized is None:
        return []
    legal, report, options = legalized
    boundary = bool(options["input_layouts"] or options["output_layouts"])
    try:
        onnx.checker.check_model(legal, full_check=True)
    except Exception as error:
        found.append(Failure("checker", _line(error)))
    found += _numbers(graph, legal, "numbers")
    found += _accounts(graph, legal, report, settings, boundary)
    found += _verified(graph, legal, report, settings, boundary, numeric=deep)
    found += _again(graph, legal, report, settings)
    if not boundary:
        found += _elsewhere(graph, legal, settings)
    if deep:
        found += _other_engine(graph, report, settings, options)
        found += _same_twice(graph, legal, settings, options)
    return found


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


def _numbers(graph: RandomGraph, legal: onnx.ModelProto, kind: str) -> list[Failure]:
    expected = run(graph.model, graph.feeds)
    if [v.name for v in legal.graph.input] != [v.name for v in graph.model.graph.input] or (
        [v.name for v in legal.graph.output] != [v.name for v in graph.model.graph.output]
    ):
        return [Failure("names", f"{[v.name for v in (*legal.graph.input, *legal.graph.output)]}")]
    feeds = {}
    for value in legal.graph.input:
        array = graph.feeds[value.name]
        feeds[value.name] = array.transpose(_order(value, array.ndim)).copy(order="C")
    try:
        got = run(legal, feeds)
    except Exception as error:
        return [Failure(f"{kind}, cannot run", _line(error))]
    found = []
    for value, one, other in zip(legal.graph.output, expected, got, strict=True):
        one = one.transpose(_order(value, one.ndim))
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


def _order(value: onnx.ValueInfoProto, rank: int) -> tuple[int, ...]:
    told = {entry.key: entry.value for entry in value.metadata_props}
    return tuple(int(a) for a in told["relayout.order"].split(",")) if "relayout.order" in told else tuple(range(rank))


def _accounts(
    graph: RandomGraph, legal: onnx.ModelProto, report: Report, settings: Settings, boundary: bool
) -> list[Failure]:
    found = []
    if report.status != "optimal" or report.bound != report.cost:
        found.append(Failure("status", f"{report.status}, cost {report.cost}, bound {report.bound}"))
    own = sum(c.bytes for c in report.conversions)
    if report.cost != (own if settings.objective == "bytes" else len(report.conversions)):
        found.append(Failure("cost", f"cost {report.cost}, {len(report.conversions)} conversions of {own} bytes"))
    if not _all_shapes_known(graph.model) or not _all_shapes_known(legal):
        return found  # a dim of unknown size may be priced by one number before a Reshape and by another after it
    counted = totals(read_model(legal), {})
    if (counted.transposes, counted.bytes) != (report.after.transposes, report.after.bytes):
        found.append(Failure("totals", f"report says {report.after}, the legal model has {counted}"))
    # Transposes inside functions stay, and are no conversions.
    functions = any(node.domain not in ("", "relayout") for node in graph.model.graph.node)
    amount, count = report.after.bytes, report.after.transposes
    counts = amount if settings.objective == "bytes" else count
    if counts < report.cost or (counts != report.cost and not functions):
        found.append(Failure("accounts", f"cost {report.cost}, counted {counted}"))
    if settings.backend == "onnx" and not boundary:
        earlier = (report.before.bytes, report.before.transposes)
        later = (amount, count)
        if (later if settings.objective == "bytes" else later[::-1]) > (
            earlier if settings.objective == "bytes" else earlier[::-1]
        ):
            found.append(Failure("worse", f"{report.before} became {report.after}"))
    return found


def _all_shapes_known(model: onnx.ModelProto) -> bool:
    return all(shape is not None and shape.is_static() for shape in _shapes(model))


def _all_ranks_known(model: onnx.ModelProto) -> bool:
    return all(shape is not None for shape in _shapes(model))


def _shapes(model: onnx.ModelProto) -> list[Any]:
    read = read_model(model)
    values = [*read.graph.inputs, *(value for node in read.graph.all_nodes() for value in node.outputs)]
    return [value.shape for value in values if value.name]


def _again(graph: RandomGraph, legal: onnx.ModelProto, report: Report, settings: Settings) -> list[Failure]:
    try:
        twice, second = legalize(legal, settings.loaded(), objective=settings.objective)
    except Exception as error:
        return [_crash("again", error)]
    if second.cost != report.cost and _all_shapes_known(legal):
        return [Failure("again, cost", f"{report.cost} first, {second.cost} the second time")]
    if not _all_ranks_known(graph.model) or not _all_ranks_known(legal):
        return []  # what onnx knows of the legal model may be more than it knew of the source
    if [n.SerializeToString() for n in twice.graph.node] != [n.SerializeToString() for n in legal.graph.node]:
        return [Failure("again, nodes", _first_difference(legal, twice))]
    return []


def _first_difference(one: onnx.ModelProto, other: onnx.ModelProto) -> str:
    for a, b in zip(one.graph.node, other.graph.node, strict=False):
        if a != b:
            return f"{a.op_type} {list(a.input)} -> {b.op_type} {list(b.input)}"
    return f"{len(one.graph.node)} nodes became {len(other.graph.node)}"


def _elsewhere(graph: RandomGraph, legal: onnx.ModelProto, settings: Settings) -> list[Failure]:
    """A legal model is a model: another backend takes it, and it still computes the same."""
    try:
        moved, _ = legalize(legal, settings.loaded(settings.second))
    except InfeasibleError as error:
        return [Failure("infeasible, elsewhere", str(error))] if settings.second in _NEVER_INFEASIBLE else []
    except Exception as error:
        return [_crash("elsewhere", error)]
    try:
        onnx.checker.check_model(moved, full_check=True)
    except Exception as error:
        return [Failure("checker, elsewhere", _line(error))]
    return _numbers(graph, moved, f"numbers, {settings.backend} then {settings.second}")


def _verified(
    graph: RandomGraph, legal: onnx.ModelProto, report: Report, settings: Settings, boundary: bool, *, numeric: bool
) -> list[Failure]:
    if not _all_ranks_known(legal):
        return []  # a requirement of a tensor without a rank cannot be bound
    against = None if boundary else graph.model
    try:
        priced = report if _all_shapes_known(graph.model) and _all_shapes_known(legal) else None
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
