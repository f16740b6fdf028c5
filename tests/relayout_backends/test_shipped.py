"""The answers of each backend that ships, operator by operator."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from relayout.backend import Backend, load_backend
from relayout.backend.calls import ask
from relayout.errors import UsageError
from relayout.layout.layout import Layout
from relayout.ops.operand_roles import OPERATORS, input_role
from relayout_backends.canonical import Canonical
from relayout_backends.opencl import OpenCl

# One node of each operator whose axes have names.
NODES = {
    "AveragePool": "(float[1,8,9,9] x) => (float[1,8,8,8] y) { y = AveragePool <kernel_shape = [2,2]> (x) }",
    "BatchNormalization": """(float[1,8,9,9] x, float[8] s, float[8] b, float[8] m, float[8] v)
        => (float[1,8,9,9] y) { y = BatchNormalization (x, s, b, m, v) }""",
    "Conv": "(float[1,8,9,9] x, float[4,8,2,2] w, float[4] b) => (float[1,4,8,8] y) { y = Conv (x, w, b) }",
    "ConvInteger": """(uint8[1,8,9,9] x, uint8[4,8,2,2] w, uint8 z, uint8[4] v)
        => (int32[1,4,8,8] y) { y = ConvInteger (x, w, z, v) }""",
    "ConvTranspose": "(float[1,8,9,9] x, float[8,4,2,2] w) => (float[1,4,10,10] y) { y = ConvTranspose (x, w) }",
    "DeformConv": """(float[1,8,9,9] x, float[4,8,2,2] w, float[1,8,8,8] o, float[4] b, float[1,4,8,8] m)
        => (float[1,4,8,8] y) { y = DeformConv (x, w, o, b, m) }""",
    "DepthToSpace": "(float[1,8,9,9] x) => (float[1,2,18,18] y) { y = DepthToSpace <blocksize = 2> (x) }",
    "GlobalAveragePool": "(float[1,8,9,9] x) => (float[1,8,1,1] y) { y = GlobalAveragePool (x) }",
    "GlobalLpPool": "(float[1,8,9,9] x) => (float[1,8,1,1] y) { y = GlobalLpPool (x) }",
    "GlobalMaxPool": "(float[1,8,9,9] x) => (float[1,8,1,1] y) { y = GlobalMaxPool (x) }",
    "GridSample": "(float[1,8,9,9] x, float[1,5,5,2] g) => (float[1,8,5,5] y) { y = GridSample (x, g) }",
    "GroupNormalization": """(float[1,8,9,9] x, float[2] s, float[2] b)
        => (float[1,8,9,9] y) { y = GroupNormalization <num_groups = 2> (x, s, b) }""",
    "InstanceNormalization": """(float[1,8,9,9] x, float[8] s, float[8] b)
        => (float[1,8,9,9] y) { y = InstanceNormalization (x, s, b) }""",
    "LRN": "(float[1,8,9,9] x) => (float[1,8,9,9] y) { y = LRN <size = 3> (x) }",
    "LpPool": "(float[1,8,9,9] x) => (float[1,8,8,8] y) { y = LpPool <kernel_shape = [2,2]> (x) }",
    "MaxPool": """(float[1,8,9,9] x) => (float[1,8,8,8] y, int64[1,8,8,8] i)
        { y, i = MaxPool <kernel_shape = [2,2]> (x) }""",
    "MaxRoiPool": """(float[1,8,9,9] x, float[3,5] r)
        => (float[3,8,2,2] y) { y = MaxRoiPool <pooled_shape = [2,2]> (x, r) }""",
    "MaxUnpool": """(float[1,8,9,9] x, int64[1,8,9,9] i)
        => (float[1,8,10,10] y) { y = MaxUnpool <kernel_shape = [2,2]> (x, i) }""",
    "QLinearConv": """(uint8[1,8,9,9] x, float s, uint8 z, uint8[4,8,2,2] w, float t, uint8 v, float u, uint8 q,
        int32[4] b) => (uint8[1,4,8,8] y) { y = QLinearConv (x, s, z, w, t, v, u, q, b) }""",
    "Resize": "(float[1,8,9,9] x, float[4] s) => (float[1,8,18,18] y) { y = Resize (x, , s) }",
    "RoiAlign": "(float[1,8,9,9] x, float[3,4] r, int64[3] i) => (float[3,8,1,1] y) { y = RoiAlign (x, r, i) }",
    "SpaceToDepth": "(float[1,8,8,8] x) => (float[1,32,4,4] y) { y = SpaceToDepth <blocksize = 2> (x) }",
    "Upsample": "(float[1,8,9,9] x, float[4] s) => (float[1,8,18,18] y) { y = Upsample (x, s) }",
}
# The layouts of operands that are neither data nor kernels: any, whatever the rank.
OTHER = {"", "*", "**", "****"}


def node(text: str) -> ir.Node:
    """The one node of a graph, in ONNX's own text, where every result has a shape."""
    inputs, _, rest = text.partition("=>")
    model = f'<ir_version: 10, opset_import: ["" : 22, "relayout" : 1, "mine" : 1]> g {inputs} => {rest}'
    return ir.from_proto(onnx.parser.parse_model(model)).graph[0]


