"""Dims of inputs that Reshapes to known extents force to one size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from equivalence import assert_close, run
from onnx import parser

from relayout import legalize, read_model, verify
from relayout.model.dims import forced_dims
from relayout.model.dims.forced_dims import fitting_sizes, forced_sizes, sizes_of_all_runs

HEADER = '<ir_version: 9, opset_import: ["":17]>'
BEHIND_A_TRANSPOSE = """
    g (float[4,n] x) => (float[1,8,4] y) <int64[3] s = {1,8,4}, int64[1] c = {1}> {
       t = Transpose <perm = [1,0]> (x)  a = Relu (t)  b = Unsqueeze (a, c)  y = Reshape (b, s) }"""
BEHIND_A_NONZERO = """
    g (float[2,m] x) => (int64[1,2,8] y) <int64[3] s = {1,8,2}> {
       a = NonZero (x)  t = Transpose <perm = [1,0]> (a)  b = Neg (t)
       c = Reshape (b, s)  y = Transpose <perm = [0,2,1]> (c) }"""
OF_AN_INPUT = """
    g (float[4,6,d,3,2] x) => (float[6,3,2] y) <int64[4] s = {4,6,2,6}, int64[3] r = {6,3,2}> {
       a = Reshape (x, s)  b = Transpose <perm = [1,2,3,0]> (a)
       e = ReduceMax <axes = [1,3], keepdims = 0> (b)  f = Abs (e)  y = Reshape (f, r) }"""


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


def shape_of(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "xla-cpu"])
@pytest.mark.parametrize("text", [BEHIND_A_TRANSPOSE, BEHIND_A_NONZERO, OF_AN_INPUT])
def test_a_legal_model_keeps_the_sizes_that_its_source_is_forced_to(text: str, backend: str) -> None:
    model = parsed(text)
    legal, report = legalize(model, backend)
    assert [*map(shape_of, legal.graph.input)] == [*map(shape_of, model.graph.input)]
    assert legal.graph.output[0].type == model.graph.output[0].type
    again, second = legalize(legal, backend)
    assert (second.cost, again.SerializeToString()) == (report.cost, legal.SerializeToString())


def test_values_inside_have_the_forced_size_and_inputs_stay_open() -> None:
    graph = read_model(parsed(BEHIND_A_TRANSPOSE)).graph
    assert str(graph.inputs[0].shape) == "[4,n]"
    assert [str(node.outputs[0].shape) for node in graph] == ["[8,4]", "[8,4]", "[8,1,4]", "[1,8,4]"]


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        ("y = Reshape (x, s)", {"n": 4}),
        ("a = Abs (x)  y = Reshape (a, s)", {"n": 4}),
        ("y = Abs (x)", {}),
        ("y = Abs (x)  z = Reshape (x, s)", {}),
        ("a = Reshape (x, s)  b = Reshape (x, r)  y = MatMul (a, b)", {}),
        ("y = Reshape <allowzero = 0> (x, k)", {}),
    ],
)
def test_a_size_is_forced_by_nodes_on_which_an_output_depends(nodes: str, sizes: dict[str, int]) -> None:
    constants = "int64[2] s = {4,6}, int64[2] r = {6,6}, int64[2] k = {0,-1}"
    model = read_model(parser.parse_model(f"{HEADER} g (float[n,6] x) => (float[p,q] y) <{constants}> {{ {nodes} }}"))
    assert sizes_of_all_runs(model) == sizes


def test_a_branch_forces_the_size_that_is_assumed_but_no_type() -> None:
    model = parser.parse_model(
        HEADER
        + """g (float[n,6] x, bool c) => (float[p,q] y) <int64[2] s = {4,6}> {
               a = Abs (x)
               y = If (c) <then_branch = t () => (float[4,6] p) { p = Reshape (a, s) },
                           else_branch = e () => (float[n,6] q) { q = Identity (a) }> }"""
    )
    read = read_model(model)
    assert sizes_of_all_runs(read) == {}
    assert forced_sizes(read) == {"n": 4}
    assert str(read.graph[0].outputs[0].shape) == "[n,6]"


@pytest.mark.parametrize(
    ("target", "known", "sizes", "apart"),
    [
        ("4,30", {}, {"h": 5, "w": 6}, {"h": 5, "w": 6}),
        ("4,36", {}, {"h": 6, "w": 6}, {"h": 4, "w": 9}),
        ("4,36", {"h": 2}, {"w": 18}, {"w": 18}),
        ("4,36", {"h": 7}, {}, {}),
        ("4,7", {}, {"h": 1, "w": 7}, {"h": 1, "w": 7}),
        ("7,5", {}, {}, {}),
        ("4,-1", {}, {}, {}),
    ],
)
def test_dims_whose_product_is_forced_have_sizes_that_fit(
    target: str, known: dict[str, int], sizes: dict[str, int], apart: dict[str, int]
) -> None:
    model = read_model(parsed(f"g (float[4,h,w] x) => (float y) <int64[2] s = {{{target}}}> {{ y = Reshape (x, s) }}"))
    assert fitting_sizes(model, known) == sizes
    assert fitting_sizes(model, known, are_apart=True) == apart


def test_a_size_that_fits_is_no_zero() -> None:
    model = read_model(
        parsed(
            """g (float[4,h,w] x) => (float y) <int64[6] p = {0,1,0,0,0,0}, int64[2] s = {4,7}> {
                 a = Pad (x, p)  y = Reshape (a, s) }"""
        )
    )
    assert str(model.graph[0].outputs[0].shape) == "[4,h + 1,w]"
    assert fitting_sizes(model, {}) == {"h": 6, "w": 1}


def test_a_product_that_no_sizes_have_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways to share a large number among five dims are very many. Its last factor is none that a size gives."""
    model = read_model(
        parsed(
            """g (float[a,b,c,d,e] x) => (float y) <int64[10] p = {0,0,0,0,1000000,0,0,0,0,0}, int64[1] s = {720720}> {
                 f = Pad (x, p)  y = Reshape (f, s) }"""
        )
    )
    solve, tried = forced_dims._solution, []
    monkeypatch.setattr(forced_dims, "_solution", lambda *given: tried.append(given) or solve(*given))
    assert fitting_sizes(model, {}) == {}
    assert 0 < len(tried) < 2000


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        ("a = MaxPool <kernel_shape = [3,3], strides = [2,2]> (x)  f = Flatten (a)  y = MatMul (f, m)", (8, 14)),
        ("f = Flatten (x)  y = Gemm <transB = 1> (f, t)", (3, 6)),
        ("f = Flatten (x)  y = Gemm (f, t)", (1, 1)),
        ("f = Flatten (x)  y = Add (t, f)", (3, 6)),
        ("a = MaxPool <kernel_shape = [3,3], strides = [2,2]> (x) f = Relu (a) y = Squeeze (f, two)", (4, None)),
        ("y = MatMul (x, m)", (None, 72)),
        ("y = MatMul (t, x)", (72, None)),
        ("y = Add (x, x)", (None, None)),
    ],
)
def test_operands_ask_for_sizes_that_fit(nodes: str, sizes: tuple[int | None, int | None]) -> None:
    constants = f"float[72,4] m = {{{','.join(['0'] * 288)}}}, float[4,72] t = {{{','.join(['0'] * 288)}}}"
    constants += ", int64[1] two = {2}"
    text = f"g (float[n,{'4,h,w' if 'f = ' in nodes else 'h,w'}] x) => (float y) <{constants}> {{ {nodes} }}"
    model = read_model(parsed(text))
    found = fitting_sizes(model, {"n": 1})
    assert (found.get("h"), found.get("w")) == sizes


