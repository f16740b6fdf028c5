"""Models between protobuf and onnx_ir."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from relayout.model.serialization import model_of, proto_of

MODELS = {
    "types and data": """
        <ir_version: 8, opset_import: ["" : 18, "acme" : 1]>
        g (float[N, 3, 8] x) => (float[N, 3, 8] y, float[N, 24] z) <float[3] w = {1, 2, 3}, float[N, 3, 8] a>
        { a = Relu(x)
          b, mask = Dropout(a)
          c = acme.Scale<alpha = 0.5, times = [2.5, -0.0], axes = [0, 1], axis = -1, mode = "up">(b, , w)
          y = Identity(c)
          shape = Constant<value = int64[2] {0, 24}>()
          z = Reshape(y, shape) }""",
    "a graph inside": """
        <ir_version: 8, opset_import: ["" : 18]>
        g (bool c, float[2] x) => (float[2] y)
        { y = If(c) <then_branch = t () => (float[2] p) { p = Relu(x) },
                    else_branch = e () => (float[2] q) { q = Neg(x) }> }""",
    "a function": """
        <ir_version: 9, opset_import: ["" : 18, "f" : 1]>
        g (float[2] x) => (float[2] y) { y = f.F<k = 1>(x) }
        <domain: "f", opset_import: ["" : 18]> F<k>(a) => (b) { b = Transpose<perm: ints = @k>(a) }""",
}


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_a_model_is_written_as_onnx_ir_writes_it(text: str) -> None:
    model = ir.from_proto(onnx.parser.parse_model(text))
    graph = model.graph
    graph.metadata_props["of"] = "graph"
    graph.doc_string = "documented"
    for number, node in enumerate(graph):
        node.metadata_props["number"] = str(number)
        result = node.outputs[0]
        result.metadata_props["b"], result.metadata_props["a"] = "2", "1"
        result.doc_string = "a result" if number % 2 else None
        result.meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "s", "ZERO_POINT_TENSOR": "z"}
    # Two values share a shape, and one differs from them in its type alone.
    *_, last = graph
    tensor = ir.TensorType(ir.DataType.FLOAT)
    for kind in (tensor, ir.TensorType(ir.DataType.INT8), ir.SequenceType(tensor)):
        last.outputs[0].shape, last.outputs[0].type = graph.inputs[-1].shape, kind
        written = proto_of(model, lambda value: True)
        assert written.SerializeToString(deterministic=True) == ir.to_proto(model).SerializeToString(deterministic=True)


def test_a_reference_to_an_attribute_is_written_as_one() -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODELS["types and data"]))
    for node in model.graph:
        node.attributes.add(ir.RefAttr("of", "outer", ir.AttributeType.INT))
    written = proto_of(model, lambda value: True)
    assert written.graph.node[0].attribute[0].ref_attr_name == "outer"
    assert written.SerializeToString(deterministic=True) == ir.to_proto(model).SerializeToString(deterministic=True)


def test_data_that_are_not_asked_for_are_left_out() -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODELS["types and data"]))
    left, whole = proto_of(model, lambda value: False), ir.to_proto(model)
    assert [tensor.name for tensor in whole.graph.initializer] == ["w"]
    del whole.graph.initializer[:]
    assert left == whole


def test_the_nodes_are_those_that_onnx_ir_makes() -> None:
    make = onnx.helper.make_node
    nodes = [
        make("Conv", ["x", "w", ""], ["y"], name="first", pads=[1, 1, 1, 1], doc_string="a node"),
        make("Conv", ["y", "w"], ["z"], pads=[1, 1, 1, 1]),
        make("Dropout", ["z"], ["d", ""]),
        make("Acme", ["d"], ["out"], domain="acme", overload="fast", table=onnx.helper.make_tensor("t", 1, [1], [2.0])),
    ]
    nodes[1].metadata_props.add(key="place", value="here")
    nodes[1].attribute[0].doc_string = "not the other's"
    image = [onnx.helper.make_tensor_value_info(name, 1, ["N", 2, 8, 8]) for name in "xyzd"]
    image[2].doc_string = "the second"
    image[3].metadata_props.add(key="kept", value="yes")
    out = onnx.helper.make_tensor_value_info("out", 1, None)
    weight = onnx.helper.make_tensor("w", 1, [2, 2, 3, 3], [0.5] * 36)
    graph = onnx.helper.make_graph(nodes, "g", image[:1], [out], [weight], value_info=image[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    expected = ir.to_proto(ir.from_proto(model)).SerializeToString(deterministic=True)
    read = model_of(model)
    assert ir.to_proto(read).SerializeToString(deterministic=True) == expected
    assert proto_of(read, lambda value: True).SerializeToString(deterministic=True) == expected
    pads = [node.attributes["pads"] for node in read.graph if node.op_type == "Conv"]
    assert pads[0] is not pads[1]
