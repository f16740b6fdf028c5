"""`convert-layout`: TVM's ConvertLayout: `desired_layouts` for the operators that are named, none for the others.

    load_backend("convert-layout", options={"desired_layouts": {"Conv": ["NHWC", "default"]}, "skip": ["conv1"]})

Operators go by their ONNX names or TVM's (`nn.conv2d`). A list is [data] or, for convolutions, [data, kernel], in
letters or packed as TVM writes it (`NCHW16c`); a kernel of "default" is TVM's for that data layout. A list applies to
nodes of its rank. Skipped nodes and operators that are not named keep the layout that they have in the source, but
the lightly sensitive ones (pools, BatchNormalization, InstanceNormalization, Resize) may follow their neighbours, as in
TVM.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from relayout.backend import Backend, Implementation, axis_count, rank_of
from relayout.errors import LayoutSyntaxError, UsageError
from relayout.layout import Layout
from relayout.roles import DATA, KERNEL, OPERATORS, input_role, is_transposed, kernel_input, own_layout, result_role

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ConvertLayout"]

_TVM_NAMES = {
    "image.resize1d": "Resize",
    "image.resize2d": "Resize",
    "image.resize3d": "Resize",
    "nn.avg_pool2d": "AveragePool",
    "nn.conv1d": "Conv",
    "nn.conv1d_transpose": "ConvTranspose",
    "nn.conv2d": "Conv",
    "nn.conv2d_transpose": "ConvTranspose",
    "nn.conv3d": "Conv",
    "nn.conv3d_transpose": "ConvTranspose",
    "nn.deformable_conv2d": "DeformConv",
    "nn.global_avg_pool2d": "GlobalAveragePool",
    "nn.global_max_pool2d": "GlobalMaxPool",
    "nn.max_pool2d": "MaxPool",
    "qnn.conv2d": "QLinearConv",
    "vision.roi_align": "RoiAlign",
    "vision.roi_pool": "MaxRoiPool",
}
_FOLLOWERS = """
    AveragePool BatchNormalization GlobalAveragePool GlobalLpPool GlobalMaxPool InstanceNormalization LpPool MaxPool
    Resize"""
# Data layout -> kernel layout of a convolution, of a depthwise one, of a transposed one.
_DEFAULT_KERNELS = {
    "NCW": ("OIW", "OIW", "IOW"),
    "NWC": ("WIO", "WIO", "WIO"),
    "NCHW": ("OIHW", "OIHW", "IOHW"),
    "NHWC": ("HWIO", "HWOI", "HWIO"),
    "HWNC": ("HWOI", "HWOI", "HWOI"),
    "NCDHW": ("OIDHW", "OIDHW", "IODHW"),
    "NDHWC": ("DHWIO", "DHWIO", "DHWOI"),
}
_SPATIAL = ("W", "HW", "DHW")

_Wish = tuple[Layout, Layout | None]  # data, kernel; None: TVM's default


class ConvertLayout(Backend):
    """TVM's desired_layouts: the operators that are named in the layouts that are given, the others as they are."""

    name = "convert-layout"

    def __init__(
        self,
        context: Backend | None = None,
        *,
        desired_layouts: Mapping[str, Sequence[str]] | None = None,
        skip: Collection[str] = (),
    ) -> None:
        super().__init__(context)
        self._wishes = dict(_read(operator, words) for operator, words in (desired_layouts or {}).items())
        self._followed = tuple(dict.fromkeys(data for data, _ in self._wishes.values()))
        self._skipped = frozenset(skip)

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return _input_layout(node, n, self._wish(node))

    def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        return _result_layout(node, n, self._wish(node))

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if self._wish(node) is not None or node.op_type not in _FOLLOWERS.split() or node.name in self._skipped:
            return super().implementations(node)
        followed = [(data, None) for data in self._followed if axis_count(data) == rank_of(node.inputs[0])]
        return [_implementation(node, wish) for wish in (None, *followed)]

    def _wish(self, node: ir.Node) -> _Wish | None:
        if node.name in self._skipped:
            return None
        return self._wishes.get((node.op_type, rank_of(node.inputs[0]))) if node.inputs else None


def _implementation(node: ir.Node, wish: _Wish | None) -> Implementation:
    return Implementation(
        tuple(_input_layout(node, n, wish) for n in range(len(node.inputs))),
        tuple(_result_layout(node, n, wish) for n in range(len(node.outputs))),
    )