def unary(op: str, shape: str = "1,8,9,9") -> ir.Node:
    return node(f"(float[{shape}] x) => (float[{shape}] y) {{ y = {op} (x) }}")


def conv(rank: int, op: str = "Conv", attributes: str = "", kernel: str = "") -> ir.Node:
    spatial = ",9" * (rank - 2)
    kernel = kernel or "4,8" + ",1" * (rank - 2)
    return node(
        f"(float[1,8{spatial}] x, float[{kernel}] w) => (float[1,4{spatial}] y) {{ [c] y = {op} {attributes} (x, w) }}"
    )


def laid_out_conv(op: str = "Conv") -> ir.Node:
    return node(
        f"""(float[1,9,9,8] x, float[2,2,8,4] w) => (float[1,8,8,4] y) {{
            [c] y = relayout.{op} <data_layout = "NHWC", kernel_layout = "HWIO"> (x, w) }}"""
    )


def layouts(backend: Backend | str, asked: ir.Node) -> str:
    """The only implementation, as "inputs -> results"."""
    (only,) = ask(load_backend(backend), asked)
    return f"{' '.join(map(str, only.inputs))} -> {' '.join(map(str, only.results))}"


def test_every_operator_with_roles_is_asked_about_here() -> None:
    assert sorted(NODES) == sorted(OPERATORS)


# onnx


@pytest.mark.parametrize("op", NODES)
def test_onnx_has_no_requirements(op: str) -> None:
    (only,) = ask(load_backend("onnx"), node(NODES[op]))
    assert all(layout.is_any or layout.rank == 1 for layout in (*only.inputs, *only.results))


# nhwc, nchw, canonical


@pytest.mark.parametrize(
    ("backend", "data", "kernel", "transposed"),
    [("nhwc", "NHWC", "HWIO", "HWIO"), ("nchw", "NCHW", "OIHW", "IOHW"), ("canonical", "NHWC", "OHWI", "OHWI")],
)
@pytest.mark.parametrize("op", NODES)
def test_data_and_kernels_are_in_the_backends_layout_and_nothing_else_is(
    op: str, backend: str, data: str, kernel: str, transposed: str
) -> None:
    asked = node(NODES[op])
    only = ask(load_backend(backend), asked)[-1]
    expected = {"data": {data}, "kernel": {transposed if op == "ConvTranspose" else kernel}, "other": OTHER}
    for n, layout in enumerate(only.inputs):
        assert str(layout) in expected[input_role(asked, n)], f"input {n}"
    assert {str(layout) for layout in only.results} == {data}


@pytest.mark.parametrize(
    ("backend", "op", "rank", "expected"),
    [
        ("nhwc", "Conv", 3, "NWC WIO -> NWC"),
        ("nhwc", "Conv", 5, "NDHWC DHWIO -> NDHWC"),
        ("nhwc", "Conv", 6, "****** ****** -> ******"),
        ("nchw", "Conv", 3, "NCW OIW -> NCW"),
        ("nchw", "Conv", 5, "NCDHW OIDHW -> NCDHW"),
        ("nchw", "ConvTranspose", 3, "NCW IOW -> NCW"),
        ("canonical", "Conv", 5, "NDHWC ODHWI -> NDHWC"),
    ],
)
def test_the_spatial_letters_are_those_of_the_rank(backend: str, op: str, rank: int, expected: str) -> None:
    assert layouts(backend, conv(rank, op)) == expected


