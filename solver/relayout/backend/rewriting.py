"""The rewriter: the interface that a backend's own rewrite of a node or of a conversion is called with.

    def rewrite(writing: Writing) -> None:
        kernel = writing.relaid_constant(1, [{"op": "transpose", "perm": [2, 3, 1, 0]}])
        shape = writing.shape_of(0, is_result=True)
        result = writing.emit("Conv", [writing.read(0), kernel], domain="com.acme", shape=shape)
        writing.set_result(0, result)

A rewrite runs only after the solver has chosen the implementation, so it may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

Extents = Sequence[int | str | None]
"""A shape: each extent is an int, a symbol's name, or None if unknown."""


class Writing(Protocol):
    """The node (or the conversion: its only input and only result have the index 0) that is being written."""

    @property
    def node(self) -> ir.Node:
        """The logical node: ONNX's operator on the source's values. A conversion has none: BackendError."""

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators in this model."""

    def shape_of(self, index: int, *, is_result: bool = False) -> tuple[int | str | None, ...]:
        """The operand's shape in its layout: an extent for each dimension of the layout, padding included."""

    def read(self, index: int, shape: Extents | None = None) -> ir.Value:
        """Input `index` in the layout that the implementation requires, with an extent for each dimension of the
        layout. A constant is converted before the model runs.

        `shape`: the same memory as a tensor of that shape, for operators that declare a blocked layout with fewer
        dimensions. Extents of None are in the order of their axes.
        """

    def relaid_constant(self, index: int, steps: Sequence[Mapping[str, Any]]) -> ir.Value:
        """Constant input `index` after `steps` from ONNX's order, whatever layout the implementation requires (see
        `relayout.layout.relaid_constant`); its data is read when the file is written. BackendError for other inputs."""

    def constant(self, stem: str, array: np.ndarray[Any, Any]) -> ir.Value:
        """A new constant; its name begins with `stem`."""

    def emit(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        shape: Extents,
        domain: str = "",
        version: int = 1,
        like: ir.Value | None = None,
    ) -> ir.Value:
        """A new node with one result of `shape`, of the type of `like` (default: the first input).

        The operator set `domain` is imported in `version`.
        """

    def set_result(self, index: int, value: ir.Value) -> None:
        """Define result `index` as `value`, in the layout of the implementation.

        Its shape may be that of the layout, or any other of the same memory.
        """


Rewrite = Callable[[Writing], None]
"""Writes one node, or one conversion: reads the operands that it needs, and defines every result that is used."""
