"""Operators with a number for each axis, all of which are computed while the model runs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from relayout import legalize, verify

pytest.importorskip("onnxruntime")

HEAD = """<ir_version: 8, opset_import: ["" : VERSION]>
    net (float[n,8,h,w] x) => (float[n,8,k,l] y)
    <float[8,8,1,1] kernel = {KERNEL}, int64[1] two = {2}, int64[1] three = {3}, int64[1] first = {0},
     int64[1] one = {1}, int64[1] four = {4}, int64[1] eight = {8}, int64[6] zeros = {0, 0, 0, 0, 0, 0},
     int64[2] spatial = {2, 3}> {
        mapped = Conv (x, kernel)
        extents = Shape (x)
        batch = Gather <axis = 0> (extents, first)
        height = Gather <axis = 0> (extents, two)
        width = Gather <axis = 0> (extents, three)
        below = Mod (height, four)
        right = Mod (width, four)
        BODY
        y = Conv (middle, kernel) }"""
BODIES = {
    "pads": """pads = Concat <axis = 0> (zeros, below, right)
        middle = Pad <mode = "MODE"> (mapped, pads)""",
    "pads of named axes": """pads = Concat <axis = 0> (first, first, below, right)
        middle = Pad <mode = "MODE"> (mapped, pads, , spatial)""",
    "shape of an expansion": """shape = Concat <axis = 0> (batch, eight, height, width)
        mean = ReduceMean <axes = [2, 3]> (mapped)
        wide = Expand (mean, shape)
        middle = Add (mapped, wide)""",
    "repeats": """times = Add (below, one)
        repeats = Concat <axis = 0> (one, one, times, two)
        middle = Tile (mapped, repeats)""",
    "shape of a constant": """shape = Concat <axis = 0> (batch, eight, height, width)
        limit = ConstantOfShape <value = float[1] {0.25}> (shape)
        middle = Max (mapped, limit)""",
}
CASES = [
    *((kind, 17, "constant") for kind in BODIES if kind != "pads of named axes"),
    ("pads", 17, "edge"),
    ("pads of named axes", 18, "constant"),
]


def model(kind: str, version: int, mode: str) -> onnx.ModelProto:
    kernel = ", ".join(f"{0.1 * ((5 * place) % 13) - 0.6:.1f}" for place in range(64))
    text = HEAD.replace("BODY", BODIES[kind]).replace("KERNEL", kernel).replace("MODE", mode)
    if version >= 18:
        text = text.replace("ReduceMean <axes = [2, 3]> (mapped)", "ReduceMean (mapped, spatial)")
    return onnx.parser.parse_model(text.replace("VERSION", str(version)))


@pytest.mark.parametrize(("kind", "version", "mode"), CASES)
def test_they_are_permuted_with_the_axes(kind: str, version: int, mode: str) -> None:
    """Only the image and the result are transposed."""
    legal, report = legalize(model(kind, version, mode), "nhwc", check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.findings == ()
    assert report.after.transposes == 2
    again, second = legalize(legal, "nhwc", check=True)
    assert second.cost == report.cost
    assert again == legal


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize(("kind", "version", "mode"), CASES)
def test_another_order_of_them_is_found(kind: str, version: int, mode: str, runs: bool) -> None:
    source = model(kind, version, mode)
    legal, _ = legalize(source, "nhwc")
    (places,) = [each for each in legal.graph.initializer if each.name.endswith(("_places", "middle_3"))]
    numbers = numpy_helper.to_array(places).copy()
    # Rows and columns are swapped.
    one, other = (0, 1) if len(numbers) == 2 else (len(numbers) - 3, len(numbers) - 2)
    numbers[[one, other]] = numbers[[other, one]]
    places.CopyFrom(numpy_helper.from_array(numbers, places.name))
    assert not verify(legal, "nhwc", against=source, run=runs).passed


RESIZES = {
    "sizes": """extents = Shape (t)  kept = Slice (extents, zero, two)  given = Concat <axis = 0> (kept, wanted)
        [resize] r = Resize <mode = "MODE"> (t, , , given)""",
    "sizes of named axes": """[resize] r = Resize <mode = "MODE", axes = [3, -2]> (t, , , wanted)""",
    "scales": """extents = Shape (t)  twice = Add (extents, extents)  kept = Slice (extents, zero, two)
        last = Slice (twice, two, four)  made = Concat <axis = 0> (kept, last)  above = Cast <to = 1> (made)
        below = Cast <to = 1> (extents)  given = Div (above, below)
        [resize] r = Resize <mode = "MODE"> (t, , given)""",
}


def resized(kind: str, version: int, mode: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {version}]>
        net (float[n,h,w,3] x, int64[2] wanted) => (float[n,i,j,3] y)
        <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] four = {{4}}> {{
            t = Transpose <perm = [0, 3, 1, 2]> (x)
            {RESIZES[kind].replace("MODE", mode)}
            y = Transpose <perm = [0, 2, 3, 1]> (r)
        }}""")