@pytest.mark.parametrize("backend", ["nhwc", "nchw"])
def test_a_source_in_another_layout_is_asked_the_same(backend: str) -> None:
    assert layouts(backend, laid_out_conv()) == layouts(backend, conv(4))


@pytest.mark.parametrize("backend", ["nhwc", "nchw"])
@pytest.mark.parametrize("asked", [unary("Relu"), unary("Softmax"), unary("mine.Conv"), unary("Transpose", "2,3")])
def test_operators_without_named_axes_are_asked_nothing(backend: str, asked: ir.Node) -> None:
    rank = len(asked.inputs[0].shape or ())
    assert layouts(backend, asked) == f"{'*' * rank} -> {'*' * rank}"


def test_a_batch_norm_of_features_has_no_spatial_axes_to_order() -> None:
    asked = node(
        """(float[5,8] x, float[8] s, float[8] b, float[8] m, float[8] v)
            => (float[5,8] y) { y = BatchNormalization (x, s, b, m, v) }"""
    )
    assert layouts("nhwc", asked).startswith("** ")


# canonical, as Glow has it


@pytest.mark.parametrize("op", ["Relu", "Cast <to = 1>", "CumSum", "Identity", "Dropout", "Clip", "Neg"])
def test_elementwise_operators_take_any_layout(op: str) -> None:
    assert layouts("canonical", unary(op)) == "**** -> ****"


@pytest.mark.parametrize("op", ["Trilu", "Det", "Compress", "Hardmax", "OneHot"])
def test_operators_that_glow_lacks_take_any_layout(op: str) -> None:
    assert layouts("canonical", unary(op)) == "**** -> ****"


@pytest.mark.parametrize(
    "op", ["Concat <axis = 1>", "Pad", "Slice", "Tile", "ReduceMean", "MatMul", "Transpose", "Reshape"]
)
def test_glows_list_takes_any_layout(op: str) -> None:
    assert layouts("canonical", unary(op)) == "**** -> ****"


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "LayerNormalization", "ArgMax", "TopK", "ReduceProd"])
def test_glows_other_operators_are_nhwc_in_four_dimensions_and_only_there(op: str) -> None:
    assert layouts("canonical", unary(op)) == "NHWC -> NHWC"
    assert layouts("canonical", unary(op, "2,3,4")) == "*** -> ***"
    assert layouts("canonical", unary(op, "2,3,4,5,6")) == "***** -> *****"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("1,8,9,9", "NHWC N -> NHWC"), ("2,3,4", "*** N -> ***"), ("2,3,4,5,6", "***** N -> *****")],
)
def test_glows_gather_is_nhwc_in_four_dimensions_and_only_there(shape: str, expected: str) -> None:
    gather = node(f"(float[{shape}] x, int64[7] i) => (float[7{shape[1:]}] y) {{ y = Gather (x, i) }}")
    assert layouts("canonical", gather) == expected


def test_an_operator_of_another_domain_is_as_its_model_defines_it() -> None:
    assert layouts("canonical", unary("mine.Softmax")) == "**** -> ****"


@pytest.mark.parametrize("backend", ["canonical", "opencl"])
@pytest.mark.parametrize("op", ["BatchNormalization", "InstanceNormalization", "SpaceToDepth"])
def test_named_operators_on_glows_list_run_as_in_onnx_or_channels_last(backend: str, op: str) -> None:
    found = ask(load_backend(backend), node(NODES[op]))
    assert [(str(each.inputs[0]), str(each.results[0]), each.cost) for each in found] == [
        ("****", "****", 0),
        ("NHWC", "NHWC", 0),
    ]


def test_canonical_defaults_are_glows() -> None:
    assert [str(Canonical().default_nd_layout(rank)) for rank in range(6)] == ["", "N", "**", "***", "NHWC", "*****"]


def test_the_defaults_of_the_outermost_backend_apply() -> None:
    class Outer(Backend):
        def default_nd_layout(self, rank: int) -> Layout:
            return Layout.parse("HWCN") if rank == 4 else super().default_nd_layout(rank)

    canonical = Canonical(context=Outer())
    assert layouts(canonical, unary("Softmax")) == "HWCN -> HWCN"
    assert layouts(canonical, unary("Relu")) == "**** -> ****"
    assert layouts(OpenCl(context=Outer()), unary("Softmax")) == "HWCN -> HWCN"


