"""Shape arithmetic over dims without a number: what is known of its values, and what folds because of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graphs import Net, assert_same_numbers
from onnx import TensorProto

from relayout import legalize, verify
from relayout.model.dims.constant_propagation import infer_with_values
from relayout.model.dims.symbolic_values import Symbols
from relayout.model.io import read_model


def shuffled(shape: tuple[int | str, ...], *, in_floats: bool = False, from_static: bool = False) -> onnx.ModelProto:
    """Two convolutions around a channel shuffle of two groups, as torch's older exporter writes it."""
    net = Net()
    axes = net.constant([0])

    def size(value: str, axis: int) -> str:
        return net.node("Gather", net.node("Shape", value), net.constant(axis))

    def vector(*parts: str | int) -> str:
        each = [net.constant([p]) if isinstance(p, int) else net.node("Unsqueeze", p, axes) for p in parts]
        return net.node("Concat", *each, axis=0)

    value = net.conv(net.input("x", shape), shape[1], 8)  # type: ignore[arg-type]
    batch, channels, height, width = (size(value, axis) for axis in range(4))
    if in_floats:
        quotient = net.node("Div", net.node("Cast", channels, to=1), net.constant(np.float32(2)))
        half = net.node("Cast", net.node("Floor", quotient), to=7)
    else:
        half = net.node("Div", channels, net.constant(2))
    split = vector(batch, 2, half, height, width)
    turned = net.transpose(net.node("Reshape", value, split), 0, 2, 1, 3, 4)
    joined = net.node("Reshape", turned, vector(batch, -1, height, width))
    net.output(net.node("Relu", net.conv(joined, 8, 8)))
    return net.model()


@pytest.mark.parametrize("in_floats", [False, True], ids=["integers", "floats"])
@pytest.mark.parametrize("shape", [(2, 3, 6, 6), ("batch", 3, 6, 6), ("batch", 3, "height", "width")], ids=str)
def test_a_channel_shuffle_folds_whatever_dims_are_known(shape: tuple[int | str, ...], in_floats: bool) -> None:
    model = shuffled(shape, in_floats=in_floats)
    legal, report = legalize(model, "nchw")
    assert (report.before.transposes, report.after.transposes) == (1, 0)
    assert verify(legal, "nchw", against=model, samples=1).passed


