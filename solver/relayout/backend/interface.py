"""The plugin interface: what a backend says of the layouts that it wants. After Glow's TensorLayoutCommon.

    class Channels(Backend):
        '''MaxPool runs on NHWC data.'''

        name = "channels"

        def nth_input_layout_requirements(self, node, n):
            if node.op_type == "MaxPool" and n == 0:
                return "NHWC"
            return super().nth_input_layout_requirements(node, n)

A method may answer with a string wherever a `Layout` is meant; `relayout.backend.ask` parses and checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from relayout.backend.rewriting import Rewrite
from relayout.layout.layout import Layout

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "DEVICE_KEY",
    "WRITTEN_KEY",
    "Backend",
    "Implementation",
    "Reordering",
    "TensorType",
    "Violation",
    "axis_count",
    "element_size",
    "rank_of",
]

DEVICE_KEY = "relayout.device"
"""The metadata of a node that says where it runs."""

WRITTEN_KEY = "relayout.written_at"
"""The metadata of a node that the source does not have: the device for which it was written, and which takes it."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor as it lies in memory: the element's size in bytes, and the extents in physical order.

    An extent is an int, a symbol's name, or None where nothing is known. `alignments[i]` is what the stride of
    dimension i is padded up to, in bytes; empty where nothing is padded.
    """

    element_size: int
    shape: tuple[int | str | None, ...]
    alignments: tuple[int, ...] = ()

    def stride_factors(self) -> tuple[int, ...]:
        """For each dimension the largest number known to divide its stride in bytes (0: every number does).

        >>> TensorType(4, (1, 8, 8, 4)).stride_factors()
        (1024, 128, 16, 4)
        >>> TensorType(4, ("N", 8, "W", 3)).stride_factors()
        (96, 12, 12, 4)
        """
        factors: list[int] = []
        factor = self.element_size
        for i in reversed(range(len(self.shape))):
            alignment = self.alignments[i] if self.alignments else 1
            if factor % alignment:
                # Known extents are rounded up; unknown ones are a multiple of both only by chance.
                exact = all(isinstance(extent, int) for extent in self.shape[i + 1 :])
                factor = -(-factor // alignment) * alignment if exact else alignment
            factors.append(factor)
            extent = self.shape[i]
            factor *= extent if isinstance(extent, int) else 1
        return tuple(reversed(factors))


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way in which a backend can run a node.

    `inputs` and `results` hold a layout for each operand, in the node's order (`*` where it does not care). `cost` is
    what running the node this way costs beyond the cheapest way, in bytes of memory traffic.

    `rewrite` writes the node where the library would not know how: other operators, other constants. Its layouts bind
    by the letters of the operator, and `*` means as in the source. `pads`: a dimension that a tile does not divide is
    padded up with zeros. What is given must have zeros there too, for whoever reads it may sum over them. `device` is
    where the node runs then, for backends that stand for several devices (see `relayout.backend.Composite`).
    """

    inputs: tuple[Layout, ...]
    results: tuple[Layout, ...]
    cost: int = 0
    rewrite: Rewrite | None = None
    pads: bool = False
    device: str = ""


