"""A dim that a Reshape infers is unified with its input's if no other extent can have changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers

from relayout import legalize, verify
from relayout.model.dims.dim_unification import unify_names
from relayout.model.io import read_model


def seen_as(shape: Sequence[int | str | None], *targets: Sequence[int]) -> onnx.ModelProto:
    """An input of this shape, reshaped to each of these one after the other."""
    net = Net()
    value = net.input("x", shape)
    for target in targets:
        value = net.node("Reshape", net.node("Relu", value), net.constant(np.array(target)))
    net.output(value)
    return net.model()


def given(model: onnx.ModelProto) -> list[int | str | None]:
    (output,) = read_model(model).graph.outputs
    assert output.shape is not None
    return [dim if isinstance(dim, int) else dim.value for dim in output.shape]


@pytest.mark.parametrize("targets", [[(-1, 12, 16)], [(-1, 12, 16), (-1, 4, 4, 12)], [(12, 16, -1)]], ids=str)
def test_the_other_extents_determine_the_dim(targets: list[Sequence[int]]) -> None:
    expected = ["N" if extent == -1 else extent for extent in targets[-1]]
    assert given(seen_as(("N", 12, 4, 4), *targets)) == expected


@pytest.mark.parametrize(
    ("shape", "target", "name"),
    [
        (("N", 12, 4, 4), (-1, 6, 16), "2*N"),  # two for each picture
        (("N", 12, "H", 4), (-1, 12, 4), "H*N"),  # pictures and rows
        (("2*N", 12, 4), (-1, 6, 4), "4*N"),
        (("(H - 1)//2", 12, "N"), (-1, 6), "2*N*((H - 1)//2)"),
        (("N", 4, 4), (-1, 32), "N//2"),  # half the pictures
        (("N", "H", 4), (-1, 16), "(H*N)//4"),
        ((None, 4), (-1, 2), "2*x_dim_0"),
    ],
    ids=str,
)
def test_a_dim_of_several_has_their_product_as_its_name(
    shape: Sequence[int | str | None], target: Sequence[int], name: str
) -> None:
    assert given(seen_as(shape, target))[0] == name


def test_a_dim_whose_formula_would_be_long_gets_a_name_of_its_own() -> None:
    (name,) = given(seen_as(("N" * 100, "H" * 100), (-1,)))
    assert str(name).startswith("unk__")


@pytest.mark.parametrize(
    "targets",
    [
        [(-1, 16), (-1, 12, 4, 4)],
        [(-1, 8), (24, -1), (-1, 12, 16)],
        [(-1, 6, 4), (-1, 4, 4), (2, 6, 16, -1)],
    ],
    ids=str,
)
def test_a_dim_restored_from_a_multiple_is_the_same(targets: list[Sequence[int]]) -> None:
    assert given(seen_as(("N", 12, 4, 4), *targets)) == ["N" if extent == -1 else extent for extent in targets[-1]]


def test_dims_that_contradict_each_other_are_left_as_they_are() -> None:
    """Here a model gives the name of N to a dim of 2 N."""
    model = seen_as(("N", 12, 4, 4), (-1, 6, 16), (-1, 12, 16))
    wrong = onnx.helper.make_tensor_value_info(model.graph.node[1].output[0], onnx.TensorProto.FLOAT, ["N", 6, 16])
    model.graph.value_info.append(wrong)
    shapes = {value.name: value.shape for node in read_model(model).graph for value in node.outputs}
    assert shapes[wrong.name] == ["N", 6, 16]


def named(model: onnx.ModelProto, **dims: str) -> dict[str, str]:
    """The shapes of the results when these have first dims of these names in the model's value infos."""
    shapes = {value.name: value.shape for node in read_model(model).graph for value in node.outputs}
    for value, name in dims.items():
        shape = shapes[value]
        assert shape is not None
        info = onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [name, *shape[1:]])
        model.graph.value_info.append(info)
    return {value.name or "": str(value.shape) for node in read_model(model).graph for value in node.outputs}


def test_a_name_that_an_exporter_made_up_gives_way_to_a_formula_of_the_inputs() -> None:
    shapes = named(seen_as(("N", 12, 4, 4), (-1, 6, 16), (-1, 3, 16)), reshape_1="rows")
    assert shapes["reshape_1"] == shapes["relu_2"] == "[2*N,6,16]"
    assert shapes["reshape_3"] == "[4*N,3,16]"