def test_terms_that_are_numbers_are_constants_and_quotients_are_cut_off() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[N,7,H] x) => (int64[5] y) <int64 one = {1}, int64[1] two = {2}, int64[2] ends = {0,2}> {
            s = Shape (x)
            c = Gather (s, one)
            half = Div (c, two)
            both = Gather (s, ends)
            size = Size (x)
            all = Unsqueeze (size, ends)
            y = Concat <axis = 0> (half, both, s) }"""
    )
    graph = onnx.shape_inference.infer_shapes(model).graph
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    symbols = Symbols(graph, known)
    values = symbols.values
    assert {name: array.tolist() for name, array in symbols.constants().items() if name not in known} == {
        "c": 7,
        "half": [3],
    }
    assert [term and term.names for term in values["both"].terms] == [("N",), ("H",)]
    assert values["size"].terms[0] == (7, ("H", "N"))
    assert values["y"].terms[0] == (3, ())


def test_extents_after_windows_are_formulas_of_the_inputs() -> None:
    net = Net()
    image = net.input("x", ("n", 3, "h", "w"))
    kept = net.node("Conv", image, net.weight(3, 3, 3, 3), pads=[1, 1, 1, 1])
    halved = net.node("MaxPool", kept, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.output(net.node("Conv", halved, net.weight(3, 3, 2, 2), strides=[2, 2]))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[kept] == "[n,3,h,w]"
    assert shapes[halved] == "[n,3,(h - 1)//2 + 1,(w - 1)//2 + 1]"
    assert list(shapes.values())[-1] == "[n,3,((h - 1)//2 - 1)//2 + 1,((w - 1)//2 - 1)//2 + 1]"


def test_blocks_behind_a_window_have_the_formula_of_its_extent() -> None:
    net = Net()
    image = net.node("Conv", net.input("x", (1, 4, "h", "w")), net.weight(4, 4, 3, 3))
    net.output(net.node("SpaceToDepth", image, blocksize=2))
    shapes = [str(value.shape) for node in read_model(net.model()).graph for value in node.outputs]
    assert shapes[-1] == "[1,16,(h - 2)//2,(w - 2)//2]"


@pytest.mark.parametrize("blocks", [1, 20])
def test_extents_of_sums_are_followed_through_any_number_of_blocks(blocks: int) -> None:
    net = Net()
    image = net.input("x", ("n", 4, "h", "w"))
    for _ in range(blocks):
        image = net.node("Add", *(net.node("Conv", image, net.weight(4, 4, 3, 3)) for _ in range(2)))
    net.output(image)
    shapes = [str(value.shape) for node in read_model(net.model()).graph for value in node.outputs]
    assert shapes[-1] == f"[n,4,h - {2 * blocks},w - {2 * blocks}]"


@pytest.mark.parametrize(("opset", "is_computed"), [(10, False), (11, False), (17, True), (18, False), (18, True)])
def test_extents_of_padded_images_are_sums(opset: int, is_computed: bool) -> None:
    """A reflection of three rows and columns on each side, and a convolution of 7 x 7 that takes as many away."""
    net = Net(opset)
    image = net.node("MaxPool", net.input("x", ("n", 3, "h", "w")), kernel_shape=[2, 2], strides=[2, 2])
    pads = [0, 0, 3, 3, 0, 0, 3, 3]
    if opset < 11:
        padded = net.node("Pad", image, mode="reflect", pads=pads)
    elif is_computed:
        turned = net.transpose(net.constant(np.array(pads).reshape(4, 2)), 0, 1)
        padded = net.node("Pad", image, net.node("Reshape", turned, net.constant([-1])), mode="reflect")
    elif opset < 18:
        padded = net.node("Pad", image, net.constant(pads), mode="reflect")
    else:
        padded = net.node("Pad", image, net.constant([3] * 4), "", net.constant([2, 3]), mode="reflect")
    kept = net.node("Conv", padded, net.weight(3, 3, 7, 7))
    net.output(net.node("Add", kept, image))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[padded] == "[n,3,h//2 + 6,w//2 + 6]"
    assert shapes[kept] == shapes[image] == list(shapes.values())[-1] == "[n,3,h//2,w//2]"


END = (1 << 63) - 1


@pytest.mark.parametrize(
    ("behind", "before", "is_shift"),
    [((3, END), (0, 3), True), ((-3, END), (0, -3), True), ((3, END), (0, 2), False), ((3, -1), (0, 3), False)],
)
@pytest.mark.parametrize(("opset", "axis"), [(9, 1), (17, 1), (17, -2)])
def test_a_cyclic_shift_keeps_the_extent(
    behind: tuple[int, int], before: tuple[int, int], is_shift: bool, opset: int, axis: int
) -> None:
    net = Net(opset)
    image = net.input("x", ("n", "h", 3))
    parts = []
    for start, end in (behind, before):
        if opset < 10:
            parts.append(net.node("Slice", image, starts=[start], ends=[end], axes=[axis]))
        else:
            parts.append(net.node("Slice", image, *(net.constant([each]) for each in (start, end, axis, 1))))
    net.output(net.node("Relu", net.node("Concat", *parts, axis=1)))
    shape = [value.shape for node in read_model(net.model()).graph for value in node.outputs][-2]
    assert (str(shape) == "[n,h,3]") == is_shift


def test_slices_with_steps_and_no_axes_cut_the_first_axis() -> None:
    """Joined along the second, they are no cyclic shift of it."""
    net = Net(17)
    image = net.input("x", ("n", "n", 3))
    parts = [
        net.node("Slice", image, net.constant([start]), net.constant([end]), "", net.constant([1]))
        for start, end in ((1, END), (0, 1))
    ]
    net.output(net.node("Relu", net.node("Concat", *parts, axis=1)))
    shape = [value.shape for node in read_model(net.model()).graph for value in node.outputs][-2]
    assert shape is not None
    assert str(shape[1]) != "n"


def test_pads_that_a_caller_may_replace_say_nothing() -> None:
    net = Net(17)
    net.output(net.node("Relu", net.node("Pad", net.input("x", ("n", "h", "w")), "pads")))
    model = net.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("pads", onnx.TensorProto.INT64, (6,)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1, 1, 0, 1, 1]), "pads"))
    shapes = [str(value.shape) for node in read_model(model).graph for value in node.outputs]
    assert "h + 2" not in shapes[0]


@pytest.mark.parametrize("opset", [12, 13, 14])
def test_products_of_extents_are_known_in_every_opset(opset: int) -> None:
    """Before opset 14, onnx's inference does not know the rank of what is reshaped by a computed shape."""
    net = Net(opset=opset)
    image = net.node("Conv", net.input("x", ("n", 8, "h", "w")), net.input("k", (8, 8, 2, 2)), strides=[2, 2])
    size = net.node("Shape", image)
    n, h, w = (net.node("Gather", size, net.constant([place])) for place in (0, 2, 3))
    columns = net.node("Concat", net.node("Mul", n, w), net.constant([8]), h, axis=0)
    lines = net.node("Reshape", net.transpose(image, 0, 3, 1, 2), columns)
    first = net.node("Gather", net.node("Shape", lines), net.constant([0]))
    parts = net.node("Reshape", lines, net.node("Concat", first, net.constant([2, 4, -1]), axis=0))
    one, other = net.node("Split", parts, axis=-2, results=2)
    net.output(net.node("Relu", net.node("Einsum", one, other, equation="ngci, ngcj -> ngij")))
    nodes = [node for node in read_model(net.model()).graph if node.op_type in ("Einsum", "Reshape", "Split")]
    shapes = [str(value.shape) for node in nodes for value in node.outputs]
    half = "[n*(w//2),2,2,h//2]"
    assert shapes == ["[n*(w//2),8,h//2]", "[n*(w//2),2,4,h//2]", half, half, "[n*(w//2),2,h//2,h//2]"]


