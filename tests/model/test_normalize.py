"""Local functions are replaced by their bodies: names, annotations of results, and opsets."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from graphs import assert_same_numbers, run
from model_files import parse, same, shapes

from relayout.errors import InputError
from relayout.legalization import legalize
from relayout.model.io import read_model, to_json, to_proto, warnings_of
from relayout.model.proto_graphs import nodes_inside
from relayout.verification.verifier import verify


def test_local_functions_are_inlined() -> None:
    model = parse(
        """g (float[2,3] x) => (float[3,2] y) { y = mine.outer <n = 2> (x) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> outer <n> (a) => (b) {
            t = mine.inner (a)  b = Identity (t) }
        <domain: "mine", opset_import: ["" : 20]> inner (a) => (b) { r = Relu (a)  b = Transpose (r) }"""
    )
    read = read_model(model)
    assert [node.op_type for node in read.graph] == ["Relu", "Transpose", "Identity"]
    assert not read.functions
    assert [value.name for value in read.graph.outputs] == ["y"]


def test_a_function_of_another_opset_is_inlined_where_its_operators_mean_the_same() -> None:
    text = """g (float[2,3] x) => (y) {{ y = mine.f (x) }}
        <domain: "mine", opset_import: ["" : 17]> f (a) => (b) {{ r = Relu (a)  b = {} (r) }}"""
    assert [node.op_type for node in read_model(parse(text.format("Tanh"))).graph] == ["Relu", "Tanh"]
    with pytest.raises(InputError, match="cannot be inlined") as caught:
        read_model(parse(text.format("ReduceMean")))
    assert "17" in caught.value.found


def test_a_function_that_passes_its_input_on_keeps_the_outputs_name() -> None:
    model = parse(
        """g (float[2,3] x) => (float[2,3] y) { y = mine.same (x) }
        <domain: "mine", opset_import: ["" : 20]> same (a) => (b) { b = Identity (a) }"""
    )
    assert [value.name for value in read_model(model).graph.outputs] == ["y"]


def test_a_result_that_is_an_input_of_its_function_leaves_the_caller_s_value_its_name() -> None:
    read = read_model(
        parse(
            """g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y, z = mine.both (x) }
            <domain: "mine", opset_import: ["" : 20]> both (a) => (a, b) { b = Relu (a) }"""
        )
    )
    assert [value.name for value in read.graph.inputs] == ["x"]
    assert [(node.op_type, node.inputs[0].name, node.outputs[0].name) for node in read.graph if node.inputs[0]] == [
        ("Relu", "x", "z"),
        ("Identity", "x", "y"),
    ]


@pytest.mark.parametrize("inner", ["{ b = Neg (a)  c = Relu (a) }", "{ b, c = mine.inner (a)  d = Abs (c) }"])
def test_unread_results_of_a_function_are_still_produced_in_its_body(inner: str) -> None:
    text = f"""g (float[2,3] x) => (float[2,3] y) {{ , y = mine.outer (x) }}
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> outer (a) => (b, c) {inner}
        <domain: "mine", opset_import: ["" : 20]> inner (a) => (b, c) {{ b = Neg (a)  c = Relu (a) }}"""
    read = read_model(parse(text))
    assert not read.functions
    made = {str(value.name): node.op_type for node in read.graph for value in node.outputs}
    assert made["y"] == "Relu"
    assert "Neg" in made.values()


def test_annotations_of_a_functions_result_are_kept_on_its_replacement() -> None:
    model = parse(
        """g (float[1,2,4,4] x) => (float[1,2,4,4] y) { t = mine.f (x)  y = mine.f (t) }
        <domain: "mine", opset_import: ["" : 20]> f (a) => (b) { b = Relu (a) }"""
    )
    model.graph.output[0].metadata_props.add(key="told", value="y")
    [first, second] = read_model(model).graph
    assert (first.outputs[0].metadata_props.get("told"), second.outputs[0].metadata_props["told"]) == (None, "y")


def test_inlined_values_have_names_that_no_subgraph_or_body_uses() -> None:
    model = parse(
        """g (float[2,3] x, bool c) => (float[2,3] y, float[2,3] z) {
            u = mine.f (x, c)
            v = mine.f (u, c)
            y = If (c) <
                then_branch = one () => (float[2,3] r) { t = Neg (v)  b_2 = mine.f (t, c)  r = Relu (b_2) },
                else_branch = other () => (float[2,3] s) { b = Abs (v)  s = Tanh (b) }
            >
            z = Add (v, y) }
        <domain: "mine", opset_import: ["" : 20]> f (a, c) => (t) {
            b = Abs (a)
            d = If (c) <
                then_branch = one () => (float[2,3] r) { k = Neg (b)  r = Relu (k) },
                else_branch = other () => (float[2,3] s) { k = Relu (b)  s = Neg (k) }
            >
            t = Add (b, d) }"""
    )
    read = to_proto(read_model(model))
    onnx.checker.check_model(read, full_check=True)
    feeds = {"x": np.array([[-1, 2, 3], [4, -5, 6]], np.float32), "c": np.array(True)}
    for one, other in zip(run(model, feeds), run(read, feeds), strict=True):
        np.testing.assert_array_equal(one, other)


def test_functions_of_the_domain_relayout_are_operators() -> None:
    model = parse(
        """g (float[1,4,4,3] x) => (y) { y = relayout.MaxPool <data_layout = "NHWC", kernel_shape = [2, 2]> (x) }
        <domain: "relayout", opset_import: ["" : 20]> MaxPool <data_layout, kernel_shape> (x) => (y) {
            a = Transpose <perm = [0, 3, 1, 2]> (x)
            b = MaxPool <kernel_shape: ints = @kernel_shape> (a)
            y = Transpose <perm = [0, 2, 3, 1]> (b) }"""
    )
    read = read_model(model)
    assert [node.domain for node in read.graph] == ["relayout"]
    assert shapes(read)["y"] == [1, 3, 3, 3]
    assert same(read, read_model(to_json(read)))


def test_a_function_with_the_name_of_an_operator_of_onnx_is_noted() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) { y = Relu (x) }
        <domain: "", opset_import: ["" : 20]> Relu (a) => (b) { b = Neg (a) }"""
    read = read_model(parse(text))
    assert [node.op_type for node in read.graph] == ["Neg"]
    assert any("ONNX's Relu" in text for text in warnings_of(read))


