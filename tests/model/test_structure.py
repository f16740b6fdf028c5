"""Invalid models are errors with a location, whatever the bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import conv, large, parse, same
from onnx import TensorProto, helper

from relayout.errors import InputError, RelayoutError, UsageError
from relayout.model.io import read_model, to_json, warnings_of

# --- shapes that onnx does not look at --------------------------------------------------------------------------------

CONTRADICTIONS = {
    "y = Transpose <perm = [0]> (x)": "a permutation of 4 axes",
    "w = Transpose (x)  y = Conv (x, k)": "9 input channels, as the kernel has",
    "y = Conv <group = 0> (x, k)": "channels in equal groups",
    "y = ConvTranspose (x, k)": "2 input channels, as the kernel has",
    "y = Reshape (x, s)": "as many elements as [1, 4, 6, 6] has",
    "y = DepthToSpace <blocksize = 3> (x)": "extents that 9 divides",
    "y = SpaceToDepth <blocksize = 4> (x)": "extents that 4 divides",
    "y = LayerNormalization <axis = 4> (x, x)": "an axis of 4 dimensions",
    "y = Slice (x, i, i)": "starts, ends, axes and steps in vectors of one length",
    "y = Slice (x, j, j, o)": "starts, ends, axes and steps in vectors of one length",
}


def test_a_wrong_element_type_is_named() -> None:
    with pytest.raises(InputError) as caught:
        read_model(parse("g (float[2] x) => (int32[2] y) { y = Relu (x) }"))
    assert "node" in caught.value.where
    said = "float, as the operands give", "int32, as declared"
    assert (caught.value.expected, caught.value.found) == said


@pytest.mark.parametrize("body", CONTRADICTIONS)
def test_shapes_that_contradict_each_other_are_an_error_with_the_node(body: str) -> None:
    model = parse(
        "g (float[1,4,6,6] x, float[2,9,1,1] k, int64 i, int64[2] j, int64[1] o) => (y) <int64[2] s = {7, 7}> "
        f"{{ {body} }}"
    )
    with pytest.raises(InputError, match="shapes contradict each other") as caught:
        read_model(model)
    assert caught.value.expected == CONTRADICTIONS[body]
    assert "of 'y'" in caught.value.where


def test_shapes_behind_an_operator_of_another_domain_are_compared_with_those_declared() -> None:
    """onnx's inference raises no error behind an operator that it does not know."""
    graph = "g (float[2,4,6,6] x) => (float[2,{}] y) <float[2,4,6,6] a, float[{}] b, float[2,6,6,4] c>"
    body = "{{ a = mine.Odd (x)  b = Relu (a)  c = Transpose <perm = [0,2,3,1]> (b)  y = mine.Even (c) }}"
    right, inside = (parse(f"{graph} {body}".format("3", shape)) for shape in ("2,4,6,6", "2,6,6,4"))
    assert warnings_of(read_model(right)) == ()
    (warning,) = warnings_of(read_model(inside))
    assert "a declared shape is wrong" in warning
    read = read_model(inside)
    assert [node.op_type for node in read.graph] == ["Odd", "Relu", "Transpose", "Even"]
    assert [value.name for value in read.graph.inputs] == ["x"]
    assert [list(node.outputs[0].shape or ()) for node in read.graph][:2] == [[2, 4, 6, 6]] * 2
    with pytest.raises(InputError, match="contradict each other"):
        read_model(parse("g (float[2,4] x) => (float[2,4] y) <float[2,4] a> { a = mine.Odd (x)  y = Transpose (a) }"))


@pytest.mark.parametrize("opset", [11, 13, 18, 19])
@pytest.mark.parametrize("operands", ["x", "x, ", "x, f", "x, ,", "x, f, e", "x, f, e, "])
def test_a_resize_has_scales_or_sizes(operands: str, opset: int) -> None:
    constants = "<float[1,4,6,6] x, float[4] f = {{1, 1, 1, 1}}, float[0] e = {{}}, int64[4] s = {{1, 4, 6, 6}}>"
    text = f"g (float[1,4,6,6] z) => (float[1,4,6,6] y) {constants} {{{{ x = mine.Odd (z)  y = Resize ({{}}) }}}}"
    with pytest.raises(InputError, match=r"contradict each other|wrong number of inputs"):
        read_model(parse(text.format(operands), opset=opset))
    for right in ("x, , f", "x, f, f", "x, f, e, s"):
        read_model(parse(text.format(right), opset=opset))


