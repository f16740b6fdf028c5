"""Split: one axis of the data is split into parts, one per result."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from relayout.layout.memory_format import Extent
from relayout.ops.axis_ops import common_multiples, without
from relayout.ops.node_reader import Reading, is_read
from relayout.ops.registry import row
from relayout.ops.rule import Axes, Decomposition, DecompositionWriter, Edit, Free, free, outer_position, position


@row("free", "Split")
def split(node: Reading) -> Free:
    """The split axis of the data and that of the results are two axes of the space. If its factors are permuted, each
    part is gathered by its indices, with the same traffic as Split."""
    extents = node.extents(0)
    rank = len(extents)
    axis = node.axis(0, rank)
    part = axis + 1
    axes = (*range(part), *range(part + 1, rank + 1))
    result = (*range(axis), *range(part, rank + 1))
    sizes = [node.result_extents(i)[axis] for i in range(len(node.node.outputs))]
    attribute = node.ints("split")
    is_editable = bool(attribute) or not node.has(1) or node.is_known(1)
    given = node.integers(1) if node.has(1) and node.is_known(1) else None
    parts = _Parts(axes, axis, tuple(sizes), attribute, given)
    known = all(isinstance(size, int) for size in (extents[axis], *sizes))
    return free(
        # The parts' axis has the extent of the largest part: it has a position even if some parts have extent 1.
        (*extents[:part], extents[axis], *extents[part:]),
        tuple(axes if i == 0 else None for i in range(len(node.node.inputs))),
        tuple(result for _ in sizes),
        allows=parts.are_adjacent,
        edit=lambda order: Edit({"axis": position(order, axes, axis)}),
        tileable=without(axes, axis),
        asymmetrically_permutable=(axis,) if known else (),
        tile_multiple=common_multiples({axis: sizes, part: sizes}) if is_editable else {},
        edit_tiled=parts.edit_steps,
        companion={part: axis, axis: part},
        decompositions=(Decomposition(parts.gather, parts.are_adjacent),),
    )


class _Parts(Struct, frozen=True):
    """The parts of a Split of `axis`, along the next axis, which only the results have. `axes` are the data's. The
    sizes may be given by the `attribute` or the second input."""

    axes: Axes
    axis: int
    sizes: tuple[Extent, ...]
    attribute: tuple[int, ...] | None
    given: tuple[int, ...] | None

    def are_adjacent(self, order: Axes) -> bool:
        """Whether the axis and its parts have the same positions."""
        pairs = zip(("", *order), (*order, ""), strict=True)
        return all((a == self.axis) == (b == self.axis + 1) for a, b in pairs)

    def edit_steps(self, order: Axes, strides: Axes) -> Edit:
        """The edit of the node for a tiled order, `strides` as in `Free.edit_tiled`."""
        unit = next(stride for a, stride in zip(order, strides, strict=True) if a == self.axis and stride)
        place = outer_position(order, strides, self.axes, self.axis)
        attributes: dict[str, int | tuple[int, ...]] = {"axis": place}
        if self.attribute is not None:
            attributes["split"] = tuple(size // unit for size in self.attribute)
        if self.given is not None:
            return Edit(attributes, {1: np.array([size // unit for size in self.given], np.int64)})
        return Edit(attributes)

    def gather(self, writing: DecompositionWriter) -> None:
        """Define each part that has consumers by a Gather of its indices."""
        places = [place for place, a in enumerate(writing.axes) if a != self.axis + 1]
        at = [writing.axes[place] for place in places].index(self.axis)
        data = writing.read(0, [(place,) for place in places])
        dims = [(place,) for place, a in enumerate(writing.axes) if a != self.axis]
        index, start = writing.places(self.axis), 0
        for n, size in enumerate(self.sizes):
            assert isinstance(size, int)
            wanted = writing.constant("part", index[start : start + size])
            start += size
            if is_read(writing.node.outputs[n]):
                writing.set_result(n, writing.emit_dims("Gather", [data, wanted], {"axis": at}, dims), dims)
