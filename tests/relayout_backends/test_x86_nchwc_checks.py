"""`x86-nchwc` checks onnxruntime's own operators, which onnxruntime does not check."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import session
from onnx import TensorProto, helper, numpy_helper

import relayout_backends.x86_nchwc.checks
from relayout import legalize, verify
from relayout.backend import DEVICE_KEY, Backend, Composite, Device
from relayout.report.schema import Finding
from relayout.verification.operator_facts import enter_backend_operators, named, own_names
from relayout_backends.x86_nchwc import X86Nchwc
from relayout_backends.x86_nchwc.blocks import SIZES, probe

DOMAIN = "com.microsoft.nchwc"
Mutation = Callable[["Model"], None]


class Model:
    """x -> blocks -> two convolutions, their sum and their concatenation -> y, sound as it is.

    The channels are two blocks but for `narrow`, a convolution to one and a half, whose blocks are padded.
    """

    def __init__(self, block: int = 16) -> None:
        self.block = block
        wide, narrow = 2 * block, block + block // 2
        self.nodes: dict[str, onnx.NodeProto] = {}
        self.shapes: dict[str, list[int]] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.outputs: dict[str, list[int]] = {"y": [1, 2 * wide, 6, 5], "z": [1, narrow, 6, 5]}
        self.inputs: dict[str, list[int]] = {"x": [1, wide, 6, 5]}
        self.blocked("ReorderInput", ["x"], "a", wide)
        self.blocked("Conv", ["a", "k"], "b", wide, pads=[1, 1, 1, 1])
        self.blocked("Conv", ["b", "k"], "c", wide, pads=[1, 1, 1, 1])
        self.plain("Relu", ["c"], "d", wide)
        self.plain("Add", ["a", "d"], "e", wide)
        self.plain("Mul", ["e", "two"], "f", wide)
        self.plain("Concat", ["f", "b"], "g", 2 * wide, axis=1)
        self.blocked("ReorderOutput", ["g"], "y", 2 * wide, channels=2 * wide)
        self.blocked("Conv", ["f", "narrowing"], "n", narrow, pads=[1, 1, 1, 1])
        self.plain("LeakyRelu", ["n"], "m", wide)
        self.blocked("ReorderOutput", ["m"], "z", narrow, channels=narrow)
        rng = np.random.default_rng(0)
        self.constants["k"] = rng.standard_normal((wide, wide, 3, 3)).astype(np.float32)
        self.constants["narrowing"] = rng.standard_normal((wide, wide, 3, 3)).astype(np.float32)
        self.constants["two"] = np.array(2, np.float32)

    def blocked(self, operator: str, operands: list[str], result: str, used: int, **attributes: object) -> None:
        node = helper.make_node(operator, operands, [result], name=result, domain=DOMAIN, **attributes)
        node.metadata_props.add(key="relayout.block", value=str(self.block))
        node.metadata_props.add(key="relayout.channels", value=str(used))
        self.nodes[result] = node
        self.shapes[result] = [1, -(-used // self.block) * self.block, 6, 5]

    def plain(self, operator: str, operands: list[str], result: str, channels: int, **attributes: object) -> None:
        self.nodes[result] = helper.make_node(operator, operands, [result], name=result, **attributes)
        self.shapes[result] = [1, channels, 6, 5]

    def insert(
        self, operator: str, value: str, *operands: str, shape: list[int] | None = None, **attributes: object
    ) -> None:
        """Put an operator on `value`, whose readers then read what it makes."""
        made = f"{value}_{operator}"
        for node in self.nodes.values():
            node.input[:] = [made if name == value else name for name in node.input]
        node = helper.make_node(operator, [value, *operands], [made], name=made, **attributes)
        nodes = list(self.nodes.items())
        place = next((i for i, (name, _) in enumerate(nodes) if name == value), -1) + 1
        self.nodes = dict([*nodes[:place], (made, node), *nodes[place:]])
        self.shapes[made] = shape or list(self.shapes[value])

    def note(self, name: str, block: int) -> None:
        self.nodes[name].metadata_props[0].value = str(block)

    def proto(self) -> onnx.ModelProto:
        def info(name: str, shape: list[int]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        graph = helper.make_graph(
            list(self.nodes.values()),
            "blocked",
            [info(name, shape) for name, shape in self.inputs.items()],
            [info(name, shape) for name, shape in self.outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
            value_info=[info(name, shape) for name, shape in self.shapes.items() if name not in self.outputs],
        )
        imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def findings(self, block: int = 16) -> list[Finding]:
        return [f for f in verify(self.proto(), X86Nchwc(block=block)).findings if f.rule == "blocked-value"]


@pytest.mark.parametrize("block", SIZES)
def test_a_sound_blocked_model_has_no_findings(block: int) -> None:
    assert verify(Model(block).proto(), X86Nchwc(block=block)).findings == ()


def test_the_sound_model_runs_in_the_blocks_of_this_machine() -> None:
    pytest.importorskip("onnxruntime")
    model = Model(probe())
    y, z = session(model.proto()).run(None, {"x": np.ones(model.inputs["x"], np.float32)})
    assert (list(y.shape), list(z.shape)) == (model.outputs["y"], model.outputs["z"])


def vector_added(model: Model) -> None:
    model.constants["bias"] = np.ones((1, 32, 1, 1), np.float32)
    model.insert("Add", "c", "bias")


def plane_multiplied(model: Model) -> None:
    model.constants["plane"] = np.ones((6, 5), np.float32)
    model.insert("Mul", "c", "plane")


def slopes_for_each_channel(model: Model) -> None:
    model.constants["slopes"] = np.ones((32, 1, 1), np.float32)
    model.insert("PRelu", "c", "slopes")


def gate_for_each_channel(model: Model) -> None:
    model.inputs["gate"] = [1, 32, 1, 1]
    model.insert("Mul", "c", "gate")


def plain_added(model: Model) -> None:
    model.nodes["e"].input[0] = "x"


def softmax_over_channels(model: Model) -> None:
    model.insert("Softmax", "c", axis=1)


def softmax_over_width(model: Model) -> None:
    model.insert("Softmax", "c", axis=3)


def transposed(model: Model) -> None:
    model.insert("Transpose", "c", perm=[0, 1, 3, 2], shape=[1, 32, 5, 6])


def summed_over_height(model: Model) -> None:
    model.constants["axes"] = np.array([2], np.int64)
    model.insert("ReduceSum", "c", "axes", shape=[1, 32, 1, 5])


def pooled_as_plain(model: Model) -> None:
    model.insert("MaxPool", "c", kernel_shape=[1, 1])


def convolved_as_plain(model: Model) -> None:
    model.nodes["c"].domain = ""


def concatenated_along_height(model: Model) -> None:
    model.nodes["g"].attribute[0].i = 2
    model.shapes["g"] = [1, 32, 12, 5]


def padding_between_channels(model: Model) -> None:
    model.nodes["g"].input[0] = "n"
    model.nodes = {name: model.nodes[name] for name in "a b c d e f n m g y z".split()}


def concatenated_with_plain(model: Model) -> None:
    model.nodes["g"].input[1] = "x"


def never_unblocked(model: Model) -> None:
    model.nodes["y"].op_type, model.nodes["y"].domain = "Identity", ""
    del model.nodes["y"].attribute[:]


def blocked_twice(model: Model) -> None:
    model.blocked("ReorderInput", ["a"], "again", 32)
    model.nodes = {"a": model.nodes["a"], "again": model.nodes.pop("again"), **model.nodes}
    model.nodes["b"].input[0] = "again"


def never_blocked(model: Model) -> None:
    model.nodes["b"].input[0] = "x"


def unblocked_twice(model: Model) -> None:
    model.shapes["y"] = [1, 64, 6, 5]
    model.blocked("ReorderOutput", ["y"], "w", 64, channels=64)
    model.outputs = {"w": [1, 64, 6, 5], "z": [1, 24, 6, 5]}


def kernel_left_out(model: Model) -> None:
    del model.nodes["c"].input[1]


def data_left_out(model: Model) -> None:
    model.constants["bias"] = np.zeros(32, np.float32)
    model.nodes["c"].input[:] = ["k", "bias"]


def another_block(model: Model) -> None:
    model.note("c", 8)


def kernel_not_padded(model: Model) -> None:
    model.constants["narrowing"] = model.constants["narrowing"][:24]


def kernel_of_other_channels(model: Model) -> None:
    model.constants["k"] = model.constants["k"][:, :16]


def cropped_to_other_channels(model: Model) -> None:
    model.nodes["z"].attribute[0].i = 20
    model.outputs["z"][1] = 20


def divided_by_padding(model: Model) -> None:
    model.insert("Div", "n", "n")
    model.blocked("Conv", ["n_Div", "k"], "last", 32, pads=[1, 1, 1, 1])
    model.nodes["m"].input[0] = "last"
    model.nodes = {name: model.nodes[name] for name in [*"abcdefgyn", "n_Div", "last", "m", "z"]}
    model.nodes["z"].attribute[0].i = 32
    model.outputs["z"][1] = 32


def parameter_for_each_channel(model: Model) -> None:
    model.constants["scale"], model.constants["zero"] = np.ones(32, np.float32), np.zeros(32, np.uint8)
    model.insert("QuantizeLinear", "c", "scale", "zero", axis=1)


def rows_gathered(model: Model) -> None:
    model.constants["places"] = np.array([0, 1, 2, 3, 4, 5], np.int64)
    model.insert("Gather", "c", "places", axis=2)


def cut_in_blocks(model: Model) -> None:
    model.constants["parts"] = np.array([24, 8], np.int64)
    model.plain("Split", ["c", "parts"], "s", 24, axis=1)
    model.nodes["s"].output.append("t")
    model.shapes["t"] = [1, 8, 6, 5]
    model.nodes = {name: model.nodes[name] for name in [*"abcs", *"defgynmz"]}


def sliced_within_a_block(model: Model) -> None:
    model.constants.update(start=np.array([8]), end=np.array([32]), axis=np.array([1]))
    model.insert("Slice", "n", "start", "end", "axis", shape=[1, 24, 6, 5])


def sliced_along_width(model: Model) -> None:
    model.constants.update(start=np.array([1]), end=np.array([6]), axis=np.array([3]))
    model.insert("Slice", "n", "start", "end", "axis", shape=[1, 32, 6, 4])


MUTATIONS: list[Mutation] = [
    kernel_left_out,
    data_left_out,
    vector_added,
    plane_multiplied,
    slopes_for_each_channel,
    gate_for_each_channel,
    plain_added,
    softmax_over_channels,
    softmax_over_width,
    transposed,
    summed_over_height,
    pooled_as_plain,
    convolved_as_plain,
    concatenated_along_height,
    padding_between_channels,
    concatenated_with_plain,
    never_unblocked,
    blocked_twice,
    never_blocked,
    unblocked_twice,
    another_block,
    kernel_not_padded,
    kernel_of_other_channels,
    cropped_to_other_channels,
    divided_by_padding,
    parameter_for_each_channel,
    rows_gathered,
    cut_in_blocks,
    sliced_within_a_block,
    sliced_along_width,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_an_operator_that_misreads_blocks_is_found(mutate: Mutation) -> None:
    model = Model()
    mutate(model)
    assert model.findings()


@pytest.mark.parametrize(
    ("operator", "attributes", "shape"),
    [
        ("Upsample", {"scales": [1, 1, 2, 3], "mode": "nearest"}, [12, 15]),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [3, 2]),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, [3, 3]),
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}, [4, 3]),
        ("AveragePool", {"kernel_shape": [3, 3], "dilations": [2, 1], "pads": [1, 1, 1, 1]}, [4, 5]),
        ("AveragePool", {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, [3, 3]),
        ("AveragePool", {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "VALID"}, [3, 2]),
        ("GlobalAveragePool", {}, [1, 1]),
    ],
)
def test_a_result_of_other_rows_or_columns_than_the_operator_computes_is_found(
    operator: str, attributes: dict[str, object], shape: list[int]
) -> None:
    """The right extents are those of ONNX's own operator of this name, or of the scales."""
    if operator != "Upsample":
        own = helper.make_node(operator, ["x"], ["y"], **attributes)
        info = helper.make_tensor_value_info
        graph = helper.make_graph([own], "g", [info("x", 1, [1, 32, 6, 5])], [info("y", 1, None)])
        inferred = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
        )
        assert [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim] == [1, 32, *shape]
    for rows, columns in ([0, 0], [1, 0], [0, -1]):
        model = Model()
        model.blocked(operator, ["c"], "s", 32, **attributes)
        model.shapes["s"] = [1, 32, shape[0] + rows, shape[1] + columns]
        model.blocked("ReorderOutput", ["s"], "t", 32, channels=32)
        model.outputs["t"] = model.shapes["t"] = model.shapes["s"]
        assert ["result s" in finding.message for finding in model.findings()] == [True] * (rows + abs(columns))


