"""Types and shapes behind onnxruntime's own operators are those that onnxruntime gives them."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from examples import EXAMPLES, Constant, Example, Input
from graphs import Net, run
from onnx import TensorProto, helper

from relayout import legalize, verify
from relayout.errors import InputError
from relayout.model.io import read_model, to_proto

HEADER = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>'
SCALES = "s = Constant <value = float {0.5}> () z = Constant <value = uint8 {3}> ()"
CONTRIBUTED = [example for example in EXAMPLES if example.domain == "com.microsoft"]


def read(text: str, opset: int = 18) -> dict[str, str]:
    """The shape of each result of the main graph."""
    model = read_model(onnx.parser.parse_model(f"{HEADER.replace('18', str(opset))} {text}"))
    return {str(value.name): str(value.shape) for node in model.graph for value in node.outputs}


@pytest.mark.parametrize("example", CONTRIBUTED, ids=lambda example: f"{example.operator}-{EXAMPLES.index(example)}")
def test_a_result_has_the_type_and_shape_that_onnxruntime_computes(example: Example) -> None:
    net, feeds = Net(example.opset), {}
    names = []
    for index, given in enumerate(example.inputs):
        if isinstance(given, Constant):
            names.append(net.constant(np.asarray(given.array, given.dtype)))
        elif isinstance(given, Input):
            names.append(net.input(f"x{index}", given.shape, helper.np_dtype_to_tensor_dtype(np.dtype(given.dtype))))
            feeds[f"x{index}"] = np.ones(given.shape, given.dtype)
        else:
            names.append("")
    result = net.node(example.operator, *names, domain=example.domain, **example.attributes)
    net.outputs.append(onnx.ValueInfoProto(name=result))
    (computed,) = run(net.model(), feeds)
    net.outputs.clear()
    net.output(net.node("Identity", result), helper.np_dtype_to_tensor_dtype(computed.dtype))
    (value,) = (node.outputs[0] for node in read_model(net.model()).graph if node.domain)
    assert value.shape is not None
    assert value.dtype is not None
    assert (value.shape.numpy(), value.dtype.numpy()) == (computed.shape, computed.dtype)


def test_names_of_dims_pass_through_quantized_operators() -> None:
    shapes = read(f"""g (uint8["N",3,"H",8] x, uint8[3,1,1] y) => (uint8[a,b,c,d] v) {{
        {SCALES}
        m = com.microsoft.QLinearMul (x, s, z, y, s, z, s, z)
        p = com.microsoft.QLinearAveragePool <kernel_shape = [2,2], strides = [2,2]> (m, s, z, s, z)
        c = com.microsoft.QLinearConcat <axis = 1> (s, z, p, s, z, p, s, z)
        t = Transpose <perm = [0,2,3,1]> (c)
        l = com.microsoft.QLinearAveragePool <kernel_shape = [1,2], channels_last = 1> (t, s, z, s, z)
        v = com.microsoft.QLinearSoftmax <axis = 3, opset = 13> (l, s, z, s, z) }}""")
    assert shapes["m"] == "[N,3,H,8]"
    assert shapes["p"] == "[N,3,H//2,4]"
    assert shapes["c"] == "[N,6,H//2,4]"
    assert shapes["l"] == "[N,H//2,3,6]"
    assert shapes["v"] == "[N,H//2,3,6]"


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("y, z = Split <axis = 1> (x, n)", ["2,?,8", "2,?,8"]),
        ("y, z = TopK (x, n)", ["2,6,?", "2,6,?"]),
        ("y, z = TopK <axis = -3> (x, one)", ["1,6,8", "1,6,8"]),
        ("y, z = Split <axis = 1> (x, parts)", ["2,2,8", "2,4,8"]),
        ("y = Compress <axis = -2> (x, chosen)", ["2,?,8"]),
        ("y = Compress (x, chosen)", ["?"]),
    ],
)
def test_one_extent_alone_is_open_where_the_number_of_elements_along_an_axis_is_computed(
    text: str, shapes: list[str]
) -> None:
    given = f"(float[2,6,8] x, int64[{2 if 'Split' in text else 1}] n, bool[k] chosen) => (y)"
    found = read(f"g {given} <int64[1] one = {{1}}, int64[2] parts = {{2, 4}}> {{ {text} }}")
    assert [re.sub(r"unk__\d+", "?", shape) for shape in found.values()] == [f"[{shape}]" for shape in shapes]


@pytest.mark.parametrize("opset", [9, 10, 11])
def test_the_extents_beside_a_compressed_axis_are_known_in_old_opsets(opset: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 6, opset_import: ["" : {opset}]>
        g (float[n,6,8] x, bool[k] c) => (y) {{ y = Compress <axis = 1> (x, c) }}""")
    assert str(read_model(model).graph.outputs[0].shape) == "[n,unk__0,8]"


