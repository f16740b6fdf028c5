"""A legal model has the inputs and outputs that its report lists."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from relayout import legalize, verify
from relayout.backend import Backend

TEXT = """<ir_version: 8, opset_import: ["": 17]>
net (float[1,3,8,8] x, float[1,3,4,4] small) => (float[1,3,8,8] y, float[1,3,4,4] z) {
    y = Relu(x)
    z = Relu(small)
}"""


def swap(graph: ir.Graph) -> None:
    graph.outputs.reverse()


def drop(graph: ir.Graph) -> None:
    del graph.outputs[1]


def shrink(graph: ir.Graph) -> None:
    graph.inputs[0].shape = ir.Shape([1, 3, 8, 9])


@pytest.mark.parametrize(
    ("change", "expected", "found"),
    [(swap, "y, z", "z, y"), (drop, "y, z", "y"), (shrink, "[1, 3, 8, 8]", "[1, 3, 8, 9]")],
)
def test_a_post_pass_that_changes_the_boundary_is_found(
    change: Callable[[ir.Graph], None], expected: str, found: str
) -> None:
    class Changing(Backend):
        name = "changing"

        def finish(self, model: ir.Model, device: str = "") -> bool:
            change(model.graph)
            return True

    source = onnx.parser.parse_model(TEXT)
    legal, report = legalize(source, Changing())
    assert report.verification is not None
    for verification in (report.verification, verify(legal, Changing(), report=report)):
        own = [finding for finding in verification.findings if finding.rule == "boundary"]
        assert [(each.severity, each.expected, each.found) for each in own] == [("error", expected, found)]


def test_a_permuted_input_has_the_shape_that_the_report_says() -> None:
    legal, report = legalize(onnx.parser.parse_model(TEXT), "nhwc", input_layouts={"x": "NHWC"})
    assert [each.shape for each in report.boundary if each.name == "x"] == [(1, 8, 8, 3)]
    assert verify(legal, "nhwc", report=report).passed


OPEN = """<ir_version: 9, opset_import: ["": 18]>
net (float[N,4,H,6] x, float[?,4] q, float[1,4,8,8] u, float[4,4,3,3] w, int64[3] to)
    => (float[N,4,H,6] y, float[?,4] s, float[1,4,8,8] v, float[1,8,M] z) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    y = Relu (a)
    s = Relu (q)
    b = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (u, w)
    v = Relu (b)
    z = Reshape (v, to) }"""


@pytest.mark.parametrize(
    ("side", "index", "axis", "extent"),
    [
        ("output", 2, 1, "d5"),
        ("output", 2, 1, None),
        ("output", 0, 0, 2),
        ("output", 0, 0, "d5"),
        ("output", 0, 0, "H"),
        ("output", 0, 3, "H"),
        ("output", 1, 0, 3),
        ("output", 1, 0, "N"),
        ("output", 3, 1, "M"),
        ("input", 0, 1, "d5"),
        ("input", 0, 0, "d5"),
        ("input", 0, 0, None),
        ("input", 1, 0, 3),
        ("input", 1, 0, "N"),
        ("input", 4, 0, "n"),
    ],
)
def test_a_declared_extent_stays_though_inference_knows_it(
    side: str, index: int, axis: int, extent: int | str | None
) -> None:
    """Reading puts back what inference derives; a caller sees what the file declares."""
    source = onnx.parser.parse_model(OPEN)
    legal, report = legalize(source, "nhwc")
    sound = verify(legal, "nhwc", against=source, run=False, report=report)
    # The shape of z is an input.
    assert [(each.rule, each.severity) for each in sound.findings] == [("not-sized", "note")]
    dim = getattr(legal.graph, side)[index].type.tensor_type.shape.dim[axis]
    dim.Clear()
    if extent is not None:
        setattr(dim, "dim_value" if isinstance(extent, int) else "dim_param", extent)
    for verification in (
        verify(legal, "nhwc", against=source, run=False),
        verify(legal, "nhwc", report=report),
    ):
        assert {each.rule for each in verification.findings if each.severity == "error"} & {"boundary", "shape"}


def test_an_output_whose_shape_is_gone_is_found() -> None:
    source = onnx.parser.parse_model(OPEN)
    legal, report = legalize(source, "nhwc")
    legal.graph.output[2].type.tensor_type.ClearField("shape")
    assert not verify(legal, "nhwc", against=source, run=False).passed
    assert not verify(legal, "nhwc", report=report).passed


def test_a_shape_that_the_source_leaves_out_may_be_declared() -> None:
    source = onnx.parser.parse_model(OPEN)
    for each in source.graph.output:
        each.type.tensor_type.ClearField("shape")
    legal, report = legalize(source, "nhwc")
    assert [len(each.type.tensor_type.shape.dim) for each in legal.graph.output] == [4, 2, 4, 3]
    assert verify(legal, "nhwc", against=source, run=False, report=report).passed


@pytest.mark.parametrize("kind", ["seq", "optional"])
def test_the_elements_of_a_sequence_keep_their_extents(kind: str) -> None:
    source = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        net ({kind}(float[3,N]) x, float[4] q) => ({kind}(float[3,N]) y, float[4] z) {{
            y = Identity (x)
            z = Relu (q) }}"""
    )
    legal, report = legalize(source, "onnx")
    assert verify(legal, "onnx", against=source, run=False, report=report).findings == ()
    field = "sequence_type" if kind == "seq" else "optional_type"
    for side in ("input", "output"):
        wrong = onnx.ModelProto.FromString(legal.SerializeToString())
        element = getattr(getattr(wrong.graph, side)[0].type, field).elem_type
        element.tensor_type.shape.dim[0].dim_param = "rows"
        assert not verify(wrong, "onnx", against=source, run=False).passed


