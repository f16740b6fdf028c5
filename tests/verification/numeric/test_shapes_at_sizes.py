"""The shapes of a legal model with open dims, at sizes for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import Net
from onnx import TensorProto, numpy_helper

from relayout import legalize, verify
from relayout.errors import InputError
from relayout.model.io import read_model
from relayout.report.schema import Finding
from relayout.verification.numeric import shapes_at_sizes
from relayout.verification.numeric.shapes_at_sizes import check_shapes_at_sizes, sized_reader

Draw = Callable[[Net, str], str]


def in_windows(divisor: int, *, rows: tuple[int, ...] = (4,)) -> Draw:
    """Draw a Reshape of n rows of an image to windows of 4, whose number is computed by a Div."""

    def draw(net: Net, image: str) -> str:
        height = net.node("Gather", net.node("Shape", image), net.constant(np.array([1])))
        windows = net.node("Div", height, net.constant(np.array([divisor])))
        shape = net.node("Concat", net.constant(np.array([0])), windows, net.constant(np.array([*rows, 8])), axis=0)
        return str(net.node("Reshape", image, shape))

    return draw


def reshaped(*shape: int) -> Draw:
    return lambda net, image: str(net.node("Reshape", image, net.constant(np.array(shape))))


def model(draw: Draw, extents: tuple[str | int, ...] = ("n", "h", 8)) -> ir.Model:
    net = Net()
    net.output(net.node("Relu", draw(net, str(net.node("Tanh", net.input("x", extents))))))
    return read_model(net.model())


def findings(mine: ir.Model, original: ir.Model) -> list[Finding]:
    return list(check_shapes_at_sizes(mine, lambda: original))


def unread() -> ir.Model:
    pytest.fail("the original is read where nothing is wrong")


@pytest.mark.parametrize("draw", [in_windows(4), reshaped(0, -1, 4, 8), reshaped(-1, 8)])
def test_a_right_reshape_has_no_finding_and_needs_no_original(draw: Draw) -> None:
    mine = model(draw)
    assert not findings(mine, mine)
    assert not list(check_shapes_at_sizes(mine, unread, is_fresh=True))


def test_a_computed_shape_of_other_elements_is_found() -> None:
    [found] = findings(model(in_windows(8)), model(in_windows(4)))
    assert (found.rule, found.severity) == ("shape", "error")
    assert found.expected == "as many elements as [2, 32, 8] has"
    assert found.found == "[2, 4, 4, 8]"
    assert "where those of the original do not, at n=2, h=32" in found.message


def test_a_number_that_holds_for_one_batch_alone_is_found() -> None:
    """Each Reshape fits its operand: the wrong extents show in the results alone."""
    mine, right = model(reshaped(1, -1, 8)), model(reshaped(0, 0, 8))
    assert [each.rule for each in findings(mine, right)] == ["boundary"]
    # Legalization declares the shapes of the original.
    for one, other in zip(mine.graph, right.graph, strict=True):
        one.outputs[0].shape = other.outputs[0].shape
    assert [each.rule for each in check_shapes_at_sizes(mine, lambda: right, is_fresh=True)] == ["boundary"]


def test_sizes_that_the_original_does_not_fit_decide_nothing() -> None:
    """Only an h of 12 gives three windows; 12 is no size that is tried first."""
    strict = model(reshaped(0, 3, 4, 8))
    assert not findings(strict, strict)


def test_sizes_at_which_a_tensor_becomes_empty_decide_nothing() -> None:
    """There inference does not see that the original fails: it broadcasts no rows to any number of them."""

    def cut(draw: Draw) -> Draw:
        def drawn(net: Net, image: str) -> str:
            bounds = (net.constant(np.array([number])) for number in (40, 1 << 30, 1))
            net.output(net.node("Relu", net.node("Slice", image, *bounds)))
            return draw(net, image)

        return drawn

    wrong, right = model(cut(in_windows(8))), model(cut(in_windows(4)))
    [found] = findings(wrong, right)
    assert "where those of the original do not" in found.message
    assert not found.message.endswith("h=32")


def test_sizes_of_the_caller_are_kept() -> None:
    wrong, right = model(in_windows(8)), model(in_windows(4))
    [found] = check_shapes_at_sizes(wrong, lambda: right, {"h": 16})
    assert found.found == "[2, 2, 4, 8]"


def test_closed_dims_are_not_inferred_again() -> None:
    closed = model(reshaped(2, 4, 4, 8), (2, 16, 8))
    assert not list(check_shapes_at_sizes(closed, unread, is_fresh=True))


def test_verify_without_a_run_finds_it_and_so_does_the_static_part_of_legalization() -> None:
    made: list[onnx.ModelProto] = [ir.to_proto(model(in_windows(divisor))) for divisor in (8, 4)]
    found = verify(made[0], "onnx", made[1], run=False)
    assert not found.passed
    assert {each.rule for each in found.findings if each.severity == "error"} == {"element-order", "shape"}


def test_an_original_whose_shapes_cannot_be_inferred_decides_nothing_and_a_note_says_so() -> None:
    """The extents of a Reshape to a shape that is an input are known only as declared."""

    def asked(net: Net, image: str) -> str:
        return str(net.node("Reshape", image, net.input("shape", (4,), onnx.TensorProto.INT64)))

    original = model(asked)
    [made] = [node.outputs[0] for node in original.graph if node.op_type == "Reshape"]
    made.shape = ir.Shape([ir.SymbolicDim("n"), ir.SymbolicDim("h"), 4, 2])
    for is_fresh in (False, True):
        [found] = check_shapes_at_sizes(model(in_windows(8)), lambda: original, is_fresh=is_fresh)
        assert (found.rule, found.severity) == ("not-sized", "note")


def test_a_model_that_cannot_be_compared_is_looked_at_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayout.verification.numeric.compare.largest_model", lambda: -1)
    made: list[onnx.ModelProto] = [ir.to_proto(model(in_windows(divisor))) for divisor in (8, 4)]
    found = verify(made[0], "onnx", made[1], static=True)
    assert found.numeric is not None
    assert found.numeric.status == "skipped"
    assert {each.rule for each in found.findings if each.severity == "error"} == {"element-order", "shape"}


def test_a_padded_extent_that_a_shape_reads_is_found() -> None:
    net = Net(18)
    pooled = net.node("Sigmoid", net.conv(net.input("x", ("n", 3, "h", 12)), 3, 3, 1))
    net.output(net.conv(pooled, 3, 3, 1))
    net.output(net.node("Shape", pooled), TensorProto.INT64)
    table = {"name": "t", "rule": [{"op": "Conv", "data": "NHWC16c", "kernel": "OHWI16i", "pads": True}]}
    original = read_model(net.model())
    legal = legalize(net.model(), table)[0]
    assert not list(check_shapes_at_sizes(read_model(legal), lambda: original, is_fresh=True))
    # The extents of the padded tensor as they are, in the source's order.
    (ordering,) = (node for node in legal.graph.node if node.name.endswith("in_order_Gather"))
    (joining,) = (node for node in legal.graph.node if list(node.output) == [ordering.input[0]])
    ordering.input[0] = joining.input[0]
    (order,) = (tensor for tensor in legal.graph.initializer if tensor.name == ordering.input[1])
    order.CopyFrom(numpy_helper.from_array(np.array([0, 3, 1, 2]), order.name))
    legal.graph.node.remove(joining)
    [found] = check_shapes_at_sizes(read_model(legal), lambda: original, is_fresh=True)
    assert (found.rule, found.expected, found.found) == ("shape", "[2, 3, 32, 12]", "[2, 16, 32, 12]")


def test_computed_extents_in_another_order_are_the_originals() -> None:
    """Pads as TorchScript writes them: the last axis first. It is cheaper to transpose those that are given than all,
    so the legal model has the vector in another order."""
    source = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[n,3,h,8] x) => (float[n,3,k,8] y)
        <int64[1] two = {2}, int64[4] zeros = {0, 0, 0, 0}, int64 four = {4}, int64[2] pairs = {-1, 2},
         int64[1] last = {-1}, int64[1] first = {-9223372036854775807}, int64[1] zero = {0}, int64[1] flat = {-1}> {
            extents = Shape (x)
            height = Gather <axis = 0> (extents, two)
            rest = Mod (height, four)
            given = Concat <axis = 0> (zero, zero, zero, rest)
            pads = Concat <axis = 0> (given, zeros)
            begins_and_ends = Reshape (pads, pairs)
            reversed = Slice (begins_and_ends, last, first, zero, last)
            turned = Transpose <perm = [1, 0]> (reversed)
            in_order = Reshape (turned, flat)
            y = Pad (x, in_order) }"""
    )
    legal, report = legalize(source, "onnx")
    assert report.verification is not None
    assert report.verification.findings == ()
    assert report.after.bytes < report.before.bytes
    assert not findings(read_model(legal), read_model(source))