def test_formulas_that_an_exporter_has_written_are_spelled_alike() -> None:
    net = Net()
    image = net.node("MaxPool", net.input("x", (1, 3, "h", "w")), kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.node("Relu", image))
    model = net.model()
    for dim, text in zip(model.graph.output[0].type.tensor_type.shape.dim[2:], ("(h//2)", "((w//2))"), strict=True):
        dim.dim_param = text
    shapes = [str(value.shape) for node in read_model(model).graph for value in node.outputs]
    assert shapes == ["[1,3,h//2,w//2]"] * 2


@pytest.mark.parametrize(("policy", "is_known"), [("stretch", True), ("not_larger", False)])
def test_a_resize_to_the_sizes_of_another_tensor_has_its_dims(policy: str, is_known: bool) -> None:
    net = Net(opset=18)
    image = net.conv(net.input("x", ("n", 3, "h", "w")), 3, 8)
    small = net.node("MaxPool", image, kernel_shape=[2, 2], strides=[2, 2])
    sizes = net.node("Slice", net.node("Shape", image), net.constant([2]), net.constant([4]))
    sizes = net.node("Concat", net.node("Shape", small, end=2), sizes, axis=0)
    sized = net.node("Resize", small, "", "", sizes, mode="nearest", keep_aspect_ratio_policy=policy)
    net.output(net.node("Concat", sized, image, axis=1))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert (shapes[sized] == shapes[image]) == is_known
    assert (list(shapes.values())[-1] == "[n,16,h,w]") == is_known


def test_what_a_reshape_makes_of_formulas_is_their_product() -> None:
    net = Net()
    halved = net.node("Conv", net.input("x", ("n", 3, "h", "w")), net.weight(4, 3, 2, 2), strides=[2, 2])
    flat = net.node("Reshape", net.node("Relu", halved), net.constant([0, 4, -1]))
    doubled = net.node("Resize", flat, "", net.constant(np.array([1, 1, 2], np.float32)), mode="nearest")
    net.output(net.node("Reshape", doubled, net.constant([-1])))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[flat] == "[n,4,(h//2)*(w//2)]"
    assert shapes[doubled] == "[n,4,2*(h//2)*(w//2)]"
    assert list(shapes.values())[-1] == "[8*n*(h//2)*(w//2)]"


@pytest.mark.parametrize(
    ("axis", "rows", "columns"), [(2, "6*batch", 8), (-1, "6*batch", 8), (1, "batch", 48), (0, 1, "48*batch")]
)
def test_what_a_flatten_makes_of_named_dims_is_their_product(axis: int, rows: int | str, columns: int | str) -> None:
    net = Net()
    net.output(net.node("Flatten", net.node("Relu", net.input("x", ("batch", 6, 8))), axis=axis))
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (value,) = read_model(model).graph.outputs
    assert value.shape == [rows, columns]


def test_names_with_dots_are_names() -> None:
    net = Net()
    net.output(net.node("MaxPool", net.input("x", (1, 3, "ids.2", 8)), kernel_shape=[2, 2], strides=[2, 2]))
    (node,) = read_model(net.model()).graph
    assert str(node.outputs[0].shape) == "[1,3,ids.2//2,4]"


