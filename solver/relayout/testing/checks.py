"""The checks of a backend: its class, its answers about every node of a graph, and what legalization makes of them.

A fault names the graph, the node and the backend's own line where there is one. `KINDS` lists the kinds of faults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import onnx
import onnx_ir as ir

from relayout.backend.calls import ask, supported_by
from relayout.backend.failures import failure_text
from relayout.backend.interface import Backend, Implementation
from relayout.backend.loading import load_backend
from relayout.backend.members import answers_by_type, misspelt_hooks
from relayout.backend.registry import find_backends
from relayout.errors import BackendError, InfeasibleError, RelayoutError
from relayout.legalization import BackendSpec, legalize
from relayout.model.io import read_model
from relayout.model.proto_graphs import STANDARD_DOMAINS, nodes_inside
from relayout.report.schema import Report
from relayout.testing.graphs import SampleGraph, sample_graphs
from relayout.verification.verifier import verify

KINDS: Mapping[str, str] = {
    "load": "the backend cannot be found, imported or made",
    "hook": "a method that relayout never calls, or one with other parameters than it is called with",
    "name": "another installed backend has the name",
    "answer": "an answer is missing or malformed, or a hook raises",
    "nondeterministic": "two equal questions get different answers",
    "mutation": "a hook changes the model that it is asked about",
    "infeasible": "no legal model exists",
    "layout": "the verifier refuses the legal model",
    "numbers": "the legal model computes something else",
    "second run": "legalizing the legal model again changes it",
    "crash": "relayout itself fails",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `kind` is a key of `KINDS`; `graph` is empty for a fault of the class."""

    kind: str
    message: str
    graph: str = ""

    def __str__(self) -> str:
        return f"[{self.kind}] {f'{self.graph}: ' if self.graph else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class BackendReport:
    """The outcome: the faults, the number of graphs, and those whose numbers were not compared, with the reason."""

    backend: str
    graphs: int
    faults: tuple[Fault, ...]
    not_compared: Mapping[str, str] = field(default_factory=dict)
    infeasible: tuple[str, ...] = ()
    """The graphs that have no legal model, as `allow_infeasible` permits."""

    @property
    def passed(self) -> bool:
        """Whether there is no fault."""
        return not self.faults


def check_backend(
    backend: BackendSpec,
    *,
    options: Mapping[str, Any] | None = None,
    graphs: Iterable[SampleGraph] | None = None,
    allow_infeasible: Sequence[str] = (),
    progress: Callable[[str], None] = lambda graph: None,
) -> BackendReport:
    """Run a backend through `graphs` (default: every generated one and the models that ship with onnx).

    `backend` is whatever `load_backend` takes, `options` are its options. A graph without a legal model is a fault
    unless its name fits one of the patterns `allow_infeasible`. No fault is raised: the report has all of them.
    """
    faults = list(backend_faults(backend, options))
    if any(fault.kind == "load" for fault in faults):
        return BackendReport(str(backend), 0, tuple(faults))
    name = load_backend(backend, options=options).name
    not_compared: dict[str, str] = {}
    infeasible: list[str] = []
    chosen = sample_graphs() if graphs is None else list(graphs)
    for graph in chosen:
        progress(graph.name)
        for fault in check_graph(backend, graph, options=options, not_compared=not_compared):
            if fault.kind == "infeasible" and any(fnmatchcase(graph.name, each) for each in allow_infeasible):
                infeasible.append(graph.name)
            else:
                faults.append(fault)
    return BackendReport(name, len(chosen), tuple(faults), not_compared, tuple(infeasible))


def backend_faults(backend: BackendSpec, options: Mapping[str, Any] | None = None) -> Iterator[Fault]:
    """The faults of the class: it cannot be made, its name is taken, or a method is not what relayout calls."""
    try:
        made = load_backend(backend, options=options)
    except RelayoutError as error:
        yield Fault("load", str(error))
        return
    yield from _hook_faults(made)
    try:
        plugin = find_backends().get(made.name)
        found = plugin.load() if plugin is not None else None
    except BackendError as error:
        yield Fault("name", str(error))
        return
    if plugin is not None and found is not type(made) and found is not made:
        yield Fault("name", f"{made.name!r} is the name of the backend of {plugin.owner} ({plugin.value}) too")


def _hook_faults(backend: Backend) -> Iterator[Fault]:
    for text in misspelt_hooks(backend):
        yield Fault("hook", text)
    kind = type(backend)
    for base in kind.__mro__[: kind.__mro__.index(Backend)]:
        if base.__module__.partition(".")[0] == "relayout":
            continue
        for name, member in vars(base).items():
            hook = vars(Backend).get(name)
            if inspect.isfunction(member) and inspect.isfunction(hook) and not name.startswith("_"):
                yield from _parameter_faults(f"{base.__name__}.{name}", member, hook)


