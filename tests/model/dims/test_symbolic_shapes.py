"""The shapes of results in terms: joins, cuts, broadcasts, reshapes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import Net
from onnx import TensorProto

from relayout import legalize, read_model


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


def dims(text: str) -> dict[str, list[str]]:
    graph = read_model(model(text)).graph
    return {str(value.name): [str(dim) for dim in value.shape or ()] for node in graph for value in node.outputs}


@pytest.mark.parametrize(
    ("first", "second", "extent"),
    [
        ("past", "new", "new + past"),
        ("n", "n", "2*n"),
        ("n", "1", "n + 1"),
        ('"n + 1"', "2", "n + 3"),
        ('"2*n"', '"n + 4"', "3*n + 4"),
        ('"(h - 1)//2"', "n", "(h - 1)//2 + n"),
    ],
)
def test_values_are_joined_to_the_sum_of_their_lengths(first: str, second: str, extent: str) -> None:
    found = dims(
        f"(float[n, h] sizes, float[{first}, 4, 8] x, float[{second}, 4, 8] y) => (float[out, 4, 8] z)"
        " { z = Concat <axis = 0> (x, y) }"
    )
    assert found["z"] == [extent, "4", "8"]


def test_a_length_that_no_input_has_is_not_added() -> None:
    found = dims("""(float[n] x) => (float[out] z) {
        places = NonZero (x)
        rows = Cast <to = 1> (places)
        flat = Squeeze (rows)
        z = Concat <axis = 0> (x, flat) }""")
    assert found["z"] == ["out"]


@pytest.mark.parametrize(
    ("tokens", "start", "end", "extent"),
    [
        ('"n + 1"', 1, 2**63 - 1, "n"),
        ('"n + 5"', 1, -2, "n + 2"),
        ('"n + 1"', 2, 2**63 - 1, "out"),  # no token may be left
        ("n", 1, 2**63 - 1, "out"),
        ("n", -3, 2**63 - 1, "min(3, n)"),
        ('"n + 1"', -3, 2**31 - 1, "min(3, n + 1)"),
        ("n", 0, 3, "min(3, n)"),
        ("n", 0, 0, "out"),  # none is left
        ("n", -3, -1, "out"),
        ("n", -3, 3, "out"),
        ("n", 1, 3, "out"),
    ],
)
def test_a_cut_leaves_a_formula_of_the_tokens(tokens: str, start: int, end: int, extent: str) -> None:
    found = dims(f"""(float[n] sizes, float[b, {tokens}, 8] x) => (float[b, out, 8] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{1}}>
        {{ y = Slice (x, start, end, axis) }}""")
    assert found["y"] == ["b", extent, "8"]


def legal_at(source: onnx.ModelProto, bytes_before: int) -> onnx.ModelProto:
    """The legal model, which a second run leaves as it is; at one new position after 512, the source moves so much."""
    sizes = {"past": 512, "new": 1}
    legal, report = legalize(source, dims=sizes)
    assert dict(report.assumed) == {"b": 1}
    assert report.before.bytes == bytes_before
    again, second = legalize(legal, dims=sizes)
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
    return legal


def test_a_cache_has_the_size_of_what_it_is_joined_of() -> None:
    """As PyTorch names the dims of a decoder's outputs."""
    source = model("""(float[b, 2, past, 8] cache, float[b, 2, new, 8] k, float[b, 2, new, 8] q) =>
        (float[b, 2, Concatkey_dim_2, 8] key, float[b, 2, new, Concatkey_dim_2] scores) {
        key = Concat <axis = 2> (cache, k)
        columns = Transpose <perm = [0, 1, 3, 2]> (key)
        scores = MatMul (q, columns) }""")
    legal = legal_at(source, bytes_before=2 * (2 * 8 * 513) * 4)
    assert legal.graph.output[0].type.tensor_type.shape.dim[2].dim_param == "Concatkey_dim_2"


def test_the_cache_of_a_sliding_window_has_at_most_the_window() -> None:
    """As PyTorch writes it: the last positions of past and new ones are the next past."""
    source = model("""(float[b, 2, past, 8] cache, float[b, 2, new, 8] k, float[b, 2, new, 8] q) =>
        (float[b, 2, Slice_dim_2, 8] next, float[b, 2, new, Concat_dim_2] scores)
        <int64[1] start = {-7}, int64[1] end = {9223372036854775807}, int64[1] axis = {2}> {
        kept = Slice (cache, start, end, axis)
        key = Concat <axis = 2> (kept, k)
        next = Slice (key, start, end, axis)
        columns = Transpose <perm = [0, 1, 3, 2]> (key)
        scores = MatMul (q, columns) }""")
    graph = read_model(source).graph
    assert [str(value.shape) for value in graph.outputs] == [
        "[b,2,min(7, min(7, past) + new),8]",
        "[b,2,new,min(7, past) + new]",
    ]
    legal_at(source, bytes_before=2 * (2 * 8 * 8) * 4)


def test_blocks_behind_a_window_have_the_formula_of_its_extent() -> None:
    net = Net()
    image = net.node("Conv", net.input("x", (1, 4, "h", "w")), net.weight(4, 4, 3, 3))
    net.output(net.node("SpaceToDepth", image, blocksize=2))
    shapes = [str(value.shape) for node in read_model(net.model()).graph for value in node.outputs]
    assert shapes[-1] == "[1,16,(h - 2)//2,(w - 2)//2]"


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


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_extents_after_operators_on_blocks_are_multiples_and_quotients(mode: str) -> None:
    net = Net()
    image = net.node("DepthToSpace", net.input("x", (1, 8, "h", "w")), blocksize=2, mode=mode)
    halves = net.node("SpaceToDepth", net.node("SpaceToDepth", image, blocksize=2), blocksize=2)
    net.output(net.node("Relu", halves))
    shapes = [str(value.shape) for node in read_model(net.model()).graph for value in node.outputs]
    assert shapes[:-1] == ["[1,2,2*h,2*w]", "[1,8,h,w]", "[1,32,h//2,w//2]"]


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


def test_the_axes_that_a_slice_cuts_are_each_as_long_as_what_it_takes() -> None:
    """In opset 9, whose bounds are attributes, onnx's inference leaves them open."""
    net = Net(9)
    taken = net.node(
        "Slice", net.input("x", ("n", 4, "h + 3")), starts=[0, 1, 1], ends=[2, -1, 1 << 62], axes=[0, 1, 2]
    )
    net.output(net.node("Relu", taken))
    shapes = {value.name: str(value.shape) for node in read_model(net.model()).graph for value in node.outputs}
    assert shapes[taken] == "[min(2, n),2,h + 2]"


def test_a_deformable_convolution_has_as_many_pixels_as_offsets() -> None:
    net = Net(opset=22)
    image = net.input("x", ("n", 4, "h", "w"))
    found = net.node("DeformConv", image, net.weight(8, 4, 3, 3), net.conv(image, 4, 18, strides=[2, 2]))
    net.output(found)
    made = {str(value.name): value.shape for node in read_model(net.model()).graph for value in node.outputs}
    assert [str(dim) for dim in made[found] or ()] == ["n", "8", "(h - 1)//2 + 1", "(w - 1)//2 + 1"]