@pytest.mark.parametrize(
    ("size", "pads", "half", "quarter"),
    [(2, 0, "{0}//2", "({0}//2)//2"), (3, 1, "({0} - 1)//2 + 1", "(({0} - 1)//2)//2 + 1")],
    ids=["quotients", "sums"],
)
def test_a_broadcast_of_equal_extents_keeps_their_formula(size: int, pads: int, half: str, quarter: str) -> None:
    net = Net()
    image = net.input("x", ("n", 3, "h", "w"))
    window = {"strides": [2, 2], "pads": [pads] * 4}
    one, other = (net.node("Conv", image, net.weight(3, 3, size, size), **window) for _ in range(2))
    added = net.node("Add", one, other)
    net.output(net.node("MaxPool", added, kernel_shape=[size, size], **window))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[added] == shapes[one] == f"[n,3,{half.format('h')},{half.format('w')}]"
    assert list(shapes.values())[-1] == f"[n,3,{quarter.format('h')},{quarter.format('w')}]"


@pytest.mark.parametrize("operands", ["(u, c)", "(c, u)"])
def test_a_broadcast_has_the_extent_that_is_a_multiple(operands: str) -> None:
    """As in a feature pyramid: 2*h is never 1, so the other extent is the same, or 1."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[n,3,h,w] x, float[n,3,H,w] c) => (float y) <float[4] s = {{1.0, 1.0, 2.0, 1.0}}> {{
          u = Resize <mode = "nearest"> (x, , s)  a = Add {operands}  y = Resize <mode = "nearest"> (a, , s) }}"""
    )
    shapes = {v.name: str(v.shape) for node in read_model(model).graph for v in node.outputs}
    assert (shapes["a"], shapes["y"]) == ("[n,3,2*h,w]", "[n,3,4*h,w]")


