"""Dims of outputs that are declared under names of their own: values inside have formulas of the inputs' dims."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import pytest
from graphs import Net

from relayout import legalize, verify
from relayout.errors import UsageError
from relayout.layout.metadata_keys import EXTENTS_KEY
from relayout.model.io import read_model

HEADER = '<ir_version: 10, opset_import: ["": 18]>'
HALF = ["(height - 1)//2 + 1", "(width - 1)//2 + 1"]


def classifier() -> onnx.ModelProto:
    """Feature maps as an output, and classes of them, as PyTorch's TorchScript exporter declares both."""
    net = Net()
    image = net.input("x", ("batch", 3, "height", "width"))
    features = net.node("Relu", net.conv(image, 3, 16, strides=[2, 2]))
    net.output(features)
    flat = net.node("Flatten", net.node("MaxPool", features, kernel_shape=[2, 2], strides=[2, 2]))
    net.output(net.node("Gemm", flat, net.weight(16 * 16, 10)))
    model = net.model()
    declare(model, ["batch", 16, "out_h", "out_w"], ["batch", "classes"])
    return model


def declare(model: onnx.ModelProto, *shapes: Sequence[int | str]) -> None:
    """Declare the outputs with these shapes."""
    for output, shape in zip(model.graph.output, shapes, strict=True):
        output.type.CopyFrom(onnx.helper.make_tensor_type_proto(output.type.tensor_type.elem_type, shape))