@dataclass(frozen=True, slots=True)
class Reordering:
    """How a backend itself makes one layout from another: `cost` in bytes of memory traffic (None: the default
    pricing), and `rewrite` to write it (None: Reshape and Transpose)."""

    cost: int | None = None
    rewrite: Rewrite | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A fault that a backend finds at a node of a legal model (see `Backend.check`).

    `rule` names the kind of fault in the verifier's findings; `operand` counts the node's inputs from 0.
    """

    node: ir.Node
    message: str
    operand: int | None = None
    expected: str = ""
    found: str = ""
    rule: str = "backend"


class Backend:
    """What one target wants. The base class wants nothing: every operator as ONNX defines it.

    `context` is the outermost backend when one delegates to another: look-ups about neighbours go through it, so that
    the outer one's overrides are honoured (Glow PR 4731).
    """

    name = ""
    is_enabled = True
    flows_down = False
    """Where it costs the same, an operator that takes any order runs in the layout that this backend names for the one
    above it, as in TVM and OneFlow, and not as in the source."""

    def __init__(self, context: Backend | None = None) -> None:
        self.context: Backend = context.context if context is not None else self

    def layouts_for_dims(self) -> tuple[Layout, ...]:
        """The predefined layouts by rank, 0 to 6: "" N ** *** **** ***** ****** (Glow's table)."""
        return _COMMON

    def default_nd_layout(self, rank: int) -> Layout:
        """The layout of a tensor of `rank` dimensions that nothing else is known of."""
        table = self.layouts_for_dims()
        return table[rank] if rank < len(table) else Layout.any(rank)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        """The layout that `node` wants its n-th input in; all `*` is no wish."""
        return self.default_nd_layout(rank_of(node.inputs[n]))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        """The layout that `node` gives its n-th result."""
        return self.default_nd_layout(rank_of(node.outputs[n]))

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        """The ways in which this backend can run `node`, at least one. Here: the one that the requirements state."""
        return (
            Implementation(
                _requirements(self.nth_input_layout_requirements, "input", node, node.inputs),
                _requirements(self.nth_result_layout_requirements, "result", node, node.outputs),
            ),
        )

    def order_cost(self, node: ir.Node, axes: tuple[int, ...], traffic: int, *, is_rewritten: bool) -> int | None:
        """What running `node` with the axes of its first result in the order `axes`, outermost first, costs beyond its
        best order, in bytes of memory traffic; None: this device never does.

        Asked of operators that take their axes in any order; an axis that is cut stands several times. `is_rewritten`:
        ONNX's operator does not take this order, and the node is written as others (a product of the transposes, a
        normalization in parts), which read and write `traffic` more. Here: the traffic.
        """
        return traffic

    def conversion_cost(self, tensor: TensorType, source: Layout, target: Layout) -> int | None:
        """What it costs to make `target` from `source`, in bytes of memory traffic; None: the default pricing."""
        return None

    def conversion(self, tensor: TensorType, source: Layout, target: Layout) -> Reordering | None:
        """How to make `target` from `source`, where this backend has an operator of its own for it; None: it has none,
        and a Transpose does it. `tensor` lies as `source` says. Layouts without names are asked for as `*`; a dimension
        that ends with zeros says how many, as `C[pad:8]`."""
        return None

    def devices(self) -> tuple[str, ...]:
        """The devices by name, where this backend stands for several (see `relayout.backend.Composite`)."""
        return ()

    def at(self, device: str) -> Backend:
        """The backend of the device `device`. Here: this one, everywhere."""
        return self

    def host(self) -> str | None:
        """The device of the graph's inputs and outputs; None: each is where it is cheapest."""
        return None

    def transfer_cost(self, nbytes: int, source: str, target: str) -> int:
        """What it costs to bring a tensor of `nbytes` from one device to another, in bytes of memory traffic."""
        return 2 * nbytes

    def prepare(self, model: ir.Model) -> bool:
        """Change the source's model, in place, before anything is asked of it: where the target has an operator that
        does the same as one of ONNX's and takes its operands in more orders; whether anything changed.

        Inputs, outputs and numbers stay what they are. Of several devices none is asked. Here: nothing.
        """
        return False

    def finish(self, model: ir.Model, device: str = "") -> bool:
        """Change a legal model, in place, where the target does in one go what are several nodes, or wants constants in
        an order of its own; whether anything changed.

        Inputs, outputs and numbers stay what they are. `device`: this backend is that of one device among others, and
        only the nodes that run there, which their metadata `DEVICE_KEY` says, are its own. Here: nothing.
        """
        return False

    def check(self, model: ir.Model, device: str = "") -> Iterable[Violation]:
        """The faults of a legal model that this backend alone knows, such as misused operators of its own.

        The verifier asks. It checks the layouts itself; here belongs what no layout says. `device`: as in `finish`.

            def check(self, model, device=""):
                for node in model.graph.all_nodes():
                    if node.domain == "com.acme" and node.attributes.get_int("bank", 0) > 7:
                        yield Violation(node, "there are eight banks", expected="a bank from 0 to 7")
        """
        return ()

    def conversion_operators(self) -> frozenset[tuple[str, str]]:
        """The operators of this backend's own that only convert layouts, by domain and name.

        The totals of a report count them as `reorders`, and the verifier counts them again.

            def conversion_operators(self):
                return frozenset({("com.acme", "Pack"), ("com.acme", "Unpack")})
        """
        return frozenset()

    def operator_layouts(self, node: ir.Node) -> Implementation | None:
        """The layouts of the operands of an operator of this backend's own, as it stands in a model; None: not known.

        The verifier asks for nodes outside ONNX's domains and `relayout`, and derives from the answer which axis is
        which. The axes of an operator that is known may have no names: all its layouts are `*` then.

            def operator_layouts(self, node):
                if (node.domain, node.op_type) == ("com.acme", "Pool"):
                    return Implementation((Layout.parse("NHWC"),), (Layout.parse("NHWC"),))
                return None
        """
        return None

    def opaque_values(self, model: ir.Model) -> Iterable[ir.Value]:
        """The values of a legal model whose memory is not in the order of their shape, such as channel blocks that an
        operator of this backend's own gives a plain shape; the verifier compares no numbers of these.

            def opaque_values(self, model):
                return [node.outputs[0] for node in model.graph.all_nodes() if node.domain == "com.acme.blocked"]
        """
        return ()

    def supports(self, node: ir.Node) -> bool:
        """Whether this backend runs `node` at all."""
        return True

    def is_satisfied_by(self, tensor: TensorType, required: Layout, current: Layout | None) -> bool:
        """Whether a tensor that lies as `tensor` and is known to be in layout `current` meets `required`.

        After Glow's isSatisfiedBy: the ranks are equal; the stride of each dimension in bytes is a multiple of its
        alignment, provably so where extents are unknown; names are equal, where `*` equals anything on either side;
        the name of an only dimension says nothing. A black box must be carried identically, and a dimension that
        carries one satisfies only a requirement with the same box, or `*`. `current` is None where nothing is known.
        """
        if required.rank != len(tensor.shape) or (current is not None and current.rank != required.rank):
            return False
        factors = tensor.stride_factors()
        return all(
            factors[i] % required.alignment(i) == 0
            and _extent_fits(tensor.shape[i], required.tile(i))
            and _dim_matches(required, current, i)
            for i in range(required.rank)
        )


def element_size(value: ir.Value | None) -> int:
    """The bytes of one element: 1 for what is smaller, 4 where the type is not known and for strings."""
    dtype = value.dtype if value is not None else None
    if dtype is None or dtype.name in ("UNDEFINED", "STRING"):
        return 4
    return max(1, dtype.bitwidth // 8)


def rank_of(value: ir.Value | None) -> int:
    """How many dimensions an operand has; 0 for a missing operand and for one of which nothing is known."""
    return len(value.shape) if value is not None and value.shape is not None else 0


@lru_cache(maxsize=4096)
def axis_count(layout: Layout) -> int:
    """How many axes of a tensor a layout speaks of: the inner part of a tiled dimension is no axis of its own.

    >>> axis_count(Layout.parse("NCHWc[tile:16]"))
    4
    """
    return sum(1 for i in range(layout.rank) if layout.tile(i) is None)


_COMMON = (Layout.any(0), Layout.parse("N"), *(Layout.any(rank) for rank in range(2, 7)))


def _requirements(
    method: Callable[[ir.Node, int], Layout | str], side: str, node: ir.Node, values: Sequence[ir.Value | None]
) -> tuple[Layout, ...]:
    layouts: list[Layout] = []
    for n, value in enumerate(values):
        try:
            answer = _COMMON[0] if value is None else method(node, n)
            layouts.append(Layout.parse(answer) if isinstance(answer, str) else answer)
        except Exception as error:
            error.add_note(f"{side} {n}")  # for the message: `relayout.backend.calls` says where the error was raised
            raise
    return tuple(layouts)


def _dim_matches(required: Layout, current: Layout | None, i: int) -> bool:
    if current is None:
        return not required.boxes(i)
    if required.names[i] == "*" and not required.boxes(i):
        return True
    return (
        (required.rank == 1 or "*" in (required.names[i], current.names[i]) or required.names[i] == current.names[i])
        and _tiles_match(required.tile(i), current.tile(i))
        and sorted(required.boxes(i)) == sorted(current.boxes(i))
    )


def _tiles_match(required: int | None, current: int | None) -> bool:
    return required is None or current is None or required == current


def _extent_fits(extent: int | str | None, tile: int | None) -> bool:
    return tile is None or extent == tile