@pytest.mark.parametrize("operator", ["Identity", "Softmax"])
def test_an_output_asks_for_the_extents_that_it_declares(operator: str) -> None:
    text = f"""g (float[n,4,w] x) => (float[n,4,50] y) {{
        a = MaxPool <kernel_shape = [2], strides = [2]> (x)  y = {operator} (a) }}"""
    assert fitting_sizes(read_model(parsed(text)), {"n": 1}) == {"w": 100}


def test_a_number_that_a_transpose_declares_for_a_formula_is_no_size_that_fits() -> None:
    """An exporter may declare the extents of its example there, and the legal model may lack the Transpose."""
    text = """g (float[1,4,h,w] x) => (float[1,4] y) <float[8,8,1,4] b> {
        a = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)
        b = Transpose <perm = [2,3,0,1]> (a)  y = ReduceMean <axes = [0,1], keepdims = 0> (b) }"""
    assert fitting_sizes(read_model(parsed(text)), {}) == {}


@pytest.mark.parametrize("inputs", ["1,3,h,w", "n,3,h,w", "n,3,h,h"])
@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc", "xla-cpu"])
def test_patches_of_an_open_image_are_as_many_as_a_reshape_says(backend: str, inputs: str) -> None:
    """Exporters write the numbers of the example that they traced, and leave the dims of the input open."""
    generator = np.random.default_rng(0)
    weights = {"k": (16, 3, 16, 16), "m": (16, 16)}
    model = parsed(
        f"""g (float[{inputs}] x) => (float[{inputs[0]},196,16] y)
            <int64[3] s = {{0,16,196}}, float[16,3,16,16] k, float[16,16] m> {{
               a = Conv <strides = [16,16]> (x, k)  b = Relu (a)  c = Reshape (b, s)
               d = Transpose <perm = [0,2,1]> (c)  y = MatMul (d, m) }}"""
    )
    del model.graph.initializer[1:]
    for name, shape in weights.items():
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    legal, report = legalize(model, backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.numeric is not None
    assert report.verification.numeric.status == "compared"
    # The patches of one image are a matrix, which a Gemm reads in either order; channels last, the image is transposed.
    is_free = backend in ("x86-nchwc", "xla-cpu") or (backend == "onnx" and inputs[0] == "1")
    assert report.after.transposes == (0 if is_free else 1)
    assert {name: report.sizes.get(name, 224) for name in "hw"} == {"h": 224, "w": 224}
    again, second = legalize(legal, backend)
    assert (second.cost, again.SerializeToString()) == (report.cost, legal.SerializeToString())
    # As many patches in fewer rows, where the rows may differ from the columns.
    image = (2 if inputs[0] == "n" else 1, 3, *((224, 224) if inputs.endswith("h,h") else (112, 448)))
    drawn = {"x": generator.standard_normal(image).astype(np.float32)}
    assert_close(run(model, drawn), run(legal, drawn))


def test_a_formula_that_a_branch_forces_has_the_size_of_its_symbols() -> None:
    model = parser.parse_model(
        HEADER
        + """g (float[5,2,1,h] x, bool c) => (float[5,2,2,1] y) {
               a = MaxPool <kernel_shape = [1,3]> (x)
               y = If (c) <then_branch = t () => (float[5,2,2,1] p) { p = Transpose <perm = [0,3,1,2]> (a) },
                           else_branch = e () => (float[5,2,2,1] q) {
                             b = Transpose <perm = [0,3,1,2]> (a)  q = Tanh (b) }> }"""
    )
    legal, report = legalize(model, "nhwc")
    assert report.sizes["h"] == 4
    assert verify(legal, "nhwc", report=report, static=True).passed


def test_an_extent_that_is_computed_from_inputs_without_open_dims_is_forced_too() -> None:
    model = parsed(
        """g (float[1,1,4,3] x, bool[4] chosen) => (float[1,3,2,1] y, float[1,2,3] z) <int64[3] s = {1,2,3}> {
             a = Compress <axis = 2> (x, chosen)  y = Transpose <perm = [0,3,2,1]> (a)  z = Reshape (a, s) }"""
    )
    assert read_model(model).graph[0].outputs[0].shape == [1, 1, 2, 3]
    legal, report = legalize(model, "onnx")
    assert report.after.bytes == 2 * 4 * 6
    assert verify(legal, "onnx", against=model, report=report, run=False).passed


def test_the_results_of_a_loop_have_the_extent_that_a_squeeze_forces() -> None:
    """No input has an open dim, and the extent of results that a Loop stacks is no number before it ran."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 10]>
        net (float[3] x) => (float[3] y, float[3,unk__0] z) <int64 rounds = {1}> {
            last, all = Loop (rounds, "", x) <body = body (int64 round, bool going, float[3] state)
                => (bool on, float[3] next, float[3] piece) {
                on = Identity (going)  next = Neg (state)  piece = Tanh (next) }>
            y = Squeeze <axes = [0]> (all)
            t = Transpose <perm = [1,0]> (all)
            r = Relu (t)
            u = Transpose <perm = [1,0]> (all)
            s = Sigmoid (u)
            z = Add (r, s) }"""
    )
    shapes = {value.name: value.shape for node in read_model(model).graph.all_nodes() for value in node.outputs}
    assert shapes["r"] == [3, 1]
    for backend in ("onnx", "canonical"):
        legal, report = legalize(model, backend)
        assert report.cost == 0
        assert verify(legal, backend, against=model).passed