def declared(model: onnx.ModelProto) -> list[list[int | str]]:
    return [[dim.dim_param or dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in model.graph.output]


def read(model: onnx.ModelProto) -> list[list[int | str | None]]:
    """The extents of the outputs as they are read."""
    shapes = (value.shape for value in read_model(model).graph.outputs)
    return [[dim if isinstance(dim, int) else dim.value for dim in shape or ()] for shape in shapes]


def test_values_inside_have_formulas_where_an_output_has_names_of_its_own() -> None:
    assert read(classifier()) == [["batch", 16, *HALF], ["batch", 10]]


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "canonical", "tpu", "x86-nchwc"])
def test_the_legal_model_declares_the_names_again(backend: str) -> None:
    """The comparison needs sizes that the matrix of the classes fits."""
    source = classifier()
    legal, report = legalize(source, backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.numeric is not None
    assert report.verification.numeric.status == "compared"
    assert declared(legal) == [["batch", 16, "out_h", "out_w"], ["batch", 10]]
    assert "out_h" not in report.sizes
    again, second = legalize(legal, backend)
    assert (second.cost, again) == (report.cost, legal)
    assert verify(legal, backend, against=source, report=report).passed


def test_the_names_follow_the_layout_of_the_output() -> None:
    source = classifier()
    (name, _) = [output.name for output in source.graph.output]
    legal, report = legalize(source, "nhwc", output_layouts={name: "NHWC"})
    assert declared(legal)[0] == ["batch", "out_h", "out_w", 16]
    assert read(legal)[0] == ["batch", *HALF, 16]
    assert verify(legal, "nhwc", against=source, report=report).passed


def test_a_model_that_is_legal_keeps_its_names_and_has_no_notes() -> None:
    source = classifier()
    legal, _ = legalize(source, "onnx")
    assert [output.metadata_props for output in legal.graph.output] == [[], []]
    assert declared(legal)[0] == ["batch", 16, "out_h", "out_w"]


def blocked() -> onnx.ModelProto:
    """The legal model of feature maps that onnxruntime's operator brings out of blocks: onnx infers no result of it."""
    net = Net()
    image = net.input("x", ("batch", 3, "height", "width"))
    net.output(net.conv(net.conv(net.conv(image, 3, 64), 64, 64, strides=[2, 2]), 64, 64))
    model = net.model()
    declare(model, ["batch", 64, "out_h", "out_w"])
    legal, _ = legalize(model, "x86-nchwc")
    assert legal.graph.node[-1].op_type == "ReorderOutput"
    return legal


def test_the_extents_behind_an_operator_of_the_backend_are_noted() -> None:
    legal = blocked()
    assert declared(legal) == [["batch", 64, "out_h", "out_w"]]
    assert read(legal) == [["batch", 64, *HALF]]
    again, report = legalize(legal, "x86-nchwc")
    assert again == legal
    assert {"batch", "height", "width"} == report.sizes.keys()


@pytest.mark.parametrize("note", ["[", "3", '["n"]', '[null, null, "3*other", 5]', "[" * 100_000])
def test_a_note_that_does_not_fit_the_model_is_no_extent(note: str) -> None:
    legal = blocked()
    for entry in legal.graph.output[0].metadata_props:
        if entry.key == EXTENTS_KEY:
            entry.value = note
    assert read(legal) == [["batch", 64, "out_h", "out_w"]]


def test_names_of_unknown_extents_stay() -> None:
    model = onnx.parser.parse_model(
        f"""{HEADER} g (float[n] x) => (int64[1, found] y, float[1, 1, halves] z) <int64[1] axis = {{0}}> {{
        y = NonZero (x)  f = Cast <to = 1> (y)  u = Unsqueeze (f, axis)
        z = MaxPool <kernel_shape = [2], strides = [2]> (u) }}"""
    )
    assert read(model) == [[1, "found"], [1, 1, "halves"]]
    legal, _ = legalize(model, "onnx")
    assert declared(legal) == [[1, "found"], [1, 1, "halves"]]


def test_a_name_for_two_extents_is_each_in_its_place() -> None:
    model = onnx.parser.parse_model(
        f"""{HEADER} g (float[n, 1, h] x) => (float[n, 1, out] y, float[n, 1, out] z) {{
        y = MaxPool <kernel_shape = [2], strides = [2]> (x)  z = MaxPool <kernel_shape = [2], strides = [2]> (y) }}"""
    )
    assert read(model) == [["n", 1, "h//2"], ["n", 1, "(h//2)//2"]]


def test_a_formula_of_the_inputs_is_left_as_it_is_declared() -> None:
    """PyTorch's exporter declares values inside in the same words."""
    model = onnx.parser.parse_model(
        f"""{HEADER} g (float[n, 1, h] x) => (float[n, 1, "floor(h/2)"] y) {{
        y = MaxPool <kernel_shape = [2], strides = [2]> (x) }}"""
    )
    assert read(model) == [["n", 1, "floor(h/2)"]]


def test_a_size_of_an_output_s_dim_must_be_that_of_the_inputs() -> None:
    model = classifier()
    legalize(model, "nhwc", dims={"height": 16, "width": 16, "out_h": 8})
    with pytest.raises(UsageError, match="not the size of an output's dim"):
        legalize(model, "nhwc", dims={"height": 16, "width": 16, "out_h": 16})
    with pytest.raises(UsageError, match="sizes of height, as out_h is"):
        legalize(model, "nhwc", dims={"out_h": 16})


@pytest.mark.parametrize(
    ("shape", "stated", "expected"),
    [
        (("N", 3, "h", "w"), ("{op}{name}_dim_0", 3, "{op}{name}_dim_2", "wide"), ["N", 3, "h", "w"]),
        # The exporter writes the number of the value that its later passes renamed.
        ((1, 3, "h", "w"), ("{op}839_dim_0", 3, "{op}839_dim_2", "w"), [1, 3, "h", "w"]),
        # Of another operator, or of another place.
        (("N", 3, "h", "w"), ("Exp_dim_0", 3, "{op}{name}_dim_3", "w"), ["N", 3, "h", "w"]),
        # Of an input.
        (("N", 3, "h", "Relu_dim_2"), ("N", 3, "Relu_dim_2", "w"), ["N", 3, "Relu_dim_2", "Relu_dim_2"]),
    ],
    ids=str,
)
def test_an_output_dim_that_the_exporter_made_up_is_inferred(
    shape: Sequence[int | str], stated: Sequence[int | str], expected: Sequence[int | str]
) -> None:
    net = Net()
    net.output(net.node("Relu", net.input("x", shape)))
    model = net.model()
    (output,) = model.graph.output

    def named(dim: int | str) -> int | str:
        return dim.format(op="Relu", name=output.name) if isinstance(dim, str) else dim

    declare(model, [named(dim) for dim in stated])
    assert read(model) == [[named(dim) for dim in expected]]


def test_a_made_up_output_dim_of_unknown_extent_keeps_its_name() -> None:
    net = Net()
    net.output(net.node("NonZero", net.input("x", (4, 4))), onnx.TensorProto.INT64)
    model = net.model()
    declare(model, [2, "NonZero7_dim_1"])
    assert read(model) == [[2, "NonZero7_dim_1"]]


def test_a_dim_with_the_name_that_the_exporter_made_up_for_another_output_is_inferred() -> None:
    """PyTorch gave the first dim of a TopK the name of the third dim of the convolution before."""
    net = Net()
    first = net.node("Relu", net.input("x", ("N", 3, "h", "w")))
    net.output(first)
    net.output(net.node("Neg", first))
    model = net.model()
    declare(model, ["N", 3, "Relu1_dim_2", "w"], ["Relu1_dim_2", 3, "h", "w"])
    assert read(model) == [["N", 3, "h", "w"]] * 2


@pytest.mark.parametrize("backend", ["onnx", "nhwc"])
def test_an_output_of_unknown_extents_is_declared_as_in_the_source(backend: str) -> None:
    """PyTorch's exporter gave the rows behind a Squeeze the name of the batch. The Squeeze is elided."""
    source = onnx.parser.parse_model(
        f"""{HEADER} g (float[batch,1,h,w] x, int64[4] s) => (float[batch,batch,k] y)
        <int64[1] one = {{1}}, float[1,1,1,1] m = {{2}}> {{
          e = Resize <mode = "nearest"> (x, , , s)  c = Conv (e, m)  r = Relu (c)  y = Squeeze (r, one) }}"""
    )
    legal, report = legalize(source, backend, static=True)
    assert declared(legal) == [["batch", "batch", "k"]]
    assert report.boundary[-1].shape == ("batch", "batch", "k")
    assert verify(legal, backend, against=source, report=report, static=True).passed
    again, second = legalize(legal, backend, static=True)
    assert (again, second.cost, second.boundary[-1].shape) == (legal, report.cost, report.boundary[-1].shape)


def test_an_inlined_model_declares_the_names_again() -> None:
    legal, _ = legalize(classifier(), "nhwc", inline=True)
    assert declared(legal) == [["batch", 16, "out_h", "out_w"], ["batch", 10]]
