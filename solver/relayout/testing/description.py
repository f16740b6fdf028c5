"""A backend in words: its hooks, its rules, and its answers about sample nodes and the nodes of a model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from textwrap import wrap

import onnx_ir as ir

from relayout.backend.calls import ask, conversion_cost_of, conversion_of, prepared_by, supported_by
from relayout.backend.composite import Composite
from relayout.backend.declarative import DeclarativeBackend
from relayout.backend.declarative_schema import Range, Rule, TensorCondition, Way
from relayout.backend.failures import shown_path
from relayout.backend.interface import Backend, Implementation, TensorType, axis_count
from relayout.errors import BackendError
from relayout.layout.layout import Layout
from relayout.testing.samples import operator_names, ranks_of, samples
from relayout.verification.requirements import node_label
from relayout.verification.verifier import verify

_WIDTH = 100
_UNSUPPORTED = "not supported"
_HOOKS = tuple(name for name in vars(Backend) if not name.startswith("_"))


def first_line(backend: Backend | type[Backend]) -> str:
    """The first line of a class's documentation; of a table its description, or what it extends."""
    if isinstance(backend, DeclarativeBackend):
        table = backend.table
        options = ", ".join(f"{name}={json.dumps(value)}" for name, value in table.options.items())
        extends = f"a table that extends {table.extends}{f' with {options}' if options else ''}"
        return table.description or extends
    if isinstance(backend, Composite):
        return f"several devices: {', '.join(backend.devices())}"
    found = backend if isinstance(backend, type) else type(backend)
    # The class's own: an inherited text says nothing of it.
    return inspect.cleandoc(vars(found).get("__doc__") or "no description").partition("\n")[0]


def hook_lines(backend: Backend) -> list[str]:
    """The hooks that the backend's class defines, each with its line; none for a table."""
    lines = []
    for base in type(backend).__mro__[: type(backend).__mro__.index(Backend)]:
        if base.__module__.startswith("relayout.backend"):
            continue
        for name, member in vars(base).items():
            if name not in _HOOKS or name == "name":
                continue
            code = getattr(member, "__code__", None)
            if code is None:
                # A set's own text has another order in each process.
                shown = sorted(member) if isinstance(member, frozenset) else member
                lines.append(f"{name} = {shown!r} ({base.__name__})")
            else:
                lines.append(f"{name} ({base.__name__}, {shown_path(code.co_filename)}, line {code.co_firstlineno})")
    return list(dict.fromkeys(lines))


def rule_lines(backend: Backend) -> list[str]:
    """The rules of a table in order, each with its conditions and implementations; the devices of several."""
    if isinstance(backend, DeclarativeBackend):
        return [line for rule in backend.table.rule for line in _rule(rule)]
    if isinstance(backend, Composite):
        lines = []
        for device in backend.devices():
            own = backend.at(device)
            words = backend.device_words(device)
            lines += [f"device {device}: backend {own.name}{words}", *[f"  {line}" for line in rule_lines(own)]]
        return [*lines, *backend.assignment_words()]
    return []


def _rule(rule: Rule) -> Iterator[str]:
    conditions = list(condition_words(rule.when))
    domain = f" of {rule.domain}" if rule.domain else ""
    yield f"{' or '.join(rule.op)}{domain}{': ' * bool(conditions)}{', '.join(conditions)}"
    for way in rule.ways:
        yield f"  {_way(way)}"


def _way(way: Way) -> str:
    parts = [f"{name} {text}" for name, text in (("data", way.data), ("kernel", way.kernel)) if text is not None]
    parts += [
        f"{name} {', '.join(texts)}" for name, texts in (("inputs", way.inputs), ("results", way.results)) if texts
    ]
    parts += [f"{way.cost} bytes more"] if way.cost else []
    parts += [f"{way.cost_per_byte:g} more for each byte read and written"] if way.cost_per_byte else []
    parts += ["padded"] if way.pads else []
    parts += ["any order"] if way.any_order else []
    return "; ".join(parts)


