"""The plugin interface: what a backend says of the layouts that it wants. After Glow's TensorLayoutCommon.

    from relayout import Backend, Layout

    class Channels(Backend):
        '''MaxPool runs on NHWC data.'''
        name = "channels"

        def nth_input_layout_requirements(self, node, n):
            if node.op_type == "MaxPool" and n == 0:
                return Layout.parse("NHWC")
            return super().nth_input_layout_requirements(node, n)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayout.layout import Layout

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Backend", "Implementation", "TensorType"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor as it lies in memory: the element's size in bytes, and the extents in physical order.

    An extent is an int, a symbol's name, or None where nothing is known.
    """

    element_size: int
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way in which a backend can run a node.

    `inputs` and `results` hold a layout for each operand, in the node's order (`*` where it does not care). `cost` is
    what running the node this way costs beyond the cheapest way, in bytes of memory traffic.
    """

    inputs: tuple[Layout, ...]
    results: tuple[Layout, ...]
    cost: int = 0


class Backend:
    """What one target wants. The base class wants nothing: every operator as ONNX defines it.

    `context` is the outermost backend when one delegates to another: look-ups about neighbours go through it, so that
    the outer one's overrides are honoured (Glow PR 4731).
    """

    name = ""
    is_enabled = True

    def __init__(self, context: Backend | None = None) -> None:
        self.context: Backend = context.context if context is not None else self

    def layouts_for_dims(self) -> tuple[Layout, ...]:
        """The predefined layouts by rank, 0 to 6: "" N ** *** **** ***** ****** (Glow's table)."""
        return _COMMON

    def default_nd_layout(self, rank: int) -> Layout:
        """The layout of a tensor of `rank` dimensions that nothing else is known of."""
        table = self.layouts_for_dims()
        return table[rank] if rank < len(table) else Layout.any(rank)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout:
        """The layout that `node` wants its n-th input in."""
        return self.default_nd_layout(_rank(node.inputs[n]))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout:
        """The layout that `node` gives its n-th result."""
        return self.default_nd_layout(_rank(node.outputs[n]))