@pytest.mark.parametrize("perm", ["0,2,3,2", "0,1,2", "0,1,2,4"])
def test_a_perm_is_one_of_axes_where_only_the_result_has_a_shape(perm: str) -> None:
    """The state of the Loop, which the Transpose reads, loses its shape on reading: that of the result is wrong."""
    model = parse(
        f"""g (float[1,4,6,6] x, int64 n, bool b) => (float[1,4,6,6] y) {{
            z = Loop (n, b, x) <body = l (int64 i, bool c, float[1,4,6,6] s) => (bool d, float[1,4,6,6] t) {{
                d = Identity (c)  t = Relu (s) }}>
            y = Transpose <perm = [{perm}]> (z) }}"""
    )
    with pytest.raises(InputError, match="shapes contradict each other") as caught:
        read_model(model)
    assert caught.value.expected == "a permutation of 4 axes"


def test_an_error_in_a_body_names_the_node_in_it() -> None:
    branches = [
        "then_branch = t () => (float[1,4,?,?] p) { a = Relu (x)  [inner] p = Conv <dilations = [1]> (a, k) }",
        "else_branch = e () => (float[1,4,?,?] q) { q = Relu (x) }",
    ]
    graph = "g (float[1,4,6,6] x, float[4,4,1,1] k, bool b) => (float[1,4,?,?] y)"
    model = parse(f"{graph} {{ [outer] y = If (b) <{', '.join(branches)}> }}")
    with pytest.raises(InputError, match="contradict each other") as caught:
        read_model(model)
    assert caught.value.where == "graph 'g', node 'outer' (If), node 'inner' (Conv)"


WRONG_INSIDE = {
    "a value": "g (float[2,3] x) => (float[2,3] y) <float[2,5] a> { a = Relu (x)  y = Neg (a) }",
    "the rank of a value": "g (float[2,3] x) => (float[2,3] y) <float[6] a> { a = Relu (x)  y = Neg (a) }",
    "the result of a branch": """
        g (float[2,3] x, bool b) => (float[2,3] y) {
            a = If (b) <
                then_branch = t () => (float[6] p) { p = Relu (x) },
                else_branch = e () => (float[2,3] q) { q = Neg (x) }
            >
            y = Neg (a)
        }
    """,
}


@pytest.mark.parametrize("wrong", WRONG_INSIDE)
def test_wrong_shapes_declared_inside_a_graph_give_way_to_the_inferred_ones_with_a_warning(wrong: str) -> None:
    model = read_model(parse(WRONG_INSIDE[wrong]))
    inside = next(value for node in model.graph for value in node.outputs if value.name == "a")
    assert inside.shape == ir.Shape([2, 3])
    [warning] = warnings_of(model)
    assert "a declared shape is wrong" in warning
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


# --- what is no model ------------------------------------------------------------------------------------------------

Change = Callable[[onnx.ModelProto], object]
RELU = "g (float[2,3] x) => (float[2,3] y) { a = Relu (x)  y = Neg (a) }"


def _duplicate_constant(model: onnx.ModelProto) -> None:
    for _ in range(2):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "k"))


def _nested(model: onnx.ModelProto) -> None:
    graph = model.graph
    for _ in range(30):
        graph.node[0].op_type = "Deep"
        graph.node[0].domain = "mine"
        attribute = graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
        attribute.g.node.add(op_type="Relu", input=["x"], output=["z"])
        attribute.g.output.add(name="z")
        graph = attribute.g


