"""The totals of a report count the conversions and bytes of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.model.tensor_sizes import DimSizes, tensor_bytes
from relayout.report.schema import Totals
from relayout.report.totals import totals as counted_for_the_report
from relayout.verification.counting import count as counted_by_the_verifier

Count = Callable[[ir.Model, Mapping[str, int]], Totals]


@pytest.fixture(params=[counted_for_the_report, counted_by_the_verifier], ids=["report", "verifier"])
def totals(request: pytest.FixtureRequest) -> Count:
    """The two counts that must agree, each with code of its own."""
    found: Count = request.param
    return found


def parse(text: str) -> ir.Model:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "relayout" : 1, "mine" : 1]> {text}')
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def test_a_transpose_reads_and_writes_its_tensor(totals: Count) -> None:
    model = parse("g (float[2,3,4,5] x) => (float[2,4,5,3] y) { y = Transpose <perm = [0,2,3,1]> (x) }")
    assert totals(model, {}) == Totals(nodes=1, transposes=1, bytes=2 * 4 * 120, transposes_in_file=1)


def test_a_transpose_that_moves_only_unit_dims_counts_but_moves_no_bytes(totals: Count) -> None:
    model = parse("g (float[2,3,1,1] x) => (float[2,1,1,3] y) { y = Transpose <perm = [0,2,3,1]> (x) }")
    expected = Totals(nodes=1, transposes=1, bytes=0, transposes_in_file=1, transposes_of_units=1)
    assert totals(model, {}) == expected


def test_a_transpose_without_a_perm_reverses(totals: Count) -> None:
    model = parse("g (float[1,3] x, float[2,3] z) => (y, w) { y = Transpose (x)  w = Transpose (z) }")
    expected = Totals(nodes=2, transposes=2, bytes=2 * 4 * 6, transposes_in_file=2, transposes_of_units=1)
    assert totals(model, {}) == expected


def test_an_axis_that_merges_two_has_the_size_of_both(totals: Count) -> None:
    """A pool's result counts `h//2` rows, also in a product."""
    net = Net()
    pooled = net.node("MaxPool", net.input("x", (1, 8, "h", "w")), kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.transpose(pooled, 0, 2, 3, 1))
    net.output(net.transpose(net.node("Reshape", pooled, net.constant([1, 8, -1])), 0, 2, 1))
    found = totals(read_model(net.model()), {"h": 10, "w": 6})
    assert (found.transposes, found.bytes) == (2, 2 * 2 * 4 * 8 * 5 * 3)


def test_transposes_of_constants_do_not_run(totals: Count) -> None:
    model = parse(
        """g (float[2,3] x) => (float[2,3] y) <float[3,2] w = {1,2,3,4,5,6}> {
            c = Constant <value = float[3,2] {1,2,3,4,5,6}> ()
            d = Mul (c, w)
            t = Transpose <perm = [1,0]> (d)
            y = Add (x, t) }"""
    )
    assert totals(model, {}) == Totals(nodes=3, transposes=0, bytes=0, transposes_in_file=1, transposes_of_constants=1)


def test_random_data_is_no_constant(totals: Count) -> None:
    model = parse("g () => (float[3,2] y) { r = RandomNormal <shape = [2,3]> ()  y = Transpose <perm = [1,0]> (r) }")
    assert totals(model, {}).transposes == 1


def test_subgraphs_count_with_what_they_read_from_outside(totals: Count) -> None:
    model = parse(
        """g (bool c, float[2,3] x) => (float[3,2] y) <float[2,3] w = {1,2,3,4,5,6}> {
            y = If (c) <
                then_branch = a () => (float[3,2] u) { u = Transpose <perm = [1,0]> (x) },
                else_branch = b () => (float[3,2] v) { v = Transpose <perm = [1,0]> (w) }
            > }"""
    )
    moved = Totals(nodes=3, transposes=1, bytes=2 * 4 * 6, transposes_in_file=2, transposes_of_constants=1)
    assert totals(model, {}) == moved


def test_a_branch_on_data_does_not_give_a_constant(totals: Count) -> None:
    model = parse(
        """g (bool c, float[2,3] x) => (float[3,2] y) {
            z = If (c) <
                then_branch = a () => (float[2,3] u) { u = Exp (x) },
                else_branch = b () => (float[2,3] v) { v = Neg (x) }
            >
            y = Transpose <perm = [1,0]> (z) }"""
    )
    assert totals(model, {}).transposes == 1


FUNCTION = """<domain: "{domain}", opset_import: ["" : 20]>
    Turn (x) => (y) {{ t = Transpose <perm = [1,0]> (x)  e = Exp (t)  y = Transpose <perm = [1,0]> (e) }}"""


@pytest.mark.parametrize(("domain", "expected"), [("relayout", (2, 0)), ("mine", (6, 4))])
def test_bodies_count_once_per_call_except_relayouts_own(domain: str, expected: tuple[int, int], totals: Count) -> None:
    model = parse(
        f"g (float[2,3] x) => (float[2,3] y) {{ t = {domain}.Turn (x)  y = {domain}.Turn (t) }}"
        + FUNCTION.format(domain=domain)
    )
    counted = totals(model, {})
    assert (counted.nodes, counted.transposes) == expected
    assert len(model.functions) == 1, "the model itself stays as it is"