# opencl, as Glow has it


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("Conv", "NCHW OIHW * -> NCHW"),
        ("MaxPool", "NCHW -> NCHW NCHW"),
        ("AveragePool", "NCHW -> NCHW"),
        ("ConvTranspose", "NHWC OHWI -> NHWC"),
        ("LRN", "NHWC -> NHWC"),
    ],
)
def test_opencl_leaves_convolutions_and_pools_as_they_are_and_is_canonical_else(op: str, expected: str) -> None:
    assert layouts("opencl", node(NODES[op])) == expected


def test_opencl_reads_the_nodes_own_layout() -> None:
    assert layouts("opencl", laid_out_conv()) == "NHWC HWIO -> NHWC"
    mixed = node(
        """(float[1,8,9,9] x, float[4,8,2,2] w) => (float[1,8,8,4] y) {
            y = relayout.Conv <data_layout = "NCHW", kernel_layout = "OIHW", out_layout = "NHWC"> (x, w) }"""
    )
    assert layouts("opencl", mixed) == "NCHW OIHW -> NHWC"


def test_opencl_comes_to_nhwc_by_the_canonical_rule() -> None:
    assert str(OpenCl().default_nd_layout(4)) == "****"
    assert layouts("opencl", unary("Softmax")) == "NHWC -> NHWC"
    assert layouts("opencl", unary("Relu")) == "**** -> ****"


# convert-layout, as TVM has it


def converted(asked: ir.Node, skip: tuple[str | int, ...] = (), **desired: list[str]) -> list[str]:
    backend = load_backend(
        "convert-layout",
        options={"desired_layouts": {k.replace("__", "."): v for k, v in desired.items()}, "skip": skip},
    )
    return [f"{' '.join(map(str, each.inputs))} -> {' '.join(map(str, each.results))}" for each in ask(backend, asked)]


@pytest.mark.parametrize(
    ("rank", "desired", "expected"),
    [
        (4, ["NHWC", "OHWI"], "NHWC OHWI -> NHWC"),
        (4, ["NHWC", "default"], "NHWC HWIO -> NHWC"),
        (4, ["NHWC"], "NHWC HWIO -> NHWC"),
        (4, ["NCHW", "default"], "NCHW OIHW -> NCHW"),
        (4, ["HWNC", "default"], "HWNC HWOI -> HWNC"),
        (4, ["CHWN", "IHWO"], "CHWN IHWO -> CHWN"),
        (5, ["NDHWC", "default"], "NDHWC DHWIO -> NDHWC"),
        (3, ["NWC", "default"], "NWC WIO -> NWC"),
        (3, ["NHWC", "default"], "*** *** -> ***"),
        (4, ["NCHW4c", "OIHW4i4o"], "NCHWc[tile:4] OIHWi[tile:4]o[tile:4] -> NCHWc[tile:4]"),
        (4, ["NCHW16c", "OIHW16i16o"], "**** **** -> ****"),
        (4, ["NHWC", "default", "NCHW"], "NHWC HWIO -> NCHW"),
    ],
)
def test_a_named_operator_has_its_desired_layout(rank: int, desired: list[str], expected: str) -> None:
    assert converted(conv(rank), Conv=desired) == [expected]


def test_the_default_kernel_is_tvms() -> None:
    depthwise = conv(4, attributes="<group = 8>", kernel="8,1,3,3")
    assert converted(depthwise, Conv=["NHWC", "default"]) == ["NHWC HWOI -> NHWC"]
    assert converted(depthwise, Conv=["NCHW", "default"]) == ["NCHW OIHW -> NCHW"]
    assert converted(conv(4, attributes="<group = 2>", kernel="4,4,3,3"), Conv=["NHWC"]) == ["NHWC HWIO -> NHWC"]
    assert converted(conv(4, "ConvTranspose"), ConvTranspose=["NCHW"]) == ["NCHW IOHW -> NCHW"]
    assert converted(conv(5, "ConvTranspose"), ConvTranspose=["NDHWC"]) == ["NDHWC DHWOI -> NDHWC"]