FAULTS: dict[str, tuple[Change, str, str]] = {
    "cyclic graph": (lambda m: m.graph.node[0].input.__setitem__(0, "y"), "the graph has a cycle", "graph 'g'"),
    "dangling input": (
        lambda m: m.graph.node[1].input.__setitem__(0, "gone"),
        "an operand does not exist",
        "graph 'g', node 1 (Neg), input 0",
    ),
    "duplicate node outputs": (
        lambda m: m.graph.node[1].output.__setitem__(0, "a"),
        "a name is used twice",
        "graph 'g', name 'a'",
    ),
    "result named like an input": (
        lambda m: m.graph.node[0].output.__setitem__(0, "x"),
        "a name is used twice",
        "graph 'g', name 'x'",
    ),
    "duplicate inputs": (lambda m: m.graph.input.add().CopyFrom(m.graph.input[0]), "a name is used twice", "'x'"),
    "duplicate outputs": (lambda m: m.graph.output.add().CopyFrom(m.graph.output[0]), "a name is used twice", "'y'"),
    "duplicate constants": (_duplicate_constant, "a name is used twice", "'k'"),
    "duplicate attributes": (
        lambda m: m.graph.node[0].attribute.extend([helper.make_attribute("__k", 1)] * 2),
        "a name is used twice",
        "name '__k'",
    ),
    "dangling output": (
        lambda m: setattr(m.graph.output[0], "name", "gone"),
        "an output does not exist",
        "graph 'g', output 0",
    ),
    "shape contradiction": (
        lambda m: m.graph.output[0].type.tensor_type.shape.dim[1].__setattr__("dim_value", 5),
        "shapes or types contradict each other",
        "node",
    ),
    "rank contradiction": (
        lambda m: m.graph.output[0].type.tensor_type.shape.dim.add(),
        "shapes or types contradict each other",
        "node",
    ),
    "type contradiction": (
        lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.INT64),
        "shapes or types contradict each other",
        "node",
    ),
    "unknown dtype": (
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99),
        "unknown dtype",
        "graph 'g', value 'x'",
    ),
    "input without a dtype": (lambda m: m.graph.input[0].ClearField("type"), "an input has no dtype", "input 'x'"),
    "negative extent": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -5),
        "a negative extent",
        "value 'x', axis 0",
    ),
    "empty graph": (lambda m: m.ClearField("graph"), "the graph is empty", "graph"),
    "opset of the future": (lambda m: setattr(m.opset_import[0], "version", 999), "unsupported opset", "opset_import"),
    "no opset": (lambda m: m.ClearField("opset_import"), "opset is not imported", "opset_import"),
    "two opsets": (
        lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 19)),
        "one domain is imported twice",
        "opset_import",
    ),
    "no IR version": (lambda m: m.ClearField("ir_version"), "unsupported IR version", "ir_version"),
    "too many operands": (
        lambda m: m.graph.node[0].input.append("x"),
        "an operator with the wrong number of inputs",
        "node 0 (Relu)",
    ),
    "one of many operands left out": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Sum", ["x", "", "x"], ["a"])),
        "an operand that ONNX requires is left out",
        "node 0 (Sum), input 1",
    ),
    "the kernel left out": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Conv", ["x", ""], ["a"])),
        "an operand that ONNX requires is left out",
        "node 0 (Conv), input 1",
    ),
    "attribute of another type": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Transpose", ["x"], ["a"], perm="10")),
        "an attribute has the wrong type",
        "attribute 'perm'",
    ),
    "attribute of another type of an operator in a layout": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Conv_NHWC", ["x"], ["a"], domain="relayout", group="one")),
        "an attribute has the wrong type",
        "attribute 'group'",
    ),
    "attribute of a function that there is not": (
        lambda m: m.graph.node[0].attribute.add(name="__alpha", type=1, ref_attr_name="slope"),
        "an attribute refers to one of a function",
        "node 0 (Relu), attribute '__alpha'",
    ),
    "attribute of bytes that are no text": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Pad", ["x", "x"], ["a"], mode=b"\xff\xfe")),
        "a string is not UTF-8",
        "node 0 (Pad), attribute 'mode'",
    ),
    "name of bytes that are no text": (
        lambda m: m.ParseFromString(m.SerializeToString().replace(b"\x12\x01a", b"\x12\x01\xff")),
        "a text is not UTF-8",
        "graph 'g'",
    ),
    "missing attribute": (
        lambda m: m.graph.node[0].CopyFrom(helper.make_node("Cast", ["x"], ["a"])),
        "an operator lacks an attribute",
        "node 0 (Cast)",
    ),
    "huge nesting": (_nested, "subgraphs are nested too deep", "attribute 'body'"),
    "sparse constant": (lambda m: m.graph.sparse_initializer.add(), "sparse constants are not supported", "graph 'g'"),
}


FOREIGN = (
    "An exporter such as tf2onnx leaves an operator here that it cannot convert: build the network without it. "
    "An operator of your own needs a domain of its own."
)
UNKNOWN = {
    "a misspelt attribute": ("Conv <strids = [2, 2]> (x, w)", "Conv has no such attribute", "did you mean strides?"),
    "an attribute of another opset": (
        "ReduceSum <axes = [1]> (x)",
        "ReduceSum has no such attribute",
        "the versions of ReduceSum since opset 1, 11 have it; the model imports opset 17",
    ),
    "an attribute with one underscore": ("Relu <_layer = 1> (x)", "Relu has no such attribute", ""),
    "a misspelt operator": ("Convv (x, w)", "ONNX has no operator Convv", f"did you mean Conv? {FOREIGN}"),
    "an operator of a newer opset": (
        "Gelu (x)",
        "ONNX has no operator Gelu",
        "ONNX has Gelu since opset 20: import that opset or a newer one",
    ),
    "a fused operator of onnxruntime": (
        "FusedXyz (x, w)",
        "ONNX has no operator FusedXyz",
        FOREIGN,
    ),
    "an operator of TensorFlow, which tf2onnx could not convert": (
        "StatefulPartitionedCall (x)",
        "ONNX has no operator StatefulPartitionedCall",
        FOREIGN,
    ),
    "an operator that ONNX has no more": (
        "Upsample (x, w)",
        "ONNX has no operator Upsample any more",
        "export the model again, or import the opset that it was made for",
    ),
    "padding without a meaning": (
        'Conv <auto_pad = "SAME"> (x, w)',
        "auto_pad has no such value",
        "",
    ),
}


