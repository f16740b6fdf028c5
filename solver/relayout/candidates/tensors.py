"""The model's values as tensors in memory and views of them.

A view op (Transpose, Reshape, Squeeze, ...) creates no tensor: its result is a view of the tensor that it reads. A
tensor's memory format is given in the axes of its **base**: the value that a node, an input or a constant defines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from relayout.layout.memory_format import Box, Extent, MemoryFormat, boxes_of, source_order
from relayout.layout.view import View
from relayout.ops import OperatorClass, RegionEdge, Relabel, Rule


class Tensor(Struct, frozen=True, eq=False):
    """One tensor in memory: its base value, and the extents of its axes. `constant`: known before the model runs.

    The axes are those of the value. Only where a Reshape splits one at an unknown extent does the tensor have an axis
    for each factor.
    """

    index: int
    base: ir.Value
    extents: tuple[Extent, ...]
    constant: bool


class Operand(Struct, frozen=True):
    """A value as a node reads or produces it: a view of a tensor."""

    tensor: Tensor
    view: View
    value: ir.Value

    @property
    def source_format(self) -> MemoryFormat:
        """The format of the tensor when the axes of the operand are as in the source."""
        format_ = self.view.to_base(source_order(len(self.view.axes)))
        assert format_ is not None  # whole axes of a view always nest
        return format_

    def boxes(self, format_: MemoryFormat) -> tuple[Box, ...]:
        """The black boxes of a format of the tensor, on the operand's own axes."""
        boxes = boxes_of(format_)
        if not boxes:
            return ()
        whole = [(axis, atoms[0]) for axis, atoms in enumerate(self.view.axes) if len(atoms) == 1 and atoms[0].is_whole]
        own = {atom.axis: axis for axis, atom in whole}
        return tuple([(own[box[0]], *box[1:]) for box in boxes if box[0] in own])


class Tensors(Struct, frozen=True, eq=False):
    """Every value of a graph and its subgraphs as an operand; None for a value of unknown rank, which never changes.

    `rules` has each node's rule (None: pinned), `classes` its operator class, `region_edges` the values that cross the
    border of the graphs inside it. `constant_nodes` are computed before the model runs; `known` has the results of
    those that read a tensor's known extents. No output of the graph depends on `dead` nodes. `reads_extents` as for
    `collect_tensors`.
    """

    tensors: tuple[Tensor, ...]
    operands: Mapping[ir.Value, Operand | None]
    rules: Mapping[ir.Node, Rule | None]
    classes: Mapping[ir.Node, OperatorClass]
    region_edges: Mapping[ir.Node, tuple[RegionEdge, ...]]
    constant_nodes: AbstractSet[ir.Node]
    known: Mapping[ir.Node, np.ndarray]
    dead: AbstractSet[ir.Node]
    cancelling: AbstractSet[ir.Node]
    """Nodes that cancel elidable nodes before them (DepthToSpace after SpaceToDepth)."""
    materialized: frozenset[ir.Value]
    """Results of view ops that are materialized as tensors; their nodes may be elided."""
    opsets: Mapping[str, int]
    constants: AbstractSet[ir.Value]
    reads_extents: bool

    def is_constant(self, value: ir.Value | None) -> bool:
        return value is None or value in self.constants

    def turns(self) -> Iterator[tuple[ir.Node, Operand, Operand]]:
        """The Transposes of data that are views, each with what it reads and what it gives: views of one tensor."""
        for node, rule in self.rules.items():
            if isinstance(rule, Relabel) and node.op_type == "Transpose" and node not in self.constant_nodes:
                read = self.operands[node.inputs[0]] if node.inputs[0] is not None else None
                given = self.operands[node.outputs[0]]
                if read is not None and given is not None:
                    yield node, read, given

    def nearest_regrouped(self, value: ir.Value) -> ir.Value | None:
        """The nearest view at or before the value that merges or splits axes; None if there is none.

        It blocks a tiling: 12 channels that a Reshape merges from axes of 4 and 3 have no tiles of 2 in the reshaped
        tensor. As one axis of a tensor of their own they have. The node may still be elided if both tensors have the
        format's factors.
        """
        node = value.producer()
        while node is not None and isinstance(rule := self.rules.get(node), Relabel):
            if any(len(group) > 1 or not all(atom.is_whole for atom in group) for group in rule.axes) or rule.factors:
                return node.outputs[0]
            source = node.inputs[0]
            node = source.producer() if source is not None else None
        return None
