"""SpaceToDepth and DepthToSpace are views: elided in a suitable format, else one operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.printer
import pytest
from graphs import Net, assert_same_numbers, random_feeds, run
from legalization_checks import checked, operators
from onnx.reference import ReferenceEvaluator
from random_space_to_depth import TO_CHANNELS, block_chain, reshape, space_to_channels

from relayout import legalize, verify
from relayout.formulate.objective import Scale, objective_named

BACKENDS = "onnx canonical opencl nchw nhwc convert-layout auto-nhwc tpu x86-nchwc xla-cpu".split()
MODES = ("DCR", "CRD")


def to_depth(net: Net, value: str, block: int = 2) -> str:
    return str(net.node("SpaceToDepth", value, blocksize=block))


def to_space(net: Net, value: str, block: int = 2, mode: str = "DCR") -> str:
    return str(net.node("DepthToSpace", value, blocksize=block, mode=mode))


def saved(model: onnx.ModelProto, backend: str = "onnx", **options: Any) -> onnx.ModelProto:
    """The legal model, checked by the verifier and by numbers, without a conversion."""
    legal, report = checked(model, backend, **options)
    assert (report.after.transposes, report.after.bytes, report.cost) == (0, 0, 0)
    assert_same_numbers(model, legal)
    return legal


def assert_unchanged(legal: onnx.ModelProto, model: onnx.ModelProto) -> None:
    assert [onnx.printer.to_text(node) for node in legal.graph.node] == [
        onnx.printer.to_text(node) for node in model.graph.node
    ]


def annotations(model: onnx.ModelProto) -> list[str]:
    return [f"{entry.key} {entry.value}" for value in model.graph.value_info for entry in value.metadata_props]


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
@pytest.mark.parametrize("mode", ["to depth", *MODES])
@pytest.mark.parametrize(("channels", "block"), [(3, 2), (5, 3)])
def test_space_to_depth_alone_is_unchanged(channels: int, block: int, mode: str, objective: str) -> None:
    net = Net()
    if mode == "to depth":
        net.output(to_depth(net, net.input("x", (1, channels, 4 * block, 2 * block)), block))
    else:
        net.output(to_space(net, net.input("x", (1, channels * block**2, 4, 2)), block, mode))
    model = net.model()
    legal, report = checked(model, "onnx", objective=objective)
    assert_unchanged(legal, model)
    assert (report.after, report.conversions) == (report.before, ())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block", [2, 3])
def test_space_to_depth_and_its_inverse_cancel_around_elementwise_operators(block: int, backend: str) -> None:
    net = Net()
    x = net.input("x", (2, 5, 4 * block, 2 * block))
    scaled = net.node("Mul", to_depth(net, net.node("Neg", x), block), net.weight(1, 5 * block**2, 4, 2))
    net.output(net.node("Exp", to_space(net, net.node("Tanh", scaled), block)))
    assert operators(saved(net.model(), backend)) == ["Neg", "Mul", "Tanh", "Exp"]


@pytest.mark.parametrize("mode", MODES)
def test_depth_to_space_and_its_inverse_cancel_too(mode: str) -> None:
    net = Net()
    x = net.input("x", (1, 12, 4, 4))
    between = net.node("Tanh", to_space(net, x, 2, mode))
    net.output(space_to_channels(net, between, (1, 3, 8, 8), 2, TO_CHANNELS[MODES.index(mode)]))
    assert operators(saved(net.model())) == ["Tanh"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_only_an_inverse_of_the_same_mode_cancels(mode: str, backend: str) -> None:
    net = Net(opset=28)
    deep = net.node("SpaceToDepth", net.input("x", (1, 3, 4, 6)), blocksize=2, mode="CRD")
    net.output(to_space(net, net.node("Tanh", deep), mode=mode))
    model = net.model()
    legal, _ = checked(model, backend)
    # onnxruntime does not run this opset.
    feeds = random_feeds(model)
    expected, found = (ReferenceEvaluator(each).run(None, feeds)[0] for each in (model, legal))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (operators(legal) == ["Tanh"]) == (mode == "CRD")


def test_a_bias_for_each_channel_meets_its_channel() -> None:
    net = Net()
    x = net.input("x", (1, 3, 8, 8))
    net.output(to_space(net, net.node("Add", to_depth(net, x), net.weight(1, 12, 1, 1))))
    assert operators(saved(net.model())) == ["Reshape", "Add", "Reshape"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_spelled_out_space_to_depth_cancels_with_the_operator(backend: str) -> None:
    net = Net()
    spelled = space_to_channels(net, net.input("x", (2, 3, 8, 12)), (2, 3, 8, 12), 2, TO_CHANNELS[0])
    net.output(to_space(net, net.node("Tanh", spelled)))
    assert operators(saved(net.model(), backend)) == ["Tanh"]


def test_reordered_channels_are_folded_into_the_kernel() -> None:
    net = Net()
    x = net.input("x", (1, 12, 4, 4))
    shuffled = to_depth(net, to_space(net, x, mode="CRD"))
    net.output(net.conv(net.node("Tanh", shuffled), 12, 5, 1))
    assert operators(saved(net.model())) == ["Tanh", "Conv"]


def test_between_convolutions_it_stays_and_the_kernels_are_unchanged() -> None:
    net = Net()
    x = net.input("x", (1, 3, 8, 8))
    net.output(to_space(net, net.conv(to_depth(net, x), 12, 16, 1), mode="CRD"))
    model = net.model()
    assert_unchanged(saved(model), model)


def test_two_in_a_row_do_not_become_a_transpose_that_counts() -> None:
    net = Net()
    net.output(to_depth(net, to_depth(net, net.input("x", (1, 3, 8, 8)))))
    model = net.model()
    for objective in ("bytes", "transposes"):
        assert operators(saved(model, objective=objective)) == ["SpaceToDepth", "SpaceToDepth"]


def test_a_transpose_and_the_space_to_depth_after_it_are_one_conversion() -> None:
    net = Net()
    x = net.transpose(net.input("x", (1, 8, 8, 3)), 0, 3, 1, 2)
    net.output(net.conv(to_depth(net, x), 12, 5, 3))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert_same_numbers(model, legal)
    assert operators(legal) == ["Reshape", "Transpose", "Reshape", "Conv"]
    assert report.after.bytes == report.before.bytes == 2 * 4 * 8 * 8 * 3


def test_a_backend_that_wants_channels_last_converts_once() -> None:
    net = Net()
    net.output(to_depth(net, to_depth(net, net.input("x", (1, 3, 8, 8)))))
    model = net.model()
    legal, report = checked(model, "nhwc")
    assert_same_numbers(model, legal)
    assert operators(legal) == ["Reshape", "Transpose", "Reshape"]
    assert report.after.bytes == 2 * 4 * 3 * 8 * 8


def test_channels_last_it_stays_an_operator_of_the_backend() -> None:
    net = Net()
    x = net.transpose(net.input("x", (1, 8, 8, 3)), 0, 3, 1, 2)
    net.output(net.transpose(net.conv(to_depth(net, x), 12, 5, 3), 0, 2, 3, 1))
    model = net.model()
    legal = saved(model, "nhwc")
    assert operators(legal) == ["relayout::SpaceToDepth", "relayout::Conv"]


def test_a_batch_of_unknown_size_is_no_obstacle() -> None:
    net = Net()
    net.output(to_space(net, net.node("Tanh", to_depth(net, net.input("x", ("N", 3, 8, 8))))))
    assert operators(saved(net.model())) == ["Tanh"]


def test_rows_and_columns_of_unknown_number_are_not_tiled() -> None:
    net = Net()
    net.output(to_space(net, net.node("Tanh", to_depth(net, net.input("x", (1, 3, "H", "W"))))))
    model = net.model()
    legal, _ = checked(model, "onnx")
    assert operators(legal) == ["SpaceToDepth", "Tanh", "DepthToSpace"]
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 6, 8)).astype(np.float32)}
    assert_same_numbers(model, legal, feeds)


def test_a_space_to_depth_that_keeps_the_memory_order_is_a_reshape() -> None:
    net = Net()
    net.output(net.node("Tanh", to_depth(net, net.input("x", (2, 1, 2, 2)))))
    assert operators(saved(net.model())) == ["Reshape", "Tanh"]


def test_an_input_with_a_free_layout_is_fed_in_blocks() -> None:
    net = Net()
    net.output(net.conv(to_depth(net, net.input("x", (1, 3, 8, 8))), 12, 5, 3))
    model = net.model()
    legal, report = checked(model, "onnx", input_layouts={"x": "any"})
    assert "SpaceToDepth" not in operators(legal)
    assert report.after.transposes == 0
    feeds = random_feeds(model)
    x = feeds["x"]
    blocks = x.reshape(1, 3, 4, 2, 4, 2).transpose(0, 3, 5, 1, 2, 4)
    shape = [d.dim_value for d in legal.graph.input[0].type.tensor_type.shape.dim]
    found = run(legal, {"x": np.ascontiguousarray(blocks).reshape(shape)})
    np.testing.assert_allclose(found[0], run(model, feeds)[0], rtol=1e-4, atol=1e-4)


def test_a_focus_of_slices_is_unchanged() -> None:
    net = Net()
    x = net.input("x", (1, 3, 8, 8))
    axes, steps, ends = (net.constant(np.array(v)) for v in ([2, 3], [2, 2], [2**31, 2**31]))
    parts = [
        net.node("Slice", x, net.constant(np.array([row, column])), ends, axes, steps)
        for column in (0, 1)
        for row in (0, 1)
    ]
    net.output(net.conv(net.node("Concat", *parts, axis=1), 12, 8, 3))
    model = net.model()
    assert_unchanged(saved(model), model)


@pytest.mark.parametrize("perm", TO_CHANNELS)
def test_a_focus_written_with_a_transpose_moves_no_more_bytes_than_before(perm: tuple[int, ...]) -> None:
    net = Net()
    x = net.transpose(net.input("x", (1, 8, 8, 3)), 0, 3, 1, 2)
    net.output(net.conv(space_to_channels(net, x, (1, 3, 8, 8), 2, perm), 12, 8, 3))
    model = net.model()
    legal, report = checked(model, "onnx")
    assert_same_numbers(model, legal)
    assert (report.before.transposes, report.after.transposes) == (2, 1)


def test_concatenated_parts_of_channels_are_annotated_as_factors() -> None:
    net = Net()
    x = net.node("Softmax", net.conv(net.input("x", (1, 4, 36, 18)), 4, 12), axis=2)
    joined = net.node("Concat", x, net.node("Neg", x), axis=1)
    net.output(net.transpose(to_space(net, joined), 0, 2, 3, 1))
    model = net.model()
    legal, _ = checked(model, "nhwc")
    assert_same_numbers(model, legal)
    assert "relayout.layout NHCWc[tile:12]" in annotations(legal)


def test_a_concatenation_of_whole_blocks_is_annotated_as_whole_channels() -> None:
    net = Net()
    x = net.input("x", (1, 4, 6, 6))
    joined = net.node("Concat", x, net.node("Neg", x), axis=1)
    net.output(net.conv(joined, 8, 12, 1))
    model = net.model()
    legal, _ = checked(model, "convert-layout", backend_options={"desired_layouts": {"Conv": ["NCHW4c", "OIHW4o"]}})
    assert_same_numbers(model, legal)
    assert {"relayout.layout NHWC", "relayout.layout NCHWc[tile:4]"} <= set(annotations(legal))


def test_an_inverse_beside_another_reader_reads_the_original_tensor() -> None:
    net = Net()
    x = net.input("x", (1, 3, 8, 8))
    blocks = to_depth(net, x)
    net.output(net.conv(blocks, 12, 5, 1))
    net.output(net.node("Tanh", to_space(net, blocks)))
    assert sorted(operators(saved(net.model()))) == ["Conv", "SpaceToDepth", "Tanh"]


def test_nested_blocks_of_two_and_three_cancel() -> None:
    net = Net()
    x = net.input("x", (1, 4, 6, 9))
    thirds = to_depth(net, to_space(net, x), 3)
    spelled = reshape(net, thirds, 1, 3, 3, 1, 4, 6)
    back = reshape(net, net.transpose(spelled, 0, 3, 4, 1, 5, 2), 1, 1, 12, 18)
    net.output(net.node("Tanh", to_depth(net, back)))
    assert operators(saved(net.model())) == ["Tanh"]


def test_factors_that_do_not_nest_are_converted_as_whole_axes() -> None:
    net = Net()
    x = net.input("x", (2, 4, 12, 12))
    thirds = space_to_channels(net, to_space(net, x), (2, 1, 24, 24), 3, TO_CHANNELS[0])
    halves = reshape(net, to_depth(net, thirds), 2, 9, 2, 2, 4, 4)
    back = reshape(net, net.transpose(halves, 0, 1, 4, 2, 5, 3), 2, 9, 8, 8)
    net.output(net.transpose(net.node("Add", back, back), 0, 2, 3, 1))
    model = net.model()
    legal, _ = checked(model, "nhwc")
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("backend", ["onnx", "nhwc", "x86-nchwc"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_mean_over_an_image_with_two_channel_tilings_that_do_not_nest(keepdims: int, backend: str) -> None:
    net = Net(opset=20)

    def among_blocks(value: str) -> str:
        return to_space(net, net.node("Relu", to_depth(net, value)), mode="CRD")

    first = net.node("Sigmoid", among_blocks(net.input("x", (1, 12, 4, 6))))
    net.output(among_blocks(first))
    net.output(net.node("ReduceMean", first, net.constant([2, 3]), keepdims=keepdims))
    model = net.model()
    legal, report = checked(model, backend)
    assert report.status == "optimal"
    assert_same_numbers(model, legal)


@pytest.mark.parametrize("seed", range(80))
def test_random_chains_compute_the_same_and_never_cost_more(seed: int) -> None:
    model, backend = block_chain(seed), BACKENDS[seed // 2 % len(BACKENDS)] if seed % 2 else "onnx"
    objective = ("bytes", "transposes")[seed % 3 == 0]
    legal, report = legalize(model, backend, objective=objective, check=True)
    assert report.verification is not None
    assert [finding for finding in report.verification.findings if finding.severity == "error"] == []
    assert_same_numbers(model, legal)
    assert backend != "onnx" or objective != "bytes" or report.after.bytes <= report.before.bytes
    assert backend != "onnx" or objective != "transposes" or report.after.transposes <= report.before.transposes
    again = legalize(legal, backend, objective=objective)[1]
    assert (again.after.transposes, again.after.bytes) == (report.after.transposes, report.after.bytes)


@pytest.mark.parametrize("seed", [20, 31, 44, 50, 55, 78, 83, 97])
def test_a_model_legalized_twice_is_annotated_relative_to_the_first_source(seed: int) -> None:
    model = block_chain(seed)
    legal, _ = legalize(legalize(model, "nhwc")[0], "onnx")
    assert [finding for finding in verify(legal, "onnx", against=model).findings if finding.severity == "error"] == []


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
def test_a_kept_view_op_costs_less_than_any_conversion(
    objective: str,
) -> None:
    most = {"bytes": 1024, "transposes": 4, "elidable": 3, "changes": 8}
    scale = Scale.of(objective_named(objective), [64, 256], most)
    assert scale.price(0, changes=8) < scale.price(0, elidable=1)
    assert scale.price(0, changes=8, elidable=3) < scale.price(64)