@pytest.mark.parametrize(
    ("kind", "version", "mode", "transposes"),
    [
        *(("sizes", version, mode, 0) for version in (13, 19) for mode in ("nearest", "linear")),
        *(("sizes of named axes", 19, mode, 0) for mode in ("nearest", "linear")),
        # The kernels of onnxruntime for images in another order demand scales of 1, which are not known here.
        *(("scales", version, mode, 2 * (mode == "linear")) for version in (13, 19) for mode in ("nearest", "linear")),
    ],
)
def test_a_resize_takes_its_numbers_in_the_order_of_the_data(
    kind: str, version: int, mode: str, transposes: int
) -> None:
    source = resized(kind, version, mode)
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 6, 8, 3), np.float32)
    inputs = [{"x": image, "wanted": np.array(wanted)} for wanted in ([12, 20], [9, 4])]
    legal, report = legalize(source, "onnx", inputs=inputs)
    assert report.verification is not None
    assert report.verification.passed
    assert report.after.transposes == transposes
    again, second = legalize(legal, "onnx", inputs=inputs)
    assert (second.cost, again) == (report.cost, legal)


@pytest.mark.parametrize(
    ("kind", "version"), [("sizes", 13), ("sizes", 19), ("sizes of named axes", 19), ("scales", 13), ("scales", 19)]
)
def test_numbers_of_other_axes_are_found_without_a_run(kind: str, version: int) -> None:
    """Rows and columns are exchanged; the shapes are as open as before."""
    source = resized(kind, version, "nearest")
    legal, _ = legalize(source, "onnx")
    (resize,) = [node for node in legal.graph.node if node.op_type == "Resize"]
    (axes,) = [attribute.ints for attribute in resize.attribute if attribute.name == "axes"] or [None]
    if axes is not None:
        axes[-2:] = [axes[-1], axes[-2]]
    else:
        (places,) = [each for each in legal.graph.initializer if each.name.endswith("_places")]
        places.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(places)[[0, 2, 1, 3]], places.name))
    found = verify(legal, "onnx", against=source, run=False)
    assert [finding.rule for finding in found.findings if finding.severity == "error"] == ["axis-mismatch"]


@pytest.mark.parametrize("region", ["{}", "{0, 0, 0, 0, 1, 1, 1, 1}", "read", "read empty"], ids=str)
def test_a_region_that_a_resize_does_not_read_stays_as_it_is(region: str) -> None:
    """Only `tf_crop_and_resize` reads it. For the other modes tf2onnx writes an empty one."""
    length = 8 if region in ("read", "{0, 0, 0, 0, 1, 1, 1, 1}") else 0
    given = f", float[{length}] roi" if region.startswith("read") else ""
    constant = "" if given else f", float[{length}] roi = {region}"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1,3,4,6] x{given}) => (float[1,8,9,3] y) <float[4] scales = {{1, 1, 2, 1.5}}{constant}> {{
            rectified = Relu (x)
            resized = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric"> (rectified, roi, scales)
            y = Transpose <perm = [0, 2, 3, 1]> (resized) }}""")
    legal, report = legalize(model, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert report.cost == 2 * 4 * 72
    assert [node.op_type for node in legal.graph.node] == ["Relu", "Transpose", "Resize"]
