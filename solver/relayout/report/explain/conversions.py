"""A solution in the report's words: each conversion, with who gives the value and who wants it otherwise, and the
boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import onnx_ir as ir

from relayout.candidates.alternatives import NodeAlternatives
from relayout.candidates.axis_names import AxisNames
from relayout.candidates.messages import shown
from relayout.candidates.tensors import Operand
from relayout.formulate.formulation import Formulation, PlannedConversion, TensorUse
from relayout.layout.conversion import Dims, dims_shape, one_each, path, steps_of
from relayout.layout.memory_format import Extent, MemoryFormat, boxes_of, source_order
from relayout.ops import extents_of
from relayout.report.schema import BoundaryValue, Conversion, ConversionKind, RequiredBy, Transfer

__all__ = ["boundary_of", "conversions_of", "required_layout", "transfers_of", "who"]


def conversions_of(formulation: Formulation, assignment: Sequence[int]) -> tuple[Conversion, ...]:
    """The conversions of this assignment, in the report's words, in the order of the graph."""
    found = []
    for made in formulation.conversions(assignment):
        producer = formulation.requirements.choices[made.producer.choice]
        operand = producer.ports[made.producer.port].operand
        found.append(
            Conversion(
                value=made.tensor.base.name or "",
                from_=shown(formulation.requirements.names, operand, made.source),
                to=shown(formulation.requirements.names, operand, made.target),
                kind=_kind(formulation, made),
                bytes=made.bytes,
                passes=formulation.prices.passes(made.tensor, made.device, made.source, made.target),
                padding=formulation.prices.padding(made.tensor, made.device, made.source, made.target),
                producer=who(producer, made.producer.port),
                required_by=tuple(_required_by(formulation, assignment, use) for use in made.wanted_by),
            )
        )
    return tuple(found)


def _kind(formulation: Formulation, made: PlannedConversion) -> ConversionKind:
    if formulation.prices.is_written_by_backend(made.tensor, made.device, made.source, made.target):
        return "reorder"
    if all(atom.is_whole for atom in (*made.source, *made.target)):
        return "transpose"
    stages = {stage.kind for stage in path(one_each(made.source), one_each(made.target), made.tensor.extents)}
    if "transpose" in stages:
        return "transpose"
    return "pad" if stages & {"pad", "crop"} else "reshape"


def transfers_of(formulation: Formulation, assignment: Sequence[int]) -> tuple[Transfer, ...]:
    """What this assignment brings from one device to another, in the report's words, in the order of the graph."""
    found = []
    for crossed in formulation.transfers(assignment):
        producer = formulation.requirements.choices[crossed.producer.choice]
        operand = producer.ports[crossed.producer.port].operand
        found.append(
            Transfer(
                value=crossed.tensor.base.name or "",
                from_=crossed.source,
                to=crossed.target,
                layout=shown(formulation.requirements.names, operand, crossed.format),
                bytes=crossed.bytes,
                cost=crossed.cost,
                producer=producer.label,
                required_by=tuple(_required_by(formulation, assignment, use) for use in crossed.wanted_by),
            )
        )
    return tuple(found)


def boundary_of(graph: ir.Graph, formulation: Formulation, assignment: Sequence[int]) -> tuple[BoundaryValue, ...]:
    """How each input is to be fed and each output comes. To be asked before the graph is rewritten."""
    requirements = formulation.requirements
    laid: dict[tuple[str, int], MemoryFormat] = {}
    for choice, picked in zip(requirements.choices, assignment, strict=True):
        form = choice.alternatives[picked].form
        if choice.node is None and isinstance(form, tuple):
            laid.update({("input" if p.is_result else "output", p.index): form for p in choice.ports})
    orders = {value: laid["input", i] for i, value in enumerate(graph.inputs) if ("input", i) in laid}
    found = []
    sides: tuple[tuple[Literal["input", "output"], Sequence[ir.Value]], ...]
    sides = (("input", graph.inputs), ("output", graph.outputs))
    for side, values in sides:
        for index, value in enumerate(values):
            # An output that is an input lies as that does.
            order = laid.get((side, index), orders.get(value))
            key = side, value.name or ""
            found.append(
                BoundaryValue(
                    name=value.name or "",
                    side=side,
                    wanted=requirements.boundary.requested.get(key),
                    tied_to=requirements.boundary.coupled.get(key, ()),
                    **_laid(value, side, requirements.tensors.operands.get(value), order, requirements.names),
                )
            )
    return tuple(found)


def _laid(
    value: ir.Value, side: str, operand: Operand | None, order: MemoryFormat | None, names: AxisNames
) -> dict[str, Any]:
    extents = extents_of(value)
    if operand is None or order is None or order == source_order(len(order)):
        return {"shape": extents, "layout": names.of(operand) if operand is not None else None}
    if extents is not None and any(not atom.is_whole for atom in order):
        natural, dims = one_each(source_order(len(extents))), one_each(order)
        return {
            "shape": tuple(dims_shape(dims, extents)),
            "transform": _steps(natural, dims, extents),
            "back": _steps(dims, natural, extents) if side == "output" else (),
            "layout": str(names.layout(operand, order) or "") or None,
        }
    axes = tuple(atom.axis for atom in order)
    shape = tuple(extents[axis] for axis in axes) if extents is not None else None
    layout = str(names.layout(operand, order) or "") or None if boxes_of(order) else names.in_order(operand, order)
    return {"shape": shape, "order": axes if axes != tuple(range(len(axes))) else None, "layout": layout}


def _steps(source: Dims, target: Dims, extents: tuple[Extent, ...]) -> tuple[dict[str, Any], ...]:
    return tuple(_in_numbers(step) for step in steps_of(source, target, extents))


def _in_numbers(step: Mapping[str, Any]) -> dict[str, Any]:
    """The step with -1 for an extent that is known at run time only."""
    numbers = {key: [n if isinstance(n, int) else -1 for n in field] for key, field in step.items() if key != "op"}
    return {"op": step["op"], **numbers}


def who(choice: NodeAlternatives, port: int) -> str:
    """The choice as messages name it where this port is meant: of a tie, the one input or output."""
    if choice.node is None and len(choice.ports) > 1:
        own = choice.ports[port]
        return f"{'input' if own.is_result else 'output'} {own.operand.value.name}"
    return choice.label


def required_layout(formulation: Formulation, assignment: Sequence[int], use: TensorUse) -> str:
    """What is asked for here: as the backend or the caller says it, else the format that was chosen."""
    choice = formulation.requirements.choices[use.choice]
    picked = assignment[use.choice]
    stated = choice.layouts[picked][use.port] if picked < len(choice.layouts) else ""
    operand, format_ = choice.ports[use.port].operand, choice.alternatives[picked].formats[use.port]
    return stated or shown(formulation.requirements.names, operand, format_)


def _required_by(formulation: Formulation, assignment: Sequence[int], use: TensorUse) -> RequiredBy:
    choice = formulation.requirements.choices[use.choice]
    layout = required_layout(formulation, assignment, use)
    return RequiredBy(node=who(choice, use.port), operand=max(choice.ports[use.port].index, 0), layout=layout)