def test_a_name_for_several_extents_says_nothing() -> None:
    model = seen_as(("N", 12, 4, 4), (-1, 6, 16), (-1, 3, 16), (-1, 48))
    shapes = named(model, reshape_1="rows", reshape_3="rows")
    assert shapes["reshape_1"] == shapes["reshape_3"].replace("3,16", "6,16") == "[rows,6,16]"


def bytes_agree(model: onnx.ModelProto, backend: str) -> None:
    """The report's conversions move the bytes that the legal model's transposes move, and so they are read again."""
    legal, report = legalize(model, backend)
    assert report.after.bytes == sum(conversion.bytes for conversion in report.conversions) > 0
    assert verify(legal, backend=backend, against=model, report=report).findings == ()
    assert_same_numbers(model, legal)
    again, second = legalize(legal, backend)
    assert (second.cost, second.before, second.after) == (report.cost, report.after, report.after)
    assert again == legal


def test_a_convolution_behind_two_reshapes_that_cancel_has_the_batch_of_the_input() -> None:
    net = Net()
    rows = net.node("Reshape", net.input("x", ("N", 3, 4, 4)), net.constant([-1, 16]))
    net.output(net.node("Relu", net.conv(net.node("Reshape", rows, net.constant([-1, 3, 4, 4])), 3, 8)))
    bytes_agree(net.model(), "nhwc")


def test_a_dim_that_a_reshape_makes_keeps_its_name_in_the_legal_model() -> None:
    """Where the Reshape is written anew: what reads it tells the name, and only the Reshape tells the size."""
    net = Net()
    pictures = net.node("Reshape", net.input("x", ("N", 2, 2, 4, 4)), net.constant([-1, 4, 2, 2]))
    net.output(net.node("Reshape", net.conv(net.node("Relu", pictures), 4, 4), net.constant([-1, 8, 8])))
    bytes_agree(net.model(), "nhwc")


def test_an_unnamed_dim_has_the_remaining_size() -> None:
    """A conversion may split a dim that has one: 36 N into N, 2, 2 and 9."""
    net = Net()
    flat = net.node("Relu", net.node("Reshape", net.input("x", ("N", 4, 3, 3)), net.constant([-1])))
    net.output(net.node("Sigmoid", flat))
    split = net.node("Reshape", net.node("Relu", flat), net.constant([-1, 2, 2, 3, 3]))
    net.output(net.transpose(split, 2, 1, 3, 4, 0))
    bytes_agree(net.model(), "onnx")


def test_inputs_keep_their_dim_names() -> None:
    """A name that looks like a generated one is read as a given one, which no other name in the file has."""
    model = seen_as(("unk__7", 12, 4, 4), (-1, 12, 16))
    assert given(model) == ["unk_7", 12, 16]
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "unk_7"
    assert str(read_model(model).graph.inputs[0].shape) == "[unk_7_1,12,4,4]"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "pictures"
    inferred = onnx.shape_inference.infer_shapes(model)
    unify_names(inferred.graph)
    assert inferred.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "unk__7"


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
def test_the_report_counts_the_conversions_of_the_legal_model(backend: str) -> None:
    net = Net()
    rows = net.node("Reshape", net.transpose(net.input("x", ("N", 4, 4, 12)), 0, 3, 1, 2), net.constant([-1, 12, 16]))
    turned = net.node("MatMul", net.transpose(rows, 0, 2, 1), net.weight(12, 12))
    picture = net.node("Reshape", net.transpose(turned, 0, 2, 1), net.constant([-1, 12, 4, 4]))
    net.output(net.node("AveragePool", picture, kernel_shape=[3, 3]))
    net.output(picture)
    model = net.model()
    legal, report = legalize(model, backend)
    assert report.after.bytes == sum(conversion.bytes for conversion in report.conversions) < report.before.bytes
    assert verify(legal, backend=backend, against=model, report=report).findings == ()
    assert_same_numbers(model, legal)
    again, second = legalize(legal, backend)
    assert (second.cost, again.graph.node) == (report.cost, legal.graph.node)