FORCED = """<ir_version: 9, opset_import: ["": 13]>
net (float[a,h,4] x) => (float[1,2,1] y, float[1,open,1] z) {
    r = ReduceL2 <axes = [2,0]> (x)
    t = Transpose <perm = [0,2,1]> (r)
    p = AveragePool <kernel_shape = [2], strides = [1]> (t)
    z = Transpose <perm = [0,2,1]> (p)
    to = Constant <value = int64[5] {1,1,2,1,1}> ()
    v = Reshape (z, to)
    w = Transpose <perm = [0,2,3,4,1]> (v)
    axes = Constant <value = int64[2] {2,-1}> ()
    y = Squeeze (w, axes) }"""


@pytest.mark.parametrize("name", ["open", "unk__0"])
def test_a_number_that_the_rest_of_the_model_forces_may_be_declared(name: str) -> None:
    source = onnx.parser.parse_model(FORCED.replace("open", name))
    legal, report = legalize(source, "onnx")
    assert [dim.dim_value for dim in legal.graph.output[1].type.tensor_type.shape.dim] == [1, 2, 1]
    assert verify(legal, "onnx", against=source, run=False, report=report).passed
    for output in legal.graph.output:
        output.type.tensor_type.shape.dim[1].dim_value = 3
    assert not verify(legal, "onnx", against=source, run=False).passed
    del legal.graph.output[0], source.graph.output[0]
    assert not verify(legal, "onnx", against=source, run=False).passed


# The dims of the second output have names that no operator knows, or one that another output's dim has under another.
NAMED_OTHERWISE = {
    "another name inside": """g (float[batch,4,h,w] x) => (float[n,4,?,w] y, float[batch,4] z) {
        y = MaxPool <kernel_shape = [1, 1]> (x)  p = GlobalAveragePool (y)  z = Flatten (p) }""",
    "names of computed sizes": """g (float[1,4,h,w] x, int64[4] s) => (float[1,a,b,4] y, float[1,4,c,d] z) {
        e = Resize <mode = "nearest"> (x,,,s)  y = Transpose <perm = [0,2,3,1]> (e)  z = Relu (e) }""",
    "a name behind a product": """g (float[6,4,2,9] x, int64[1] e) => (float[5,4,2,k] y)
        <int64[1] zeros = {0}, int64[1] axes = {3}, float[6,5] m = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,
        21,22,23,24,25,26,27,28,29,30}> {
        s = Slice (x, zeros, e, axes)  t = Transpose <perm = [2,1,3,0]> (s)  v = MatMul (t, m)
        y = Transpose <perm = [3,1,0,2]> (v) }""",
}


