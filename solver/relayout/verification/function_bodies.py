"""The check of the operators of the domain `relayout`: each has a body that conforms to the attributes of the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import partial

import onnx
import onnx_ir as ir

from relayout.layout.layout import Layout
from relayout.report.schema import Finding
from relayout.verification.body_execution import MOVES, fault_in_body
from relayout.verification.model_index import ModelIndex, OperatorClass, checked_once
from relayout.verification.operator_facts import (
    OURS,
    AxisNames,
    declared_layout_of,
    is_contributed,
    kernel_names,
    named,
    parsed_layout,
    standard_names,
)
from relayout.verification.requirements import node_label

_LAYOUTS = ("data_layout", "kernel_layout", "out_layout")


def check_functions(index: ModelIndex, converting: Set[tuple[str, str]]) -> Iterator[Finding]:
    """Yield a finding for each body that is missing or contradicts the attributes of the call, and a note for each
    custom operator without a body. `converting`: the backend's conversion operators."""
    # A body is chosen by the operator and its overload, which are a part of the class, as are the attributes.
    yield from checked_once(index, partial(_check_call, index.model.functions))
    custom: dict[str, list[ir.Node]] = {}
    for node in index.nodes:
        if node.domain and not _is_known(node) and node.op_identifier() not in index.model.functions:
            custom.setdefault(f"{node.domain}::{node.op_type}", []).append(node)
    for operator, nodes in custom.items():
        unknown = "its effect on layouts is not known"
        if nodes[0].op_identifier()[:2] in converting:
            unknown = "it only converts, and its layouts are taken on trust unless `operator_layouts` states them"
        yield Finding(
            rule="function-missing",
            severity="note",
            node=node_label(nodes[0]),
            found=operator if len(nodes) == 1 else f"{operator}, {len(nodes)} nodes",
            message=f"a custom operator that no function of the model defines: {unknown}",
        )


def _check_call(
    functions: Mapping[ir.OperatorIdentifier, ir.Function], node: ir.Node, kind: OperatorClass
) -> Iterator[Finding]:
    if node.domain == OURS:
        function = functions.get(node.op_identifier())
        if function is None:
            yield _finding(node, "function-missing", "a function with this operator's body", "none")
        else:
            yield from _check_body(node, kind, function)


def _is_known(node: ir.Node) -> bool:
    is_standard = node.domain in ("", OURS) or onnx.defs.has(node.op_type, node.domain)
    return is_standard or is_contributed(node) or named(node) is not None


def _check_body(node: ir.Node, kind: OperatorClass, function: ir.Function) -> Iterator[Finding]:
    """Yield a finding unless the body is Transposes of inputs, the standard operator and Transposes of results.

    If layouts tile or pad an axis, Reshapes, Pads, Slices and the computation of their shapes are allowed too.
    """
    moves = MOVES if _tiles(node) else ("Identity", "Transpose")
    work = [inner for inner in function if inner.op_type not in moves or inner.domain != ""]
    if len(work) != 1 or work[0].op_type != node.op_type or work[0].domain != "":
        found = ", ".join(inner.op_type for inner in function)
        yield _finding(node, "function-body", f"Transpose, {node.op_type}, Transpose", found)
        return
    (operator,) = work
    for is_result in (False, True):
        yield from _check_side(node, kind, function, operator, is_result=is_result)
    yield from _check_attributes(node, function, operator)


def _check_side(
    node: ir.Node, kind: OperatorClass, function: ir.Function, operator: ir.Node, *, is_result: bool
) -> Iterator[Finding]:
    side = "result" if is_result else "input"
    inner, outer = (each.outputs if is_result else each.inputs for each in (operator, function))
    for n, operand in enumerate(node.outputs if is_result else node.inputs):
        value = inner[n] if n < len(inner) else None
        end = outer[n] if n < len(outer) else None
        expected = _expected_perm(kind, n, is_result=is_result)
        if value is None or end is None:
            if operand is not None and (not is_result or operand.name):
                yield _finding(node, "function-body", f"{side} {n} in the body", "none", n)
            continue
        layout = declared_layout_of(node, n, is_result=is_result) if expected is not None else None
        if layout is not None and "[" in str(layout):
            path = (value, end) if is_result else (end, value)
            yield from _check_path(node, function, n, layout, path, is_result=is_result)
            continue
        found = _path(end, value) if is_result else _path(value, end)
        if found is None:
            yield _finding(node, "function-body", f"{side} {n} of the function passed on", "something else", n)
        elif expected is not None and (found or tuple(range(len(expected)))) != expected:
            yield _finding(node, "function-body", f"{side} {n} transposed by {expected}", f"{found or 'not at all'}", n)
        elif expected is None and found and sorted(found) != list(found):
            yield _finding(node, "function-body", f"{side} {n} as it is", f"transposed by {found}", n)


def _tiles(node: ir.Node) -> bool:
    # Parsed first: TVM's NCHW16c has no bracket, and tiles as NCHWc[tile:16] does.
    return any("[" in str(parsed_layout(node.attributes.get_string(name, "") or "")) for name in _LAYOUTS)


