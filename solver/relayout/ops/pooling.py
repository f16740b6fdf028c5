"""Pools, normalizations and SpaceToDepth: operators with named axes whose data operands have one layout."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from relayout.ops.decompositions import channelwise, is_channelwise, normalise, reduce_spatial
from relayout.ops.named_axes import letters_of, named
from relayout.ops.node_reader import NoRuleError, Reading
from relayout.ops.registry import row
from relayout.ops.rule import Axes, DecompositionWriter, Free
from relayout.ops.view_ops import blocks


@row("fixed", "BatchNormalization")
def batch_normalization(node: Reading) -> Free:
    """With known parameters it decomposes to Mul and Add: one more pass that reads and writes the data."""
    if node.rank() < 2:
        raise NoRuleError
    if not node.integer("spatial", 1):
        return named(node, (0,), "exact")  # before opset 9 there may be parameters for each position
    known = is_channelwise(node.node) and node.is_float() and not any(node.used(i) for i in range(1, 5))
    known = known and isinstance(node.extents(0)[letters_of(node, node.rank()).index("C")], int)
    ways = [(lambda writing, channel, _spatial: channelwise(writing, channel), 2)] if known else []
    return named(node, (0,), "channel", written=ways, tiles=tuple(range(node.rank())))


@row("fixed", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Reading) -> Free:
    """It decomposes to a reduction over the spatial axes, without extra traffic."""
    operator = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}.get(node.node.op_type)
    if operator is None or not node.is_float():
        return named(node, (0,), "leading", keeps_apart=True)
    # Spatial axes are split into factors without zeros only, as a mean would count these.
    ways = [(lambda writing, _, spatial: reduce_spatial(writing, operator, spatial), 0)]
    return named(
        node, (0,), "leading", written=ways, tiles=tuple(range(node.rank())), splits_spatial=True, keeps_apart=True
    )


@row("fixed", "InstanceNormalization", "GroupNormalization")
def instance_normalization(node: Reading) -> Free:
    """Decomposed, it reads and writes the data 10 times in place of 2, or 12 times without a sum of squares."""
    known = all(isinstance(extent, int) for extent in node.extents(0)[2:])
    plain = node.node.op_type == "InstanceNormalization" and node.node.domain == "" and known and node.is_float()
    if not plain or not all(node.has(index) and node.rank(index) == 1 for index in (1, 2)):
        return named(node, (0,), "exact", reduces_spatial=True)

    def write(writing: DecompositionWriter, channel: int, spatial: Axes, *, plainly: bool = False) -> None:
        normalise(writing, spatial, channel=channel, plainly=plainly)

    rule = named(node, (0,), "exact", written=[(write, 8), (partial(write, plainly=True), 10)], reduces_spatial=True)
    channel = rule.axis_names.index("C")
    return replace(rule, inputs=(rule.inputs[0], (channel,), (channel,)))


@row("fixed", "AveragePool", "LpPool")
def pool(node: Reading) -> Free:
    return named(node, (0,), "exact", keeps_apart=True)


@row("fixed", "LRN")
def exact(node: Reading) -> Free:
    return named(node, (0,), "exact")


@row("relabel", "SpaceToDepth", "DepthToSpace")
def blocks_of_space(node: Reading) -> Free:
    """An operator that is not elided changes the extents but not the axes."""
    rule = named(node, (0,), "exact")
    return replace(rule, elidable_as=blocks(node, rule.axis_names))


@row("fixed", "MaxPool")
def max_pool(node: Reading) -> Free:
    # The function around a re-laid-out MaxPool computes ONNX's own flat indices, so they mean the same in any layout.
    # They count the channels, though, so that a node that gives them takes the channels in their order.
    return named(node, (0,), "exact", results=2, keeps_apart=not node.used(1))


@row("fixed", "MaxUnpool", since=9)
def max_unpool(node: Reading) -> Free:
    return named(node, (0, 1), "exact")