def test_a_broadcast_of_two_extents_that_may_be_1_has_one_of_its_own() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        g (float[n,h] x, float[n,H] c) => (float y) { a = Add (x, c)  y = Neg (a) }"""
    )
    shapes = {v.name: str(v.shape) for node in read_model(model).graph for v in node.outputs}
    assert shapes["a"].startswith("[n,unk__")


def test_a_sum_with_a_stored_constant_keeps_the_names_whatever_the_output_is_called() -> None:
    net = Net()
    image = net.node("Pad", net.input("x", (1, 4, 9, 9)), net.input("pads", (8,), onnx.TensorProto.INT64))
    added = net.node("Add", image, net.weight(1))
    net.output(added)
    shapes = {v.name: v.shape for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[added] == shapes[image]


RESIZES = {
    "scales": 'y = Resize <mode = "nearest"> (x, , scales)',
    "scales of a node": """own = Constant <value = float[4] {1.0, 1.0, 2.0, 1.5}> ()
        y = Resize <mode = "nearest"> (x, , own)""",
    "sizes": 'y = Resize <mode = "nearest"> (x, , , sizes)',
    "some axes": 'y = Resize <mode = "nearest", axes = [0, 1, 2, 3]> (x, , scales)',
    "a region": 'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, region, scales)',
}


@pytest.mark.parametrize(
    ("resize", "extents"),
    [
        ("scales", ["n", "2*h", "w"]),
        ("scales of a node", ["n", "2*h", None]),
        ("sizes", ["2", "8", "8"]),
        ("some axes", [None] * 3),
        ("a region", [None] * 3),
    ],
)
def test_extents_after_a_resize_are_multiples_where_the_scales_are_known(
    resize: str, extents: list[str | None]
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[n,3,h,w] x, float[8] region) => (float[N,C,H,W] y)
        <float[4] scales = {{1.0, 1.0, 2.0, 1.0}}, int64[4] sizes = {{2, 3, 8, 8}}> {{ {RESIZES[resize]} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (result,) = (node.outputs[0] for node in read_model(model).graph if node.op_type == "Resize")
    assert result.shape is not None
    found = [str(result.shape[axis]) for axis in (0, 2, 3)]
    assert [None if text.startswith("unk__") else text for text in found] == extents


def test_the_formulas_give_the_extents_that_the_runtime_finds() -> None:
    for kernel, stride, pads, dilation in [(3, 2, (1, 1), 1), (5, 3, (2, 1), 2)]:
        for extent in (40, 41, 42):
            window = {"kernel_shape": [kernel], "strides": [stride], "pads": list(pads), "dilations": [dilation]}
            found = []
            for dim in (extent, "h"):
                net = Net()
                first = net.node("MaxPool", net.input("x", (1, 1, dim)), **window)
                second = net.node("MaxPool", first, **window)
                net.output(second)
                model = read_model(net.model())
                found.append(next(v.shape for node in model.graph for v in node.outputs if v.name == second)[2])
            expected, formula = found
            assert formula.evaluate({"h": extent}) == expected


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3]},
        {"strides": [2]},
        {"strides": [2], "pads": [1, 1], "output_padding": [1]},
        {"strides": [3], "pads": [2, 0], "dilations": [2]},
    ],
)
def test_extents_after_a_transposed_convolution_are_multiples_and_sums(window: dict[str, Any]) -> None:
    found = []
    for dim in (5, "h"):
        net = Net()
        value = net.node("ConvTranspose", net.input("x", (1, 2, dim)), net.weight(2, 4, 3), **window)
        net.output(net.node("Relu", value))
        shape = read_model(net.model()).graph.outputs[0].shape
        assert shape is not None
        found.append(shape[2])
    expected, formula = found
    assert isinstance(formula, ir.SymbolicDim)
    assert formula.evaluate({"h": 5}) == expected


def test_an_extent_that_a_transposed_convolution_is_told_has_no_formula() -> None:
    net = Net()
    image = net.input("x", (1, 2, "h"))
    for told in ({"auto_pad": "SAME_UPPER", "strides": [2]}, {"output_shape": [9]}):
        net.output(net.node("ConvTranspose", image, net.weight(2, 4, 3), **told))
    shapes = [str(value.shape) for value in read_model(net.model()).graph.outputs]
    assert not any("h" in shape for shape in shapes)


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_extents_after_operators_on_blocks_are_multiples_and_quotients(mode: str) -> None:
    net = Net()
    image = net.node("DepthToSpace", net.input("x", (1, 8, "h", "w")), blocksize=2, mode=mode)
    halves = net.node("SpaceToDepth", net.node("SpaceToDepth", image, blocksize=2), blocksize=2)
    net.output(net.node("Relu", halves))
    shapes = [str(value.shape) for node in read_model(net.model()).graph for value in node.outputs]
    assert shapes[:-1] == ["[1,2,2*h,2*w]", "[1,8,h,w]", "[1,32,h//2,w//2]"]


def test_the_sizes_that_were_assumed_are_reported() -> None:
    model = shuffled(("batch", 3, "height", "width"))
    _, report = legalize(model, "nhwc")
    assert report.assumed == {"batch": 1, "height": 64, "width": 64}
    _, report = legalize(model, "nhwc", dims={"batch": 2, "height": 8, "width": 8})
    assert report.assumed == {}


@pytest.mark.parametrize("batch", [1, "batch"])
def test_a_mask_that_is_expanded_has_the_extents_of_the_scores(batch: int | str) -> None:
    """torch's `expand` puts 1 for each -1 of the shape, which is a comparison of symbols with numbers."""
    net = Net()
    value = net.input("x", (batch, 4, "length", 8))
    shape, one = net.node("Shape", value), net.constant([1])
    length = net.node("Slice", shape, net.constant([2]), net.constant([3]))
    wanted = net.node(
        "Concat", net.node("Slice", shape, net.constant([0]), one), net.constant([-1]), length, length, axis=0
    )
    ones = net.node("ConstantOfShape", net.constant([4]), value=onnx.numpy_helper.from_array(np.array([1], np.int64)))
    is_open = net.node("Equal", wanted, net.node("Mul", ones, net.constant(-1)))
    mask = net.node("Expand", net.input("mask", (batch, 1, 1, "length")), net.node("Where", is_open, ones, wanted))
    scores = net.node("MatMul", value, net.transpose(value, 0, 1, 3, 2))
    net.output(net.node("MatMul", net.node("Softmax", net.node("Add", scores, mask)), value))
    shapes = {value.name: value.shape for node in read_model(net.model()).graph for value in node.outputs}
    assert [str(extent) for extent in shapes[mask]] == [str(batch), "1", "length", "length"]
    assert all(
        str(extent) in (str(batch), "4", "length", "8") for extent in read_model(net.model()).graph.outputs[0].shape
    )


def test_an_expansion_by_different_symbols_has_no_extents() -> None:
    net = Net()
    value = net.input("x", ("n", "m", 3))
    net.output(
        net.node(
            "Expand", value, net.node("Concat", net.node("Shape", net.input("y", ("k",))), net.constant([1, 1]), axis=0)
        )
    )
    result = read_model(net.model()).graph.outputs[0]
    assert [str(extent) for extent in result.shape][1:] == ["m", "3"]
    assert str(result.shape[0]) not in ("n", "k")