def test_the_declared_type_of_a_constant_gives_way_to_its_data() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] k = {1, 2}> { y = Add (x, k) }")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("k", onnx.TensorProto.FLOAT16, [3]))
    read = read_model(model)
    assert read.graph.initializers["k"].shape == [2]
    assert not warnings_of(read)
    onnx.checker.check_model(to_proto(read), full_check=True)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("given", "bins"), [("", 9), ("<onesided = 0>", 16), ("<onesided = 1>", 9)])
def test_a_stft_says_whether_its_spectrum_is_one_sided(given: str, bins: int, inside: bool) -> None:
    stft = f"STFT {given} (x, step, , length)"
    called = "mine.f (x, step, length)" if inside else stft
    text = f"g (float[2,128,1] x, int64 step, int64 length) => (y) {{ y = {called} }}"
    function = f'<domain: "mine", opset_import: ["" : 20]> f (x, step, length) => (y) {{ y = {stft} }}'
    model = parse(f"{text} {function}" if inside else text)
    for value in ("step", "length"):
        model.graph.input.pop()
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(8 if value == "step" else 16), value))
    (node,) = read_model(model).graph
    assert node.outputs[0].shape == [2, 15, bins, 2]


@pytest.mark.parametrize("constant", ["initializer", "node"])
@pytest.mark.parametrize("domain", ["", "mine."])
def test_the_empty_operands_of_a_resize_inside_a_node_are_left_out(constant: str, domain: str) -> None:
    empty = "<float[0] none = {}, int64[4] sizes = {1,2,8,8}>"
    made = "" if constant == "initializer" else "none = Constant <value = float[0] {}> ()"
    declared = empty if constant == "initializer" else "<int64[4] sizes = {1,2,8,8}>"
    resized = f"{domain}Resize (x, none, none, sizes)"
    model = parse(
        f"""g (float[1,2,4,4] x, bool c) => (float[1,2,8,8] y, float[1,2,8,8] z) {declared} {{
            {made} z = Resize (x, none, none, sizes)
            y = If (c) <then_branch = one () => (float[1,2,8,8] a) {{ a = {resized} }},
                        else_branch = other () => (float[1,2,8,8] b) {{ b = Relu (z) }}> }}
        <domain: "mine", opset_import: ["" : 20]> Resize (x, n, m, sizes) => (y) {{ y = Resize (x, n, m, sizes) }}"""
    )
    legal, report = legalize(model, "tpu")
    assert report.verification is not None
    assert report.verification.findings == ()
    feeds = {"x": np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4), "c": np.array(True)}
    for expected, found in zip(run(model, feeds), run(legal, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_constant_is_empty_only_in_its_own_scope() -> None:
    model = parse(
        """g (float[1,2,4,4] x, bool c) => (float[1,2,8,8] y) <int64[4] sizes = {1,2,8,8}> {
            y = If (c) <
                then_branch = one () => (float[1,2,8,8] a) <float[0] roi = {}> { a = Resize (x, roi, , sizes) },
                else_branch = other () => (float[1,2,8,8] b) <float[8] roi = {0.0,0.0,0.5,0.5,1.0,1.0,1.0,1.0}> {
                    b = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, , sizes) }> }"""
    )
    (node,) = read_model(model).graph
    left = {key: attribute.as_graph()[0].inputs[1] is None for key, attribute in node.attributes.items()}
    assert left == {"then_branch": True, "else_branch": False}


FUSED = {
    "Relu": "",
    "Tanh": "",
    "Sigmoid": "",
    "LeakyRelu": "activation_params = [0.2], ",
    "HardSigmoid": "activation_params = [0.1, 0.4], ",
    "Clip": "activation_params = [-0.5, 0.5], ",
}


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("activation", FUSED)
def test_a_convolution_that_onnxruntime_fused_takes_part_in_the_choice_of_layouts(activation: str, opset: int) -> None:
    model = parse(
        f"""g (float[1,3,8,8] x, float[1,4,4,4] z) => (float[1,4,4,4] y) {{
            c = com.microsoft.FusedConv <strides = [2,2], pads = [1,1,1,1], {FUSED[activation]}
                activation = "{activation}"> (x, w, b, z)
            y = com.microsoft.FusedConv <activation = "Relu"> (c, v)
        }}""",
        opset=opset,
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    for name, shape in {"w": (4, 3, 3, 3), "b": (4,), "v": (4, 4, 1, 1)}.items():
        data = np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    legal, report = legalize(model, backend="nhwc")
    kinds = [node.op_type for node in legal.graph.node]
    assert "FusedConv" not in kinds
    assert [kinds.count("Add"), kinds.count(activation)] == [1, 1 + (activation == "Relu")], kinds
    assert report.after.transposes == 3
    assert any("FusedConv" in warning for warning in report.warnings)
    assert_same_numbers(model, legal)


def test_a_fused_convolution_with_a_summand_and_no_bias_is_split_in_subgraphs_too() -> None:
    model = parse(
        """g (float[1,3,4,4] x, float[1,3,4,4] z, bool c) => (y) {
            y = If (c) <
                then_branch = t () => (a) {
                    a = com.microsoft.FusedConv <activation = "Relu"> (x, w, , z)
                },
                else_branch = e () => (a_Conv) { a_Conv = Abs (x) }>
        }"""
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    weight = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3, 1, 1)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    read = to_proto(read_model(model))
    branch = next(each.g for each in read.graph.node[0].attribute if each.name == "then_branch")
    assert [node.op_type for node in branch.node] == ["Conv", "Add", "Relu"]
    assert len(branch.node[0].input) == 2
    assert_same_numbers(model, read)


def test_a_fused_product_without_a_summand_stays_where_the_opset_needs_one() -> None:
    model = parse(
        """g (float[4,6] x, float[6,5] k) => (float[4,5] y) {
            y = com.microsoft.FusedGemm <activation = "Relu"> (x, k)
        }""",
        opset=10,
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    assert [node.op_type for node in read_model(model).graph] == ["FusedGemm"]


def test_a_fused_product_keeps_its_transposed_operand_and_an_activation_with_other_attributes_stays() -> None:
    model = parse(
        """g (float[4,6] x, float[5,6] k, float[5,5] j) => (float[4,5] y, float[4,5] u) {
            a = com.microsoft.FusedGemm <transB = 1, alpha = 0.5, activation = "Relu"> (x, k)
            y = com.microsoft.FusedGemm <activation = "Tanh"> (a, j)
            u = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.1> (a, j)
        }"""
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    read = read_model(model)
    assert [node.op_type for node in read.graph] == ["Gemm", "Relu", "Gemm", "Tanh", "FusedGemm"]
    assert_same_numbers(model, to_proto(read))


def test_a_fused_convolution_with_bounds_of_an_unknown_type_stays() -> None:
    model = parse(
        """g (float[1,3,8,8] x, float[4,3,3,3] w) => (y) {
            y = com.microsoft.FusedConv <activation = "Clip", activation_params = [0.0, 6.0]> (x, w)
        }"""
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    assert [node.op_type for node in read_model(model).graph] == ["FusedConv"]


def in_channels_last(convolution: str, layout: str) -> onnx.ModelProto:
    """A network with a convolution, and another in a branch; the kernels are of an order of the axes O, I, H, W."""
    model = parse(
        f"""g (float[1,3,9,8] x, bool c) => (float[1,8,5,4] y) {{
            t = Transpose <perm = [0,2,3,1]> (x)
            a = {convolution} <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (t, w, b)
            r = Relu (a)
            n = If (c) <
                then_branch = p () => (d) {{ d = {convolution} <group = 2> (r, v) }},
                else_branch = e () => (f) {{ f = Concat <axis = 3> (r, r) }}>
            y = Transpose <perm = [0,3,1,2]> (n)
        }}
        <domain: "mine", opset_import: ["" : 17]>
        Conv <kernel_shape: ints = [1,1], strides: ints = [1,1], pads: ints = [0,0,0,0], group: int = 1> (x, w, b)
            => (y) {{
            t = Transpose <perm = [0,3,1,2]> (x)
            a = Conv <kernel_shape: ints = @kernel_shape, strides: ints = @strides, pads: ints = @pads,
                group: int = @group> (t, w, b)
            y = Transpose <perm = [0,2,3,1]> (a)
        }}""",
        opset=17,
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (4, 3, 3, 3), "b": (4,), "v": (8, 2, 1, 1)}.items():
        kernel = rng.normal(size=shape).astype(np.float32)
        kernel = kernel.transpose(["OIHW".index(axis) for axis in layout]) if len(shape) > 1 else kernel
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(kernel), name))
    return model


@pytest.mark.parametrize(("backend", "most"), [("nhwc", 2), ("onnx", 0)])
def test_a_convolution_that_onnxruntime_has_in_channels_last_takes_part_in_the_choice(backend: str, most: int) -> None:
    model = in_channels_last("com.microsoft.NhwcConv", "OHWI")
    legal, report = legalize(model, backend, check=True)
    assert "NhwcConv" not in {node.op_type for node in nodes_inside(legal.graph.node)}
    assert report.before.transposes == 2
    assert report.after.transposes == most
    assert any("NhwcConv" in warning for warning in report.warnings)
    assert_same_numbers(in_channels_last("mine.Conv", "OIHW"), legal)
    assert verify(legal, backend, against=model).passed


@pytest.mark.parametrize("other", ["", 'c = relayout.Conv <data_layout = "NHWC", kernel_layout = "OHWI"> (x, w)'])
def test_a_convolution_of_an_unknown_rank_stays_and_one_gives_no_other_operator_a_body(other: str) -> None:
    model = parse(
        f"""g (float[1,9,8,3] x, float[4,3,3,3] w) => (a, b) {{
            a = com.microsoft.NhwcConv (x, w)
            b = com.microsoft.NhwcConv <kernel_shape = [3,3]> (x, w)
            {other}
        }}"""
    )
    for domain in ("com.microsoft", "relayout"):
        model.opset_import.add(domain=domain, version=1)
    read = read_model(model, bodies=False)
    assert [node.op_type for node in read.graph][:2] == ["NhwcConv", "NhwcConv" if other else "Conv"]
    assert len(read.functions) == (not other)


@pytest.mark.parametrize("opset", [7, 8])
def test_a_constant_of_integers_before_opset_9_is_stored_in_the_graph(opset: int) -> None:
    # PyTorch's exporter wrote them, and onnxruntime runs them.
    model = parse(
        """g (float[1,4,3,3] x, bool c) => (float[2,2,9] y) {
            s = Constant <value = int64[3] {2, 2, 9}> ()
            r = Reshape (x, s)
            k = Constant <value = float {2.0}> ()
            m = Mul (r, k)
            y = If (c) <then_branch = t () => (float[2,2,9] a) {
                            i = Constant <value = int64[3] {2, 2, 9}> ()
                            a = Reshape (m, i) },
                        else_branch = e () => (float[2,2,9] b) { b = Neg (m) }>
        }"""
    )
    model.opset_import[0].version = opset
    model.ir_version = 3
    legal, _ = legalize(model, "nhwc")
    assert sum(node.op_type == "Constant" for node in nodes_inside(legal.graph.node)) == 1
    [note] = [each for each in warnings_of(read_model(model)) if "Constant" in each]
    assert "2 of others" in note
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 4, 3, 3)).astype(np.float32), "c": np.array(True)}
    assert_same_numbers(model, legal, feeds)
    assert verify(legal, "nhwc", against=model).passed


def test_a_constant_of_integers_may_be_an_output() -> None:
    model = parse(
        """g (float[1,3,4,4] x) => (float[2,24] y, int64[2] s) {
            s = Constant <value = int64[2] {2, 24}> ()
            y = Reshape (x, s) }"""
    )
    model.opset_import[0].version, model.ir_version = 8, 3
    legal, _ = legalize(model, "nhwc")
    assert verify(legal, "nhwc", against=model).passed
    assert_same_numbers(model, legal)


def test_a_name_without_a_letter_is_no_name() -> None:
    # PaddlePaddle's exporter writes `?` for each unknown extent: height and width are not equal.
    model = parse("g (float[n,3,h,w] x) => (float[n,3,h,w] y) { y = Relu (x) }")
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim[2:]:
            dim.dim_param = "?"
    read = read_model(model)
    assert shapes(read)["y"] == ["n", 3, "x_dim_2", "x_dim_3"]
    legal, _ = legalize(model, "nhwc")
    assert verify(legal, "nhwc", against=model).passed


def test_a_domain_that_is_not_imported_is_named() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = mine.F (x)  b = your.F (a)  y = mine.G (b) }")
    model.opset_import.add(domain="your", version=1)
    assert warnings_of(read_model(model)) == ()
    del model.opset_import[1:]
    wanted = ("the model imports no version of mine, your, and has nodes of it: version 1 is used",)
    assert warnings_of(read_model(model)) == wanted
    assert warnings_of(read_model(to_json(read_model(model)))) == ()


def test_graph_json_need_not_name_the_versions_of_other_domains() -> None:
    graph = to_json(read_model(parse("g (float[2,3] x) => (float[2,3] y) { y = mine.F (x) }")))
    del graph["opsets"]
    assert warnings_of(read_model(graph)) == ()


def test_graphs_without_a_name_get_one() -> None:
    source = parse(
        """g (float[1,3,4,4] x, bool c) => (float[1,3,3,3] y) { y = If (c) <
            then_branch = t () => (float[1,3,3,3] a) { a = MaxPool <kernel_shape = [2, 2]> (x) },
            else_branch = e () => (float[1,3,3,3] b) { b = AveragePool <kernel_shape = [2, 2]> (x) }> }"""
    )
    graphs = [source.graph, source.graph.node[0].attribute[0].g]
    for graph in graphs:
        graph.name = ""
    legal, report = legalize(source, "nhwc", check=True)
    assert report.ok
    assert any(warning.startswith("2 of the model's graphs had no name") for warning in report.warnings)
    onnx.checker.check_model(legal)
    assert [graph.name for graph in graphs] == ["", ""]
    assert {finding.rule for finding in verify(source, "onnx").findings} == {"reading"}
