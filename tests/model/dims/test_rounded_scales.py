"""A resize by rounded scales has the extents that onnxruntime computes, not those of exact products."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import run

from relayout import legalize, verify
from relayout.model.io import read_model

# From the first size to the second: float32 rounds the scale down, and the exact product lacks one.
SHORT = [(65, 129), (33, 100), (31, 43)]
BLOCKED = {"desired_layouts": {"Conv": ["NCHW4c", "OIHW4i4o"], "Resize": ["NCHW4c"]}}


def scale_of(before: int, after: int) -> float:
    return float(np.float32(after / before))


def exact(before: int, after: int) -> int:
    return floor(Fraction(scale_of(before, after)) * before)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')


def shapes_of(model: onnx.ModelProto) -> dict[str, str]:
    return {str(value.name): str(value.shape) for node in read_model(model).graph for value in node.outputs}


def test_sizes_are_those_that_onnxruntime_computes() -> None:
    """No shape is declared inside, and one resize follows another."""
    drawn = [*np.random.default_rng(0).integers(3, 300, (40, 3)).tolist(), [65, 129, 65]]
    assert any(exact(a, b) != b for a, b, _ in drawn)
    assert any(exact(a, b) == b for a, b, _ in drawn)
    inputs, outputs, nodes = [], [], []
    for i, (first, second, third) in enumerate(drawn):
        inputs.append(f"float[1,{first}] x{i}")
        outputs += [f"float[a{i},b{i}] u{i}", f"float[c{i},d{i}] y{i}"]
        for operand, result, scale in (
            (f"x{i}", f"u{i}", scale_of(first, second)),
            (f"u{i}", f"y{i}", scale_of(second, third)),
        ):
            nodes.append(f"{result}_s = Constant <value_floats = [1.0, {scale!r}]> ()")
            nodes.append(f'{result} = Resize <mode = "nearest"> ({operand}, , {result}_s)')
    model = parsed(f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {' '.join(nodes)} }}")
    feeds = {f"x{i}": np.ones((1, first), np.float32) for i, (first, _, _) in enumerate(drawn)}
    shapes = shapes_of(model)
    assert [shapes[value.name] for value in model.graph.output] == [f"[1,{len(row)}]" for (row,) in run(model, feeds)]


@pytest.mark.parametrize(
    ("backend", "options"), [("onnx", {}), ("nhwc", {}), ("convert-layout", BLOCKED)], ids=["onnx", "nhwc", "blocked"]
)
@pytest.mark.parametrize(("before", "after"), SHORT)
def test_a_reshape_behind_a_resize_has_its_size(before: int, after: int, backend: str, options: dict[str, Any]) -> None:
    """The shape is computed from that of the resize's result, and becomes a constant. An output declares the size."""
    assert exact(before, after) == after - 1
    model = parsed(f"""g (float[1,{before},{before},4] x) => (float[1,{after},{after},4] y, float[rows,4] z)
        <float[4,4,1,1] w = {{1, 2, 3, 4, -1, 1, 2, 1, 0, 0, 1, 2, 1, 0, 1, 0}}> {{
            a = Transpose <perm = [0, 3, 1, 2]> (x)
            b = Conv (a, w)
            s = Constant <value_floats = [1.0, 1.0, {scale_of(before, after)!r}, {scale_of(before, after)!r}]> ()
            c = Resize <mode = "linear"> (b, , s)
            y = Transpose <perm = [0, 2, 3, 1]> (c)
            shape = Shape <start = 1, end = 2> (y)
            rows = Mul (shape, shape)
            four = Constant <value_ints = [4]> ()
            flat = Concat <axis = 0> (rows, four)
            z = Reshape (y, flat) }}""")
    legal, report = legalize(model, backend, backend_options=options)
    assert report.after.transposes <= report.before.transposes
    assert [len(result) for result in run(legal, {"x": np.ones((1, before, before, 4), np.float32)})] == [1, after**2]
    assert verify(legal, backend, against=model, backend_options=options).passed


def test_scales_of_some_axes_in_any_order() -> None:
    model = parsed(f"""g (float[1,2,65,31] x) => (float[a,b,d,e] y) {{
        s = Constant <value_floats = [{scale_of(31, 43)!r}, {scale_of(65, 129)!r}]> ()
        y = Resize <axes = [-1, 2], mode = "linear"> (x, , s) }}""")
    assert shapes_of(model)["y"] == "[1,2,129,43]"


def test_an_open_batch_is_kept() -> None:
    model = parsed(f"""g (float[N,2,65,W] x) => (float[a,b,d,e] y) {{
        s = Constant <value_floats = [1.0, 1.0, {scale_of(65, 129)!r}, {scale_of(65, 129)!r}]> ()
        r = Relu (x)
        y = Resize <mode = "linear"> (r, , s) }}""")
    assert shapes_of(model)["y"] == "[N,2,129,e]"


def test_a_crop_has_the_size_of_its_scales() -> None:
    """onnxruntime does not shrink it to the region."""
    model = parsed(f"""g (float[1,2,2,65] x) => (float[a,b,d,e] y) {{
        roi = Constant <value_floats = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.5]> ()
        s = Constant <value_floats = [1.0, 1.0, 1.0, {scale_of(65, 129)!r}]> ()
        y = Resize <coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear"> (x, roi, s) }}""")
    (computed,) = run(model, {"x": np.ones((1, 2, 2, 65), np.float32)})
    assert shapes_of(model)["y"] == str(list(computed.shape)).replace(" ", "")