@pytest.mark.parametrize("backend", ["nhwc", "onnx"])
@pytest.mark.parametrize("case", NAMED_OTHERWISE)
def test_a_legal_model_keeps_the_numbers_and_shared_names_of_its_outputs(case: str, backend: str) -> None:
    source = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {NAMED_OTHERWISE[case]}')
    legal, report = legalize(source, backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    declared = [
        [dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in legal.graph.output
    ]
    numbers = [[extent for extent in shape if isinstance(extent, int)] for shape in declared]
    if case == "another name inside":
        assert declared[1] == ["batch", 4]
        legal.graph.output[1].type.tensor_type.shape.dim[0].dim_param = "n"
        assert not verify(legal, backend, against=source, run=False).passed
    else:
        assert numbers[0] == ([1, 4] if case == "names of computed sizes" else [5, 4, 2])


@pytest.mark.parametrize("view", ["Dropout", "Identity"])
def test_the_report_names_the_extents_of_an_output_as_the_legal_model_does(view: str) -> None:
    """The view is elided, and the output is then its operand, with the operand's dims."""
    source = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["":14]>
        g (float[a,b,4] x) => (float[unk__6,unk__7,4] s, float[unk__4,unk__5,4] d) {{
          t = Transpose <perm = [1,0,2]> (x)  n = Neg (t)  u = Transpose <perm = [1,0,2]> (x)
          r = Relu (u)  s = Sum (n, r)  d = {view} (r) }}"""
    )
    legal, report = legalize(source, "onnx")
    assert report.after.transposes == 1
    assert verify(legal, "onnx", report=report, static=True).passed


@pytest.mark.parametrize(
    ("maker", "kind"), [("SequenceConstruct", "seq(float[4,8])"), ("Optional", "optional(float[4,8])")]
)
def test_a_sequence_or_an_optional_is_no_tensor(maker: str, kind: str) -> None:
    """With one element each has the same numbers."""
    header = '<ir_version: 8, opset_import: ["": 17]> net (float[4,8] x)'
    tensor = onnx.parser.parse_model(f"{header} => (float[4,8] y) {{ y = Relu (x) }}")
    other = onnx.parser.parse_model(f"{header} => ({kind} y) {{ r = Relu (x)  y = {maker} (r) }}")
    for model, original in ((tensor, other), (other, tensor)):
        found = verify(model, "onnx", against=original).findings
        assert "output y has another type" in {each.message for each in found if each.rule == "boundary"}
    assert verify(other, "onnx", against=other).passed


def test_inputs_and_outputs_in_another_layout_are_named() -> None:
    """The numbers are the original's, but a caller who does not know feeds others."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[1,4,8,6] x) => (float[1,{}] y) {{ r = Relu (x)  y = {} (r) }}"""
    original = onnx.parser.parse_model(text.format("4,8,6", "Identity"))
    model = onnx.parser.parse_model(text.format("8,6,4", "Transpose <perm = [0,2,3,1]>"))
    model.graph.output[0].metadata_props.add(key="relayout.order", value="0,2,3,1")
    (found,) = verify(model, "onnx", against=original).findings
    assert (found.rule, found.severity, found.node) == ("boundary", "note", "y")
    assert (found.expected, found.found) == ("as in the source", "axes 0,2,3,1")
    assert verify(model, "onnx", against=model).findings == ()


def test_an_input_in_a_black_box_of_the_backend_is_named() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[1,4,8,6] x) => (float[1,4,8,6] y) { y = Relu (x) }"""
    original, model = onnx.parser.parse_model(text), onnx.parser.parse_model(text)
    model.graph.input[0].metadata_props.add(key="relayout.boundary_layout", value="NC[acme:swizzled]HW")
    found = [each for each in verify(model, "onnx", against=original).findings if each.rule == "boundary"]
    assert [(each.severity, each.node, each.found) for each in found] == [("note", "x", "NC[acme:swizzled]HW")]


@pytest.mark.parametrize("backend", ["nhwc", "onnx"])
@pytest.mark.parametrize("name", ["boxes", "Mulonnx::Slice_164_dim_0", "Mul/boxes_dim_0", "two words", "boxes + 1"])
def test_an_output_keeps_its_name_of_a_dim_whatever_text_is_the_name_inside(name: str, backend: str) -> None:
    """PyTorch names the dim of an output by the operator and the value, and so one extent by two texts."""
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 16]>
        g (float[1,8,16,16] x, float[q,4] given, bool[q] kept) => (float[r,4] rois, float[Gemm188_dim_0,3,3,8] y)
        <int64[1] zero = {0}> {
            p = NonZero (kept)  i = Squeeze (p, zero)  rois = Gather (given, i)
            s = Shape <end = 1> (rois)  images = ConstantOfShape <value = int64[1] {0}> (s)
            c = RoiAlign <output_height = 3, output_width = 3> (x, rois, images)
            y = Transpose <perm = [0,2,3,1]> (c) }""")
    source.graph.output[0].type.tensor_type.shape.dim[0].dim_param = name
    legal, report = legalize(source, backend)
    assert report.verification is not None
    assert report.verification.passed
    assert legal.graph.output[1].type.tensor_type.shape.dim[0].dim_param == "Gemm188_dim_0"
    assert verify(legal, backend, against=source, run=False).passed