def _check_path(
    node: ir.Node, function: ir.Function, n: int, layout: Layout, path: tuple[ir.Value, ir.Value], *, is_result: bool
) -> Iterator[Finding]:
    """Yield a finding where an operand with a tiled or padded layout does not reach the operator with every element."""
    value = node.outputs[n] if is_result else node.inputs[n]
    facts = named(node)
    if value is None or facts is None:
        return
    shape = [None] * layout.rank if value.shape is None else value.shape
    extents = tuple(extent if isinstance(extent, int) else None for extent in shape)
    rank = sum(1 for i in range(layout.rank) if layout.outer(i) is None)
    is_kernel = not is_result and n == facts.kernel
    axes = kernel_names(node.op_type, rank) if is_kernel else standard_names(rank)
    fault = fault_in_body(*path, layout, axes, extents, opset=function.opset_imports.get("", 1))
    if fault is not None:
        side = "result" if is_result else "input"
        yield _finding(node, "function-body", f"{side} {n} between {layout} and {''.join(map(str, axes))}", fault, n)


def _path(value: ir.Value, start: ir.Value) -> tuple[int, ...] | None:
    """The permutation from `start` to `value` through Transposes; () if there are none, None for any other path."""
    if value is start:
        return ()
    node = value.producer()
    if node is None or node.op_type not in ("Identity", "Transpose") or node.inputs[0] is None:
        return None
    before = _path(node.inputs[0], start)
    if node.op_type == "Identity":
        return before
    perm = node.attributes.get_ints("perm")
    if before is None or perm is None:
        return None
    if before and len(before) != len(perm):
        return None
    return tuple(before[axis] for axis in perm) if before else tuple(perm)


def _expected_perm(kind: OperatorClass, n: int, *, is_result: bool) -> tuple[int, ...] | None:
    """The permutation between the standard operator's operand and this one's; None where they are the same."""
    node, facts = kind.node, kind.facts
    names = (kind.own_results if is_result else kind.own_inputs)[n]
    if facts is None or names is None:
        return None
    is_kernel = not is_result and n == facts.kernel
    if is_kernel and "kernel_layout" not in node.attributes:
        return None
    if not is_kernel and not any(name in node.attributes for name in ("data_layout", "out_layout")):
        return None
    standard = kernel_names(node.op_type, len(names)) if is_kernel else standard_names(len(names))
    return _permutation(standard, names) if is_result else _permutation(names, standard)


def _permutation(source: AxisNames, target: AxisNames) -> tuple[int, ...]:
    """The perm of the Transpose from `source` to `target`; if there is none, a perm that matches no body."""
    if None in source or sorted(map(str, source)) != sorted(map(str, target)):
        return (-1,)
    return tuple(source.index(name) for name in target)


def _check_attributes(node: ir.Node, function: ir.Function, operator: ir.Node) -> Iterator[Finding]:
    """Yield a finding for each attribute of the call that does not reach the operator by reference or as a constant,
    and for each that the operator gets and the call does not have."""
    for name, attribute in node.attributes.items():
        if name in _LAYOUTS:
            continue
        inner = operator.attributes.get(name)
        if inner is None or (not inner.is_ref() and inner.value != attribute.value):
            found = "none" if inner is None else str(inner.value)
            yield _finding(node, "function-body", f"attribute {name} = {attribute.value}", found)
        elif inner.is_ref() and inner.ref_attr_name != name:
            yield _finding(node, "function-body", f"attribute {name} passed on", f"attribute {inner.ref_attr_name}")
    for name, inner in operator.attributes.items():
        if name in node.attributes:
            continue
        if inner.is_ref() and inner.ref_attr_name in node.attributes:
            yield _finding(node, "function-body", f"no attribute {name}", f"attribute {inner.ref_attr_name}")
            continue
        # A reference to an attribute that the call does not have gives the function's default, if there is one.
        given = function.attributes.get(inner.ref_attr_name or "") if inner.is_ref() else inner
        if given is not None and given.value is not None and not _is_default(function, operator, name, given):
            yield _finding(node, "function-body", f"no attribute {name}", str(given.value))


def _is_default(function: ir.Function, operator: ir.Node, name: str, inner: ir.Attr) -> bool:
    try:
        schema = onnx.defs.get_schema(operator.op_type, function.opset_imports.get("", 1), "")
        default = schema.attributes[name].default_value
    except (onnx.defs.SchemaError, KeyError):
        return False
    return bool(default.name) and onnx.helper.get_attribute_value(default) in (
        inner.value,
        str(inner.value).encode(),
    )


def _finding(node: ir.Node, rule: str, expected: str, found: str, operand: int | None = None) -> Finding:
    what = "has no body" if rule == "function-missing" else "has a body that contradicts its attributes"
    return Finding(
        rule=rule,
        node=node_label(node),
        operand=operand,
        expected=expected,
        found=found,
        message=f"relayout::{node.op_type} {what}",
    )