def test_a_bias_by_position_keeps_the_extents_of_each_layer() -> None:
    """T5 makes it of ranges and slices it by the lengths; the shape that ends a layer is that of its operands."""
    net = Net()
    axis, x = net.constant([0]), net.input("x", ("batch", "length", 8))
    zero, one = net.constant(np.int64(0)), net.constant(np.int64(1))
    for _ in range(2):
        length = net.node("Gather", net.node("Shape", x), one)
        places = net.node("Range", zero, length, one)
        apart = net.node("Sub", net.node("Unsqueeze", places, axis), net.node("Unsqueeze", places, net.constant([1])))
        bias = net.node("Unsqueeze", net.node("Cast", apart, to=1), axis)
        start = net.node("Unsqueeze", net.node("Neg", length), axis)
        bias = net.node("Slice", bias, start, net.constant([(1 << 31) - 1]), net.constant([1]), net.constant([1]))
        scores = net.node("Add", net.node("MatMul", x, net.transpose(x, 0, 2, 1)), bias)
        batch = net.node("Unsqueeze", net.node("Gather", net.node("Shape", x), zero), axis)
        shape = net.node("Concat", batch, net.constant([-1, 8]), axis=0)
        x = net.node("Add", net.node("Reshape", net.node("MatMul", net.node("Softmax", scores), x), shape), x)
    net.output(x)
    graph = read_model(net.model()).graph
    named = {str(extent) for node in graph for value in node.outputs for extent in value.shape or ()}
    assert named <= {"batch", "length", "1", "2", "3", "8"}


def test_a_slice_may_have_its_bounds_in_attributes() -> None:
    net = Net(opset=9)
    x = net.input("x", ("n", 8, 6))
    rows = net.node("Slice", x, starts=[0], ends=[4], axes=[1])
    net.output(net.node("Reshape", rows, net.node("Shape", rows)))
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert shapes[rows] == "[n,4,6]"


def test_the_first_rows_of_a_table_are_as_many_as_are_asked_for_and_there() -> None:
    net = Net()
    length = net.node("Gather", net.node("Shape", net.input("ids", (1, "length"))), net.constant([1]))
    table, zero, one = net.input("table", (512, 8)), net.constant([0]), net.constant([1])
    net.output(net.node("Slice", table, zero, length, zero, one))
    net.output(net.node("Slice", table, one, length, zero, one))
    first, second = ([str(extent) for extent in value.shape] for value in read_model(net.model()).graph.outputs)
    assert first == ["min(512, length)", "8"]
    assert second[0].startswith("unk__")
    assert second[1] == "8"


def test_a_slice_with_its_bounds_in_attributes_is_read() -> None:
    net = Net(opset=9)
    part = net.node("Slice", net.input("x", ("n", 4, 6)), axes=[1], starts=[0], ends=[2])
    net.output(net.node("Reshape", part, net.node("Shape", part)))
    assert legalize(net.model(), "onnx")[1].status == "optimal"


@pytest.mark.parametrize("axes", [[2], [-2], [3, 2]], ids=str)
def test_a_slice_with_unknown_bounds_keeps_the_extents_of_all_other_axes(axes: list[int]) -> None:
    net = Net()
    start, end = (net.input(name, (len(axes),), TensorProto.INT64) for name in ("start", "end"))
    net.output(net.node("Slice", net.input("x", (2, "n", 8, 5)), start, end, net.constant(axes)))
    (extents,) = ([str(extent) for extent in value.shape or ()] for value in read_model(net.model()).graph.outputs)
    kept = [extents[axis] for axis in range(4) if axis not in {axis % 4 for axis in axes}]
    assert kept == [extent for axis, extent in enumerate(["2", "n", "8", "5"]) if axis not in {a % 4 for a in axes}]
    assert all(extents[axis].startswith("unk__") for axis in axes)