def condition_words(when: TensorCondition) -> Iterator[str]:
    """The conditions of a rule in words."""
    for name, value in when.model_dump(exclude_defaults=True).items():
        given = getattr(when, name)
        if isinstance(given, Range):
            yield f"{name} {_bounds(given)}"
        elif isinstance(given, TensorCondition):
            yield from (f"{name} {each}" for each in condition_words(given))
        elif name in ("constant", "variable"):
            yield f"input {' and '.join(map(str, value))} {name}"
        elif isinstance(given, Mapping):
            yield from (f"{key} = {each}" for key, each in given.items())
        else:
            yield f"{name} {' or '.join(map(str, value)) if isinstance(value, list) else value}"


def _bounds(bounds: Range) -> str:
    words = {"min": "at least", "max": "at most", "multiple_of": "a multiple of"}
    return " and ".join(f"{words[name]} {value}" for name, value in bounds.model_dump(exclude_none=True).items())


def operator_blocks(backend: Backend) -> list[tuple[str, list[str]]]:
    """(operators, lines) of each set of operators with the same requirements.

    A line is for one rank, or for those sample nodes of it whose answer differs from the usual one's. Raises
    BackendError where a hook raises; an answer of a wrong form is told in its line, as it may be for other ranks.
    Operators of which no sample node is supported are left to `unsupported`.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for operator in operator_names():
        found = tuple(_operator_lines(backend, operator))
        if any(not line.endswith(_UNSUPPORTED) for line in found):
            alike.setdefault(found, []).append(operator)
    return [("\n".join(wrap(", ".join(names), _WIDTH)), list(found)) for found, names in alike.items()]


def unsupported(backend: Backend) -> list[str]:
    """The operators whose usual node on four dimensions the backend does not support."""
    return [name for name in operator_names() if not supported_by(backend, next(samples(name, 4)).node(name))]


def support_lines(backend: Backend) -> list[str]:
    """A title and the operators that the backend does not support, or those that it does if these are fewer; empty
    where it supports all."""
    refused = dict.fromkeys(unsupported(backend))
    accepted = [name for name in operator_names() if name not in refused]
    if not refused:
        return []
    title, names = ("Not supported:", list(refused)) if len(refused) <= len(accepted) else ("Only supported:", accepted)
    return [title, *wrap(", ".join(names) or "none", _WIDTH, initial_indent="  ", subsequent_indent="  ")]


def _operator_lines(backend: Backend, operator: str) -> Iterator[str]:
    for rank in ranks_of(operator):
        usual = ""
        others: dict[str, list[str]] = {}
        for sample in samples(operator, rank):
            answer = _sample_answer(backend, sample.node(operator))
            if not sample.words:
                usual = answer
            elif answer != usual:
                others.setdefault(answer, []).append(sample.words)
        if usual:
            yield f"rank {rank}: {usual}"
        for answer, words in others.items():
            yield f"rank {rank}, {' or '.join(words)}: {answer or 'no requirement'}"


def _sample_answer(backend: Backend, node: ir.Node) -> str:
    """The answer about a node in words; empty where it has no requirement."""
    if not supported_by(backend, node):
        return _UNSUPPORTED
    try:
        implementations = ask(backend, node)
    except BackendError as error:
        if not _is_of_another_rank(error):
            raise
        return f"{error.where.rpartition(', ')[2]} is {error.found}: the layouts are for another rank"
    return "" if all(map(_is_any, implementations)) else answer_text(implementations)


def _is_of_another_rank(error: BackendError) -> bool:
    """Whether the answer may be right for a node of another rank; a model decides, not a sample."""
    return error.expected.startswith("a layout of rank")


def _is_any(implementation: Implementation) -> bool:
    operands = (*implementation.inputs, *implementation.results)
    if implementation.rewrite is not None or implementation.any_order:
        return False
    return all(layout.is_any or str(layout) == "N" for layout in operands)


def answer_text(implementations: Sequence[Implementation]) -> str:
    """Implementations in words: `NHWC, HWIO -> NHWC or NCHW, OIHW -> NCHW (64 bytes more)`."""
    return " or ".join(map(_implementation, implementations))


def _implementation(given: Implementation) -> str:
    remarks = [f"{given.cost} bytes more"] if given.cost else []
    remarks += [f"at {given.device}"] if given.device else []
    remarks += ["by the backend's rewrite"] if given.rewrite is not None else []
    remarks += ["padded"] if given.pads else []
    remarks += ["any order"] if given.any_order else []
    more = f" ({', '.join(remarks)})" if remarks else ""
    return f"{_listed(given.inputs)} -> {_listed(given.results)}{more}"


def _listed(layouts: Sequence[Layout]) -> str:
    return ", ".join("any" if layout.is_any else str(layout) for layout in layouts)


def conversion_lines(backend: Backend) -> list[str]:
    """The costs of conversions of one image of 16 channels, where the backend states them itself."""
    lines = []
    for device in backend.devices() or ("",):
        own = backend.at(device)
        layouts = [Layout.parse(text) for text in ("NCHW", "NHWC", *_tiled(own))]
        found = [_conversion(own, source, target) for source, target in permutations(layouts, 2)]
        lines += [f"{f'{device}: ' * bool(device)}{line}" for line in found if line]
    return lines


def _tiled(backend: Backend) -> list[str]:
    """The packed layouts of data that the backend's convolutions and pools of four dimensions take."""
    found: dict[str, None] = {}
    for operator in ("Conv", "MaxPool"):
        node = next(samples(operator, 4)).node(operator)
        try:
            answer = ask(backend, node) if supported_by(backend, node) else ()
        except BackendError as error:
            if not _is_of_another_rank(error):
                raise
            continue
        for each in answer:
            layout = each.inputs[0]
            if any(layout.tile(i) is not None for i in range(layout.rank)) and axis_count(layout) == 4:
                found[str(layout)] = None
    return list(found)


