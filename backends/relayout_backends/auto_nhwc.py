"""`auto-nhwc`: OneFlow's auto-NHWC: operators with channels-first data run channels last on the device.

OneFlow's interface of an operator has four questions (NCHWCompatibleInterface); `NchwCompatible` has the same:

    class Mine(NchwCompatible):
        def is_nchw(self, node): ...                # does it read its data channels first?
        def operands_to_transpose(self, node): ...  # which of its inputs does its NHWC counterpart read transposed?
        def results_to_transpose(self, node): ...   # which of its results?
        def nchw_to_nhwc(self, node): ...           # the counterpart: for OneFlow a node, here its layouts

An NCHW node becomes its counterpart. Another node that lists operands may become it, where that is cheaper (OneFlow
does so wherever a transpose is before it). All others have no requirements. OneFlow inserts transposes greedily and
cancels those that meet; here the solver decides for all operators at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation, rank_of
from relayout.errors import UsageError
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import (
    DATA,
    KERNEL,
    OTHER,
    has_roles,
    input_role,
    is_transposed,
    own_layout,
    result_role,
)

if TYPE_CHECKING:
    import onnx_ir as ir

CHANNELS_LAST = (0, 2, 3, 1)
"""The order of the axes of each transposed operand of a counterpart, kernels included."""

# The operators that implement OneFlow's interface and have a data format or an axis, by ONNX's names. Those without
# (relu, add, cast, concatenation ...) take any order by themselves.
_CONVERTED = ("BatchNormalization", "Conv", "GroupNormalization", "MaxPool")
_DEVICES = ("cpu", "cuda")


class NchwCompatible(Backend):
    """A backend defined by four answers about an operator. The base class lists no operands, so it requires nothing."""

    def is_nchw(self, node: ir.Node) -> bool:
        """Whether `node` reads its data channels first, and so becomes its NHWC counterpart."""
        return False

    def operands_to_transpose(self, node: ir.Node) -> Collection[int]:
        """The indices of the inputs of `node` that its counterpart reads transposed."""
        return ()

    def results_to_transpose(self, node: ir.Node) -> Collection[int]:
        """The indices of the results of `node` that its NHWC counterpart produces transposed."""
        return ()

    def nchw_to_nhwc(self, node: ir.Node) -> Implementation:
        """The counterpart: each operand that is listed in the order (0, 2, 3, 1), the others as they are."""
        turned = self.operands_to_transpose(node), self.results_to_transpose(node)
        inputs, results = _operands(node)
        return Implementation(
            tuple(_layout(node, role, rank, n in turned[0]) for n, (role, rank) in enumerate(inputs)),
            tuple(_layout(node, role, rank, n in turned[1], is_result=True) for n, (role, rank) in enumerate(results)),
        )

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if self.is_nchw(node):
            return (self.nchw_to_nhwc(node),)
        stated = super().implementations(node)
        return (*stated, self.nchw_to_nhwc(node)) if self.operands_to_transpose(node) else stated

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if self.is_nchw(node):
            return self.nchw_to_nhwc(node).inputs[n]
        return own_layout(node, input_role(node, n), rank_of(node.inputs[n]))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if self.is_nchw(node):
            return self.nchw_to_nhwc(node).results[n]
        return own_layout(node, result_role(node, n), rank_of(node.outputs[n]), is_result=True)


class AutoNhwc(NchwCompatible):
    """OneFlow's auto-NHWC: 4-D convolutions, max pools and norms on NHWC data; other pools and resizes may follow."""

    name = "auto-nhwc"
    is_pure = True
    flows_down = True

    def __init__(self, context: Backend | None = None, *, device: str = "cuda") -> None:
        """`device`: "cuda", or "cpu", which OneFlow leaves alone: no requirements then."""
        super().__init__(context)
        if device not in _DEVICES:
            raise UsageError("unknown device", where="device", expected=" or ".join(_DEVICES), found=repr(device))
        self.is_enabled = device != "cpu"

    def is_nchw(self, node: ir.Node) -> bool:
        return node.op_type in _CONVERTED and bool(self.operands_to_transpose(node))

    def operands_to_transpose(self, node: ir.Node) -> Collection[int]:
        inputs, _ = _operands(node)
        listed = [n for n, (role, _) in enumerate(inputs) if role != OTHER]
        four_dimensional = all(inputs[n][1] == len(CHANNELS_LAST) for n in listed)
        return listed if self.is_enabled and four_dimensional and has_roles(node) else ()

    def results_to_transpose(self, node: ir.Node) -> Collection[int]:
        _, results = _operands(node)
        return [n for n, (role, _) in enumerate(results) if role == DATA] if self.operands_to_transpose(node) else ()


def _operands(node: ir.Node) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The role and the rank of each input of `node`, and of each result."""
    return (
        [(input_role(node, n), rank_of(value)) for n, value in enumerate(node.inputs)],
        [(result_role(node, n), rank_of(value)) for n, value in enumerate(node.outputs)],
    )


def _layout(node: ir.Node, role: str, rank: int, turned: bool, *, is_result: bool = False) -> Layout:
    if not turned or rank != len(CHANNELS_LAST):
        return own_layout(node, role, rank, is_result=is_result)
    letters = "NCHW" if role != KERNEL else "IOHW" if is_transposed(node) else "OIHW"
    return Layout.parse("".join(letters[axis] for axis in CHANNELS_LAST))
