"""onnx's own node tests: a model of one operator, its inputs and the outputs that it must give, about 1,900 of them.

`check` legalizes one for a backend and returns everything that does not hold of the result. The expected outputs come
from onnx, so that neither relayout nor its verifier is its own oracle here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any
from unittest.mock import patch

# onnxruntime reads it when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
from equivalence import Failure, first_difference, node_texts, one_line, raised_at, refused_by_checker
from graphs import run
from onnx import helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator
from random_settings import shipped

from relayout import legalize, verify
from relayout.backend import Backend, load_backend
from relayout.errors import InfeasibleError, InputError, RelayoutError
from relayout.report.schema import Report
from relayout.verification.constants import RANDOM

KINDS = ("crash", "checker", "numbers", "verify", "second run", "cost")
"""The kinds of failures in the result of one test and backend."""
RUNTIMES = ("onnxruntime", "onnx.reference")
# The tolerated difference of elements, relative to the largest: a legal model may add in another order. Others: none.
_TOLERANCE = {"float64": 1e-7, "float32": 1e-4, "complex64": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
# onnxruntime reads models up to this version; what later ones add to the file format no node test has.
_IR_VERSION = 13


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model with inputs by name and the outputs that are expected of it."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Any]
    expected: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one case under one backend.

    `refused` is the error that says why there is no legal model. `runtime` judged the numbers; it is empty where none
    gives the expected outputs from the source.
    """

    refused: RelayoutError | None = None
    is_legal: bool = False
    runtime: str = ""
    faults: tuple[Failure, ...] = ()


@cache
def cases() -> tuple[Case, ...]:
    """All node tests of the installed onnx, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return tuple(_case(test) for test in sorted(found, key=lambda test: str(test.name)))


def _case(test: Any) -> Case:
    ((inputs, outputs),) = test.data_sets
    names = [value.name for value in test.model.graph.input]
    feeds = dict(zip(names, map(_array, inputs), strict=True))
    return Case(test.name, test.model, feeds, tuple(map(_array, outputs)))


def _array(given: Any) -> Any:
    """A tensor as an array, a sequence as a list of arrays, an empty optional as None."""
    if given is None:
        return None
    if isinstance(given, list):
        return [_array(part) for part in given]
    return numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)


def operators(case: Case) -> set[str]:
    return {node.op_type for node in case.model.graph.node}


def sample(every: int) -> list[Case]:
    """By name, each case with an operator that no earlier one has, and of the others each `every`-th."""
    seen: set[str] = set()
    chosen = []
    others = 0
    for case in cases():
        new = not operators(case) <= seen
        seen |= operators(case)
        others += not new
        if new or others % every == 0:
            chosen.append(case)
    return chosen


@cache
def backends() -> dict[str, Backend]:
    """Every backend that ships, with its own defaults."""
    return {name: load_backend(name) for name in shipped()}


def wrapped(case: Case) -> Case:
    """The same case, each input and output of two axes or more led through two Transposes that cancel each other."""
    model = deepcopy(case.model)
    graph = model.graph
    before, after = [], []
    feeds = dict(case.feeds)
    for value in graph.input:
        if (rank := _rank(value)) >= 2:
            inner = value.name
            value.name = f"{inner}_given"
            feeds[value.name] = feeds.pop(inner)
            before += _there_and_back(value.name, inner, rank)
    for n, value in enumerate(graph.output):
        if (rank := _rank(value)) >= 2:
            inner = value.name
            # onnx infers no shape of some operators' results, and this one is known.
            graph.value_info.append(value)
            value.name = f"{inner}_left_{n}"
            after += _there_and_back(inner, value.name, rank)
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    if (before or after) and not any(opset.domain in ("", "ai.onnx") for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 21))
    return replace(case, model=model, feeds=feeds)


def _rank(value: onnx.ValueInfoProto) -> int:
    kind = value.type.tensor_type
    return len(kind.shape.dim) if value.type.HasField("tensor_type") and kind.HasField("shape") else 0


def _there_and_back(given: str, result: str, rank: int) -> list[onnx.NodeProto]:
    """The axes go round by one and back; an operator stands between, so that the two do not read each other."""
    there, back = [*range(1, rank), 0], [rank - 1, *range(rank - 1)]
    return [
        helper.make_node("Transpose", [given], [f"{result}_turned"], perm=there, name=f"{result}_there"),
        helper.make_node("Identity", [f"{result}_turned"], [f"{result}_held"], name=f"{result}_between"),
        helper.make_node("Transpose", [f"{result}_held"], [result], perm=back, name=f"{result}_back"),
    ]


def check(case: Case, backend: str, *, unwrapped: Case | None = None) -> Outcome:
    """Legalize the case for the backend and look at what comes of it.

    `unwrapped` is the case without the Transposes that `wrapped` put around it: their cost is then compared.
    """
    chosen = backends()[backend]
    try:
        legal, report = legalize(case.model, chosen)
    except (InputError, InfeasibleError) as error:
        return Outcome(refused=error)
    except Exception as error:  # any other error is what we look for
        return Outcome(faults=(_crash("legalize", error),))
    runtime = _runtime(case)
    faults = [*_checker(case, legal), *_numbers(case, legal, runtime), *_verified(case, legal, report, chosen)]
    faults += _again(legal, report, chosen)
    if report.status != "optimal" or report.bound != report.cost:
        faults.append(Failure("cost", f"{report.status}, cost {report.cost}, bound {report.bound}"))
    if unwrapped is not None:
        faults += _no_dearer(unwrapped, report, chosen)
    return Outcome(is_legal=True, runtime=runtime, faults=tuple(faults))


@lru_cache(maxsize=8)
def _runtime(case: Case) -> str:
    """The first runtime that gives the expected outputs from the source; empty where none does.

    Drawn numbers are the expected ones by chance alone, and the legal model need not draw them again.
    """
    if operators(case) & RANDOM:
        return ""
    return next((each for each in RUNTIMES if _differing(case, case.model, each) == []), "")


def _differing(case: Case, model: onnx.ModelProto, runtime: str) -> list[str] | None:
    """Which outputs are not as expected, each with its reason; None where the runtime does not run the model."""
    try:
        found = _run(model, case.feeds, runtime)
    except Exception:  # each runtime refuses in its own ways
        return None
    if len(found) != len(case.expected):
        return [f"{len(case.expected)} outputs expected, {len(found)} found"]
    names = [value.name for value in case.model.graph.output]
    reasons = map(_difference, case.expected, found)
    return [f"{name}: {reason}" for name, reason in zip(names, reasons, strict=True) if reason]


def _run(model: onnx.ModelProto, feeds: Mapping[str, Any], runtime: str) -> list[Any]:
    if runtime == "onnxruntime":
        known = deepcopy(model)
        known.ir_version = min(model.ir_version, _IR_VERSION)
        with patch.dict(os.environ, ALLOW_RELEASED_ONNX_OPSET_ONLY="0"):
            return run(known, feeds)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(inliner.inline_local_functions(model)).run(None, dict(feeds)))


def _difference(expected: Any, found: Any) -> str:
    """Why `found` is not what is expected, in a few words; empty where it is."""
    if expected is None or found is None:
        return "" if expected is found else f"{expected!r} expected, {found!r} found"
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return f"a sequence of {len(expected)} expected"
        return next(filter(None, map(_difference, expected, found)), "")
    one, other = np.asarray(expected), np.asarray(found)
    texts = {one.dtype.kind, other.dtype.kind} <= {*"OSU"}
    if one.shape != other.shape or not (texts or one.dtype == other.dtype):
        return f"{one.dtype} of {one.shape} expected, {other.dtype} of {other.shape} found"
    if one.dtype.kind in "biuOSU":
        return "" if np.array_equal(one, other) else f"{int(np.sum(one != other))} of {one.size} elements differ"
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    one, other = one.astype(wide), other.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.abs(one[np.isfinite(one)])
        allowed = _TOLERANCE.get(expected.dtype.name, 0.0) * float(finite.max(initial=0.0))
        apart = np.abs(one - other)
        wrong = ~((apart <= allowed) | (one == other) | (np.isnan(one) & np.isnan(other)))
    count = int(wrong.sum())
    return f"{count} of {wrong.size} elements differ, by up to {apart[wrong].max():.3g}" if count else ""


def _checker(case: Case, legal: onnx.ModelProto) -> list[Failure]:
    """None where the source is no better."""
    found = refused_by_checker(legal, "checker")
    return [] if found and refused_by_checker(case.model, "checker") else found


def _numbers(case: Case, legal: onnx.ModelProto, runtime: str) -> Iterator[Failure]:
    """Where onnxruntime lacks an operator that only the legal model has, onnx's reference evaluator runs it."""
    if not runtime:
        return
    for each in RUNTIMES[RUNTIMES.index(runtime) :]:
        differing = _differing(case, legal, each)
        if differing is not None:
            yield from (Failure("numbers", f"{reason} ({each})") for reason in differing)
            return
    yield Failure("numbers", f"{runtime} runs the source, and no runtime the legal model")