def test_an_operator_that_keeps_blocks_is_no_finding() -> None:
    model = Model()
    model.constants["scalar"] = np.ones((1, 1, 1), np.float32)
    model.constants["each"] = np.ones((1, 32, 6, 5), np.float32)
    model.constants["low"] = np.array(0, np.float32)
    model.insert("Add", "a", "scalar")
    model.insert("Clip", "b", "low")
    model.insert("Mul", "c", "each")
    model.insert("Sigmoid", "f")
    model.constants.update(start=np.array([0]), end=np.array([16]), axis=np.array([1]))
    model.insert("Slice", "b", "start", "end", "axis", shape=[1, 16, 6, 5])
    # The Clip reads the whole value, and the convolution the Clip; a part of its own goes to the Concat.
    model.nodes["b_Clip"].input[0], model.nodes["g"].input[1] = "b", "b_Slice"
    model.nodes["c"].input[0] = "b_Clip"
    model.outputs["y"][1] = 48
    model.shapes["g"] = [1, 48, 6, 5]
    model.nodes["y"].attribute[0].i = 48
    assert model.findings() == []


@pytest.mark.parametrize(
    ("axes", "found"), [([2, 3], []), ([2, 1], ["32 with the padding"]), ([-3], ["32 with the padding"])]
)
def test_of_a_padded_shape_all_but_the_channels_may_be_read(axes: list[int], found: list[str]) -> None:
    model = Model()
    model.nodes["shape"] = helper.make_node("Shape", ["m"], ["shape"], name="shape")
    model.nodes["read"] = helper.make_node("Gather", ["shape", "axes"], ["read"], name="read")
    model.constants["axes"] = np.array(axes, np.int64)
    graph = model.proto()
    graph.graph.output.append(helper.make_tensor_value_info("read", TensorProto.INT64, [len(axes)]))
    findings = verify(graph, X86Nchwc(block=16)).findings
    assert [finding.found for finding in findings if finding.rule == "blocked-value"] == found