@pytest.mark.parametrize("fault", UNKNOWN)
def test_an_operator_or_attribute_that_onnx_lacks_is_an_error_at_its_node(fault: str) -> None:
    node, problem, hint = UNKNOWN[fault]
    model = parse(f"g (float[1,3,8,8] x, float[3,3,2,2] w) => (float[1,3,a,b] y) {{ y = {node} }}", opset=17)
    with pytest.raises(InputError) as caught:
        read_model(model)
    assert (caught.value.problem, caught.value.hint) == (problem, hint)
    assert f"graph 'g', node 0 ({node.partition(' ')[0]})" in caught.value.where
    with pytest.raises(onnx.checker.ValidationError) if "auto_pad" not in node else nullcontext():
        onnx.checker.check_model(model)


@pytest.mark.parametrize(
    "node",
    [
        "Relu <__note = 1> (x)",
        "SimplifiedLayerNormalization (x, w)",
        "LayerNormalization (x, w)",
        "ImageScaler <bias = [0.5, 0.5, 0.5]> (x)",
        'MaxPool <kernel_shape = [2, 2], auto_pad = ""> (x)',
        'MaxPool <kernel_shape = [2, 2], auto_pad = "VALID"> (x)',
        'Transpose <source_layout = "NCHW", target_layout = "NHWC"> (x)',
        'layout_transform <src_layout = "NCHW", dst_layout = "NHWC"> (x)',
        'mine.Conv <auto_pad = "SAM", strids = [2, 2]> (x)',
    ],
)
def test_a_node_that_some_runtime_accepts_is_read(node: str) -> None:
    model = parse(f"g (float[1,3,8,8] x, float[8] w) => (float[a,b,c,d] y) {{ y = {node} }}", opset=14)
    assert len(read_model(model).graph) == 1


def test_a_function_in_onnx_s_domain_defines_its_operator() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Blend <much = 2> (x) }")
    text = '<domain: "", opset_import: ["" : 20]> Blend <much> (x) => (y) { y = Relu (x) }'
    model.functions.append(onnx.parser.parse_function(text))
    assert [node.op_type for node in read_model(model).graph] == ["Relu"]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_invalid_graph_is_an_error_with_its_place(fault: str) -> None:
    model = parse(RELU)
    change, problem, where = FAULTS[fault]
    change(model)
    with pytest.raises(InputError) as caught:
        read_model(model)
    assert problem in caught.value.problem
    assert where in caught.value.where
    assert caught.value.expected or caught.value.found
    with pytest.raises(InputError):
        read_model(model.SerializeToString())


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (TensorProto(name="k", data_type=1, dims=[2], raw_data=b"123"), "data does not fit its shape"),
        (TensorProto(name="k", data_type=1, dims=[2], float_data=[1]), "data does not fit its shape"),
        (TensorProto(name="k", data_type=1, dims=[2], int64_data=[1, 2]), "data is of another type"),
        (TensorProto(name="k", data_type=1, dims=[2], float_data=[1, 2], raw_data=bytes(8)), "does not fit its shape"),
        (TensorProto(name="k", data_type=1, dims=[-2]), "a negative extent"),
        (TensorProto(name="k", data_type=1, dims=[1 << 40, 1 << 40]), "too large for any memory"),
        (TensorProto(name="k", data_type=77, dims=[2]), "unknown dtype"),
        (TensorProto(name="k", dims=[2]), "a tensor has no dtype"),
        (TensorProto(data_type=1, dims=[2]), "a constant has no name"),
        (TensorProto(name="k", data_type=8, dims=[2], raw_data=b"ab"), "strings are no raw bytes"),
    ],
)
def test_a_constants_data_has_to_fit_it(tensor: TensorProto, problem: str) -> None:
    model = parse(RELU)
    model.graph.initializer.append(tensor)
    with pytest.raises(InputError, match=problem):
        read_model(model)


