"""Annotations of values with split or padded axes are checked against the values and the bodies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from relayout.backend import load_backend
from relayout.layout.relaid_constant import Step, relaid
from relayout.legalization import legalize
from relayout.model.io import read_model
from relayout.report.causes import causes
from relayout.report.schema import Verification
from relayout.verification.verifier import verify

HEADER = '<ir_version: 10, opset_import: ["" : 20, "relayout" : 1]>'


def rules(verification: Verification) -> set[str]:
    return {finding.rule for finding in verification.findings if finding.severity == "error"}


# --- what an annotation says ------------------------------------------------------------------------------------------


# --- annotations of a model -------------------------------------------------------------------------------------------

# A channel shuffle between two convolutions; in the legal model it is in the weights.
SHUFFLE = """net (float[1,3,5,4] x, float[6,3,1,1] w, float[4,6,1,1] v) => (float[1,4,5,4] y) {
    cut = Constant <value = int64[5] {1, 2, 3, 5, 4}> ()
    whole = Constant <value = int64[4] {1, 6, 5, 4}> ()
    a = Conv (x, w)
    b = Reshape (a, cut)
    c = Transpose <perm = [0,2,1,3,4]> (b)
    e = Reshape (c, whole)
    f = Sigmoid (e)
    y = Conv (f, v) }"""

FOLDED = """net (float[1,3,5,4] x, float[6,3,1,1] w, float[4,6,1,1] v) => (float[1,4,5,4] y) {
    a = Conv (x, w)
    f = Sigmoid (a)
    y = Conv (f, v) }"""

W = np.random.default_rng(0).normal(size=(6, 3, 1, 1)).astype(np.float32)
V = np.random.default_rng(1).normal(size=(4, 6, 1, 1)).astype(np.float32)


def model_of(text: str, **weights: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(f"{HEADER} {text}")
    for name, data in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
        proto.graph.input.remove(next(entry for entry in proto.graph.input if entry.name == name))
    for node in proto.graph.node:
        node.name = node.name or f"of_{node.output[0]}"
    return read_model(proto)


def value_of(model: ir.Model, name: str) -> ir.Value:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return next(value for value in values if value.name == name)


def unshuffling(outputs: int, inputs: int, parts: int) -> list[Step]:
    """The steps from a 1x1 kernel that reads shuffled channels to one for channels that are not."""
    whole, cut = [outputs, inputs, 1, 1], [outputs, inputs // parts, parts, 1, 1]
    turned = [outputs, parts, inputs // parts, 1, 1]
    return [
        {"op": "reshape", "shape": cut, "from": whole},
        {"op": "transpose", "perm": [0, 2, 1, 3, 4]},
        {"op": "reshape", "shape": whole, "from": turned},
    ]


def unshuffled(weight: np.ndarray, parts: int) -> np.ndarray:
    return relaid(ir.tensor(weight), unshuffling(*weight.shape[:2], parts)).numpy()


def folded(atoms: str = "0,1:1:2+1:2:0,2,3", v: np.ndarray | None = None) -> ir.Model:
    """The legal model: f lies as the channels were before the shuffle, and says so."""
    model = model_of(FOLDED, w=W, v=unshuffled(V, 2) if v is None else v)
    model.graph.initializers["v"].metadata_props["relayout.transform"] = json.dumps(unshuffling(4, 6, 2))
    if atoms:
        value_of(model, "f").metadata_props["relayout.atoms"] = atoms
    return model


def test_a_value_is_compared_as_its_atoms_say() -> None:
    verification = verify(folded(), "onnx", against=model_of(SHUFFLE, w=W, v=V))
    assert verification.findings == ()
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"


@pytest.mark.parametrize(
    ("atoms", "rule"),
    [
        ("", "numeric"),
        ("0,1:1:3+1:3:0,2,3", "numeric"),
        ("0,1:3:0+1:1:3,2,3", "numeric"),
        ("0,1:1:2+1:2:0,3,2", "layout-annotation"),
        ("0,1:1:2+1:3:0,2,3", "layout-annotation"),
        ("0,1:1:4+1:4:0,2,3", "layout-annotation"),
        ("0,1:2:0,1:1:2,2,3", "layout-annotation"),
        ("0,1:1:2,2,3", "layout-annotation"),
        ("0,1;2", "layout-annotation"),
        ("0,1:1:2+1:2:0,2,3,4", "layout-annotation"),
    ],
)
def test_atoms_that_contradict_the_value_are_found(atoms: str, rule: str) -> None:
    verification = verify(folded(atoms), "onnx", against=model_of(SHUFFLE, w=W, v=V))
    assert rule in rules(verification)


def test_invalid_annotations_are_found_without_the_original() -> None:
    for atoms in ("0,1:1:2,2,3", "0,1", "words", "0,0,2,3", "0,1:1:2+1:2:0,2,3:1:5"):
        assert rules(verify(folded(atoms), "onnx")) == {"layout-annotation"}, atoms


INSIDE = """net (bool c, float[2,3,5,4] x) => (float[2,3,5,4] y) {
    y = If (c) <then_branch = yes () => (float[2,3,5,4] p) <float[2,5,4,3] a, float[2,5,4,3] b, float[3] w = {1, 2, 3}>
                    { a = Transpose <perm = [0,2,3,1]> (x)
                      b = Add (a, w)
                      p = Transpose <perm = [0,3,1,2]> (b) },
                else_branch = no () => (float[2,3,5,4] q) { q = Relu (x) }> }"""

SOURCE = """net (bool c, float[2,3,5,4] x) => (float[2,3,5,4] y) {
    y = If (c) <then_branch = yes () => (float[2,3,5,4] p) <float[2,3,5,4] b, float[3,1,1] w = {1, 2, 3}>
                    { b = Add (x, w)
                      p = Identity (b) },
                else_branch = no () => (float[2,3,5,4] q) { q = Relu (x) }> }"""


def branch_of(model: ir.Model) -> ir.Graph:
    (node,) = model.graph
    return node.attributes["then_branch"].as_graph()


@pytest.mark.parametrize(("order", "is_legal"), [("0,2,3,1", True), ("0,3,2,1", False)])
def test_the_order_of_a_value_in_a_branch_leads_from_the_shape_of_its_source(order: str, is_legal: bool) -> None:
    model = model_of(INSIDE)
    value = next(value for node in branch_of(model) for value in node.outputs if value.name == "b")
    value.metadata_props["relayout.order"] = order
    found = verify(model, "onnx", against=model_of(SOURCE)).findings
    assert [each.rule for each in found if "source's shape" in each.message] == ["layout-annotation"] * (not is_legal)


def test_an_annotation_of_a_weight_in_a_branch_is_checked() -> None:
    model = model_of(INSIDE)
    branch_of(model).initializers["w"].metadata_props["relayout.order"] = "0,0"
    assert rules(verify(model, "onnx")) == {"layout-annotation"}


def test_values_that_break_a_rule_alike_are_one_cause_whatever_their_names() -> None:
    model = folded("")
    for name in ("a", "f"):
        value_of(model, name).metadata_props["relayout.order"] = "0,0,2,3"
    (cause,) = causes(verify(model, "onnx").findings)
    before = cause.fingerprint("m")
    assert len(cause.places) == 2
    value_of(model, "a").name = "renamed"
    (cause,) = causes(verify(model, "onnx").findings)
    assert cause.fingerprint("m") == before


def test_a_value_has_one_annotation_of_its_format() -> None:
    model = folded()
    value_of(model, "f").metadata_props["relayout.order"] = "0,1,2,3"
    assert rules(verify(model, "onnx")) == {"layout-annotation"}


def test_weights_that_still_read_shuffled_channels_are_found() -> None:
    original = model_of(SHUFFLE, w=W, v=V)
    assert rules(verify(folded(v=V), "onnx", against=original)) == {"element-order", "numeric"}


# --- what is fed and what comes out -----------------------------------------------------------------------------------

PLAIN = """net (float[1,6,3] x) => (float[1,6,3] y) {
    y = Sin (x) }"""
BLOCKS = """net (float[1,2,3,4] x) => (float[1,2,3,4] y) {
    y = Sin (x) }"""


def boundary(text: str, **atoms: str) -> ir.Model:
    model = model_of(text)
    for name, told in atoms.items():
        value_of(model, name).metadata_props["relayout.atoms"] = told
    return model


PADDED_BLOCKS = "0,1:4:8,2,1:1:4"


def test_inputs_and_outputs_may_be_padded_blocks() -> None:
    verification = verify(boundary(BLOCKS, x=PADDED_BLOCKS, y=PADDED_BLOCKS), "onnx", against=model_of(PLAIN))
    assert [(each.rule, each.severity) for each in verification.findings] == [("boundary", "note")] * 2
    assert verification.numeric is not None
    (output,) = verification.numeric.outputs
    assert output.max_rel <= output.tolerance < output.sensitivity


@pytest.mark.parametrize(
    ("x", "y", "rule"),
    [
        (PADDED_BLOCKS, "0,1:2:8,2,1:1:2", "boundary"),
        (PADDED_BLOCKS, "0,1:1:2,2,1:2:8", "numeric"),
        ("0,1:1:2,2,1:2:8", PADDED_BLOCKS, "numeric"),
        ("0,1:4:8,2,1:1:4", "", "boundary"),
        ("0,1:4:0,2,1:1:4", PADDED_BLOCKS, "boundary"),
    ],
)
def test_other_blocks_than_the_atoms_say_are_found(x: str, y: str, rule: str) -> None:
    atoms = {name: text for name, text in (("x", x), ("y", y)) if text}
    assert rule in rules(verify(boundary(BLOCKS, **atoms), "onnx", against=model_of(PLAIN)))


def test_padding_that_is_not_zero_is_found() -> None:
    """The cosine of nothing is one."""
    original = PLAIN.replace("Sin", "Cos")
    model = boundary(BLOCKS.replace("Sin", "Cos"), x=PADDED_BLOCKS, y=PADDED_BLOCKS)
    assert rules(verify(model, "onnx", against=model_of(original))) == {"numeric"}


# --- bodies -----------------------------------------------------------------------------------------------------------

TILED = """net (float[2,3,5,4,4] x, float[2,3,3,3,4,4] w) => (float[2,2,5,4,4] y) {
    y = relayout.Conv <data_layout = "NCHWc[tile:4]", kernel_layout = "OIHWi[tile:4]o[tile:4]",
                       kernel_shape = [3,3], pads = [1,1,1,1]> (x, w) }
