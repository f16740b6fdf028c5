"""Slices that onnx's inference must not look into, because their operand may have a negative extent, and Splits that it
must not look into at all.

onnx gives a window that is larger than its operand a negative extent, and then a Slice with a known start ends the
process (onnx 1.23: an assertion of the C++ library). Sizes that a model does not take lead there: a sound of three
samples before a convolution of eight. So the starts of Slices behind such a window are hidden, until the extents before
them are known. A Split that states fewer results than it has ends the process too: no runtime runs one, so that it is
an error. All of the library infers with onnx by way of this module, but for the conversion of opsets below 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import onnx
from onnx import numpy_helper

from relayout.layout.terms import GENERATED
from relayout.model.dims.inference_placeholders import carry_over, hide_starts
from relayout.model.proto_graphs import STANDARD_DOMAINS, copied, dims_by_name, graphs_in, subgraphs_of, tensor_of

PASSES = 32
"""At most so many Slices behind each other get their extents, each in a pass of its own."""

_SHAPES = frozenset({"Shape", "Size"})
_WINDOWS = frozenset({"AveragePool", "Conv", "ConvInteger", "DeformConv", "LpPool", "MaxPool", "QLinearConv"})
_KERNELS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "DeformConv": 1, "QLinearConv": 3}

_Dims = Mapping[str, Sequence[onnx.TensorShapeProto.Dimension]]


def inferred_by_onnx(
    proto: onnx.ModelProto, *, check_type: bool = False, strict_mode: bool = False, data_prop: bool = False
) -> onnx.ModelProto:
    """`onnx.shape_inference.infer_shapes` with these options, where the results of Slices of tensors with a negative
    extent have no shape. Raises its errors, and ValueError for a Split that states another number of results."""

    def infer(model: onnx.ModelProto) -> onnx.ModelProto:
        return onnx.shape_inference.infer_shapes(model, check_type, strict_mode, data_prop)

    hidden = _behind_windows(proto)
    _check_splits(proto)
    if not hidden:
        return infer(proto)
    for _ in range(PASSES):
        probe = copied(proto)
        hide_starts(probe, hidden)
        inferred = infer(probe)
        left = _not_known(proto, inferred, hidden)
        if not left:
            return infer(proto)
        if left == hidden:
            break
        hidden = left
    result = copied(proto)
    carry_over(inferred.graph, result.graph)
    return result


def _check_splits(proto: onnx.ModelProto) -> None:
    bodies = [*subgraphs_of(proto.graph), *proto.functions]
    for node in (node for body in bodies for node in body.node if node.op_type == "Split"):
        stated = [each for each in node.attribute if each.name == "num_outputs" and not each.ref_attr_name]
        if node.domain in STANDARD_DOMAINS and stated and stated[0].i != len(node.output):
            found = f"num_outputs is {stated[0].i}, for {len(node.output)} results"
            raise ValueError(f"(op_type:Split, node name: {node.name}): {found}")


def has_negative_extents(proto: onnx.ModelProto) -> bool:
    """Whether a Slice has an operand of a negative extent, which ends a process of onnxruntime as one of onnx."""
    if not _behind_windows(proto):
        return False
    graphs = [*subgraphs_of(inferred_by_onnx(proto, data_prop=True).graph)]
    dims = _of_all(graphs)
    sliced = [node.input[0] for graph in graphs for node in graph.node if node.op_type == "Slice"]
    return any(dim.dim_value < 0 for name in sliced for dim in dims.get(name, ()))


def _behind_windows(proto: onnx.ModelProto) -> set[str]:
    """The results of Slices whose operand depends on a window that may be larger than its own operand."""
    graphs = [*subgraphs_of(proto.graph)]
    operators = {node.op_type for graph in graphs for node in graph.node}
    if "Slice" not in operators or not operators & {*_WINDOWS, "ConvTranspose", "Pad"}:
        return set()
    dims, numbers = _of_all(graphs), _constants(graphs)

    def starts(node: onnx.NodeProto) -> bool:
        return node.domain in STANDARD_DOMAINS and _may_be_negative(node, dims, numbers)

    return _sliced_behind(graphs, starts, lambda name: _is_fit(dims.get(name)) and not _has_made_up(dims[name]))


def _not_known(proto: onnx.ModelProto, inferred: onnx.ModelProto, hidden: Set[str]) -> set[str]:
    """Those of the `hidden` Slices that are behind another one, or whose operand has a negative extent."""
    graphs = [*subgraphs_of(proto.graph)]
    dims = _of_all([*subgraphs_of(inferred.graph)])
    behind = _sliced_behind(graphs, lambda node: any(name in hidden for name in node.output), lambda _: False)
    slices = (node for graph in graphs for node in graph.node if node.op_type == "Slice")
    return {
        node.output[0]
        for node in slices
        if node.output[0] in hidden and (node.output[0] in behind or not _is_fit(dims.get(node.input[0])))
    }


def _sliced_behind(
    graphs: Sequence[onnx.GraphProto], starts: Callable[[onnx.NodeProto], bool], ends: Callable[[str], bool]
) -> set[str]:
    """The results of the Slices whose operand depends on the result of a node that `starts`, by way of tensors of which
    none `ends` it. The extents of a tensor are none of its elements, so a Shape ends it too."""
    reached: set[str] = set()
    sliced: set[str] = set()
    for graph in graphs:
        for node in graph.node:
            if node.op_type in _SHAPES:
                continue
            read = node.input[:1] if node.op_type == "Slice" else node.input
            is_reached = not reached.isdisjoint(read)
            if is_reached and node.op_type == "Slice":
                sliced.add(node.output[0])
            has_graphs = any(True for attribute in node.attribute for _ in graphs_in(attribute))
            if is_reached or has_graphs or starts(node):
                reached.update(name for name in node.output if name and not ends(name))
    return sliced


def _of_all(graphs: Sequence[onnx.GraphProto]) -> _Dims:
    """The declared dims of the values of all graphs, and of their initializers."""
    found: dict[str, Sequence[onnx.TensorShapeProto.Dimension]] = {}
    for graph in graphs:
        found.update(dims_by_name(graph))
    return found


def _constants(graphs: Sequence[onnx.GraphProto]) -> dict[str, onnx.TensorProto]:
    found = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
    for graph in graphs:
        for node in graph.node:
            if node.op_type == "Constant" and (tensor := tensor_of(node)) is not None:
                found[node.output[0]] = tensor
    return found


def _is_fit(dims: Sequence[onnx.TensorShapeProto.Dimension] | None) -> bool:
    """Whether each extent is a number of at least 0 or has a name."""
    return dims is not None and all(
        dim.dim_value >= 0 if dim.HasField("dim_value") else bool(dim.dim_param) for dim in dims
    )


def _has_made_up(dims: Sequence[onnx.TensorShapeProto.Dimension]) -> bool:
    """Whether inference made up the name of a dim, which it may replace by a number."""
    return any(dim.dim_param.startswith(GENERATED) for dim in dims)


def _may_be_negative(node: onnx.NodeProto, dims: _Dims, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether the result may have a negative extent where the operand has none."""
    given = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Pad":
        return _cuts(node, given, constants)
    if node.op_type not in _WINDOWS and node.op_type != "ConvTranspose":
        return False
    kernel = _kernel(node, given, constants)
    if given["auto_pad"].s not in (b"", b"NOTSET", b"VALID") if "auto_pad" in given else False:
        return False
    if kernel is None:
        return True
    rank = len(kernel)

    def numbers(name: str, default: int, count: int = rank) -> list[int]:
        return list(given[name].ints) if name in given else [default] * count

    pads, strides, dilations = numbers("pads", 0, 2 * rank), numbers("strides", 1), numbers("dilations", 1)
    if not len(pads) == 2 * len(strides) == 2 * len(dilations) == 2 * rank:
        return True
    own = dims.get(node.input[0])
    extents = [*own[-rank:]] if own is not None and len(own) == rank + 2 else None
    extra = numbers("output_padding", 0)
    for axis in range(rank):
        dim = extents[axis] if extents is not None else None
        if dim is not None and _is_fit([dim]) and not dim.HasField("dim_value") and not _has_made_up([dim]):
            continue  # then the result's extent is no number
        extent = max(dim.dim_value, 0) if dim is not None else 0
        reach, padding = dilations[axis] * (kernel[axis] - 1) + 1, pads[axis] + pads[rank + axis]
        if node.op_type == "ConvTranspose":
            room = strides[axis] * (extent - 1) + extra[axis] + reach - padding
        else:
            room = extent + padding - reach + 1
        if room < 0:
            return True
    return False


def _kernel(
    node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto], constants: Mapping[str, onnx.TensorProto]
) -> list[int] | None:
    if "kernel_shape" in given:
        return list(given["kernel_shape"].ints)
    place = _KERNELS.get(node.op_type)
    weight = constants.get(node.input[place]) if place is not None and place < len(node.input) else None
    return list(weight.dims[2:]) if weight is not None else None


def _cuts(
    node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto], constants: Mapping[str, onnx.TensorProto]
) -> bool:
    """Whether a Pad takes elements away. onnx's inference looks at constant pads alone."""
    if "pads" in given:
        return any(pad < 0 for pad in given["pads"].ints)
    tensor = constants.get(node.input[1]) if len(node.input) > 1 else None
    return tensor is not None and bool((numpy_helper.to_array(tensor) < 0).any())
