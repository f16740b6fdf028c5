"""Operators read the elements along each axis that their counterparts in the original read, behind all views."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from random_patterns import draw_graph

from relayout import Backend, Layout, legalize
from relayout.model.io import read_model
from relayout.report.schema import Verification
from relayout.verification import verify
from relayout.verification.order.digits import elements_at
from relayout.verification.order.elements import OriginalElements

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'
# Rows of an image in another order: 2 x 4 of them become 4 x 2.
SHUFFLED = (
    HEAD
    + """net (float[1,8,8,8] x, float[8,8,3,3] w, float[8] k) => (float[1,8,8,8] y)
    <int64[5] apart = {1,8,2,4,8}, int64[5] turned = {1,8,4,2,8}, int64[4] whole = {1,8,8,8}, int64 rows = {2}> {
    r = Relu (x)
    a = Reshape (r, apart)  b = Transpose <perm = [0,1,3,2,4]> (a)  c = Reshape (b, whole)
    d = OPERATOR
    e = Reshape (d, turned)  f = Transpose <perm = [0,1,3,2,4]> (e)  g = Reshape (f, whole)
    y = Relu (g) }"""
)
STRAIGHT = (
    HEAD
    + """net (float[1,8,8,8] x, float[8,8,3,3] w, float[8] k) => (float[1,8,8,8] y) <int64 rows = {2}> {
    r = Relu (x)
    d = OPERATOR
    y = Relu (d) }"""
)


def parsed(text: str) -> ModelProto:
    model: ModelProto = onnx.parser.parse_model(text)
    return model


def unrun(model: ModelProto, original: ModelProto, backend: str = "onnx") -> Verification:
    return verify(model, backend, against=original, run=False)


def rules(found: Verification) -> set[str]:
    return {finding.rule for finding in found.findings if finding.severity == "error"}


@pytest.mark.parametrize(
    "operator",
    [
        "Conv <pads = [1,1,1,1]> (DATA, w)",
        "MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (DATA)",
        "CumSum (DATA, rows)",
        "Softmax <axis = 2> (DATA)",
        "LRN <size = 3> (DATA)",
        "InstanceNormalization (DATA, k, k)",
        "Tanh (DATA)",
    ],
)
def test_views_that_mix_rows_may_go_only_where_their_results_are_annotated(operator: str) -> None:
    """A value of the original's name without an annotation is the original's."""
    original = parsed(SHUFFLED.replace("OPERATOR", operator.replace("DATA", "c")))
    model = parsed(STRAIGHT.replace("OPERATOR", operator.replace("DATA", "r")))
    assert "element-order" in rules(unrun(model, original))
    for backend in ("onnx", "nhwc", "x86-nchwc"):
        legal, _ = legalize(original, backend)
        assert unrun(legal, original, backend).passed
        (made,) = (value for value in legal.graph.value_info if value.name == "d")
        views = {"Reshape", "Transpose"} & {node.op_type for node in legal.graph.node}
        assert bool(views) == ("relayout.atoms" not in {each.key for each in made.metadata_props})


@pytest.mark.parametrize("rank", [5, 6])
def test_spatial_axes_are_followed_at_all_ranks(rank: int) -> None:
    """From rank 6 on they have no letters, but their order."""
    apart = [0, 1, 3, 2, *range(4, rank)]
    text = (
        HEAD
        + f"""net (float[1,2{",4" * (rank - 2)}] x) => (float[1,2{",2" * (rank - 2)}] y) {{
        a = Transpose <perm = PERM> (x)
        b = MaxPool <kernel_shape = KERNEL, strides = {[2] * (rank - 2)}> (a)
        y = Transpose <perm = PERM> (b) }}"""
    )
    first, second = [2, 1] + [2] * (rank - 4), [1] + [2] * (rank - 3)

    def written(perm: list[int], kernel: list[int]) -> ModelProto:
        return parsed(text.replace("PERM", str(perm)).replace("KERNEL", str(kernel)))

    original = written([*range(rank)], first)
    assert unrun(original, original).passed
    assert rules(unrun(written(apart, second), original)) == {"element-order", "layout-annotation"}
    assert rules(unrun(written(apart, first), original)) == {"attribute", "element-order", "layout-annotation"}
    legal, report = legalize(original)
    assert report.ok
    assert "Transpose" not in [node.op_type for node in legal.graph.node]


def test_a_finding_names_extents_and_strides_in_the_original() -> None:
    original, model = (parsed(text.replace("OPERATOR", "CumSum (DATA, rows)")) for text in (SHUFFLED, STRAIGHT))
    for graph, data in ((original.graph, "c"), (model.graph, "r")):
        next(node for node in graph.node if node.op_type == "CumSum").input[0] = data
    found = next(each for each in unrun(model, original).findings if each.rule == "element-order")
    assert (found.operand, found.expected, found.found) == (0, "[1, 8:64, 4:8+2:32, 8:1]", "[1, 8:64, 8:8, 8:1]")


@pytest.mark.parametrize("operand", ["w", "bias"])
def test_shuffled_channels_may_go_into_the_weights(operand: str) -> None:
    """A shuffle before a convolution, as in ShuffleNet, is folded into its kernel; the other order is not."""
    draw = np.random.default_rng(0)
    weights = {"v": (8, 8, 1, 1), "w": (8, 8, 3, 3), "bias": (8,)}
    text = (
        HEAD
        + """net (float[1,8,6,6] x) => (float[1,8,6,6] y)
        <float[8,8,1,1] v = {}, float[8,8,3,3] w = {}, float[8] bias = {},
         int64[5] apart = {1,2,4,6,6}, int64[4] whole = {1,8,6,6}> {
        a = Conv (x, v)
        b = Reshape (a, apart)  c = Transpose <perm = [0,2,1,3,4]> (b)  d = Reshape (c, whole)
        s = Relu (d)
        y = Conv <pads = [1,1,1,1]> (s, w, bias) }"""
    )
    original = parsed(text)
    for constant in original.graph.initializer:
        if (shape := weights.get(constant.name)) is not None:
            constant.CopyFrom(numpy_helper.from_array(draw.normal(size=shape).astype(np.float32), constant.name))
    legal, _ = legalize(original)
    assert "Transpose" not in [node.op_type for node in legal.graph.node]
    assert unrun(legal, original).passed
    wrong = next(each for each in legal.graph.initializer if each.name.startswith(operand))
    data = numpy_helper.to_array(wrong)
    axis = 1 if operand == "w" else 0
    wrong.CopyFrom(numpy_helper.from_array(np.flip(data, axis).copy(), wrong.name))
    assert not unrun(legal, original).passed


TURNED = (
    HEAD
    + """net (float[1,2,8,8] x) => (float[1,2,8,8] y) <float[2,2,1,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> {
    a = Transpose <perm = [0,1,3,2]> (x)
    b = Conv <pads = [0,1,0,1]> (a, w)
    y = Transpose <perm = [0,1,3,2]> (b) }"""
)


@pytest.mark.parametrize("pads", ["1,0,1,0", "0,1,0,1"])
def test_kernels_and_attributes_turn_with_the_data(pads: str) -> None:
    model = parsed(
        HEAD
        + f"""net (float[1,2,8,8] x) => (float[1,2,8,8] y) <float[2,2,1,3] w = {{1,2,3,4,5,6,7,8,9,10,11,12}}> {{
        v = Transpose <perm = [0,1,3,2]> (w)
        y = Conv <pads = [{pads}]> (x, v) }}"""
    )
    assert unrun(model, parsed(TURNED)).passed == (pads == "1,0,1,0")


PRODUCT = (
    HEAD
    + """net (float[4,3,3] x, float[4,3,3] z) => (y) {
    a = Transpose <perm = [0,2,1]> (x)  b = Transpose <perm = [0,2,1]> (z)
    y = MatMul (LEFT, RIGHT) }"""
)


@pytest.mark.parametrize(("left", "right"), [("x", "b"), ("a", "z"), ("x", "z")])
def test_a_product_sums_the_pairs_of_the_original(left: str, right: str) -> None:
    original = parsed(PRODUCT.replace("LEFT", "a").replace("RIGHT", "b"))
    assert rules(unrun(parsed(PRODUCT.replace("LEFT", left).replace("RIGHT", right)), original)) >= {"element-order"}


@pytest.mark.parametrize("perm", ["[0,2,1]", "[0,1,2]"])
def test_views_of_constants_are_compared_by_data(perm: str) -> None:
    text = HEAD + "net (float[2,2,2] x) => (y) <float[2,2,2] c = {{{}}}> {{ d = {}  y = Add (x, d) }}"
    original = parsed(text.format("1,2,3,4,5,6,7,8", "Transpose <perm = [0,2,1]> (c)"))
    assert unrun(parsed(text.format("1,2,3,4,5,6,7,8", f"Transpose <perm = {perm}> (c)")), original).passed == (
        perm == "[0,2,1]"
    )
    # Of equal elements, any order is the same.
    same = parsed(text.format("1,1,1,1,1,1,1,1", "Transpose <perm = [0,2,1]> (c)"))
    assert unrun(parsed(text.format("1,1,1,1,1,1,1,1", "Identity (c)")), same).passed


def test_an_old_softmax_of_a_constant_is_not_computed() -> None:
    """Before opset 13 it takes all axes from its own on as one: onnx's reference evaluator does not."""
    text = """<ir_version: 8, opset_import: ["" : 8]>
        net (float[2,3,2] x) => (y) <float[3,2,2] c = {{1,2,3,4,5,6,7,8,9,8,7,6}}> {{
            {}
            y = Add (x, t) }}"""
    original = parsed(text.format("s = LogSoftmax <axis = 0> (c)  t = Transpose <perm = [1,0,2]> (s)"))
    model = parsed(text.format("u = Transpose <perm = [1,0,2]> (c)  t = LogSoftmax <axis = 0> (u)"))
    assert verify(model, "onnx", against=original).passed


@pytest.mark.parametrize(("function", "is_turned"), [("Tanh", True), ("Tanh", False), ("Floor", True)])
def test_constants_that_both_models_compute_may_be_rounded_differently(function: str, is_turned: bool) -> None:
    """Sums along the other axis round differently, and a floor makes large differences of small ones."""
    data = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    data[:256, -1] = -data[:256, :-1].sum(1)

    def sums(data: np.ndarray, axis: int) -> ModelProto:
        model = parsed(
            HEAD
            + f"""net (float[512] x) => (y) <float[512,512] c = {{}}, int64[1] axes = {{{axis}}}> {{
            s = ReduceSum <keepdims = 0> (c, axes)  t = {function} (s)  y = Add (x, t) }}"""
        )
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(data, "c"))
        return model

    model = sums(data.T.copy() if is_turned else data, 0)
    assert ("element-order" not in rules(unrun(model, sums(data, 1)))) == is_turned


