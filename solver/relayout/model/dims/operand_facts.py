"""The operands of a node: what is known of their dims and elements, in terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from relayout.model.dims.symbolic_vectors import Dims, Vector, constant, elements, integers
from relayout.model.proto_graphs import attributes_of


class Operands:
    """The operands of a node, by place; of one that is left out nothing is known."""

    def __init__(
        self,
        node: onnx.NodeProto,
        dims: Callable[[str], Dims | None],
        values: Callable[[str], Vector | None],
        slices: Mapping[str, Operands],
    ) -> None:
        """`dims` and `values` tell those of a value by its name, as far as they are known. `slices` has the operands
        of the Slices before, by result."""
        self.names: tuple[str, ...] = tuple(node.input)
        self.operator = node.op_type
        self._node, self._dims, self._values, self._slices = node, dims, values, slices

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """The node's attributes."""
        return attributes_of(self._node)

    def has(self, place: int) -> bool:
        """Whether the node has this operand."""
        return place < len(self.names) and bool(self.names[place])

    def dims(self, place: int = 0) -> Dims | None:
        """The dims of an operand; None where its rank is not known."""
        return self._dims(self.names[place]) if self.has(place) else None

    def terms(self, place: int, attribute: str = "") -> Dims | None:
        """The elements of an operand, or of the attribute that older opsets have instead."""
        if attribute in self.attributes:
            return elements(constant(np.asarray(self.attributes[attribute])))
        return elements(self._values(self.names[place])) if self.has(place) else None

    def numbers(self, place: int, attribute: str = "") -> list[int] | None:
        """The same where all are whole numbers."""
        found = self.terms(place, attribute)
        return None if found is None else integers(Vector(found))

    def sliced(self, place: int) -> Operands | None:
        """The operands of the Slice that makes this operand; None where no Slice does."""
        return self._slices.get(self.names[place])