def test_a_depthwise_kernel_is_known_in_any_layout() -> None:
    asked = node(
        """(float[1,9,9,8] x, float[2,2,1,8] w) => (float[1,8,8,8] y) {
            y = relayout.Conv <data_layout = "NHWC", kernel_layout = "HWIO", group = 8> (x, w) }"""
    )
    assert converted(asked, Conv=["NHWC", "default"]) == ["NHWC HWOI -> NHWC"]


def test_tvms_names_of_operators_are_understood() -> None:
    assert converted(conv(4), nn__conv2d=["NHWC", "default"]) == ["NHWC HWIO -> NHWC"]
    assert converted(node(NODES["MaxPool"]), nn__max_pool2d=["NHWC"]) == ["NHWC -> NHWC NHWC"]
    assert converted(node(NODES["QLinearConv"]), qnn__conv2d=["NHWC"]) == ["NHWC   HWIO     * -> NHWC"]
    assert converted(node(NODES["RoiAlign"]), vision__roi_align=["NHWC", "default"]) == ["NHWC ** * -> NHWC"]


def test_a_skipped_node_and_an_operator_that_is_not_named_stay_as_they_are() -> None:
    assert converted(conv(4), skip=("c",), Conv=["NHWC"]) == ["**** **** -> ****"]
    assert converted(laid_out_conv(), skip=("c",), Conv=["NCHW"]) == ["NHWC HWIO -> NHWC"]
    assert converted(laid_out_conv("ConvTranspose"), Conv=["NCHW"]) == ["NHWC HWIO -> NHWC"]
    assert converted(node(NODES["RoiAlign"]), Conv=["NHWC"]) == ["**** ** * -> ****"]
    assert converted(unary("Relu"), Conv=["NHWC"]) == ["**** -> ****"]


def test_skipped_layers_go_by_name_or_by_tvms_count() -> None:
    first = node(
        """(float[1,8,9,9] x, float[8,8,1,1] w) => (float[1,8,9,9] z) <float[1,8,9,9] y> {
            [first] y = Conv (x, w)
            [second] z = Conv (y, w) }"""
    )
    assert first.graph is not None
    second = first.graph[1]
    assert converted(first, skip=(0,), Conv=["NHWC"]) == ["**** **** -> ****"]
    assert converted(second, skip=("first", 1), Conv=["NHWC"]) == ["**** **** -> ****"]
    assert converted(second, skip=(0, "first"), nn__conv2d=["NHWC"]) != ["**** **** -> ****"]
    assert converted(conv(3), skip=(0,), Conv=["NWC"]) == ["NWC WIO -> NWC"]
    nameless = node("(float[1,8,9,9] x, float[8,8,1,1] w) => (float[1,8,9,9] y) { y = Conv (x, w) }")
    assert converted(nameless, skip=("y",), Conv=["NHWC"]) == ["**** **** -> ****"]


def test_a_packed_layout_is_for_channels_that_divide() -> None:
    packed, stays = ["NCHWc[tile:4] OIHWo[tile:4] -> NCHWc[tile:4]"], ["**** **** -> ****"]
    assert converted(conv(4), Conv=["NCHW4c", "OIHW4o"]) == packed
    assert converted(conv(4, attributes="<group = 8>", kernel="8,1,3,3"), Conv=["NCHW4c", "OIHW4o"]) == packed
    assert converted(conv(4, attributes="<group = 8>", kernel="8,1,3,3"), Conv=["NCHW4c", "OIHW4i4o"]) == stays
    assert converted(conv(4), Conv=["NCHW8c", "OIHW4o"]) == stays
    assert converted(conv(4, kernel="4,c,1,1"), Conv=["NCHW4c", "OIHW4i4o"]) == stays
    pool = ["**** -> ****", "NCHWc[tile:4] -> NCHWc[tile:4]"]
    assert converted(node(NODES["AveragePool"]), Conv=["NCHW4c", "OIHW4o"]) == pool
    assert converted(node(NODES["AveragePool"]), Conv=["NCHW16c", "OIHW4o"]) == pool[:1]
    laid_out = laid_out_conv()
    assert converted(laid_out, Conv=["NCHW4c", "OIHW4o"]) == packed
    assert converted(laid_out, Conv=["NCHW3c", "OIHW4o"]) == ["NHWC HWIO -> NHWC"]


