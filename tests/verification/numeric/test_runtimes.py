"""Sessions whose large weights are not copied."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import relayout
from relayout.model.io import read_model
from relayout.verification import verify
from relayout.verification.numeric import compare, runtimes
from relayout.verification.numeric.runtimes import Session, largest_model, runtimes_for

pytest.importorskip("onnxruntime")


def model_of(*, default: bool = False, dtype: type[np.generic] = np.float32, opset: int = 20) -> onnx.ModelProto:
    """A convolution with a kernel of 4 MB or, in float16, of 2 MB. `default`: the kernel is the default of an input."""
    kernel = (np.random.default_rng(0).standard_normal((320, 320, 3, 3)) / 54).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, w, y = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, shape in (("x", [1, 320, 4, 4]), ("w", kernel.shape), ("y", [1, 320, 4, 4]))
    )
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    inputs = [x, w] if default else [x]
    graph = helper.make_graph([node], "net", inputs, [y], [numpy_helper.from_array(kernel, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_model_with_large_weights_gives_the_same(dtype: type[np.generic], default: bool) -> None:
    proto = model_of(dtype=dtype, default=default)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 320, 4, 4)).astype(dtype)}
    given = Session(proto, "onnxruntime").run(feeds)["y"]
    assert np.array_equal(Session(read_model(proto), "onnxruntime").run(feeds)["y"], given)


def test_the_data_of_large_weights_are_not_copied_to_the_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, list[str]]] = []

    def session(proto: onnx.ModelProto, *, threads: int, weights: dict[str, object]) -> None:
        sizes.append((proto.ByteSize(), [*weights]))
        raise NotImplementedError

    monkeypatch.setattr(runtimes, "plain_session", session)
    with pytest.raises(NotImplementedError):
        Session(read_model(model_of()), "onnxruntime")
    assert {tuple(names) for _, names in sizes} == {("w",)}
    assert max(size for size, _ in sizes) < 1000


@pytest.mark.parametrize(
    ("x", "y", "threads"),
    [("64,64", "64,64", 1), ("64,65", "64,65", 0), ("N,4", "N,4", 0), ("1", "1", 1), ("", "4", 0)],
)
def test_a_model_of_small_values_runs_on_one_thread(x: str, y: str, threads: int) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> net (float[{x}] x) => (float[{y}] y) {{ y = Relu (x) }}'
    session = Session(onnx.parser.parse_model(text), "onnxruntime")._run.__self__
    assert session.get_session_options().intra_op_num_threads == threads


def test_models_with_more_weights_than_are_copied_are_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "LARGEST_COPY", -1)
    monkeypatch.setattr(compare, "LARGEST_COPY", -1)
    original = model_of()
    assert runtimes_for(read_model(original)) == ["onnxruntime"]
    legal, _ = relayout.legalize(original, "nhwc")
    verification = verify(legal, "nhwc", against=original)
    assert verification.passed
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"
    assert verification.numeric.untried == (
        "to run the models as they were given: their weights are too large to be copied",
    )
    other = onnx.ModelProto()
    other.CopyFrom(original)
    other.graph.node[0].attribute[1].ints[:] = [0, 1, 2, 1]
    assert "numeric" in {each.rule for each in verify(other, "onnx", against=original).findings}


def test_the_largest_model_is_a_quarter_of_what_the_process_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = largest_model()
    assert 0 < whole <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("relayout.verification.numeric.runtimes._CONTAINER", limit)
    limit.write_text("4096\n")
    assert largest_model() == 1024
    limit.write_text("max\n")
    assert largest_model() >= whole
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (8192, resource.RLIM_INFINITY))
    assert largest_model() == 2048
