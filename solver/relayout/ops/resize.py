"""Resize and Upsample: scales, sizes and regions are permuted with the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from relayout.ops.named_axes import letters_of, named, native_letters
from relayout.ops.node_reader import NoRuleError, Reading
from relayout.ops.operand_roles import OWN_DOMAIN, spatial_letters
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Edit, Free, free, position

_NAMED_SINCE = 18
"""The opset since which an attribute says of which axes the numbers are."""


@row("free", "Resize", since=10)
@row("free", "Upsample", since=7)
def resize(node: Reading) -> Free:
    """Nearest supports any order; linear and cubic those with onnxruntime kernels: resized axes innermost, in order.

    ONNX does not name these axes. Usually rows and columns are resized, so the names are N, C, H, W, unless axis 1 is
    resized and the last axis is not. Names inferred from neighbouring operators could conflict. In a legal model, the
    axes have the names that they had in the source, by the annotated order of the result.
    """
    extents, result = node.extents(0), node.result_extents()
    axes = tuple(range(len(extents)))
    inputs = _inputs_by_axis(node)
    if (
        node.string("keep_aspect_ratio_policy", "stretch") != "stretch"
        or node.string("coordinate_transformation_mode") == "tf_crop_and_resize"
    ):
        return named(node, (0,), "exact")
    # The numbers of an operator of `relayout` are in ONNX's order.
    laid = letters_of(node, len(axes)) if node.node.domain == OWN_DOMAIN else ""
    numbered = tuple(map(laid.index, native_letters(len(axes)))) if laid else axes
    given = node.ints("axes")
    covered = tuple(numbered[a % len(axes)] for a in given) if given is not None else numbered
    arrays = {index: node.constant(index) for index in inputs if node.is_known(index)}
    # Only `tf_crop_and_resize` reads the region, which may be empty.
    computed = {name: index for index, name in inputs.items() if index not in arrays and name != "roi"}
    is_named = given is not None or (bool(computed) and node.opset >= _NAMED_SINCE)
    numbers = _Numbers(axes, covered, is_named, _scales_attribute(node), arrays, computed)
    factors = numbers.factors(next((arrays[n] for n in arrays if inputs[n] == "scales"), np.zeros(0)))
    scaled = {a: False for a in axes if a not in covered} | {
        a: factor != 1 for a, factor in zip(covered, factors, strict=False)
    }
    if "sizes" in computed:
        scaled |= {a: False for a in covered if extents[a] is not None and extents[a] == result[a]}
    pairs = [(a, before, after) for a, before, after in zip(axes, extents, result, strict=True)]
    changed = {a for a, *pair in pairs if all(isinstance(each, int) for each in pair) and pair[0] != pair[1]}
    moved = {a for a in axes if scaled.get(a, a in changed)}
    # An axis whose extent stays the same after rounding does not count as resized.
    resized = {a for a in moved if not isinstance(extents[a], int) or extents[a] != result[a]}
    axis_names = laid or _letters(resized, node.noted_order())
    # An axis of unknown extent may be resized.
    moving = moved | {a for a in axes if a not in scaled and not isinstance(extents[a], int)}
    if "scales" in computed:
        moving = set(axes)  # an axis may keep its extent, and be resized
    if len(axes) == 4 and moving <= {axis_names.index("H"), axis_names.index("W")}:
        moving = {axis_names.index("H"), axis_names.index("W")}
    mode = node.string("mode", "nearest")
    return free(
        extents,
        (axes, *(None for _ in node.node.inputs[1:])),
        (axes,),
        # A tiled axis occurs several times.
        allows=lambda order: (
            order == axes or (len(order) == len(axes) and (mode == "nearest" or _has_kernel(order, moving, mode)))
        ),
        edit=numbers.edit,
        axis_names=axis_names,
        permutable_within=tuple(axis for axis in axes if axis not in moving),
    )


def _scales_attribute(node: Reading) -> Sequence[float] | None:
    """The scales of an Upsample before opset 9, which has them as an attribute; None for every other node."""
    if node.node.op_type != "Upsample" or node.opset >= 9:
        return None
    if node.attribute("scales") is None:
        raise NoRuleError
    return node.node.attributes["scales"].as_floats()


def _inputs_by_axis(node: Reading) -> Mapping[int, str]:
    """The inputs with one number or pair of numbers per axis, by kind. Raises NoRuleError for an invalid Upsample."""
    if node.node.op_type == "Upsample":
        if node.opset >= 10:
            raise NoRuleError
        return {} if _scales_attribute(node) is not None else {1: "scales"}
    if node.opset == 10:
        return {1: "scales"}
    return {index: name for index, name in ((1, "roi"), (2, "scales"), (3, "sizes")) if node.has(index)}


class _Numbers(Struct, frozen=True):
    """The numbers of a node that are given per axis. `arrays` are constant inputs: one number, or a begin and an end,
    for each of the `covered` axes, which the attribute `axes` lists if `is_named`. `scales` is the old attribute, and
    `computed` are inputs of the same kinds that are computed while the model runs, by name."""

    axes: Axes
    covered: Axes
    is_named: bool
    scales: Sequence[float] | None
    arrays: Mapping[int, np.ndarray]
    computed: Mapping[str, int]

    def factors(self, given: np.ndarray) -> Sequence[float]:
        """The growth factor of each covered axis; empty where only the sizes are given."""
        if self.scales is not None:
            return self.scales
        return given.tolist() if given.size == len(self.covered) else ()

    def edit(self, order: Axes) -> Edit:
        """The edit of the node for data in this order."""
        if self.scales is not None:
            return Edit({"scales": tuple(self.scales[self.covered.index(a)] for a in order)})
        covered = self.covered
        if self.computed and self.is_named:
            # The numbers stay as they are, and the attribute says of which axes they are.
            return Edit({"axes": tuple(position(order, self.axes, axis) for axis in covered)})
        sequence = sorted(range(len(covered)), key=lambda i: order.index(covered[i]))
        places = tuple(position(order, self.axes, covered[i]) for i in sequence)
        constants = {}
        for index, array in self.arrays.items():
            if array.size == len(covered):
                constants[index] = array[sequence]
            elif array.size == 2 * len(covered):
                constants[index] = array.reshape(2, -1)[:, sequence].reshape(-1)
        reordered = {index: tuple(sequence) for index in self.computed.values()}
        return Edit({"axes": places} if self.is_named else {}, constants, reordered)


def _has_kernel(order: Axes, moving: set[int], mode: str) -> bool:
    """Whether onnxruntime resizes these two axes of four, linear or cubic, in this order."""
    if len(order) != 4 or len(moving) != 2:
        return False
    still = [a for a in order if a not in moving]
    spatial = [a for a in order if a in moving]
    if spatial != sorted(moving) or len(still) != 2:
        return False
    # The two outermost axes are not resized, or (linear only) the outermost and the innermost one.
    return {*order[:2]} == {*still} or (mode == "linear" and {order[0], order[3]} == {*still})


def _letters(moved: set[int], order: Axes) -> str:
    """The axis names of a tensor of which the axes `moved` are resized; empty for a rank without rows and columns.
    `order`: the axes of the source in the tensor's order."""
    rank = len(order)
    spatial = spatial_letters(rank)
    if spatial is None:
        return ""
    in_source = {order[axis] for axis in moved}
    channels_last = 1 in in_source and rank - 1 not in in_source and 0 not in in_source
    names = f"N{spatial}C" if channels_last else native_letters(rank)
    return "".join(names[axis] for axis in order)