def _verified(case: Case, legal: onnx.ModelProto, report: Report, backend: Backend) -> Iterator[Failure]:
    try:
        found = verify(legal, backend, against=case.model, report=report, samples=1, static=True)
    except Exception as error:  # a finding is never an exception
        yield _crash("verify", error)
        return
    for finding in found.findings:
        if finding.severity == "error":
            told = f"{finding.node}: {finding.message}; {finding.expected}; {finding.found}"
            yield Failure("verify", f"{finding.rule}, {told}")


def _again(legal: onnx.ModelProto, report: Report, backend: Backend) -> Iterator[Failure]:
    """A legal model is legal: legalizing it once more changes no node and costs no more."""
    try:
        twice, second = legalize(legal, backend, verify=False)
    except Exception as error:  # what was made legal can be read and is feasible
        yield _crash("second run", error)
        return
    if second.cost is None or report.cost is None or second.cost > report.cost:
        yield Failure("second run", f"cost {report.cost} first, then {second.cost}")
    if node_texts(twice) != node_texts(legal):
        yield Failure("second run", f"{first_difference(legal, twice)}; cost {report.cost} first, then {second.cost}")


def _no_dearer(unwrapped: Case, report: Report, backend: Backend) -> Iterator[Failure]:
    _, alone = legalize(unwrapped.model, backend, verify=False)
    if alone.cost is None or report.cost is None or report.cost > alone.cost:
        yield Failure("cost", f"{alone.cost} without Transposes that cancel, {report.cost} with them")


def _crash(stage: str, error: Exception) -> Failure:
    return Failure("crash", f"{stage}, {type(error).__name__} at {raised_at(error)}: {one_line(error)}")