<domain: "relayout", opset_import: ["" : 20]>
Conv <kernel_shape, pads, data_layout, kernel_layout> (X, W) => (Y) {
    Xt = Transpose <perm = [0,1,4,2,3]> (X)
    Xs = Constant <value = int64[4] {0, 12, 5, 4}> ()
    Xn = Reshape (Xt, Xs)
    Wt = Transpose <perm = [0,5,1,4,2,3]> (W)
    Ws = Constant <value = int64[4] {8, 12, 3, 3}> ()
    Wn = Reshape (Wt, Ws)
    Yn = Conv <kernel_shape: ints = @kernel_shape, pads: ints = @pads> (Xn, Wn)
    Ys = Constant <value = int64[5] {0, 2, 4, 5, 4}> ()
    Yr = Reshape (Yn, Ys)
    Y = Transpose <perm = [0,1,3,4,2]> (Yr) }"""

# Ten channels in blocks of four: the kernel has ten, the data twelve.
PADDED = """net (float[2,3,5,4,4] x, float[2,10,3,3,4] w) => (float[2,2,5,4,4] y) {
    y = relayout.Conv <data_layout = "NC[pad:2]HWc[tile:4]", kernel_layout = "OIHWo[tile:4]",
                       out_layout = "NCHWc[tile:4]", kernel_shape = [3,3], pads = [1,1,1,1]> (x, w) }
