"""Random operators with named axes: convolutions, pools, Resize."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_graphs import Builder, Rejected, Val
from random_operands import back, floats, image, kernel, proposes

I64, I32, U8 = np.int64, np.int32, np.uint8


def _window(b: Builder, spatial: tuple[int, ...], dilated: bool = False) -> dict[str, Any]:
    kernel = [b.draw.randint(1, min(3, e)) for e in spatial]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if b.chance(0.4):
        found["strides"] = [b.draw.choice([1, 2]) for _ in spatial]
    if b.chance(0.15):
        found["auto_pad"] = b.draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif b.chance(0.5):
        found["pads"] = [b.draw.randint(0, max(0, k - 1)) for k in (*kernel, *kernel)]
    if dilated and "auto_pad" not in found and b.chance(0.15):
        found["dilations"] = [b.draw.choice([1, 2]) for _ in spatial]
    return found


@proposes("Conv", "ConvTranspose")
def convolution(b: Builder, operator: str) -> Any:
    x = image(b)
    channels, spatial = x.shape[1], x.shape[2:]
    window = _window(b, spatial, dilated=operator == "Conv")
    size = tuple(window["kernel_shape"])
    if b.chance(0.3):
        del window["kernel_shape"]
    group = b.draw.choice([f for f in range(1, channels + 1) if channels % f == 0]) if b.chance(0.35) else 1
    many = group * b.draw.choice([1, 1, 2, 3])
    shape = (many, channels // group, *size) if operator == "Conv" else (channels, many // group, *size)
    bias = [b.parameter((many,))] if b.chance(0.6) else []
    if operator == "ConvTranspose" and b.chance(0.5):
        strides = window.get("strides", [1] * len(size))
        window.pop("auto_pad", None)
        window["output_padding"] = [b.draw.randrange(stride) for stride in strides]
    y = b.node(operator, [x, kernel(b, shape), *bias], group=group if group > 1 else None, **window)
    return back(b, y)


@proposes("AveragePool", "MaxPool", "LpPool")
def pool(b: Builder, operator: str) -> Any:
    x = image(b)
    window = _window(b, x.shape[2:])
    if operator == "AveragePool" and b.chance(0.3):
        window["count_include_pad"] = 1
    # A last window that starts in the padding does not exist, but onnx's inference counts it in some cases.
    if b.opset >= 10 and operator != "LpPool" and not window.get("pads") and min(window["kernel_shape"]) >= 2:
        window["ceil_mode"] = int(b.chance(0.4))
    if operator == "LpPool" and b.chance(0.5):
        window["p"] = b.draw.choice([1, 3])
    since = {"AveragePool": 19, "MaxPool": 10}.get(operator, 18)
    if b.opset >= since and "auto_pad" not in window and b.chance(0.15):
        window["dilations"] = [b.draw.choice([1, 2]) for _ in window["kernel_shape"]]
    if operator == "MaxPool" and b.opset >= 8 and b.chance(0.3):
        window["storage_order"] = b.draw.choice([0, 0, 1])
        y, indices = b.node("MaxPool", [x], results=2, **window)
        return back(b, y), indices
    return back(b, b.node(operator, [x], **window))


@proposes("MaxUnpool")
def max_unpool(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if min(x.shape[2:]) < 2:
        raise Rejected("too small")
    y, indices = b.node("MaxPool", [x], results=2, kernel_shape=[2, 2], strides=[2, 2])
    if b.chance(0.5):
        y = b.node("Relu", [y])
    size = [b.ints(x.shape)] if b.chance(0.5) else []
    return back(b, b.node("MaxUnpool", [y, indices, *size], kernel_shape=[2, 2], strides=[2, 2]))


@proposes("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(b: Builder, operator: str) -> Any:
    return back(b, b.node(operator, [image(b)]))


@proposes("BatchNormalization")
def batch_normalization(b: Builder, operator: str) -> Any:
    x = image(b, 2, 5) if b.chance(0.8) else floats(b, 2)
    channels = x.shape[1:] if b.opset < 9 and b.chance(0.4) else x.shape[1:2]
    given = [b.parameter(channels, b.real, 0.5, 2) for _ in range(3)]
    variance = b.parameter(channels, b.real, 0.5, 2) if b.chance(0.8) else b.input(channels, b.real, 0.5, 2)
    extra: dict[str, Any] = {"epsilon": 1e-3} if b.chance(0.5) else {}
    if len(channels) > 1:
        extra["spatial"] = 0
    return back(b, b.node(operator, [x, *given, variance], **extra))


@proposes("InstanceNormalization")
def instance_normalization(b: Builder, operator: str) -> Any:
    x = image(b)
    channels = (x.shape[1],)
    return back(b, b.node(operator, [x, b.parameter(channels, b.real, 0.5, 2), b.parameter(channels)]))


@proposes("GroupNormalization")
def group_normalization(b: Builder, operator: str) -> Any:
    x = image(b)
    channels = x.shape[1]
    groups = b.draw.choice([f for f in range(1, channels + 1) if channels % f == 0])
    size = (channels if b.opset >= 21 else groups,)
    given = [x, b.parameter(size, b.real, 0.5, 2), b.parameter(size)]
    return back(b, b.node(operator, given, num_groups=groups))


@proposes("LRN")
def lrn(b: Builder, operator: str) -> Any:
    return back(b, b.node("LRN", [image(b, 4, 4)], size=3, alpha=0.5))


@proposes("DepthToSpace")
def depth_to_space(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if x.shape[1] % 4:
        x = b.node("Concat", [x] * 4, axis=1)
    mode = b.draw.choice(["DCR", "CRD"]) if b.opset >= 11 else None
    return back(b, b.node("DepthToSpace", [x], blocksize=2, mode=mode))


@proposes("SpaceToDepth")
def space_to_depth(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if x.shape[2] % 2 or x.shape[3] % 2:
        x = b.node("Concat", [x, x], axis=2)
        x = b.node("Concat", [x, x], axis=3)
    return back(b, b.node("SpaceToDepth", [x], blocksize=2))


@proposes("Resize", "Upsample")
def resize(b: Builder, operator: str) -> Any:
    x = image(b, 2, 5)
    mode = b.draw.choice(
        ["nearest", "linear", "cubic"] if operator == "Resize" and b.opset >= 11 else ["nearest", "linear"]
    )
    moving = b.draw.sample(range(x.rank), b.draw.choice([1, 2])) if b.chance(0.3) else list(range(x.rank))[-2:]
    scales = [b.draw.choice([1.0, 2.0, 1.5, 0.5]) if a in moving else 1.0 for a in range(x.rank)]
    if any(int(e * s) < 1 for e, s in zip(x.shape, scales, strict=True)):
        raise Rejected("nothing left")
    if operator == "Upsample":
        scales = [max(1.0, s) for s in scales]
        if b.opset < 9:
            return back(b, b.node("Upsample", [x], mode=mode, scales=scales))
        return back(b, b.node("Upsample", [x, b.constant(scales, np.float32)], mode=mode))
    if b.opset < 11:
        return back(b, b.node("Resize", [x, b.constant(scales, np.float32)], mode=mode))
    extra: dict[str, Any] = {"mode": mode}
    if b.chance(0.5):
        extra["coordinate_transformation_mode"] = b.draw.choice(
            ["asymmetric", "align_corners", "half_pixel", "pytorch_half_pixel"]
        )
    if mode == "nearest" and b.chance(0.5):
        extra["nearest_mode"] = b.draw.choice(["floor", "ceil", "round_prefer_ceil"])
    if mode == "cubic" and b.chance(0.4):
        extra |= {"exclude_outside": 1, "cubic_coeff_a": -0.5}
    if b.opset >= 18 and mode != "nearest" and b.chance(0.3):
        extra["antialias"] = 1
    axes = None
    if b.opset >= 18 and b.chance(0.4):
        axes = b.draw.sample(range(x.rank), b.draw.randint(len(moving), x.rank))
        axes = [*moving, *[a for a in axes if a not in moving]][: x.rank]
        extra["axes"] = axes
    covered = axes if axes is not None else list(range(x.rank))
    roi = None if b.opset >= 13 else b.constant(np.zeros(0, np.float32))
    if b.chance(0.5):
        return back(b, b.node("Resize", [x, roi, b.constant([scales[a] for a in covered], np.float32)], **extra))
    sizes = b.ints([int(x.shape[a] * scales[a]) for a in covered])
    none = None if b.opset >= 13 else b.constant(np.zeros(0, np.float32))
    return back(b, b.node("Resize", [x, roi, none, sizes], **extra))


@proposes("ConvInteger")
def integer_convolution(b: Builder, operator: str) -> Any:
    x = image_of_bytes(b)
    w = b.parameter((b.draw.choice([1, 2, 4]), x.shape[1], *(min(2, e) for e in x.shape[2:])), U8, 0, 9)
    zeros = [b.constant(3, U8), b.constant(1, U8)][: b.draw.choice([0, 1, 2])]
    return back(b, b.node("ConvInteger", [x, w, *zeros]))


def image_of_bytes(b: Builder) -> Val:
    x = b.pick(lambda v: v.dtype == U8 and v.rank == 4 and v.constant == b.is_constant)
    if x is None or b.chance(0.3):
        x = b.node("QuantizeLinear", [floats(b, 4, 4), b.constant(0.05, b.real), b.constant(30, U8)])
    if b.chance(0.4):
        x = b.node("Transpose", [x], perm=(0, 3, 1, 2))
    return x


@proposes("QLinearConv")
def quantised_convolution(b: Builder, operator: str) -> Any:
    x = image_of_bytes(b)
    many = b.draw.choice([1, 2, 4])
    w = b.parameter((many, x.shape[1], *(min(2, e) for e in x.shape[2:])), U8, 0, 20)
    scale: Any = b.constant(0.02, b.real) if b.chance(0.5) else b.parameter((many,), b.real, 0.01, 0.03)
    zero = b.constant(9, U8) if scale.rank == 0 else b.constant(np.full(many, 9), U8)
    bias = [b.parameter((many,), I32, -50, 50)] if b.chance(0.5) else []
    coming = [x, b.constant(0.05, b.real), b.constant(30, U8)]
    going = [b.constant(0.06, b.real), b.constant(60, U8)]
    return back(b, b.node("QLinearConv", [*coming, w, scale, zero, *going, *bias]))


@proposes("DeformConv")
def deformable(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    if min(x.shape[2:]) < 2:
        raise Rejected("too small")
    group = b.draw.choice([f for f in range(1, x.shape[1] + 1) if x.shape[1] % f == 0])
    size = (x.shape[0], 8 * group, x.shape[2] - 1, x.shape[3] - 1)
    offset = b.input(size, b.real, -0.6, 0.6) if b.chance(0.5) else b.parameter(size, b.real, -0.6, 0.6)
    bias = [b.parameter((3,))] if b.chance(0.5) else []
    mask = [b.parameter((size[0], 4 * group, *size[2:]), b.real, 0, 1)] if bias and b.chance(0.5) else []
    given = [x, b.parameter((3, x.shape[1], 2, 2)), offset, *bias, *mask]
    return back(b, b.node("DeformConv", given, offset_group=group if group > 1 else None))


@proposes("GridSample")
def grid_sample(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    grid = b.array((x.shape[0], 2, 3, 2), b.real, -0.9, 0.9)
    given = b.constant(grid) if b.chance(0.5) else b.input(grid.shape, b.real, -0.9, 0.9)
    modes = ["linear", "nearest", "cubic"] if b.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    return back(b, b.node("GridSample", [x, given], mode=b.draw.choice(modes), align_corners=b.draw.choice([0, 1])))


@proposes("RoiAlign")
def roi_align(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    boxes = b.constant(np.array([[0, 0, 1.5, 1.5], [0.5, 0, 2, 1]], b.real))
    batch = b.constant(np.array([0, x.shape[0] - 1], I64))
    return back(b, b.node("RoiAlign", [x, boxes, batch], output_height=2, output_width=2))


@proposes("MaxRoiPool")
def roi_pool(b: Builder, operator: str) -> Any:
    x = image(b, 4, 4)
    boxes = b.constant(np.array([[0, 0, 0, x.shape[3] - 1, x.shape[2] - 1]], b.real))
    return back(b, b.node("MaxRoiPool", [x, boxes], pooled_shape=[2, 1]))