def test_blocks_of_another_size_than_the_target_has_are_found() -> None:
    model = Model()
    assert {finding.found for finding in model.findings(block=8)} == {"blocks of 16"}
    for node in model.nodes.values():
        if node.domain:
            model.note(node.name, 8)
    wrong = [finding for finding in model.findings(block=16) if "size of blocks" in finding.message]
    assert {finding.found for finding in wrong} == {"blocks of 8"}


def test_each_of_several_devices_has_its_own_size_of_blocks() -> None:
    devices = [Device("wide", X86Nchwc(block=16)), Device("narrow", X86Nchwc(block=8))]
    model = Model()
    for node in model.nodes.values():
        node.metadata_props.add(key=DEVICE_KEY, value="wide")

    def found() -> set[str | None]:
        findings = verify(model.proto(), Composite(devices)).findings
        return {finding.found for finding in findings if finding.rule == "blocked-value"}

    assert found() == set()
    for node in model.nodes.values():
        node.metadata_props[-1].value = "narrow"
    assert found() == {"blocks of 16"}


def quantized(operator: str, kernel: list[ir.Value], **attributes: int) -> ir.Node:
    value = ir.Value(name="x", shape=ir.Shape([1, 8, 8, 3]))
    node = ir.node(operator, [value, *kernel], attributes, domain="com.microsoft")
    node.outputs[0].shape = ir.Shape([1, 8, 8, 4])
    return node