<domain: "relayout", opset_import: ["" : 20]>
Conv <kernel_shape, pads, data_layout, kernel_layout, out_layout> (X, W) => (Y) {
    Xt = Transpose <perm = [0,1,4,2,3]> (X)
    Xs = Constant <value = int64[4] {0, 12, 5, 4}> ()
    Xr = Reshape (Xt, Xs)
    zero = Constant <value = int64[1] {0}> ()
    ten = Constant <value = int64[1] {10}> ()
    one = Constant <value = int64[1] {1}> ()
    Xn = Slice (Xr, zero, ten, one)
    Wt = Transpose <perm = [0,4,1,2,3]> (W)
    Ws = Constant <value = int64[4] {8, 10, 3, 3}> ()
    Wn = Reshape (Wt, Ws)
    Yn = Conv <kernel_shape: ints = @kernel_shape, pads: ints = @pads> (Xn, Wn)
    Ys = Constant <value = int64[5] {0, 2, 4, 5, 4}> ()
    Yr = Reshape (Yn, Ys)
    Y = Transpose <perm = [0,1,3,4,2]> (Yr) }"""

FILLED = """net (float[1,6,5,4] x, float[10,6,1,1] w) => (float[1,3,5,4,4] y) {
    y = relayout.Conv <data_layout = "NCHW", out_layout = "NC[pad:2]HWc[tile:4]", kernel_shape = [1,1]> (x, w) }