def _conversion(backend: Backend, source: Layout, target: Layout) -> str:
    extents = {"N": 1, "C": 16, "H": 8, "W": 8}
    tiles = {source.names[i].upper(): tile for i in range(source.rank) if (tile := source.tile(i)) is not None}
    shape = []
    for i, name in enumerate(source.names):
        tile = source.tile(i)
        shape.append(tile if tile is not None else extents[name] // tiles.get(name, 1))
    tensor = TensorType(4, tuple(shape))
    own = conversion_of(backend, tensor, source, target, "image")
    cost = (
        own.cost
        if own is not None and own.cost is not None
        else conversion_cost_of(backend, tensor, source, target, "image")
    )
    by = "an operator of the backend's own" if own is not None and own.rewrite is not None else ""
    if cost is None and not by:
        return ""
    words = [f"{cost} bytes"] if cost is not None else []
    return f"{source} to {target}: {', by '.join([*words, *([by] if by else [])])}"


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """A node of a model: what the backend requires, and the operands that are not in that layout in the source."""

    node: str
    operator: str
    requires: str
    is_satisfied: bool
    unmet: tuple[str, ...] = ()


def model_requirements(backend: Backend, model: ir.Model) -> list[NodeRequirement]:
    """Each node of a model, before anything is solved, after the backend's pre-pass. The model is changed by it.

    Whether a node is satisfied is the verifier's judgement of the source. Raises BackendError.
    """
    prepared_by(backend, model)
    unmet: dict[str, list[str]] = {}
    for finding in verify(model, backend, run=False).findings:
        if finding.rule == "layout-requirement" and finding.node is not None:
            where = "" if finding.operand is None else f"input {finding.operand}: "
            unmet.setdefault(finding.node, []).append(f"{where}{finding.expected} required, {finding.found} found")
    rows = []
    for node in model.graph.all_nodes():
        label = node_label(node)
        is_run = supported_by(backend, node)
        implementations = ask(backend, node) if is_run else ()
        stated = (
            _UNSUPPORTED
            if not is_run
            else "none"
            if all(map(_is_any, implementations))
            else answer_text(implementations)
        )
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        faults = tuple(unmet.get(label, ()))
        rows.append(NodeRequirement(label, kind, stated, is_run and not faults, faults))
    return rows
