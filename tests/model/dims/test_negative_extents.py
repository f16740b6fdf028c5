"""Sizes that a window does not fit end in no extent and never in the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from relayout import read_model
from relayout.model.io import reader_at_sizes
from relayout.model.shape_inference import infer_shapes


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def inferred(source: onnx.ModelProto) -> dict[str, list[int | str]]:
    """The dims of the values in a process of its own, which inference may end."""
    program = (
        "import sys, onnx; from relayout.model.shape_inference import infer_shapes\n"
        "graph = infer_shapes(onnx.load_from_string(sys.stdin.buffer.read())).graph\n"
        "for each in (*graph.value_info, *graph.output):\n"
        "    print(each.name, *(dim.dim_value or '?' for dim in each.type.tensor_type.shape.dim))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=source.SerializeToString(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-500:]
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    return {name: [int(dim) if dim.isdigit() else dim for dim in dims] for name, *dims in lines}


SMALL = [
    "z = Conv <strides = [2], kernel_shape = [8]> (x, w)",
    "z = Conv <strides = [2]> (x, w)",
    "z = MaxPool <kernel_shape = [8]> (x)",
    "z = Pad (x, cut)",
    "z = ConvTranspose <kernel_shape = [1], pads = [4, 4]> (x, one)",
]


@pytest.mark.parametrize(
    ("node", "between"),
    [
        *((node, "t = Relu (z)") for node in SMALL),
        (SMALL[0], "p = Concat <axis = 1> (z, z) t, u = Split <axis = 1> (p)"),
    ],
)
def test_a_slice_of_a_tensor_too_small_for_a_window_has_no_extent(node: str, between: str) -> None:
    dims = inferred(
        model(
            f"""g (float[1, 1, 2] x) => (float[a, b, c] y)
                <float[1, 1, 8] w = {{1, 1, 1, 1, 1, 1, 1, 1}}, float[1, 1, 1] one = {{1}},
                 int64[6] cut = {{0, 0, -4, 0, 0, 0}},
                 int64[1] start = {{0}}, int64[1] end = {{4}}, int64[1] axis = {{2}}>
            {{ {node} {between} y = Slice (t, start, end, axis) }}"""
        )
    )
    assert dims["y"][-1] == "?"


def test_slices_behind_each_other_have_their_extents() -> None:
    """Each is looked into once the extents before it are known."""
    source = model(
        """g (float[1, 1, 40] x, float[1, 1, 8] w) => (float[a, b, c] y)
        <int64[1] start = {0}, int64[1] end = {20}, int64[1] last = {-2}, int64[1] axis = {2}>
        { z = Conv <strides = [1], kernel_shape = [8]> (x, w)
          s = Slice (z, start, end, axis)
          t = Conv <strides = [1], kernel_shape = [8]> (s, w)
          y = Slice (t, start, last, axis) }"""
    )
    found = {each.name: each.type.tensor_type.shape.dim for each in infer_shapes(source).graph.value_info}
    assert [found[name][2].dim_value for name in ("z", "s", "t")] == [33, 20, 13]
    assert source.graph.output[0].type.tensor_type.shape.dim[2].dim_param == "c"
    (output,) = infer_shapes(source).graph.output
    assert output.type.tensor_type.shape.dim[2].dim_value == 11


def test_a_sound_of_one_sample_has_no_extents_behind_a_window() -> None:
    """The verifier tries such a size for a model that cuts a sound to the length of another, as Demucs does."""
    source = model(
        """g (float[b, 1, t] x, float[8, 1, 8] w, float[8, 8, 8] v) => (float[b, 8, n] y)
        <int64[1] start = {0}, int64[1] axis = {2}>
        { a = Conv <kernel_shape = [8], strides = [2]> (x, w)
          c = Conv <kernel_shape = [8], strides = [2]> (a, v)
          d = ConvTranspose <kernel_shape = [8], strides = [2]> (c, v)
          whole = Shape (d)
          end = Gather (whole, axis)
          cut = Slice (a, start, end, axis)
          y = Add (d, cut) }"""
    )
    read = reader_at_sizes(read_model(source))
    weights = {"w": [8, 1, 8], "v": [8, 8, 8]}
    (long,) = read({"x": [1, 1, 64], **weights}).graph.outputs
    assert list(long.shape or ()) == [1, 8, 28]
    (short,) = read({"x": [1, 1, 1], **weights}).graph.outputs
    assert not isinstance((short.shape or [None])[-1], int)


TOO_SMALL = """g (float[1,1,3] x) => (float[1,1,q] y)
    <float[1,1,8] w = {1,2,3,4,5,6,7,8}, int64[1] start = {1}, int64[1] end = {-1}, int64[1] axis = {2}> {
    a = Conv (x, w)  b = Slice (a, start, end, axis)  y = Relu (b) }"""


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--check",), 1)])
def test_a_model_that_no_size_runs_ends_no_process(options: tuple[str, ...], status: int, tmp_path: Path) -> None:
    """Neither the verifier's inference nor onnxruntime, which infers with the same code, ends it."""
    onnx.save(model(TOO_SMALL), tmp_path / "small.onnx")
    command = ["legalize", tmp_path / "small.onnx", "-o", tmp_path / "legal.onnx", "--backend", "onnx", *options]
    done = subprocess.run([sys.executable, "-m", "relayout", *command], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert ("a window is larger than the operand" in done.stderr) == bool(options)


def test_the_library_infers_with_onnx_in_one_place() -> None:
    """onnx.version_converter knows opsets below 7, whose Slices have their starts as attributes."""
    library = Path(__file__).parents[3] / "solver" / "relayout"
    files = [path for path in library.rglob("*.py") if "shape_inference.infer_shapes(" in path.read_text()]
    names = {str(path.relative_to(library)) for path in files}
    assert names == {"model/dims/negative_extents.py", "model/opset_conversion.py", "testing/graphs.py"}


@pytest.mark.parametrize(
    "place",
    [
        "{ a, b = SPLIT }",
        "{ a, b = If (c) <then_branch = t () => (d, e) { d, e = SPLIT }, "
        "else_branch = f () => (g, h) { g, h = Split <num_outputs = 2> (x) }> }",
    ],
)
@pytest.mark.parametrize("stated", [0, 1, 3])
def test_a_split_that_states_another_number_of_results_is_an_error(stated: int, place: str) -> None:
    nodes = place.replace("SPLIT", f"Split <num_outputs = {stated}> (x)")
    source = model(f"g (float[4,4] x, bool c) => (float[m,4] a, float[n,4] b) {nodes}", opset=18)
    program = (
        "import sys, onnx, relayout\n"
        "found = relayout.verify(onnx.load_from_string(sys.stdin.buffer.read()), 'onnx')\n"
        "print(found.passed)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=source.SerializeToString(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, b"False"), done.stderr.decode()[-500:]