def test_a_large_constant_of_one_number_has_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the weights of onnx's light models nothing is stored but their shape."""
    monkeypatch.setattr("relayout.verification.order.elements._MOST_COMPUTED", 3)
    text = HEAD + "net (float[4] x) => (y) <int64[2] n = {{2,2}}, int64[1] m = {{4}}> {{ c = ConstantOfShape (n)  {} }}"
    views = "t = Transpose <perm = [1,0]> (c)  d = Reshape (t, m)  y = Add (x, d)"
    original, model = (parsed(text.format(each)) for each in (views, "d = Reshape (c, m)  y = Add (x, d)"))
    assert unrun(model, original).passed


@pytest.mark.parametrize("perm", ["[1,0,2]", "[0,1,2]"])
def test_computed_constants_are_compared_element_by_element(perm: str) -> None:
    """A Reshape joins axes of one, and splits one of the other: their digits are others, and the elements are not."""
    text = """net (float[4,6] x) => (y) <float[3,4,2] c = {{{}}}, int64[2] n = {{4,6}}> {{
        a = Neg (c)  b = Transpose <perm = [1,0,2]> (a)  d = Reshape (b, n)  y = Add (x, d) }}"""
    numbers = ",".join(map(str, range(1, 25)))
    original = parsed(HEAD + text.format(numbers))
    model = parsed(
        HEAD
        + text.format(numbers).replace(
            "a = Neg (c)  b = Transpose <perm = [1,0,2]> (a)", f"t = Transpose <perm = {perm}> (c)  b = Neg (t)"
        )
    )
    assert unrun(model, original).passed == (perm == "[1,0,2]")