def test_a_number_of_elements_may_come_from_around_a_branch() -> None:
    model = onnx.parser.parse_model(
        f"""{HEADER} g (float[2,6,8] x, int64[1] n, bool c) => (y) <int64[1] one = {{1}}> {{
            y = If (c) <then_branch = one () => (float[a,b,d] t) {{ t, u = TopK (x, one) }},
                        else_branch = two () => (float[e,f,g] v) {{ v, w = TopK (x, n) }}> }}"""
    )
    shapes = {str(v.name): str(v.shape) for node in read_model(model).graph.all_nodes() for v in node.outputs}
    assert (shapes["u"], shapes["w"]) == ("[2,6,1]", "[2,6,g]")


@pytest.mark.parametrize("opset", [11, 22])
def test_an_unpool_that_is_told_its_shape_has_it(opset: int) -> None:
    """The shape may be computed. onnx infers none."""
    net = Net(opset)
    pooled, places = net.node("MaxPool", net.input("x", ("n", 3, 4, 4)), results=2, kernel_shape=[2, 2])
    shape = net.node("Concat", net.constant([2, 3]), net.constant([5, 6]), axis=0)
    unpooled = net.node("MaxUnpool", pooled, places, shape, kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.node("Relu", unpooled))
    results = {str(value.name): value for node in read_model(net.model()).graph for value in node.outputs}
    assert str(results[unpooled].shape) == "[2,3,5,6]"
    assert results[unpooled].dtype == ir.DataType.FLOAT


@pytest.mark.parametrize("opset", [17, 20, 21])
def test_weights_of_four_bits_are_dequantized_before_onnx_has_the_type(opset: int) -> None:
    """onnxruntime's quantizer writes them so: ONNX's own operators have the type since opset 21."""
    net = Net(opset)
    packed = helper.make_tensor("packed", TensorProto.INT4, (5, 6), np.arange(30) % 8)
    zero = helper.make_tensor("zero", TensorProto.INT4, (), [0])
    net.constants += [packed, zero]
    weight = net.node("DequantizeLinear", "packed", net.constant(np.float32(0.5)), "zero", domain="com.microsoft")
    net.output(net.node("Add", weight, net.input("x", (3, 5, 6))))
    (value,) = (node.outputs[0] for node in read_model(net.model()).graph if node.domain)
    assert value.shape is not None
    assert (value.shape.numpy(), value.dtype) == ((5, 6), ir.DataType.FLOAT)


@pytest.mark.parametrize("declared", [True, False])
def test_data_of_four_bits_is_quantized_before_onnx_has_the_type(declared: bool) -> None:
    net = Net(17)
    net.constants.append(helper.make_tensor("zero", TensorProto.INT4, (), [0]))
    scale = net.constant(np.float32(0.5))
    small = net.node("QuantizeLinear", net.input("x", (3, 5)), scale, "zero", domain="com.microsoft")
    net.output(net.node("DequantizeLinear", small, scale, "zero", domain="com.microsoft"))
    source = net.model()
    if declared:
        source.graph.value_info.append(helper.make_tensor_value_info(small, TensorProto.INT4, (3, 5)))
    quantized, _ = (node.outputs[0] for node in read_model(source).graph if node.domain)
    assert quantized.shape is not None
    assert quantized.shape.is_static() is declared


