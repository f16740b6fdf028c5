"""Layout-sensitive nodes, with each operand of named axes in its planned layout: calls of `relayout::` functions, for
layouts that ONNX's operators do not support, and the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import onnx_ir as ir

from relayout.candidates.alternatives import FixedLowering
from relayout.formulate.plan import PlannedNode
from relayout.layout.binding import layout_of
from relayout.layout.conversion import Dims, flat
from relayout.layout.memory_format import Atom, Extent
from relayout.model.layout_functions import OperandConversion, Signature, ensure_function, use_onnx_operator
from relayout.ops import Edit, Fixed, Free, extents_of
from relayout.ops.named_axes import native_letters, operand_by_operand
from relayout.ops.operand_roles import OWN_DOMAIN
from relayout.rewrite.context import RewriteContext

Operator = Callable[[ir.Node], None] | None
"""Turns a node into another operator; None: it stays the operator that it is."""


def named_results(node: ir.Node) -> int:
    """The number of results up to the last that has a name."""
    outputs = node.outputs
    count = len(outputs)
    while count > 1 and not outputs[count - 1].name:
        count -= 1
    return max(count, 1)


def onnx_operator(node: ir.Node) -> Operator:
    """ONNX's own operator."""
    return use_onnx_operator if node.domain == OWN_DOMAIN else None


def fixed_operator(context: RewriteContext, planned: PlannedNode, rule: Fixed, lowering: FixedLowering) -> Operator:
    """ONNX's own operator if that has these layouts, else a `relayout::` operator."""
    node = planned.node
    assert node is not None
    if lowering.changes_nothing and node.domain != OWN_DOMAIN:
        return None
    extents = _operand_extents(planned)

    def written(
        axis_names: Sequence[str | None], natives: Sequence[str | None], own: Sequence[Dims | None], is_result: bool
    ) -> tuple[tuple[str | None, ...], tuple[OperandConversion | None, ...]]:
        """The layouts of the operands of one side, and their conversions to ONNX's order."""
        layouts: list[str | None] = []
        conversions: list[OperandConversion | None] = []
        for index, (names, native, dims) in enumerate(zip(axis_names, natives, own, strict=True)):
            known = extents.get((is_result, index))
            if names is None or native is None or dims is None:
                layouts.append(None)
                conversions.append(None)
                continue
            layouts.append(layout_string(dims, names, known))
            conversions.append(_permuted(dims, tuple([native.index(letter) for letter in names]), known))
        return tuple(layouts), tuple(conversions)

    inputs, read = written(rule.inputs, rule.native_inputs, lowering.inputs, False)
    results, given = written(rule.outputs, rule.native_outputs, lowering.outputs, True)
    if (inputs, results) == (rule.native_inputs, rule.native_outputs):
        return onnx_operator(node)
    if lowering.changes_nothing:
        return None
    data, result = inputs[0], results[0]
    assert data is not None
    assert result is not None
    layouts = [("data_layout", data)]
    if rule.kernel is not None:
        kernel = inputs[rule.kernel]
        assert kernel is not None
        layouts.append(("kernel_layout", kernel))
    if result != data:
        layouts.append(("out_layout", result))

    return _function_call(context, node, layouts, read, given)


def packed_operator(
    context: RewriteContext, planned: PlannedNode, rule: Free, lowering: FixedLowering
) -> tuple[Operator, Edit | None]:
    """The operator with named axes whose operands are tiled independently, and the remaining edit."""
    operator = fixed_operator(context, planned, operand_by_operand(rule), lowering)
    native = native_letters(len(rule.axis_names))
    # The operator inside the function, its attributes and its constants are in ONNX's order.
    edit = rule.edit(tuple(rule.axis_names.index(letter) for letter in native)) if rule.axis_names != native else None
    return operator, edit


def _function_call(
    context: RewriteContext,
    node: ir.Node,
    layouts: Sequence[tuple[str, str]],
    inputs: tuple[OperandConversion | None, ...],
    results: tuple[OperandConversion | None, ...],
) -> Operator:
    """A `relayout::` operator for nodes like this one. `inputs` and `results`: from the operands to ONNX's order."""
    # Unused results stay as in the source: a runtime may have another kernel for fewer results.
    outward = tuple([each.outward() if each is not None else None for each in results[: named_results(node)]])
    overload = ensure_function(context.model, Signature(node.op_type, tuple(layouts), inputs, outward))
    attributes = {name: ir.AttrString(name, layout) for name, layout in layouts}

    def call(node: ir.Node) -> None:
        use_onnx_operator(node)
        node.resize_outputs(len(outward))
        node.domain, node.overload = OWN_DOMAIN, overload
        node.attributes.update(attributes)

    return call


@lru_cache(maxsize=4096)
def layout_string(dims: Dims, axis_names: str, extents: tuple[Extent, ...] | None) -> str | None:
    """The layout of these dimensions. It does not express a permutation of atoms within a dimension."""
    groups = [group if len(group) == 1 else (Atom(group[0].axis),) for group in dims]
    layout = layout_of(flat(tuple(groups)), axis_names, extents)
    return str(layout) if layout is not None else None


def _operand_extents(planned: PlannedNode) -> dict[tuple[bool, int], tuple[Extent, ...]]:
    """The source extents of each operand, including constants, by (whether it is a result, index)."""
    assert planned.node is not None
    found: dict[tuple[bool, int], tuple[Extent, ...]] = {}
    for index, value in enumerate(planned.node.inputs):
        if (extents := extents_of(value)) is not None:
            found[False, index] = extents
    for port in planned.ports:
        found[port.is_result, port.index] = port.operand.view.extents
    return found


@lru_cache(maxsize=4096)
def _permuted(dims: Dims, positions: tuple[int, ...], extents: tuple[Extent, ...] | None) -> OperandConversion:
    """The permutation from an operand with `dims` to ONNX's order, in which axis i of the source is axis
    `positions[i]`."""
    atoms = tuple(
        (Atom(positions[group[0].axis]),)
        if len(group) > 1
        else tuple(Atom(positions[atom.axis], atom.inner, atom.outer) for atom in group)
        for group in dims
    )
    native: list[Extent] = [None] * len(positions)
    for axis, position in enumerate(positions):
        native[position] = extents[axis] if extents is not None else None
    return OperandConversion.inward(atoms, tuple(native))