@pytest.mark.parametrize("opset", [10, 13, 18, 21])
def test_dequantized_weights_are_compared_in_all_opsets(opset: int) -> None:
    """onnx's reference evaluator has a DequantizeLinear from opset 19 on. The weight keeps its shape when the pixels
    along which the product sums are turned."""
    numbers = np.arange(36, dtype=np.int8).reshape(12, 3)
    original = parsed(f"""<ir_version: 10, opset_import: ["" : {opset}]>
        net (float[2,3,4] x) => (y) <int8[12,3] w = {{{",".join(map(str, numbers.flat))}}}, float s = {{0.5}},
            int8 z = {{3}}, int64[2] rows = {{2,12}}> {{
            t = Transpose <perm = [0,2,1]> (x)  r = Reshape (t, rows)
            d = DequantizeLinear (w, s, z)  y = MatMul (r, d) }}""")
    legal, report = legalize(original, "onnx")
    assert report.after.transposes == 0
    assert unrun(legal, original).passed
    (weight,) = (each for each in legal.graph.initializer if [*each.dims] == [12, 3])
    turned = numbers.reshape(4, 3, 3).swapaxes(0, 1).reshape(12, 3)
    assert np.array_equal(numpy_helper.to_array(weight), turned)
    weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    assert rules(unrun(legal, original)) == {"element-order"}