<domain: "relayout", opset_import: ["" : 20]>
Conv <kernel_shape, data_layout, out_layout> (X, W) => (Y) {
    Yn = Conv <kernel_shape: ints = @kernel_shape> (X, W)
    fill = Constant <value = int64[8] {0, 0, 0, 0, 0, 2, 0, 0}> ()
    Yp = Pad (Yn, fill)
    Ys = Constant <value = int64[5] {0, 3, 4, 5, 4}> ()
    Yr = Reshape (Yp, Ys)
    Y = Transpose <perm = [0,1,3,4,2]> (Yr) }"""

# TVM's spelling of NCHWc[tile:4]; the kernel has no blocks.
PACKED = """net (float[1,2,5,4,4] x, float[6,8,1,1] w) => (float[1,6,5,4] y) {
    y = relayout.Conv <data_layout = "NCHW4c", kernel_layout = "OIHW", out_layout = "NCHW", kernel_shape = [1,1]> (x, w)
}
<domain: "relayout", opset_import: ["" : 20]>
Conv <kernel_shape, data_layout, kernel_layout, out_layout> (X, W) => (Y) {
    Xt = Transpose <perm = [0,1,4,2,3]> (X)
    Xs = Constant <value = int64[4] {0, 8, 5, 4}> ()
    Xr = Reshape (Xt, Xs)
    Y = Conv <kernel_shape: ints = @kernel_shape> (Xr, W) }"""


def test_blocks_of_data_have_the_channels_of_a_kernel_without_them() -> None:
    assert verify(model_of(PACKED), "onnx").findings == ()
    findings = verify(model_of(PACKED.replace("[6,8,1,1]", "[6,4,1,1]")), "onnx").findings
    assert [each.found for each in findings if "number of channels" in each.message] == ["8"]


@pytest.mark.parametrize("text", [TILED, PADDED, FILLED])
def test_a_body_may_tile_and_pad(text: str) -> None:
    assert verify(model_of(text), "onnx").findings == ()


def body_of(model: ir.Model) -> ir.Function:
    (function,) = model.functions.values()
    return function


def set_constant(function: ir.Function, name: str, numbers: Sequence[int]) -> None:
    (node,) = [node for node in function if node.outputs[0].name == name]
    node.attributes.add(ir.AttrTensor("value", ir.tensor(np.array(numbers, np.int64))))


@pytest.mark.parametrize(
    ("text", "name", "numbers"),
    [
        (PADDED, "ten", [9]),
        (PADDED, "zero", [1]),
        (PADDED, "one", [2]),
        (PADDED, "Xs", [0, 12, 4, 5]),
        (PADDED, "Ws", [8, 10, 9, 1]),
        (PADDED, "Ys", [0, 4, 2, 5, 4]),
        (FILLED, "fill", [0, 2, 0, 0, 0, 0, 0, 0]),
        (FILLED, "fill", [0, 0, 0, 0, 0, 1, 0, 0]),
        (FILLED, "Ys", [0, 4, 3, 5, 4]),
    ],
)
def test_a_body_that_tiles_or_pads_differently_is_found(text: str, name: str, numbers: Sequence[int]) -> None:
    model = model_of(text)
    set_constant(body_of(model), name, numbers)
    assert "function-body" in rules(verify(model, "onnx"))


@pytest.mark.parametrize("text", [TILED, PADDED, FILLED])
def test_a_body_with_another_transpose_is_found(text: str) -> None:
    places = [n for n, node in enumerate(body_of(model_of(text))) if node.op_type == "Transpose"]
    for place in places:
        model = model_of(text)
        node = list(body_of(model))[place]
        perm = node.attributes["perm"].as_ints()
        for i in range(len(perm) - 1):
            other = [*perm[:i], perm[i + 1], perm[i], *perm[i + 2 :]]
            node.attributes.add(ir.AttrInt64s("perm", other))
            assert "function-body" in rules(verify(model, "onnx")), (perm, other)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.add(ir.AttrString("data_layout", "NCHWc[tile:2]")),
        lambda a: a.add(ir.AttrString("data_layout", "NCWHc[tile:4]")),
        lambda a: a.add(ir.AttrString("data_layout", "NC[pad:1]HWc[tile:4]")),
        lambda a: a.add(ir.AttrString("kernel_layout", "OIHWo[tile:4]i[tile:4]")),
        lambda a: a.add(ir.AttrString("kernel_layout", "IOHWi[tile:4]o[tile:4]")),
    ],
)
def test_attributes_that_say_other_tiles_than_the_body_has_are_found(spoil: Callable[[ir.Attributes], None]) -> None:
    model = model_of(TILED)
    (node,) = model.graph
    spoil(node.attributes)
    assert "function-body" in rules(verify(model, "onnx"))


def test_a_body_that_computes_with_its_operand_is_found() -> None:
    text = PADDED.replace("Xn = Slice (Xr, zero, ten, one)", "Xq = Mul (Xr, Xr)  Xn = Slice (Xq, zero, ten, one)")
    assert "function-body" in rules(verify(model_of(text), "onnx"))


# --- operators that pass names on -------------------------------------------------------------------------------------

SIZED = """net (float[2,4,2,3] x) => (float[2,4,2,2] y) {
    rois = Constant <value = float[1,4] {0.0, 0.0, 1.0, 1.0}> ()
    which = Constant <value = int64[1] {0}> ()
    sizes = Constant <value = int64[4] {2, 4, 5, 7}> ()
    [sized] r = Resize <mode = "nearest"> (x, , , sizes)
    [roi] y = MaxPool <kernel_shape = [4,6]> (r) }"""

SIZED_LAST = """net (float[2,4,2,3] x) => (float[2,4,2,2] y) {
    sizes = Constant <value = int64[4] {2, 4, 5, 7}> ()
    [to_last] x_laid = Transpose <perm = [0,2,3,1]> (x)
    [sized] r = relayout.Resize <mode = "nearest", data_layout = "NHWC"> (x_laid, , , sizes)
    [roi] q = relayout.MaxPool <kernel_shape = [4,6], data_layout = "NHWC"> (r)
    [back] y = Transpose <perm = [0,3,1,2]> (q) }"""


def test_a_resize_in_a_layout_propagates_axis_names() -> None:
    model = model_of(SIZED_LAST)
    for name in "rq":
        value_of(model, name).metadata_props["relayout.order"] = "0,2,3,1"
    assert verify(model, "onnx", against=model_of(SIZED)).findings == ()


def test_a_resize_whose_sizes_meet_other_axes_is_found_without_running() -> None:
    model = model_of(SIZED_LAST.replace("[0,2,3,1]", "[0,3,2,1]").replace("float[2,4,2,2] y", "y"))
    assert "layout-annotation" in rules(verify(model, "onnx", against=model_of(SIZED), run=False))


def test_a_tile_of_unknown_extent_conforms_to_its_layout() -> None:
    """A row of unknown length that a Reshape makes two channels of is one tile of them, and no channel."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[N] x) => (float[1,2,1,1] y) <int64[4] shape = {1,2,1,1}, float[2,2,1,1] w = {1., 2., 3., 4.}> {
            picture = Reshape (x, shape)
            y = Conv (picture, w) }"""
    )
    wished = load_backend("convert-layout", options={"desired_layouts": {"Conv": ["NCHW2c", "OIHW2o"]}})
    packed, _ = legalize(model, wished)
    assert verify(packed, wished, against=model).findings == ()


# The distribution of box distances in YOLOv8: 64 channels are 4 sides with 16 bins, and a softmax runs over the bins.
BINS = """net (float[1,8,10] x1, float[1,8,6] x2, float[64,8,1] w, float[1,16,1,1] v) => (float[1,4,16] y) {
    cut = Constant <value = int64[4] {0, 4, 16, -1}> ()
    sides = Constant <value = int64[3] {0, 4, -1}> ()
    a = Conv (x1, w)
    b = Conv (x2, w)
    cat = Concat <axis = -1> (a, b)
    split = Reshape (cat, cut)
    turned = Transpose <perm = [0,2,1,3]> (split)
    bins = Softmax <axis = 1> (turned)
    box = Conv (bins, v)
    y = Reshape (box, sides) }"""


def test_the_outer_tile_of_an_axis_may_be_an_axis_of_its_own_in_the_source() -> None:
    generator = np.random.default_rng(0)
    weights = {"w": (64, 8, 1), "v": (1, 16, 1, 1)}
    source = model_of(BINS, **{name: generator.normal(size=s).astype(np.float32) for name, s in weights.items()})
    legal, report = legalize(source, "onnx")
    assert (report.after.transposes, verify(legal, "onnx", against=source).passed) == (0, True)
    cat = value_of(legal, "cat")
    assert cat.metadata_props["relayout.layout"] == "Nc[tile:16]CW"
    for wrong in ("NCc[tile:16]W", "Nc[tile:16]WC", "Nc[tile:16]HW"):
        cat.metadata_props["relayout.layout"] = wrong
        assert "layout-annotation" in rules(verify(legal, "onnx", against=source)), wrong


# Eight channels that a later operator reads as a batch of two and four channels.
GROUPED = """net (float[2,8,3,2] x, float[8,8,1,1] w, float[4] s, float[4] b) => (float[2,4,12] y) {
    parts = Constant <value = int64[3] {2, 4, -1}> ()
    a = Conv (x, w)
    turned = Transpose <perm = [1,0,2,3]> (a)
    first = Tanh (turned)
    second = Tanh (first)
    third = Tanh (second)
    groups = Reshape (third, parts)
    y = InstanceNormalization (groups, s, b) }"""


def test_the_outer_tile_of_an_axis_may_be_the_batch_of_a_later_operator() -> None:
    generator = np.random.default_rng(0)
    weights = {"w": (8, 8, 1, 1), "s": (4,), "b": (4,)}
    source = model_of(GROUPED, **{name: generator.normal(size=n).astype(np.float32) for name, n in weights.items()})
    legal, _ = legalize(source, "nhwc")
    assert verify(legal, "nhwc", against=source).passed
    third = value_of(legal, "third")
    assert third.metadata_props["relayout.layout"] == "CNHWc[tile:4]"
    for wrong in ("NCHWc[tile:4]", "c[tile:4]NHWC"):
        third.metadata_props["relayout.layout"] = wrong
        assert "layout-annotation" in rules(verify(legal, "nhwc", against=source)), wrong
