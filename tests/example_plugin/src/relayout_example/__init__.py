"""A backend for an imagined accelerator, as its vendor would publish it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout import Backend, Implementation, Layout
from relayout_backends.nhwc import Nhwc

if TYPE_CHECKING:
    import onnx_ir as ir


class Example(Backend):
    """Convolutions of many channels run on NHWC, the others on NCHW too but slower; all else is as for `nhwc`."""

    name = "example"

    def __init__(self, context: Backend | None = None, *, many: int = 16) -> None:
        super().__init__(context)
        self._many = many
        self._others = Nhwc(context=self)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return self._others.nth_input_layout_requirements(node, n)

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return self._others.nth_result_layout_requirements(node, n)

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        fast = super().implementations(node)
        data = node.inputs[0] if node.inputs else None
        if node.op_type != "Conv" or data is None or data.shape is None or len(data.shape) != 4:
            return fast
        if isinstance(data.shape[1], int) and data.shape[1] >= self._many:
            return fast
        nchw = Layout.parse("NCHW")
        inputs = (nchw, Layout.parse("OIHW"), Layout.any(1))[: len(node.inputs)]
        return [*fast, Implementation(inputs, (nchw,), cost=4096)]