def test_pools_and_norms_that_are_not_named_may_follow() -> None:
    assert converted(node(NODES["AveragePool"]), Conv=["NHWC"]) == ["**** -> ****", "NHWC -> NHWC"]
    assert converted(node(NODES["AveragePool"]), Conv=["NHWC"], AveragePool=["NCHW"]) == ["NCHW -> NCHW"]
    assert converted(node(NODES["AveragePool"]), Conv=["NDHWC"]) == ["**** -> ****"]


def test_without_desired_layouts_nothing_is_desired() -> None:
    assert layouts("convert-layout", conv(4)) == "**** **** -> ****"


def test_a_node_without_inputs_is_asked_nothing() -> None:
    asked = node("(float[2] x) => (float[2] y) { y = Constant <value = float[2] {1, 2}> () }")
    assert converted(asked, Conv=["NHWC"]) == [" -> *"]


@pytest.mark.parametrize(
    ("desired", "problem", "expected", "found"),
    [
        ({"Conv": ["NHXC"]}, "unknown names", "the names NCW or the names NCHW", "NHXC"),
        ({"Conv": ["NHWC", "OIHX"]}, "unknown names", "the names OIW", "OIHX"),
        ({"Conv": ["NHC"]}, "unknown names", "in any order", "NHC"),
        ({"Conv": ["NHW-C"]}, "not a layout", "a letter", "'-' in 'NHW-C'"),
        ({"Conv": ["NC[HW"]}, "not a layout", "a=BYTES", "'NC[HW'"),
        ({"Conv": ["default"]}, "cannot be the default", "NCHW", "default"),
        ({"Conv": []}, "the wrong number of layouts", "a kernel layout or 'default'", "none"),
        ({"Conv": ["NHWC", "HWIO", "NHWC", ""]}, "the wrong number of layouts", "a data layout", "NHWC, HWIO, NHWC, "),
        ({"Conv": ["NHWC", "HWIO", "NWC"]}, "the result has another rank", "a result layout of 4 axes", "NWC"),
        ({"nn.conv2d": ["NWC"]}, "unknown names", "the names NCHW, in any order", "NWC"),
        ({"Conv": ["NCHW0c", "OIHW"]}, "not a layout", "", "'NCHW0c'"),
        ({"MaxPool": ["NHWC", "HWIO"]}, "the wrong number of layouts", "one layout", "NHWC, HWIO"),
        ({"Conv": ["NHWC", "WIO"]}, "another rank", "4 axes", "WIO"),
        ({"Conv": ["CHWN", "default"]}, "no default kernel layout", "one of NCW", "CHWN"),
        ({"Conv": ["NCHW16c"]}, "no default kernel layout", "a kernel layout", "NCHWc[tile:16]"),
        ({"Relu": ["NHWC"]}, "has no layout of its own", "such as Conv or MaxPool", "'Relu'"),
        ({"nn.conv4d": ["NHWC"]}, "has no layout of its own", "whose axes have names", "'nn.conv4d'"),
    ],
)
def test_a_desired_layout_that_makes_no_sense_is_an_error_of_usage(
    desired: dict[str, list[str]], problem: str, expected: str, found: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_backend("convert-layout", options={"desired_layouts": desired})
    assert problem in caught.value.problem
    assert expected in caught.value.expected
    assert found in caught.value.found
    assert caught.value.where.startswith("desired layout")


_AS_IT_LIES = "NCHWc[tile:4] OIHWi[tile:4]o[tile:4] -> NCHWc[tile:4]"


@pytest.mark.parametrize(
    ("backend", "required"),
    [
        ("nhwc", "NHWC HWIO -> NHWC"),
        ("nchw", "NCHW OIHW -> NCHW"),
        ("canonical", "NHWC OHWI -> NHWC"),
        ("auto-nhwc", "NHWC OHWI -> NHWC"),
        ("opencl", _AS_IT_LIES),
        ("convert-layout", _AS_IT_LIES),
    ],
)
def test_a_packed_operator_of_the_source_has_the_requirements_of_onnx_operator(backend: str, required: str) -> None:
    asked = node(
        """(float[1,2,9,9,4] x, float[2,2,2,2,4,4] w) => (float[1,2,8,8,4] y) {
            y = relayout.Conv <data_layout = "NCHWc[tile:4]", kernel_layout = "OIHWi[tile:4]o[tile:4]"> (x, w) }"""
    )
    assert layouts(backend, asked) == required