def _parameter_faults(where: str, own: Any, hook: Any) -> Iterator[Fault]:
    """A fault where the hook's call does not fit the method's parameters."""
    called = inspect.signature(hook)
    positional = [each for each in called.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = [each for each in called.parameters.values() if each.kind is each.KEYWORD_ONLY]
    try:
        inspect.signature(own).bind(*positional, **{each.name: each for each in named})
    except TypeError as error:
        text = f"{where} does not take the parameters that it is called with: {error}"
        sides = f"  expected: {hook.__name__}{called}\n  found:    {own.__name__}{inspect.signature(own)}"
        yield Fault("hook", f"{text}\n{sides}")


def check_graph(
    backend: BackendSpec,
    graph: SampleGraph,
    *,
    options: Mapping[str, Any] | None = None,
    not_compared: dict[str, str] | None = None,
) -> list[Fault]:
    """The faults on one graph. Where its answers are at fault, it is not legalized.

    `not_compared` gets the reason for which the numbers were not compared, if they were not.
    """
    unseen: dict[str, str] = {} if not_compared is None else not_compared
    chosen = load_backend(backend, options=options)
    try:
        found = list(_answer_faults(chosen, backend, options, graph)) or list(_legal_faults(chosen, graph, unseen))
    except BackendError as error:
        return [Fault("answer", str(error), graph.name)]
    except InfeasibleError as error:
        return [Fault("infeasible", str(error), graph.name)]
    except RelayoutError as error:  # the rewrite made no valid model; the text says where
        return [Fault("crash", str(error), graph.name)]
    except Exception as error:  # any other error is what we look for
        return [Fault("crash", failure_text(error, type(chosen).__module__), graph.name)]
    return found


def _answer_faults(
    backend: Backend, spec: BackendSpec, options: Mapping[str, Any] | None, graph: SampleGraph
) -> Iterator[Fault]:
    """The faults of the answers about each node: mutation of the model, and other answers the second time."""
    model = read_model(graph.model)
    nodes = list(model.graph.all_nodes())
    untouched = _fingerprint(model)
    answers = [_answer(backend, node) for node in nodes]
    if (after := _fingerprint(model)) != untouched:
        yield Fault("mutation", _mutation(backend, graph, untouched, after), graph.name)
        return
    # Another instance, on another copy of the model, in the reverse order.
    other, copies = load_backend(spec, options=options), list(read_model(graph.model).graph.all_nodes())
    again = [_answer(other, node) for node in reversed(copies)][::-1]
    by_type = answers_by_type(backend)
    for node, first, second in zip(nodes, answers, again, strict=True):
        third = _answer(backend, node)
        if not first == second == third:
            different = second if second != first else third
            text = f"the backend's answers about {_label(node)} differ from one call to the next"
            yield Fault("nondeterministic", f"{text}\n  first:    {first}\n  then:     {different}", graph.name)
        elif by_type and (fourth := _answer(backend, _alone(node))) != first:
            text = f"answers_by_type is set, but the answers about {_label(node)} depend on more than its types"
            yield Fault("nondeterministic", f"{text}\n  first:    {first}\n  alone:    {fourth}", graph.name)


def _answer(backend: Backend, node: ir.Node) -> str:
    """The backend's answer about a node, checked, as text."""
    if not supported_by(backend, node):
        return "not supported"
    return " or ".join(map(_text, ask(backend, node)))


def _text(each: Implementation) -> str:
    sides = [", ".join(map(str, side)) for side in (each.inputs, each.results)]
    cost = f", {each.cost} bytes" if each.cost else ""
    marks = (f" at {each.device}" * bool(each.device)) + (" by a rewrite" * (each.rewrite is not None))
    return f"{' -> '.join(sides)}{cost}{marks}{' padded' * each.pads}"


def _alone(node: ir.Node) -> ir.Node:
    """A node that equals this one in all that `answers_by_type` lets an answer depend on, and in nothing else."""

    def value(given: ir.Value | None, n: int) -> ir.Value | None:
        if given is None:
            return None
        return ir.Value(name=f"other{n}", shape=given.shape, type=given.type, const_value=given.const_value)

    inputs = [value(each, n) for n, each in enumerate(node.inputs)]
    outputs = [ir.Value(name=f"result{n}", shape=each.shape, type=each.type) for n, each in enumerate(node.outputs)]
    alone = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()), outputs=outputs, name="other"
    )  # fmt: skip
    # In a graph of its own, as backends look up the version of ONNX's operators.
    ir.Graph([], outputs, nodes=[alone], opset_imports=dict(node.graph.opset_imports) if node.graph is not None else {})
    return alone