def test_layouts_of_onnxruntimes_kernels_are_known() -> None:
    scales = [ir.Value(name=name, shape=ir.Shape([])) for name in "st"]
    kernel = ir.Value(name="w", shape=ir.Shape([4, 3, 1, 1]))
    last = quantized("QLinearConv", [*scales, kernel], channels_last=1)
    first = quantized("QLinearConv", [*scales, kernel])
    unnamed = quantized("FusedMatMul", scales)
    nodes = [last, first, unnamed, quantized("Attention", [])]
    model = ir.Model(ir.Graph([], [], nodes=nodes, name="g", opset_imports={"": 20}), ir_version=10)
    enter_backend_operators(model.graph, Backend())
    assert [named(node) is None for node in nodes] == [False, False, True, True]
    enter_backend_operators(model.graph, X86Nchwc(block=16))
    assert own_names(last, 0) == own_names(last, 0, is_result=True) == ("N", "H", "W", "C")
    assert own_names(first, 0) == ("N", "C", "H", "W")
    assert own_names(last, 3) == own_names(first, 3) == ("O", "I", "H", "W")
    assert own_names(last, 1) is None
    facts = named(last)
    assert facts is not None
    assert (facts.inputs, facts.results, facts.kernel) == ((0,), (0,), 3)
    assert named(unnamed) is not None
    assert own_names(unnamed, 0) is None
    assert named(nodes[-1]) is None