def _input_layout(node: ir.Node, n: int, wish: _Wish | None) -> Layout:
    role, rank = input_role(node, n), rank_of(node.inputs[n])
    if wish is None:
        return own_layout(node, role, rank)
    if role == KERNEL:
        return wish[1] or _default_kernel(node, wish[0])
    return wish[0] if role == DATA else Layout.any(rank)


def _result_layout(node: ir.Node, n: int, wish: _Wish | None) -> Layout:
    role, rank = result_role(node, n), rank_of(node.outputs[n])
    if wish is None:
        return own_layout(node, role, rank, is_result=True)
    return wish[0] if role == DATA else Layout.any(rank)


def _default_kernel(node: ir.Node, data: Layout) -> Layout:
    plain, depthwise, transposed = _DEFAULT_KERNELS[data.names]
    if is_transposed(node):
        return Layout.parse(transposed)
    return Layout.parse(depthwise if _is_depthwise(node) else plain)


def _is_depthwise(node: ir.Node) -> bool:
    place = kernel_input(node.op_type)
    kernel = node.inputs[place] if place is not None else None
    if "group" not in node.attributes or kernel is None or kernel.shape is None:
        return False
    # The source may already have its kernel in another layout than ONNX's.
    names = own_layout(node, KERNEL, len(kernel.shape)).names
    outputs, inputs = (names.index("O"), names.index("I")) if "O" in names else (0, 1)
    groups = node.attributes["group"].as_int()
    return groups > 1 and kernel.shape[outputs] == groups and kernel.shape[inputs] == 1


def _read(operator: str, words: Sequence[str]) -> tuple[tuple[str, int], _Wish]:
    """One entry of desired_layouts: the operator and the rank that it is for, and its layouts. Raises UsageError."""
    op_type = _TVM_NAMES.get(operator, operator)
    if op_type not in OPERATORS:
        near = get_close_matches(operator, [*OPERATORS, *_TVM_NAMES], n=3, cutoff=0.5)
        raise UsageError(
            f"the operator {operator!r} has no layout of its own",
            where="desired layouts",
            expected="an operator whose axes have names, such as Conv or MaxPool",
            found=repr(operator),
            hint=f"did you mean {' or '.join(near)}?" if near else "",
        )
    where = f"desired layout of {operator}"
    most = 2 if kernel_input(op_type) is not None else 1
    given = [words] if isinstance(words, str) else list(words)
    if given[1:] == ["default"]:
        given.pop()
    if not 1 <= len(given) <= most:
        expected = "a data layout, and a kernel layout or 'default'" if most == 2 else "one layout, that of the data"
        raise UsageError(
            "the wrong number of layouts", where=where, expected=expected, found=", ".join(given) or "none"
        )
    data = _parse(given[0], "NC", where)
    kernel = _parse(given[1], "OI", where) if len(given) == 2 else None
    if kernel is None and most == 2 and str(data) not in _DEFAULT_KERNELS:
        known = ", ".join(_DEFAULT_KERNELS)
        raise UsageError(
            "there is no default kernel layout for this data layout",
            where=where,
            expected=f"one of {known}, or a kernel layout",
            found=str(data),
        )
    if kernel is not None and axis_count(kernel) != axis_count(data):
        raise UsageError(
            "the kernel has another rank than the data",
            where=where,
            expected=f"a kernel layout of {axis_count(data)} axes",
            found=str(kernel),
        )
    return (op_type, axis_count(data)), (data, kernel)


def _parse(text: str, channels: str, where: str) -> Layout:
    """A layout whose axes are the two of `channels` and spatial ones. Raises UsageError."""
    expected = " or ".join(f"the letters {channels}{spatial}" for spatial in _SPATIAL)
    if text == "default":
        raise UsageError("the data layout cannot be the default", where=where, expected=expected, found=text)
    try:
        layout = Layout.parse(text) if "[" in text else Layout.from_tvm(text)
    except LayoutSyntaxError as error:
        raise UsageError(
            "not a layout", where=where, expected=error.expected, found=f"{error.found} in {text!r}"
        ) from error
    axes = sorted(layout.names[i] for i in range(layout.rank) if layout.tile(i) is None)
    if axes not in [sorted(channels + spatial) for spatial in _SPATIAL]:
        raise UsageError("unknown letters in a layout", where=where, expected=f"{expected}, in any order", found=text)
    return layout