def _fingerprint(model: ir.Model) -> list[str]:
    """One line for each node and one for the graph's ends: all that a hook can see and change."""

    def values(some: Iterable[ir.Value | None]) -> list[str]:
        return [
            "-" if each is None else f"{each.name}:{each.type}{each.shape}{dict(each.metadata_props)}" for each in some
        ]

    lines = []
    for node in model.graph.all_nodes():
        attributes = [f"{name}={attribute.value}" for name, attribute in node.attributes.items()
                      if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)]  # fmt: skip
        parts = [node.domain, node.op_type, node.name, attributes, dict(node.metadata_props)]
        lines.append(f"{parts} {values(node.inputs)} -> {values(node.outputs)}")
    return [*lines, f"{values(model.graph.inputs)} -> {values(model.graph.outputs)}"]


def _mutation(backend: Backend, graph: SampleGraph, before: Sequence[str], after: Sequence[str]) -> str:
    """Which node was asked about when the model changed, and the first line that is new."""
    model = read_model(graph.model)
    asked = "a node"
    for node in list(model.graph.all_nodes()):
        supported_by(backend, node)
        ask(backend, node)
        if _fingerprint(model) != before:
            asked = _label(node)
            break
    lines = [(one, other) for one, other in zip(before, after, strict=False) if one != other]
    old, new = lines[0] if lines else (f"{len(before)} lines", f"{len(after)} lines")
    return (
        f"the backend changes the model when it is asked about {asked}; only `prepare` and `finish` may\n"
        f"  before:   {old[:300]}\n  after:    {new[:300]}"
    )


def _legal_faults(backend: Backend, graph: SampleGraph, not_compared: dict[str, str]) -> Iterator[Fault]:
    """Legalize, verify with numbers, and legalize again."""
    legal, report = legalize(graph.model, backend, verify=False)
    yield from _verification_faults(backend, graph, legal, not_compared)
    twice, second = legalize(legal, backend, verify=False)
    yield from _second_faults(graph, legal, report, twice, second)


def _verification_faults(
    backend: Backend, graph: SampleGraph, legal: onnx.ModelProto, not_compared: dict[str, str]
) -> Iterator[Fault]:
    verification = verify(legal, backend, graph.model, run=graph.runs)
    unknown = sorted(_own_operators(legal) - _own_operators(graph.model))
    for finding in verification.findings:
        if finding.rule in ("runtime", "not-compared") and unknown:
            # Only the backend's target runs them.
            not_compared[graph.name] = f"onnxruntime does not run {', '.join(unknown)}"
        elif finding.severity == "error":
            kind = "numbers" if finding.rule == "numeric" else "layout"
            place = f"{finding.node}{f', operand {finding.operand}' * (finding.operand is not None)}: " * bool(
                finding.node
            )
            both = (("expected:", finding.expected), ("found:", finding.found))
            sides = [f"\n  {side:<10}{text}" for side, text in both if text]
            yield Fault(kind, f"{place}{finding.message} ({finding.rule}){''.join(sides)}", graph.name)
    numeric = verification.numeric
    if not graph.runs:
        not_compared[graph.name] = "no weights in the file"
    elif graph.name not in not_compared and (numeric is None or numeric.status == "skipped"):
        not_compared[graph.name] = (numeric.reason if numeric is not None else None) or "it was not run"


def _second_faults(
    graph: SampleGraph, legal: onnx.ModelProto, first: Report, twice: onnx.ModelProto, second: Report
) -> Iterator[Fault]:
    """A second run may not find anything to convert, nor write other nodes, nor charge anything else."""
    counts = [(each.after.transposes, each.after.bytes, each.after.reorders, each.cost) for each in (first, second)]
    if counts[0] != counts[1] or _operators(legal) != _operators(twice):
        text = "{} transposes of {} bytes and {} reorders, at a cost of {}"
        yield Fault(
            "second run",
            "legalizing the legal model again gives another model or another cost: the answers about its nodes are not "
            f"those about the source's\n  first:    {text.format(*counts[0])}, {len(legal.graph.node)} nodes\n"
            f"  then:     {text.format(*counts[1])}, {len(twice.graph.node)} nodes",
            graph.name,
        )


def _own_operators(model: onnx.ModelProto) -> set[str]:
    """The operators of neither ONNX nor relayout."""
    standard = (*STANDARD_DOMAINS, "relayout")
    return {name for name in _operators(model) if name.partition("::")[0] not in standard}


def _operators(model: onnx.ModelProto) -> list[str]:
    """The domain and name of each node, of those inside other nodes too."""
    return sorted(f"{node.domain}::{node.op_type}" for node in nodes_inside(model.graph.node))


def _label(node: ir.Node) -> str:
    return f"{node.op_type} '{node.name}'" if node.name else node.op_type
