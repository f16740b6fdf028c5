"""The verifier's axis names beside split axes: which follow, and which must not be assumed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest
from backend_tables import node
from graphs import Net

from relayout.legalization import legalize
from relayout.verification.operator_facts import axis_path
from relayout.verification.verifier import verify


def in_blocks(net: Net, value: str, pool: bool) -> None:
    """Both spatial axes twice as long, and then blocks of 2 x 2 as channels."""
    value = net.node("Concat", value, value, axis=2)
    value = net.node("Concat", value, value, axis=3)
    cut, whole = ([2, 4, 1, 2, 4, 2], [2, 16, 1, 4]) if pool else ([1, 6, 2, 2, 1, 2], [1, 24, 2, 1])
    value = net.transpose(net.node("Reshape", value, net.constant(cut)), 0, 1, 3, 5, 2, 4)
    value = net.node("Reshape", value, net.constant(whole))
    if pool:
        value = net.transpose(value, 0, 3, 1, 2)
        value = net.node("LpPool", value, kernel_shape=[3, 1], pads=[0, 0, 2, 0], strides=[1, 2])
        value = net.transpose(value, 0, 2, 3, 1)
    net.output(value)


def test_a_factor_of_an_axis_may_be_a_whole_axis_of_an_operator() -> None:
    """The pool takes the outer part of the columns for its channels; the annotation calls it what it is a part of."""
    net = Net(opset=14)
    image = net.input("x", (2, 4, 1, 4))
    kept = net.node("Slice", net.node("Shape", image), net.constant([0]), net.constant([2]))
    sizes = net.node("Concat", kept, net.constant([2, 8]), axis=0)
    net.output(net.node("Resize", image, "", "", sizes, mode="nearest"))
    in_blocks(net, image, pool=True)
    legal, _ = legalize(net.model(), "auto-nhwc", backend_options={"device": "cuda"}, objective="transposes")
    assert verify(legal, "auto-nhwc").findings == ()


def test_stacked_single_slices_of_unknown_extent_determine_no_name() -> None:
    net = Net(opset=16)
    pooled = net.node("AveragePool", net.input("x", ("N", 6, 4, "N")), ceil_mode=1, kernel_shape=[2, 3])
    rois = net.constant(np.array([[0, 0, 0, 2, 2]], np.float32))
    in_blocks(net, net.node("MaxRoiPool", pooled, rois, pooled_shape=[2, 1]), pool=False)
    model = net.model()
    legal, _ = legalize(model, "nhwc")
    assert verify(legal, "nhwc", against=model, run=False).findings == ()


def test_an_axis_that_operators_read_of_two_inputs_is_that_of_either() -> None:
    """The mask's columns are the picture's, which it keeps where the rows of the two are cut and merged."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[3,2,2,4] x, bool[12,3] mask) => (y) <bool[4] kept = {1, 0, 1, 1}, float half = {0.5}> {
            picture = Compress <axis = -1> (x, kept)
            turned = Transpose <perm = [0,2,1,3]> (picture)
            flat = Flatten <axis = 3> (turned)
            [where] y = Where (mask, half, flat) }"""
    )
    legal, _ = legalize(model)
    assert verify(legal, "onnx", against=model).findings == ()


def test_two_inputs_that_the_original_reads_beside_each_other_go_by_either_name() -> None:
    """As views, the two no longer tell that their axes are one: the dimension that is -1 may come from anywhere."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 26]>
        net (float[5,s0,1] x, float[?,1,1] bias) => (y) {
            [turned] turned = Transpose <perm = [2, 0, 1]> (x)
            [beside] beside = Transpose <perm = [1, 0, 2]> (bias)
            [difference] difference = Sub (beside, turned)
            [product] y = Mul (beside, difference) }"""
    )
    legal, _ = legalize(model)
    assert [node.op_type for node in legal.graph.node] == ["Reshape", "Reshape", "Sub", "Mul"]
    assert verify(legal, "onnx", against=model).findings == ()


def test_a_part_that_is_as_long_as_its_axis_is_the_axis() -> None:
    """How many blocks a computed kernel makes is not always known before the run; what reads one block reads all."""
    net = Net(opset=17)
    made = net.conv(net.input("x", (3, 2, "rows", 3)), 2, 2, 3)
    net.output(net.transpose(net.node("Sub", made, net.weight(2, 1, 1)), 2, 3, 0, 1))
    model = net.model()
    legal, _ = legalize(model, "convert-layout", backend_options={"desired_layouts": {"Conv": ["NCHW2c", "OIHW2i2o"]}})
    assert "Squeeze" in {node.op_type for node in legal.graph.node}
    blocked = next(info for info in legal.graph.value_info if info.name == made)
    blocked.type.tensor_type.shape.dim[1].dim_param = "blocks"
    assert verify(legal, "convert-layout", against=model, run=False).findings == ()


def test_a_network_that_transposes_its_image_has_several_names_for_its_axes() -> None:
    """Channels of blocks are columns to the normalization; the legal model has no word of the blocks any more."""
    net = Net(opset=12)
    blocks = net.node("SpaceToDepth", net.input("x", (2, 5, 6, 2)), blocksize=2)
    turned = net.transpose(blocks, 0, 2, 3, 1)
    moments = [net.weight(3), net.weight(3), net.weight(3), net.constant(np.ones(3, np.float32))]
    normal = net.node("BatchNormalization", turned, *moments)
    net.output(net.node("Where", net.input("mask", (1, 1, 1, 20), onnx.TensorProto.BOOL), normal, turned))
    model = net.model()
    legal, _ = legalize(model, "nhwc")
    assert "SpaceToDepth" not in {node.op_type for node in legal.graph.node}
    assert verify(legal, "nhwc", against=model).findings == ()


def test_two_inputs_may_be_read_beside_each_other_where_no_name_reaches() -> None:
    """A shuffle hides whose channels they are; the legal model reads the other input in the order of the shuffle."""
    net = Net(opset=15)
    picture, beside = net.input("x", (5, 6, 4, 2)), net.input("beside", (5, 6, 1, 2))
    cut = net.transpose(net.node("Reshape", picture, net.constant([5, 2, 3, 4, 2])), 0, 2, 1, 3, 4)
    product = net.node("Mul", beside, net.node("Reshape", cut, net.constant([5, 6, 4, 2])))
    value = net.node("Sigmoid", net.transpose(product, 3, 1, 2, 0))
    net.output(net.node("Div", net.node("Reshape", net.input("scale", (6,)), net.constant([6, 1, 1])), value))
    model = net.model()
    legal, _ = legalize(model)
    assert verify(legal, "onnx", against=model).findings == ()


def test_an_operator_behind_a_fused_axis_names_those_beside_it() -> None:
    """A batch of masks is resized as the channels of one image, and then meets the tokens of a batch of images."""
    net = Net(opset=18)
    image = net.conv(net.input("image", ("n", 3, 12, 16)), 3, 8, strides=[2, 2])
    masks = net.node("Unsqueeze", net.input("masks", ("n", 12, 16)), net.constant([0]))
    scales = net.constant(np.array([1, 1, 0.5, 0.5], np.float32))
    masks = net.node("Resize", masks, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    masks = net.node("Gather", masks, net.constant(np.array(0)), axis=0)
    weights = net.node("Unsqueeze", net.node("Reshape", masks, net.constant([0, -1])), net.constant([2]))
    tokens = net.transpose(net.node("Reshape", image, net.constant([0, 0, -1])), 0, 2, 1)
    net.output(net.node("Mul", tokens, weights))
    model = net.model()
    legal, report = legalize(model, "canonical", check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    # Rows and columns have names of the Resize alone.
    gather = next(node for node in legal.graph.node if node.op_type == "Gather")
    copy = next(node for node in legal.graph.node if node.output[0] == gather.input[0])
    read = next(info for info in legal.graph.value_info if info.name == gather.input[0])
    assert copy.op_type == "Transpose"
    copy.attribute[0].ints[1:3] = reversed(copy.attribute[0].ints[1:3])
    extents = read.type.tensor_type.shape.dim
    extents[1].dim_value, extents[2].dim_value = extents[2].dim_value, extents[1].dim_value
    faults = {(finding.rule, finding.node) for finding in verify(legal, "canonical").findings}
    assert ("layout-requirement", gather.name) in faults


@pytest.mark.parametrize("operator", ["DepthToSpace", "SpaceToDepth"])
def test_blocks_of_one_leave_the_axes_where_they_are(operator: str) -> None:
    """The operator is elided, and the pool's own names reach what stands behind it."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[3,4,1,1] x, float[1,3,1,4] given) => (float[1,3,1,4] y) <int64[1,1] last = {{-1}}> {{
            [pool] pooled, places = MaxPool <kernel_shape = [1,1]> (x)
            [cast] floats = Cast <to = 1> (places)
            [turned] turned = Transpose <perm = [0,2,3,1]> (floats)
            [blocks] blocks = {operator} <blocksize = 1> (turned)
            [back] back = Transpose <perm = [2,0,1,3]> (blocks)
            [scatter] y = ScatterND (back, last, given) }}"""
    )
    legal, report = legalize(model, "xla-cpu")
    assert report.after.transposes == 0
    assert verify(legal, "xla-cpu", against=model).findings == ()


def test_blocks_change_the_extents_of_axes_but_not_their_names() -> None:
    """The normalization calls the last axis C, and the blocks the second one. Each name is valid behind the blocks."""
    net = Net()
    image = net.transpose(net.input("x", (1, 12, 6, 8)), 0, 3, 1, 2)
    shift, mean, variance = (net.constant(np.full(8, 1 + n, np.float32)) for n in range(3))
    image = net.node("BatchNormalization", image, net.node("Sin", net.input("s", (8,))), shift, mean, variance)
    blocks = net.node("SpaceToDepth", net.transpose(image, 0, 2, 3, 1), blocksize=2)
    net.output(net.node("ReduceProd", blocks, keepdims=0))
    model = net.model()
    legal, _ = legalize(model, "opencl")
    assert "SpaceToDepth" in {node.op_type for node in legal.graph.node}
    assert verify(legal, "opencl", against=model, run=False).findings == ()


@pytest.mark.parametrize(
    ("operator", "before", "after", "sources"),
    [
        ("SpaceToDepth", "2,3,4,6", "2,12,2,3", (0, 1, 2, 3)),
        ("DepthToSpace", "2,8,4,6", "2,2,8,12", (0, 1, 2, 3)),
        # An axis of extent 1 may have any name, which must not pass to what the other axes become.
        ("SpaceToDepth", "2,1,4,2", "2,4,2,1", (0, None, 2, None)),
        ("DepthToSpace", "2,4,1,6", "2,1,2,12", (0, None, None, 3)),
    ],
)
def test_axes_behind_blocks(operator: str, before: str, after: str, sources: tuple[int | None, ...]) -> None:
    made = node(f"(float[{before}] x) => (float[{after}] y) {{ y = {operator} <blocksize = 2> (x) }}")
    assert axis_path(made, 0, 0) == sources


@pytest.mark.parametrize(
    ("operands", "operator", "n", "sources"),
    [
        ("float[2,3,4,5] x, float[2,3,5,6] y", "MatMul (x, y)", 0, (0, 1, 2, None)),
        ("float[2,3,4,5] x, float[2,3,5,6] y", "MatMul (x, y)", 1, (0, 1, None, 3)),
        ("float[3,4,5] x, float[2,1,5,6] y", "MatMul (x, y)", 0, (None, 0, 1, None)),
        ("float[3,4,5] x, float[2,1,5,6] y", "MatMul (x, y)", 1, (0, None, None, 3)),
        ("float[2,4,5] x, float[5] y", "MatMul (x, y)", 0, (0, 1)),
        ("float[2,4,5] x, float[5] y", "MatMul (x, y)", 1, (None, None)),
        ("float[5] x, float[2,5,6] y", "MatMul (x, y)", 1, (0, 2)),
        ("float[5,4] x, float[6,5] y", "Gemm <transA = 1, transB = 1> (x, y)", 0, (1, None)),
        ("float[5,4] x, float[5,6] y", "Gemm <transA = 1> (x, y)", 1, (None, 1)),
        ("float[2,3,4] x, float[2,4,5] y", 'Einsum <equation = "bij,bjk->kbi"> (x, y)', 0, (None, 0, 1)),
        ("float[2,3,4] x, float[2,4,5] y", 'Einsum <equation = "bij,bjk->kbi"> (x, y)', 1, (2, 0, None)),
        ("float[3,3] x, float[3] y", 'Einsum <equation = "ii,i->i"> (x, y)', 0, None),
        ("float[2,3] x, int64[2,2] y", "GatherElements <axis = 1> (x, y)", 1, (0, 1)),
        ("float[2,4,5,8] x, float[2,4,6,8] y", "Attention (x, y, y)", 0, (0, 1, 2, None)),
        ("float[2,4,5,8] x, float[2,4,6,8] y", "Attention (x, y, y)", 2, (0, None, None, 3)),
        ("float[2,5,32] x, float[2,6,32] y", "Attention <q_num_heads=4, kv_num_heads=4> (x, y, y)", 0, (0, 1, None)),
        ("float[2,5,32] x, float[2,6,32] y", "Attention <q_num_heads=4, kv_num_heads=4> (x, y, y)", 1, (0, None, None)),
    ],
)
def test_axes_of_a_product(operands: str, operator: str, n: int, sources: tuple[int | None, ...] | None) -> None:
    rank = len(sources or (0,))
    made = node(f"({operands}) => (float[{','.join('?' * rank)}] z) {{ z = {operator} }}")
    assert axis_path(made, n, 0) == sources


def test_the_means_of_a_normalization_do_not_have_the_axes_that_it_reduces() -> None:
    """The instance normalization calls the second axis of the means C, which is any of the data."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[4,2,3,6] x, float[4,2,3,6] scale, float[1] s) => (float[4,2,3,6] y, float[1,1,1,1] z) {
            y, mean, deviation = LayerNormalization <axis = 0> (x, scale)
            z = InstanceNormalization (mean, s, s) }"""
    )
    legal, _ = legalize(model, "canonical")
    assert verify(legal, "canonical", against=model).findings == ()


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
def test_the_names_of_a_product_are_those_of_its_factors(backend: str) -> None:
    """The image comes channels last, and only the operator behind the product says so."""
    net = Net(opset=13)
    image = net.input("x", (3, 4, 4, 6))
    turned = net.node("Round", net.transpose(image, 0, 3, 1, 2))
    product = net.node("MatMul", turned, turned)
    net.output(net.node("InstanceNormalization", product, net.weight(6), net.weight(6)))
    net.output(net.node("SpaceToDepth", image, blocksize=2))
    net.output(net.node("ScatterElements", image, net.constant(np.zeros((3, 4, 4, 6), np.int64)), image, axis=2))
    legal, _ = legalize(net.model(), backend)
    assert verify(legal, backend, against=net.model(), run=False).findings == ()


@pytest.mark.parametrize("domain", ["com.microsoft", "acme"])
@pytest.mark.parametrize("operator", ["BatchNormalization", "DepthToSpace", "LRN", "SpaceToDepth"])
def test_an_operator_of_another_domain_has_no_axes_of_one_of_onnx(operator: str, domain: str) -> None:
    net = Net(opset=20)
    found = net.node(operator, net.node("Relu", net.input("x", (1, 4, 6, 6))), domain=domain)
    net.output(net.conv(found, 4, 4))
    model = net.model()
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(found, onnx.TensorProto.FLOAT, (1, 4, 6, 6)))
    legal, report = legalize(model, "tpu")
    assert (report.after.transposes, [each.domain for each in legal.graph.node].count(domain)) == (2, 1)
    (foreign,) = (each for each in onnx_ir.from_proto(legal).graph if each.domain == domain)
    assert axis_path(foreign, 0, 0) is None