@pytest.mark.parametrize(("seed", "backend"), [(75300122, "nhwc"), (75300151, "onnx"), (76720090, "onnx")])
def test_a_constant_that_is_computed_in_another_order_states_none(seed: int, backend: str) -> None:
    """As an operand, and as the output of a branch, computed when the model runs or before."""
    original = draw_graph(seed).model
    legal, _ = legalize(original, backend)
    assert unrun(legal, original, backend).passed


@pytest.mark.parametrize(
    ("operator", "mode"), [("SpaceToDepth", "DCR"), ("DepthToSpace", "DCR"), ("DepthToSpace", "CRD")]
)
def test_blocks_of_an_image_are_followed_as_onnx_moves_them(operator: str, mode: str) -> None:
    attributes = "blocksize = 2" + (f', mode = "{mode}"' if operator == "DepthToSpace" else "")
    model = parsed(HEAD + f"net (float[2,12,4,6] x) => (y) {{ y = {operator} <{attributes}> (x) }}")
    data = np.arange(2 * 12 * 4 * 6, dtype=np.float32).reshape(2, 12, 4, 6)
    (result,) = ReferenceEvaluator(model).run(None, {"x": data})
    found = OriginalElements({}, set())[read_model(model).graph.outputs[0]]
    assert found is not None
    assert found.root.name == "x"
    assert np.array_equal(elements_at(data, found.dims), result)


def test_a_custom_operator_reads_its_operand_as_in_the_original() -> None:
    text = (
        HEAD.replace("18]", '18, "acme" : 1]')
        + """net (float[4,4] x) => (float[4,4] y) {
        a = Relu (x)  t = Transpose <perm = [1,0]> (a)  y = acme.Odd (READ) }"""
    )
    original = parsed(text.replace("READ", "t"))
    wrong = unrun(parsed(text.replace("READ", "a")), original)
    assert "element-order" in {finding.rule for finding in wrong.findings}
    assert "element-order" not in {finding.rule for finding in unrun(original, original).findings}


@pytest.mark.parametrize(("order", "found"), [("1,0", set()), ("0,1", {"element-order"})])
def test_a_custom_operator_may_be_rewritten_in_the_order_of_its_annotated_result(order: str, found: set[str]) -> None:
    text = (
        HEAD.replace("18]", '18, "acme" : 1]')
        + """net (float[4,4] x) => (float[4,4] y) <float[4,4] b> {
        a = Relu (x)  t = Transpose <perm = [1,0]> (a)  b = acme.Odd (READ)  y = Neg (b) }"""
    )
    rewritten = parsed(text.replace("READ", "a"))
    rewritten.graph.value_info[0].metadata_props.add(key="relayout.order", value=order)
    findings = unrun(rewritten, parsed(text.replace("READ", "t"))).findings
    rules = {finding.rule for finding in findings if "Odd" in str(finding.node)}
    assert rules == found | {"function-missing"}


def test_a_value_enters_and_leaves_a_loop_in_one_order() -> None:
    text = (
        HEAD
        + """net (float[4,4] x, int64 n, bool c) => (float[4,4] y) {
        TURN
        y = Loop (n, c, READ) <body = body (int64 i, bool going, float[4,4] s) => (bool on, float[4,4] t) {
            on = Identity (going)  t = Softmax <axis = 1> (s) }> }"""
    )
    original = parsed(text.replace("TURN", "").replace("READ", "x"))
    wrong = parsed(text.replace("TURN", "turned = Transpose <perm = [1,0]> (x)").replace("READ", "turned"))
    (found,) = unrun(wrong, original).findings
    assert (found.rule, found.expected, found.found) == ("element-order", "[4:4, 4:1]", "[4:1, 4:4]")
    assert "turned has other elements along an axis than s" in found.message


def test_a_copy_without_an_annotation_may_be_in_any_order() -> None:
    """A crop of padded channels is one; here its extents fit the original's order too."""

    class Aligned(Backend):
        """Pools on NHWC, with 16 channels for each pixel."""

        name = "aligned"

        def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str | Layout:
            return "NHW[a=64]C" if node.op_type == "MaxPool" else super().nth_input_layout_requirements(node, n)

        def nth_result_layout_requirements(self, node: ir.Node, n: int) -> str | Layout:
            return "NHW[a=64]C" if node.op_type == "MaxPool" else super().nth_result_layout_requirements(node, n)

    original = parsed(HEAD + "net (float[2,4,5,5] x) => (float[2,4,4,4] y) { y = MaxPool <kernel_shape = [2,2]> (x) }")
    legal, _ = legalize(original, Aligned)
    assert verify(legal, Aligned, against=original).passed
