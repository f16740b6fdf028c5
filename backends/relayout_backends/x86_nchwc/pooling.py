"""Pools and upsampling on blocked values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.backend import Implementation, Writing
from relayout_backends.x86_nchwc.blocks import Blocks, blocked_way
from relayout_backends.x86_nchwc.costs import POOL
from relayout_backends.x86_nchwc.shapes import attributes, channels_of, is_float_image, numbers, volume

if TYPE_CHECKING:
    import onnx_ir as ir

_ATTRIBUTES = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")


def pool(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """MaxPool and AveragePool; None where the blocked operator computes something else."""
    if not is_float_image(node.inputs[0]) or any(result.name for result in node.outputs[1:]):
        return None
    if node.op_type == "AveragePool":
        # It counts the padding up to the end of a window, the standard operator up to the end of the padded data.
        if 1 == node.attributes.get_int("ceil_mode", 0) == node.attributes.get_int("count_include_pad", 0):
            return None
        if any(step != 1 for step in node.attributes.get_ints("dilations", ())):
            return None
    chosen = attributes(node, *_ATTRIBUTES)
    if node.op_type == "AveragePool":
        chosen.pop("dilations", None)
    return _one_for_one(node, blocks, node.op_type, chosen)


def global_pool(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """GlobalAveragePool and GlobalMaxPool."""
    return _one_for_one(node, blocks, node.op_type, {}) if is_float_image(node.inputs[0]) else None


def plain_penalty(node: ir.Node) -> int:
    """The cost of the plain `node` beyond that of the blocked one: pools are slower then, the others are not."""
    data = node.inputs[0]
    return 4 * POOL * volume(data, range(4)) if data is not None and node.op_type.endswith("Pool") else 0


def upsampling(node: ir.Node, blocks: Blocks) -> Implementation | None:
    """Resize and Upsample by whole numbers, nearest or linear; None for any other."""
    source, result = node.inputs[0], node.outputs[0]
    if not is_float_image(source) or not is_float_image(result):
        return None
    scales = _whole_scales(node)
    chosen = _sampling(node)
    if scales is None or chosen is None:
        return None
    return _one_for_one(node, blocks, "Upsample", {"scales": scales, **chosen})


def _one_for_one(node: ir.Node, blocks: Blocks, operator: str, chosen: dict[str, Any]) -> Implementation:
    channels = channels_of(node.inputs[0])

    def rewrite(writing: Writing) -> None:
        blocks.write(writing, operator, [blocks.read(writing)], chosen, channels)

    return blocked_way(node, blocks, rewrite)


def _whole_scales(node: ir.Node) -> list[int] | None:
    """The scales [1, 1, height, width] of a Resize without cropping, if they are known integers; None where it resizes
    other axes, as the second of an image whose channels are last."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    assert source.shape is not None
    assert result.shape is not None
    if node.op_type == "Resize" and (
        node.attributes.get_ints("axes") is not None
        or node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch"
        or node.attributes.get_int("antialias", 0) != 0
    ):
        return None
    given = node.attributes.get_floats("scales") if "scales" in node.attributes else None
    place = 1 if node.op_type == "Upsample" or len(node.inputs) == 2 else 2
    array = numbers(node.inputs[place]) if len(node.inputs) > place else None
    if given is None and array is not None and array.size == 4:
        given = [float(scale) for scale in array]
    if given is None:
        given = []
        for large, small in zip(result.shape, source.shape, strict=True):
            if isinstance(large, int) and isinstance(small, int) and small > 0:
                given.append(large / small)
            elif not isinstance(large, int) and large.value is not None and large == small:
                given.append(1.0)
            else:
                return None
    whole = [round(scale) for scale in given]
    return whole if len(whole) == 4 and list(given) == whole and whole[:2] == [1, 1] and min(whole) >= 1 else None


def _sampling(node: ir.Node) -> dict[str, Any] | None:
    """The blocked operator's attributes for the sampling of the source's, or None where it has none."""
    mode = node.attributes.get_string("mode", "nearest")
    if node.op_type == "Upsample":
        return {"mode": "nearest"} if mode == "nearest" else None
    places = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    if mode == "nearest":
        # By a whole number, both of these repeat each position.
        repeats = (places, rounding) == ("asymmetric", "floor") or (
            places == "half_pixel" and rounding.startswith("round_prefer")
        )
        return {"mode": "nearest"} if repeats else None
    if mode == "linear" and places in ("asymmetric", "align_corners", "half_pixel"):
        return {"mode": "linear", "coordinate_transformation_mode": places}
    return None