def test_a_cycle_through_a_subgraph_is_found_and_named() -> None:
    model = parse(
        """g (bool c, float[2] x) => (y) {
            a = If (c) <then_branch = t () => (float[2] p) { p = Relu (y) },
                        else_branch = e () => (float[2] q) { q = Relu (x) }>
            y = Neg (a)
        }"""
    )
    with pytest.raises(InputError) as caught:
        read_model(model)
    assert caught.value.found == "node 0 (If) <- node 1 (Neg) <- node 0 (If)"


def test_functions_that_call_themselves_are_refused() -> None:
    model = parse(
        """g (float[2] x) => (float[2] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> f (a) => (b) { b = mine.h (a) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> h (a) => (b) { b = mine.f (a) }"""
    )
    with pytest.raises(InputError, match="a function calls itself"):
        read_model(model)


def test_functions_that_expand_to_too_many_nodes_are_rejected() -> None:
    calls = " ".join(f"v{i} = mine.f{{0}} (a)" for i in range(10)) + " b = Neg (v9)"
    functions = [
        f'<domain: "mine", opset_import: ["" : 20, "mine" : 1]> f{n} (a) => (b) {{ {calls.format(n + 1)} }}'
        for n in range(7)
    ]
    functions.append('<domain: "mine", opset_import: ["" : 20]> f7 (a) => (b) { b = Relu (a) }')
    model = parse("g (float[2] x) => (float[2] y) { y = mine.f0 (x) }" + "\n".join(functions))
    with pytest.raises(InputError, match="expand to too many nodes"):
        read_model(model)


def test_an_onnx_ir_model_out_of_order_is_an_error_with_a_hint() -> None:
    source = ir.from_proto(parse(RELU))
    first = source.graph[0]
    source.graph.remove(first)
    source.graph.append(first)
    with pytest.raises(InputError, match="is not a graph") as caught:
        read_model(source)
    assert "sort" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("model.onnx", b"", "the file is empty"),
        ("model.onnx", large().SerializeToString()[:-100], "not an ONNX model"),
        ("model.onnx", b"PK\x03\x04 a zip file", "not an ONNX model"),
        ("model.onnx", b'{"opset": 20}', "not an ONNX model"),
        ("model.json", b"{", "not JSON"),
        ("model.json", b"\xff\xfe", "not JSON"),
        ("model.json", b"[" * 100_000, "not JSON"),
        ("model.json", b"[1]", "not graph JSON"),
        ("model.json", b'{"opset": NaN}', "not JSON"),
        ("model.json", b'{"opset": 20, "opset": 21}', "not JSON"),
    ],
)
def test_a_file_that_is_no_model_is_an_error_with_its_name(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_model(tmp_path / name)
    assert str(tmp_path / name) in caught.value.where


def test_a_file_that_protobuf_cannot_hold_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(InputError, match="larger than protobuf can hold"):
        read_model(path)


def test_a_folder_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read") as caught:
        read_model(tmp_path)
    assert caught.value.found == "a folder"
    with pytest.raises(InputError, match="cannot be read"):
        read_model(tmp_path / "nothing.onnx")


def test_a_source_of_another_type_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="not a model"):
        read_model(3.5)  # type: ignore[arg-type]


# --- anything --------------------------------------------------------------------------------------------------------

SEEDS = [
    conv().SerializeToString(),
    parse(
        """g (bool c, float[N,4] x) => (float[N,4] y) {
            z = If (c) <then_branch = t () => (float[N,4] a) { a = Relu (x) },
                        else_branch = e () => (float[N,4] b) {
                            k = Constant <value = float[4] {1,2,3,4}> ()  b = Add (x, k) }>
            y = mine.f (z)
        }
        <domain: "mine", opset_import: ["" : 20]> f (a) => (b) { b = Relu (a) }"""
    ).SerializeToString(),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        cut = draw(st.integers(0, 3))
        data[at : at + cut] = draw(st.binary(max_size=3))
        data = data or bytearray(b"\0")
    return bytes(data)


@given(damaged())
def test_damaged_bytes_are_a_model_or_one_clear_error(data: bytes) -> None:
    try:
        model = read_model(data, external_data=False)
    except RelayoutError:
        return
    assert same(read_model(to_json(model)), read_model(to_json(read_model(to_json(model)))))


@given(st.binary(max_size=200))
def test_random_bytes_are_one_clear_error(data: bytes) -> None:
    with pytest.raises(RelayoutError):
        read_model(data)
