"""Drawn inputs suit the operators that read them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Net
from onnx import TensorProto

from relayout import legalize


@pytest.mark.parametrize("shape", [("n", 8, "h", "w"), (None, 8, None, None), (2, 8, 5, 6)])
@pytest.mark.parametrize("backend", ["nhwc", "x86-nchwc"])
def test_a_resize_to_sizes_that_are_an_input_is_compared(shape: tuple[int | str | None, ...], backend: str) -> None:
    """The convolution behind it demands its channels."""
    net = Net(18)
    image = net.conv(net.input("x", shape), 8, 8, 1)
    sizes = net.input("sizes", (4,), TensorProto.INT64)
    net.output(net.conv(net.node("Resize", image, "", "", sizes, mode="nearest"), 8, 8, 1))
    _, report = legalize(net.model(), backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.numeric is not None
    assert report.verification.numeric.status == "compared"


def test_sizes_for_some_axes_are_drawn_for_these() -> None:
    net = Net(18)
    sizes = net.input("sizes", (2,), TensorProto.INT64)
    image = net.input("x", ("n", 8, "h", "w"))
    net.output(net.conv(net.node("Resize", image, "", "", sizes, mode="nearest", axes=[-2, -1]), 8, 8, 1))
    _, report = legalize(net.model(), "nhwc", check=True)
    assert report.verification is not None
    assert report.verification.passed


@pytest.mark.parametrize("is_sliced", [True, False])
def test_floats_that_become_the_size_of_an_image_are_whole_numbers(is_sliced: bool) -> None:
    """A decoder of masks takes the size of the image in floats, scales it, and brings the masks to it."""
    net = Net(18)
    image = net.conv(net.input("x", ("n", 8, 64, 64)), 8, 8, 1)
    size = net.node("Floor", net.node("Mul", net.input("size", (2,)), net.constant(np.float32([1.0]))))
    size = net.node("Cast", size, to=TensorProto.INT64)
    if is_sliced:
        image = net.node("Slice", image, net.constant([0, 0]), size, net.constant([2, 3]))
    image = net.node("Resize", image, "", "", size, mode="nearest", axes=[-2, -1])
    net.output(image)
    _, report = legalize(net.model(), "nhwc", check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert [finding.rule for finding in report.verification.findings] == []
    numeric = report.verification.numeric
    assert numeric is not None
    assert (numeric.runtime, numeric.not_compared) == ("onnxruntime", ())
    assert all(output.sensitivity > 0.1 for output in numeric.outputs)


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_samples_are_drawn_that_are_as_long_as_their_batch(kind: str) -> None:
    """A model of speech masks its frames: in short samples it keeps none."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[b,n] sound, {kind}[b] lengths) => (float[b,n] kept)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] axis = {{1}}, float none = {{0}}> {{
            size = Shape <start = 1> (sound)
            count = Squeeze (size)
            place = Range (zero, count, one)
            window = Constant <value_int = 20> ()
            last = Add (place, window)
            whole = Cast <to = 7> (lengths)
            length = Unsqueeze (whole, axis)
            mask = Less (last, length)
            kept = Where (mask, sound, none)
        }}""")
    _, report = legalize(model, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert [finding.rule for finding in report.verification.findings] == []