@pytest.mark.parametrize("name", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_names_of_dims_pass_through_normalizations_that_onnx_lacks(name: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 14]> g (float["N",6] x, float[6] w, bool c) => (float[a,b] y) {{
        n = {name} (x, w)
        y = If (c) <then_branch = t () => (float[N,6] p) {{ p = {name} (n, w) }},
                    else_branch = e () => (float[N,6] r) {{ r = Identity (n) }}> }}"""
    model = read_model(onnx.parser.parse_model(text))
    (value,) = (node.outputs[0] for node in model.graph if node.op_type == name)
    assert str(value.shape) == "[N,6]"
    assert [node.op_type for node in model.graph.all_nodes()].count(name) == 2


def test_the_operators_of_the_model_and_of_graphs_inside_it_are_kept() -> None:
    text = f"""{HEADER} g (bool c, uint8[2,3] x) => (uint8[a,b] y) {{
        {SCALES}
        i = If (c) <then_branch = t () => (uint8[2,3] p) {{ p = com.microsoft.QLinearSigmoid (x, s, z, s, z) }},
                    else_branch = e () => (uint8[2,3] r) {{ r = Identity (x) }}>
        u = com.microsoft.Stranger (i)
        y = com.microsoft.QLinearAdd (i, s, z, u, s, z, s, z) }}"""
    model = to_proto(read_model(onnx.parser.parse_model(text)))
    assert [node.op_type for node in model.graph.node] == ["Constant", "Constant", "If", "Stranger", "QLinearAdd"]
    assert [node.op_type for node in model.graph.node[2].attribute[0].g.node] == ["QLinearSigmoid"]
    assert not [info.name for info in model.graph.value_info if info.name.startswith("relayout.")]


def test_operands_that_contradict_each_other_are_reported_at_the_operator() -> None:
    text = f"""{HEADER} g (uint8[2,3] x, uint8[2,4] y) => (uint8[2,3] v) {{
        {SCALES}
        v = com.microsoft.QLinearAdd (x, s, z, y, s, z, s, z) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.node[-1].name = "sum"
    with pytest.raises(InputError, match=r"'sum' \(QLinearAdd\)"):
        read_model(model)


def test_convolutions_and_products_with_an_activation_behind_have_the_shape_of_those_without() -> None:
    shapes = read("""g (float["N",3,9,9] x, float[8,3,3,3] w, float[8] b, float["N",8,4,4] z, float[8,5] k) => (v) {
        c = com.microsoft.FusedConv <strides = [2,2], activation = "Relu"> (x, w, b, z)
        p = GlobalAveragePool (c)
        f = Flatten (p)
        v = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.1> (f, k, b) }""")
    assert (shapes["c"], shapes["v"]) == ("[N,8,4,4]", "[N,5]")


def test_windows_of_channels_last_have_the_shape_of_onnxs_operator_between_transposes() -> None:
    shapes = read(f"""g (uint8["N",9,9,3] x, int8[8,3,3,3] w, int8[5,8,3,3] k) => (v) {{
        {SCALES}
        u = Constant <value = int8 {{0}}> ()
        c = com.microsoft.QLinearConv <strides = [2,2], channels_last = 1> (x, s, z, w, s, u, s, z)
        p = com.microsoft.NhwcMaxPool <kernel_shape = [2,2], strides = [2,2]> (c)
        t = Transpose <perm = [0,3,1,2]> (p)
        v = com.microsoft.QLinearConv <pads = [1,1,1,1]> (t, s, z, k, s, u, s, z) }}""")
    assert (shapes["c"], shapes["p"], shapes["v"]) == ("[N,4,4,8]", "[N,2,2,8]", "[N,5,2,2]")


@pytest.mark.parametrize("opset", [12, 13, 18])
def test_windows_of_channels_last_have_a_shape_where_that_of_their_data_is_not_declared(opset: int) -> None:
    """As onnxruntime's optimizer leaves them: it declares no values inside."""
    shapes = read(
        f"""g (float["N",3,9,9] x, int8[8,3,3,3] w, int8[5,8,1,1] k) => (v) {{
        {SCALES}
        u = Constant <value = int8 {{0}}> ()
        q = QuantizeLinear (x, s, z)
        t = Transpose <perm = [0,2,3,1]> (q)
        c = com.microsoft.QLinearConv <channels_last = 1> (t, s, z, w, s, u, s, z)
        p = com.microsoft.QLinearGlobalAveragePool <channels_last = 1> (c, s, z, s, z)
        v = com.microsoft.QLinearConv <channels_last = 1> (p, s, z, k, s, u, s, z) }}""",
        opset,
    )
    assert (shapes["c"], shapes["p"], shapes["v"]) == ("[N,7,7,8]", "[N,1,1,8]", "[N,1,1,5]")


@pytest.mark.parametrize("opset", [17, 18])
def test_attention_and_its_neighbours_pass_on_the_dims_of_batch_and_rows(opset: int) -> None:
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    words, packed, apart = (",".join("1" * count) for count in (9 * 8, 8 * 30, 8 * 24))
    text = f"""{header} g (int32["N","L"] i, float["N","M",8] key, float["N","M",12] value, float[8] v) => (j)
        <float[9,8] words = {{{words}}}, float[8,30] packed = {{{packed}}}, float[8,24] apart = {{{apart}}},
         int64[5] five = {{0, 0, 2, 3, 4}}> {{
        e = com.microsoft.EmbedLayerNormalization (i, , words, words, , v, v)
        a = com.microsoft.Attention <num_heads = 2> (e, packed, v)
        b = com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [8, 8, 14]> (e, packed, v)
        c = com.microsoft.MultiHeadAttention <num_heads = 2> (e, key, value)
        p = MatMul (e, apart)
        q = Reshape (p, five)
        d = com.microsoft.MultiHeadAttention <num_heads = 2> (q)
        f = com.microsoft.MultiHeadAttention <num_heads = 2> (d, q)
        h = com.microsoft.BiasSplitGelu (f, v)
        j = Relu (h) }}"""
    found = read_model(onnx.parser.parse_model(text))
    shapes = {str(value.name): str(value.shape) for node in found.graph for value in node.outputs}
    assert [shapes[name] for name in "eabcdfhj"] == [
        "[N,L,8]", "[N,L,10]", "[N,L,14]", "[N,L,12]", "[N,L,8]", "[N,L,8]", "[N,L,4]", "[N,L,4]"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operand", "flags", "shape"),
    [
        ("n,4,6", "transA = 1", "[n,6,5]"),
        ("4,n", "transA = 1, transB = 0", "[n,5]"),
        ("n,h,4,6", "transA = 1", "[n,h,6,5]"),
        ("n,h,6,4", "transB = 0", "[n,h,6,5]"),
        ("6,n,h,4", "transBatchA = 1", "[n,h,6,5]"),
        ("4,n,h,6", "transA = 1, transBatchA = 1", "[n,h,6,5]"),
    ],
)
@pytest.mark.parametrize("is_stored", [True, False], ids=["initializer", "Constant"])
@pytest.mark.parametrize("opset", [12, 18])
def test_a_product_of_a_transposed_operand_whose_shape_is_not_declared_has_one(
    operand: str, flags: str, shape: str, is_stored: bool, opset: int
) -> None:
    """Models that onnxruntime has optimized declare no values inside."""
    weight = f"float[4,5] {'w = ' if is_stored else ''}{{{','.join('1' * 20)}}}"
    stored, made = (f"<{weight}>", "") if is_stored else ("", f"w = Constant <value = {weight}> ()")
    shapes = read(
        f"""g (float[{operand}] x) => (y) {stored} {{
            {made}
            a = Relu (x)
            p = com.microsoft.FusedMatMul <{flags}> (a, w)
            y = Tanh (p) }}""",
        opset,
    )
    assert (shapes["p"], shapes["y"]) == (shape, shape)
    assert {*shapes} - {"w"} == {"a", "p", "y"}


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_quantized_lstm_has_the_results_of_onnxs(direction: str) -> None:
    """As onnxruntime.quantization.quantize_dynamic writes it."""
    net = Net()
    x = net.input("x", ("length", "n", 8))
    ways = 2 if direction == "bidirectional" else 1
    weights = [net.constant(np.ones((ways, extent, 4 * 5), np.int8)) for extent in (8, 5)]
    scale, zero = net.constant(np.full(ways, 0.1, np.float32)), net.constant(np.zeros(ways, np.int8))
    results = net.node(
        "DynamicQuantizeLSTM", x, *weights, *[""] * 5, *[scale, zero] * 2,
        domain="com.microsoft", results=3, hidden_size=5, direction=direction, activations=["Tanh"] * 3 * ways,
    )  # fmt: skip
    for result in results:
        net.output(net.node("Identity", result))
    found = read_model(net.model()).graph
    (node,) = (node for node in found if node.domain)
    last = f"[{ways},n,5]"
    assert [str(value.shape) for value in node.outputs] == [f"[length,{ways},n,5]", last, last]
    made = run(net.model(), {"x": np.ones((3, 2, 8), np.float32)})
    assert [array.shape for array in made] == [(3, ways, 2, 5), (ways, 2, 5), (ways, 2, 5)]
    assert [array.dtype for array in made] == [value.dtype.numpy() for value in node.outputs if value.dtype is not None]


@pytest.mark.parametrize("operator", ["com.microsoft.FastGelu", "MeanVarianceNormalization <axes = [0]>"])
def test_a_result_has_not_the_values_of_the_placeholder(operator: str) -> None:
    source = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2, 4] x) => (float[2, 4] y) <float[4] k = {{-1.0, 1.0, 2.0, 3.0}}> {{
            a = {operator} (k)
            y = Add (x, a) }}""")
    (result, _) = (value for node in read_model(source).graph for value in node.outputs)
    assert list(result.shape or ()) == [4]
    assert result.const_value is None


@pytest.mark.parametrize(
    ("values", "made"),
    [("k = Identity (key)", "[N,L,8]"), ("k = Transpose <perm = [0,2,1,3]> (divided)", "[N,L,8]")],
    ids=["rows of all heads", "divided into heads"],
)
def test_attention_has_the_values_of_all_heads_however_values_of_undeclared_shape_lie(values: str, made: str) -> None:
    shapes = read(f"""g (float["N","L",8] q, float["N","M",8] key, float["N","M",2,4] divided) => (v) {{
        {values}
        v = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, k) }}""")
    assert shapes["v"] == made


def test_attention_appends_its_keys_and_values_to_those_of_before() -> None:
    shapes = read("""g (float["N",3,8] q, float["N",2,5,4] past) => (v, a, b) {
        v, a, b = com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q, , , , past, past) }""")
    assert (shapes["v"], shapes["a"], shapes["b"]) == ("[N,3,8]", "[N,2,8,4]", "[N,2,8,4]")


def test_attention_in_groups_has_the_values_of_all_queries() -> None:
    shapes = read("""g (float["N","L",32] packed, float["N","L",16] q, float["N","L",8] k, int32 n, int32 t) => (u) {
        v, a, b = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (packed, , , , , n, t)
        w, c, d = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, k, , , n, t)
        u = com.microsoft.MoE (w, w, w, , w) }""")
    assert (shapes["v"], shapes["w"], shapes["u"]) == ("[N,L,16]",) * 3


@pytest.mark.parametrize(
    "operator",
    [
        "v, t = com.microsoft.Attention <num_heads = 2> (x, w, b)",
        "v, t, u = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x)",
        "v, t, u = com.microsoft.SkipLayerNormalization (x, x, b)",
        "v, t, u = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (x, x, x, , , n, m)",
    ],
)
def test_a_result_whose_shape_is_not_known_may_be_read(operator: str) -> None:
    shapes = read(f"""g (float["N",3,8] x, float[8,24] w, float[24] b, int32["N"] n, int32 m) => (v, r) {{
        {operator}
        s = Transpose <perm = [1,0,2,3,4]> (t)
        r = Relu (s) }}""")
    assert shapes["v"] == "[N,3,8]"


@pytest.mark.parametrize("opset", [12, 13, 17])
def test_shapes_pass_quantizers_and_products_with_packed_weights_in_older_opsets(opset: int) -> None:
    packed, apart = (",".join("1" * count) for count in (5 * 8, 8 * 24))
    shapes = read(
        f"""g (float["N","L",8] x, float[24] b) => (v)
        <uint8[5,1,8] packed = {{{packed}}}, float[8,24] apart = {{{apart}}}, float[5] scales = {{1,1,1,1,1}},
         float s = {{0.5}}, int16 z = {{3}}> {{
        q = com.microsoft.QuantizeLinear (x, s, z)
        d = com.microsoft.DequantizeLinear (q, s, z)
        a = com.microsoft.Attention <num_heads = 2> (d, apart, b)
        m = com.microsoft.MatMulNBits <K = 8, N = 5, bits = 4, block_size = 16> (a, packed, scales)
        v = Relu (m) }}""",
        opset,
    )
    assert [shapes[name] for name in "qdamv"] == ["[N,L,8]", "[N,L,8]", "[N,L,8]", "[N,L,5]", "[N,L,5]"]


def test_a_legal_model_with_such_results_is_verified() -> None:
    """They have declared types there, and inference of the shape of a view begins anew."""
    packed, bias, past = (",".join("1" * count) for count in (6 * 18, 18, 36))
    model = onnx.parser.parse_model(f"""{HEADER} g (float["N",3,6] x) => (float u, float v)
        <float[6,18] w = {{{packed}}}, float[18] b = {{{bias}}}, float[6,2,3,1] past = {{{past}}}> {{
        y, p = com.microsoft.Attention <num_heads = 2> (x, w, b)
        u = Transpose <perm = [0,4,1,2,3]> (p)
        q = Transpose <perm = [2,1,0]> (x)
        m, k, l = com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q, , , , past, past)
        v = Transpose <perm = [0,1,3,2]> (k) }}""")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    assert verify(legalize(model, "nchw", dims={"N": 2})[0], "nchw", against=model, dims={"N": 2}).passed
