"""TVM's `desired_layouts`, parsed and checked: the operator and the rank of a list, and its layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relayout.backend import axis_count
from relayout.errors import LayoutSyntaxError, UsageError, did_you_mean
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import OPERATORS, kernel_input

# TVM's name -> ONNX's, and its number of spatial dimensions; 0: any.
_TVM_NAMES = {
    "image.resize1d": ("Resize", 1),
    "image.resize2d": ("Resize", 2),
    "image.resize3d": ("Resize", 3),
    "nn.adaptive_avg_pool2d": ("GlobalAveragePool", 2),
    "nn.avg_pool1d": ("AveragePool", 1),
    "nn.avg_pool2d": ("AveragePool", 2),
    "nn.avg_pool3d": ("AveragePool", 3),
    "nn.batch_norm": ("BatchNormalization", 0),
    "nn.conv1d": ("Conv", 1),
    "nn.conv1d_transpose": ("ConvTranspose", 1),
    "nn.conv2d": ("Conv", 2),
    "nn.conv2d_transpose": ("ConvTranspose", 2),
    "nn.conv3d": ("Conv", 3),
    "nn.conv3d_transpose": ("ConvTranspose", 3),
    "nn.deformable_conv2d": ("DeformConv", 2),
    "nn.depth_to_space": ("DepthToSpace", 2),
    "nn.global_avg_pool2d": ("GlobalAveragePool", 2),
    "nn.global_max_pool2d": ("GlobalMaxPool", 2),
    "nn.max_pool1d": ("MaxPool", 1),
    "nn.max_pool2d": ("MaxPool", 2),
    "nn.max_pool3d": ("MaxPool", 3),
    "nn.space_to_depth": ("SpaceToDepth", 2),
    "nn.upsampling": ("Resize", 2),
    "nn.upsampling3d": ("Resize", 3),
    "qnn.conv2d": ("QLinearConv", 2),
    "vision.roi_align": ("RoiAlign", 2),
    "vision.roi_pool": ("MaxRoiPool", 2),
}
DEFAULT_KERNELS = {
    "NCW": ("OIW", "OIW", "IOW"),
    "NWC": ("WIO", "WIO", "WIO"),
    "NCHW": ("OIHW", "OIHW", "IOHW"),
    "NHWC": ("HWIO", "HWOI", "HWIO"),
    "HWNC": ("HWOI", "HWOI", "HWOI"),
    "NCDHW": ("OIDHW", "OIDHW", "IODHW"),
    "NDHWC": ("DHWIO", "DHWIO", "DHWOI"),
}
"""Data layout -> kernel layout of a convolution, of a depthwise one, of a transposed one."""

_SPATIAL = ("W", "HW", "DHW")


@dataclass(frozen=True, slots=True)
class DesiredLayouts:
    """The layouts of one operator. `kernel` is None for TVM's default, `result` where it is that of the data."""

    data: Layout
    kernel: Layout | None = None
    result: Layout | None = None


def read_desired(operator: str, words: Sequence[str]) -> tuple[tuple[str, int], DesiredLayouts]:
    """One entry of desired_layouts: its operator, its rank, and its layouts. Raises UsageError."""
    op_type, spatial = _TVM_NAMES.get(operator.removeprefix("relax."), (operator, 0))
    if op_type not in OPERATORS:
        raise UsageError(
            f"the operator {operator!r} has no layout of its own",
            where="desired layouts",
            expected="an operator whose axes have names, such as Conv or MaxPool",
            found=repr(operator),
            hint=did_you_mean(operator, [*OPERATORS, *_TVM_NAMES], 3, 0.5),
        )
    where = f"desired layout of {operator}"
    has_kernel = kernel_input(op_type) is not None
    given = [words] if isinstance(words, str) else list(words)
    if not has_kernel and given[1:] == ["default"]:
        given.pop()  # TVM's boxes of a RoiAlign
    if not 1 <= len(given) <= (3 if has_kernel else 1):
        expected = "a data layout, and a kernel layout or 'default'" if has_kernel else "one layout, that of the data"
        raise UsageError(
            "the wrong number of layouts", where=where, expected=expected, found=", ".join(given) or "none"
        )
    data = _parse(given[0], "NC", where, spatial)
    kernel = _parse(given[1], "OI", where, spatial) if given[1:] and given[1] != "default" else None
    result = _parse(given[2], "NC", where, spatial) if given[2:] else None
    if kernel is None and has_kernel and str(data) not in DEFAULT_KERNELS:
        raise UsageError(
            "there is no default kernel layout for this data layout",
            where=where,
            expected=f"one of {', '.join(DEFAULT_KERNELS)}, or a kernel layout",
            found=str(data),
        )
    _check_ranks(data, {"kernel": kernel, "result": result}, where)
    return (op_type, axis_count(data)), DesiredLayouts(data, kernel, result)


def _check_ranks(data: Layout, others: Mapping[str, Layout | None], where: str) -> None:
    for word, layout in others.items():
        if layout is not None and axis_count(layout) != axis_count(data):
            raise UsageError(
                f"the {word} has another rank than the data",
                where=where,
                expected=f"a {word} layout of {axis_count(data)} axes",
                found=str(layout),
            )


def _parse(text: str, channels: str, where: str, dimensions: int) -> Layout:
    """A layout of the two axes of `channels` and `dimensions` spatial ones (0: any). Raises UsageError."""
    allowed = [channels + spatial for spatial in _SPATIAL if dimensions in (0, len(spatial))]
    expected = " or ".join(f"the names {letters}" for letters in allowed)
    if text == "default":
        raise UsageError("the data layout cannot be the default", where=where, expected=expected, found=text)
    try:
        layout = Layout.parse(text) if "[" in text else Layout.from_tvm(text)
    except LayoutSyntaxError as error:
        raise UsageError(
            "not a layout", where=where, expected=error.expected, found=f"{error.found} in {text!r}"
        ) from error
    axes = sorted(layout.names[i] for i in range(layout.rank) if layout.tile(i) is None)
    if axes not in [sorted(letters) for letters in allowed]:
        raise UsageError("unknown names in a layout", where=where, expected=f"{expected}, in any order", found=text)
    return layout