@pytest.mark.parametrize("opset", [10, 11])
def test_a_named_dim_that_is_cut_has_another_extent(opset: int) -> None:
    """onnx's inference of opset 10 keeps the name."""
    source = onnx.parser.parse_model(
        f"""<ir_version: 5, opset_import: ["" : {opset}]>
        net (float[n,300,m] x) => (float[a,b,c] y)
            <int64[2] start = {{1,35}}, int64[2] end = {{1000000,227}}, int64[2] axes = {{0,1}}> {{
            part = Slice (x, start, end, axes)
            y = Relu (part) }}"""
    )
    source.graph.output[0].type.tensor_type.ClearField("shape")
    for node in read_model(source).graph:
        first, *others = [str(extent) for extent in node.outputs[0].shape or ()]
        assert others == ["192", "m"]
        assert first != "n"
    legal, report = legalize(source, "onnx", check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert legal.graph.output[0].type.tensor_type.shape.dim[0].dim_param != "n"


def test_a_slice_of_unknown_axes_keeps_no_extent() -> None:
    net = Net()
    bounds = (net.input(name, ("k",), TensorProto.INT64) for name in ("start", "end", "axes"))
    net.output(net.node("Slice", net.input("x", (2, 8)), *bounds))
    (value,) = read_model(net.model()).graph.outputs
    assert value.shape is not None
    assert all(str(extent).startswith("unk__") for extent in value.shape)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ("y = Transpose <perm = [1,0]> (a)", ["open", 2]),
        ("y = Unsqueeze (a, ones)", [2, 1, "open"]),
        ("b = Unsqueeze (a, ones)  y = Squeeze (b, ones)", [2, "open"]),
        ("y = Identity (a)", [2, "open"]),
        ("y = Neg (a)", [2, "open"]),
        ("f = Cast <to = 1> (a)  d = Dropout (f)  y = Cast <to = 7> (d)", [2, "open"]),
    ],
)
def test_a_generated_name_that_an_output_declares_is_that_of_the_operand(nodes: str, shape: list[int | str]) -> None:
    declared = ["unk__7" if dim == "open" else dim for dim in shape]
    text = f"g (float[n,m] x) => (int64[{','.join(map(str, declared))}] y) <int64[1] ones = {{1}}>"
    source = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["":17]> {text} {{ a = NonZero (x)  {nodes} }}')
    graph = read_model(source).graph
    found, read = graph.outputs[0].shape, graph[0].outputs[0].shape
    assert found is not None
    assert read is not None
    assert [*found] == [read[1] if dim == "open" else dim for dim in shape]


def test_the_extent_that_a_computed_shape_leaves_open_is_what_the_others_leave() -> None:
    source = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["":17]>
           g (float[n,16,4] x, int64[1] k) => (float[?,?,?,?] z)
           <int64[1] two = {2}, int64[1] four = {4}, int64[1] zero = {0}> {
           s = Shape (x)  b = Gather (s, zero)  v = Concat <axis = 0> (b, two, k, four)
           y = Reshape (x, v)  z = Relu (y) }"""
    )
    assert str(read_model(source).graph[-1].outputs[0].shape) == "[n,2,8,4]"


def test_numbers_are_rounded_up_and_kept_between_bounds_and_symbols_are_not() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[N,7] x) => (float[2] up, float[2] bounded, int64[2] most, int64[2] least)
        <float[1] two = {2.0}, float low = {3.0}, float high = {3.25}, int64[1] five = {5}> {
            s = Shape (x)
            f = Cast <to = 1> (s)
            half = Div (f, two)
            up = Ceil (half)
            bounded = Clip (half, low, high)
            most = Min (s, five)
            least = Max (s, five) }"""
    )
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = Symbols(graph, {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}).values
    numbers = {name: values[name].terms[1].factor for name in ("up", "bounded", "most", "least")}
    assert numbers == {"up": 4, "bounded": 3.25, "most": 5, "least": 7}
    assert all(values[name].terms[0] is None for name in ("up", "bounded", "most", "least"))


def test_shapes_are_followed_through_any_operator_whose_operands_have_known_shapes() -> None:
    """Each stage pads its image to a multiple of 4, by what it computes from the extents."""
    net = Net()
    image, one = net.input("x", (1, 3, 30, 30)), net.constant([0])
    for channels in (3, 8, 8):
        image = net.node("Softmax", net.conv(image, channels, 8), axis=1)
        read = net.node("Cast", net.node("Gather", net.node("Shape", image), net.constant(2)), to=1)
        blocks = net.node("Ceil", net.node("Div", read, net.constant(np.float32(4))))
        missing = net.node("Sub", net.node("Mul", blocks, net.constant(np.float32(4))), read)
        pad = net.node("Unsqueeze", net.node("Cast", net.node("Clip", missing, net.constant(np.float32(0))), to=7), one)
        image = net.node("Pad", image, net.node("Concat", net.constant([0] * 6), pad, pad, axis=0))
    net.output(image)
    rounds = 0

    def infer(proto: onnx.ModelProto) -> onnx.ModelProto:
        nonlocal rounds
        rounds += 1
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)

    inferred = infer_with_values(net.model(), infer, has_graphs=False).proto.graph
    (result,) = (v.type.tensor_type.shape.dim for v in (*inferred.value_info, *inferred.output) if v.name == image)
    assert [dim.dim_value for dim in result] == [1, 8, 32, 32]
    assert rounds <= 3