def test_the_checks_import_no_module_that_writes_the_model() -> None:
    own = "relayout_backends.x86_nchwc.checks"
    folder = Path(relayout_backends.x86_nchwc.checks.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    imported = set(re.findall(r"^ *(?:from|import) ([\w.]+)", text, re.MULTILINE))
    allowed = (own, "relayout.backend", "relayout.layout", "relayout.verification")
    assert [name for name in sorted(imported) if name.startswith("relayout") and not name.startswith(allowed)] == []


def test_one_block_of_as_many_rows_and_columns_may_be_read_as_channels_last() -> None:
    """The blocks of 8 channels at 8 x 8 positions are channels-last data of the same shape."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[1,8,8,8] x, float[8,8,3,3] w) => (float[1,8,8,8] y) {
            a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
            b = Relu (a)
            c = Transpose <perm = [0,2,3,1]> (b)
            y = Add (c, x) }""")
    kernel = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(kernel, "w"))
    del model.graph.input[1]
    legal, report = legalize(model, "x86-nchwc", backend_options={"block": 8})
    assert DOMAIN in {node.domain for node in legal.graph.node}
    assert report.verification is not None
    assert report.verification.findings == ()


@pytest.mark.parametrize(
    "body",
    [
        # Read as channels-last data, through an operator that moves values and one that broadcasts.
        """l = Slice (a, one, two, three)
           r = Slice (a, two, eight, three)
           c = Concat <axis = 3> (r, l, l)
           d = CumSum (c, axis)""",
        # Written as channels-last data by an operator that broadcasts over the rows.
        """m = ReduceMean <axes = [2], keepdims = 0> (a)
           n = Conv <kernel_shape = [1]> (m, v)
           u = Unsqueeze (n, two)
           d = Add (a, u)""",
    ],
)
def test_what_is_made_of_one_block_read_as_channels_last_is_no_block(body: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[1,8,8,8] x, float[8,8,3,3] w, float[8,8,1] v) => (float[1,8,8,8] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] eight = {{8}},
         int64 axis = {{1}}> {{
            a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
            {body}
            y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (d, w) }}""")
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 8, 3, 3)), ("v", (8, 8, 1))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
        model.graph.input.remove(next(value for value in model.graph.input if value.name == name))
    legal, report = legalize(model, "x86-nchwc", backend_options={"block": 8})
    assert DOMAIN in {node.domain for node in legal.graph.node}
    assert report.verification is not None
    assert report.verification.findings == ()