def test_an_initializer_that_is_an_input_is_transposed_in_each_run(totals: Count) -> None:
    text = """g (float[2,3] x{}) => (float[2,3] y) <float[3,2] w = {{1,2,3,4,5,6}}> {{
            t = Transpose <perm = [1,0]> (w)
            y = Add (x, t) }}"""
    assert totals(parse(text.format("")), {}).transposes == 0
    assert totals(parse(text.format(", float[3,2] w")), {}).transposes == 1


def test_a_symbolic_first_dim_of_an_input_counts_one_and_others_sixty_four(totals: Count) -> None:
    model = parse("g (float[N,C,5] x) => (float[C,N,5] y) { y = Transpose <perm = [1,0,2]> (x) }")
    assert totals(model, {}).bytes == 2 * 4 * 1 * 64 * 5
    assert totals(model, {"C": 7, "N": 2}).bytes == 2 * 4 * 2 * 7 * 5


WINDOWS = """
    g (float[N,H,W] x) => (float[N,A,7,B,7] y) <float[N,"H//32//7",7,"W//48//7",7] cut> {
        flat = Flatten (x)
        cut = mine.Windows (x)
        y = Transpose <perm = [0,1,2,4,3]> (cut)
    }"""


@pytest.mark.parametrize(
    ("dims", "windows"),
    [({}, 1), ({"H": 448}, 2), ({"H": 512, "W": 1024}, 2 * 3), ({"H": 64, "W": 1024}, 0)],
)
def test_sixty_four_is_raised_where_a_formula_would_be_zero(dims: dict[str, int], windows: int, totals: Count) -> None:
    """224 is the first usual size with a window of 7 rows behind strides of 32, 384 that of 7 columns behind 48."""
    model = parse(WINDOWS)
    assert totals(model, dims).bytes == 2 * 4 * 49 * windows
    if not dims:
        sizes = DimSizes(model, {})
        assert sizes(model.graph.inputs[0].shape) == 224 * 384
        assert sizes.assumed == {"N": 1, "H": 224, "W": 384}


def test_dims_that_are_expressions_are_evaluated_where_they_can_be() -> None:
    elements = DimSizes(parse("g (float[N,3] x) => (y) { y = Exp (x) }"), {"h": 5})
    assert elements(ir.Shape(["2*h", "N"])) == 10
    assert elements(ir.Shape(["a weird name!", 2])) == 128
    assert elements(ir.Shape([None, 2])) == 128
    assert elements(None) == 64


def test_a_dim_made_by_a_reshape_has_the_remaining_size() -> None:
    model = parse(
        """g (float[N,C,6] x) => (float[M,3] z) <int64[2] shape = {-1,3}> {
            y = Reshape (x, shape)
            z = Exp (y) }"""
    )
    model.graph.node(0).outputs[0].shape = ir.Shape(["M", 3])
    assert DimSizes(model, {})(ir.Shape(["M"])) == 64 * 2
    assert DimSizes(model, {"C": 4})(ir.Shape(["M"])) == 4 * 2
    assert DimSizes(model, {"M": 5})(ir.Shape(["M"])) == 5
    model.graph.inputs[0].shape = ir.Shape(["M", "C", 6])
    assert DimSizes(model, {})(ir.Shape(["M"])) == 1, "an input has it first"


def test_packed_elements_count_by_their_bits() -> None:
    assert tensor_bytes(3, ir.DataType.INT4) == 2
    assert tensor_bytes(3, ir.DataType.FLOAT16) == 6
    assert tensor_bytes(3, None) == 12


def test_a_fill_of_a_known_shape_is_a_constant(totals: Count) -> None:
    for extent, transposes in ((5, 0), ("n", 1)):
        net = Net()
        made = net.node("ConstantOfShape", net.node("Shape", net.input("x", (2, 3, 4, extent))))
        net.output(net.transpose(made, 0, 2, 3, 1))
        assert totals(read_model(net.model()), {}).transposes == transposes


def test_an_unknown_padded_extent_counts_as_that_of_the_operand(totals: Count) -> None:
    net = Net(18)
    padded = net.node("Pad", net.input("x", (1, 8, 20, 30)), net.input("pads", (8,), onnx.TensorProto.INT64))
    net.output(net.transpose(padded, 0, 2, 3, 1))
    assert totals(read_model(net.model()), {}).bytes == 2 * 4 * 8 * 20 * 30


def test_a_pool_halves_an_unknown_extent(totals: Count) -> None:
    net = Net(18)
    pooled = net.node("MaxPool", net.input("x", ("n", 8, "h", 20)), kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.transpose(pooled, 0, 2, 3, 1))
    assert totals(read_model(net.model()), {"h": 30}).bytes == 2 * 4 * 8 * 15 * 10


def test_with_unknown_extents_a_conversion_keeps_its_place() -> None:
    for is_before in (False, True):
        net = Net(18)
        value = net.input("x", (1, 8, 300, 300))
        value = net.transpose(value, 0, 2, 3, 1) if is_before else value
        value = net.node("Pad", value, net.input("pads", (8,), onnx.TensorProto.INT64))
        net.output(value if is_before else net.transpose(value, 0, 2, 3, 1))
        legal, _ = legalize(net.model())
        assert [node.op_type for node in legal.graph.node] == (
            ["Transpose", "Pad"] if is_before else ["Pad", "Transpose"]
        )