@pytest.mark.parametrize(("allowzero", "first"), [(0, "n"), (1, "0")])
def test_a_reshape_whose_zeros_copy_nothing_has_the_extents_of_its_shape(allowzero: int, first: str) -> None:
    net = Net(opset=17)
    x = net.input("x", ("n", 8, "m"))
    rows, columns = (net.node("Gather", net.node("Shape", x), net.constant([axis])) for axis in (0, 2))
    area, zero = net.node("Mul", rows, columns), net.constant([0])
    flat = net.node("Reshape", x, net.node("Concat", net.constant([8]), area, axis=0), allowzero=1)
    other = net.node(
        "Reshape", x, net.node("Concat", zero, net.node("Mul", columns, columns), axis=0), allowzero=allowzero
    )
    net.output(flat)
    net.output(other)
    shapes = {v.name: str(v.shape) for node in read_model(net.model()).graph for v in node.outputs}
    assert (shapes[flat], shapes[other]) == ("[8,m*n]", f"[{first},m*m]")


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_the_greatest_of_equal_extents_is_the_extent(operator: str) -> None:
    """Of different ones it is not known. tf2onnx writes the batch of an Einsum as the Max of its operands'."""
    source = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["":17]>
           g (float[n,4,m] x, float[n,4,2] z) => (float[?,?,?,?] y, float[?,?,?,?] w)
           <int64[2] first = {{0,1}}, int64[2] ends = {{0,2}}, int64[2] one = {{1,1}}, float[1,1,1,1] c = {{1}}> {{
           s = Shape (x)  a = Gather (s, first)  t = Shape (z)  b = Gather (t, first)  d = Gather (s, ends)
           same = {operator} (a, b, a)  e = Concat <axis = 0> (same, one)  y = Expand (c, e)
           other = {operator} (a, d)  f = Concat <axis = 0> (other, one)  w = Expand (c, f) }}"""
    )
    shapes = {str(node.outputs[0].name): node.outputs[0].shape for node in read_model(source).graph}
    assert str(shapes["y"]) == "[n,4,1,1]"
    assert str(shapes["w"]).startswith("[n,")
    assert not str(shapes["w"]).startswith(("[n,4,", "[n,m,"))


def test_extents_with_one_formula_of_a_generated_name_are_equal() -> None:
    """The channels behind blocks are four times what the padding makes, and the Reshape's are as many."""
    read = read_model(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, 1, h, w] x, int64[8] pads) => (float[r, s, t, u, v] y)
            <int64[5] shape = {0, 1, -1, 0, 0}, int64[1] one = {1}> {
              a = Pad(x, pads)  b = SpaceToDepth<blocksize = 2>(a)  c = Unsqueeze(b, one)  d = Reshape(c, shape)
              e = Relu(d)  y = Relu(e) }"""
        )
    )
    blocks, row, reshaped = (value.shape for node in list(read.graph)[1:4] for value in node.outputs)
    assert blocks is not None
    assert row is not None
    assert reshaped is not None
    assert reshaped[2] == row[2] == blocks[1]


@pytest.mark.parametrize(("index", "shape"), [([1], [2, "n", 3]), ([-1], None), ([7], [2, 1, 3])])
def test_the_repeats_of_one_axis_are_followed(index: list[int], shape: list[Any] | None) -> None:
    """As PyTorch's older exporter writes `repeat_interleave`."""
    net = Net()
    x, like = net.input("x", (2, 1, 3)), net.input("like", ("n", 4))
    count = net.node("Gather", net.node("Shape", like), net.constant([0]))
    values = net.node("Concat", net.constant([1]), count, axis=0)
    row = net.node("OneHot", net.constant(index), net.constant(3), values)
    result = net.node("Tile", x, net.node("Reshape", row, net.constant([-1])))
    net.output(net.node("Relu", result))
    found = next(
        value.shape for node in read_model(net.model()).graph for value in node.outputs if value.name == result
    )
    assert found is not None
    assert shape is None or found == shape
    assert shape is not None or not any(isinstance(dim, int) for dim in found)
    feeds = {"x": np.ones((2, 1, 3), np.float32), "like": np.ones((5, 4), np.float32)}
    assert_same_numbers(net.model(), legalize(net.model())[0], feeds)


def test_a_table_of_one_hot_rows_is_not_computed() -> None:
    net = Net()
    rows = net.node("OneHot", net.constant(list(range(4000))), net.constant(1 << 40), net.constant([0, 1]))
    net.output(net.node("Shape", rows), onnx.TensorProto.INT64)
    assert legalize(net.model())[1].status == "optimal"