def test_sizes_that_the_original_does_not_fit_are_tried_on_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[ir.Model] = []
    reader = shapes_at_sizes.sized_reader

    def counted(given: ir.Model) -> shapes_at_sizes.SizedReader:
        def at(extents: Mapping[str, int]) -> ir.Model | InputError:
            tried.append(given)
            return reader(given)(extents)

        return at

    monkeypatch.setattr(shapes_at_sizes, "sized_reader", counted)
    one, other = model(in_windows(97)), model(in_windows(97))
    [found] = shapes_at_sizes.check_shapes_at_sizes(one, lambda: other)
    assert (found.rule, found.severity) == ("not-sized", "note")
    assert tried.count(one) == 1
    assert tried.count(other) == shapes_at_sizes.MOST_SIZES


def test_a_constant_has_its_shape_at_sizes_too() -> None:
    """The types of constants are among those of inner values, whose shapes are not those declared."""
    source = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[n,4,8] x) => (float[n,8,1] z) <float s = {2.0}> {
            a = ReduceMean<axes = [1]> (x)
            b = Add (a, s)
            y = Sqrt (b)
            z = Transpose<perm = [0, 2, 1]> (y) }"""
    )
    sized = sized_reader(read_model(source))({"n": 3})
    assert isinstance(sized, ir.Model)
    assert [node.outputs[0].shape for node in sized.graph] == [[3, 1, 8], [3, 1, 8], [3, 1, 8], [3, 8, 1]]


def test_sizes_that_leave_nothing_behind_a_stack_of_convolutions_are_tried_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """onnx's inference gives a window of 8 the extent 1 behind 6 samples; no runtime runs it."""
    tried: list[int] = []
    reader = shapes_at_sizes.sized_reader

    def noted(given: ir.Model) -> shapes_at_sizes.SizedReader:
        def at(extents: Mapping[str, int]) -> ir.Model | InputError:
            tried.append(extents["t"])
            return reader(given)(extents)

        return at

    monkeypatch.setattr(shapes_at_sizes, "sized_reader", noted)
    net = Net()
    value = net.input("x", ("n", 1, "t"))
    for channels in (1, 8, 8):
        value = net.node("Conv", value, net.weight(8, channels, 8), strides=[6])
    heads = net.node("Reshape", net.transpose(value, 0, 2, 1), net.constant([0, 0, 2, 4]))
    net.output(net.node("Softmax", net.transpose(heads, 0, 2, 1, 3), axis=-1))
    source = net.model()
    assert not findings(read_model(legalize(source, "onnx")[0]), read_model(source))
    assert all((((t - 2) // 6 - 2) // 6 - 2) // 6 > 0 for t in tried)
