"""If, Loop and Scan: their bodies and the graph around them are one problem, and region edges have any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir
import pytest
from equivalence import Feeds, assert_legal_and_equivalent, drawn
from graphs import Net, run
from onnx import TensorProto, helper

from relayout import legalize, verify
from relayout.backend import Backend, Implementation
from relayout.layout.layout import Layout
from relayout.model.io import read_model
from relayout.model.proto_graphs import subgraphs_of

BACKENDS = ["onnx", "nhwc", "canonical"]
TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
BOOL, FLOAT, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT64


def body(name: str, net: Net, inputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(net.nodes, name, inputs, net.outputs, net.constants)


def scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])


def of_an_if() -> tuple[Net, Callable[[int], Feeds]]:
    """Both branches read a value from outside, one through a transpose; the result is read by a convolution."""
    net = Net()
    value = net.transpose(net.conv(net.input("x", ("N", 3, 8, 8)), 3, 4), *TO_NHWC)
    then, other = Net(prefix="then_", seed=1), Net(prefix="else_", seed=2)
    then.output(then.transpose(then.conv(then.transpose(value, *TO_NCHW), 4, 4), *TO_NHWC))
    other.output(other.node("Mul", value, other.weight(4)))
    condition = net.input("c", (), BOOL)
    chosen = net.node("If", condition, then_branch=body("then", then), else_branch=body("else", other))
    net.output(net.conv(net.transpose(chosen, *TO_NCHW), 4, 2))
    return net, lambda seed: {"x": drawn(1 + seed, 3, 8, 8, seed=seed), "c": np.array(seed % 2 == 0)}


def of_a_loop() -> tuple[Net, Callable[[int], Feeds]]:
    """The state goes round in NHWC through a convolution of the body, and each round gives a slice of a scan output."""
    net = Net()
    value = net.transpose(net.conv(net.input("x", ("N", 3, 6, 6)), 3, 4), *TO_NHWC)
    inner = Net(prefix="loop_", seed=3)
    state = inner.node("Add", "state", value)
    turned = inner.conv(inner.transpose(state, *TO_NCHW), 4, 4)
    turned = inner.transpose(turned, *TO_NHWC)
    going = inner.node("Identity", "going")
    for name, dtype in ((going, BOOL), (turned, FLOAT), (inner.node("ReduceMax", turned, axes=[1, 2]), FLOAT)):
        inner.output(name, dtype)
    given = helper.make_tensor_value_info("state", FLOAT, ["N", 6, 6, 4])
    rounds = body("body", inner, [scalar("round", INT64), scalar("going", BOOL), given])
    last, seen = net.node("Loop", net.input("rounds", (), INT64), "", value, results=2, body=rounds)
    net.output(net.conv(net.transpose(last, *TO_NCHW), 4, 2))
    net.output(seen)
    return net, lambda seed: {"x": drawn(2, 3, 6, 6, seed=seed), "rounds": np.array(seed + 1)}


def of_a_scan() -> tuple[Net, Callable[[int], Feeds]]:
    """Frames of a film, one after the other, through a convolution that reads its kernel and a value from outside."""
    net = Net()
    film = net.input("x", ("T", 2, 6, 6, 3))
    weight = net.weight(3, 3, 3, 3)
    bright = net.node("ReduceMean", film, axes=[0, 2, 3], keepdims=1)
    bright = net.node("Squeeze", bright, net.constant([0]))
    inner = Net(prefix="scan_", seed=4)
    frame = inner.node("Mul", inner.transpose("frame", *TO_NCHW), inner.transpose(bright, *TO_NCHW))
    made = inner.node("Conv", frame, weight, pads=[1] * 4)
    carried = inner.node("Max", "carried", inner.transpose(made, *TO_NHWC))
    inner.output(carried)
    inner.output(inner.transpose(made, *TO_NHWC))
    ends = [helper.make_tensor_value_info(name, FLOAT, [2, 6, 6, 3]) for name in ("carried", "frame")]
    first = net.node("Squeeze", net.node("Slice", film, net.constant([0]), net.constant([1])), net.constant([0]))
    scanned = body("body", inner, ends)
    last, frames = net.node("Scan", first, film, results=2, body=scanned, num_scan_inputs=1)
    net.output(last)
    net.output(frames)
    return net, lambda seed: {"x": drawn(2 + seed, 2, 6, 6, 3, seed=seed)}


def of_bodies_in_bodies() -> tuple[Net, Callable[[int], Feeds]]:
    """An If within a Loop; the innermost graph reads of all that are around it."""
    net = Net()
    value = net.transpose(net.conv(net.input("x", (1, 3, 6, 6)), 3, 4), *TO_NHWC)
    loop = Net(prefix="loop_", seed=5)
    turned = loop.transpose("state", *TO_NCHW)
    then, other = Net(prefix="then_", seed=6), Net(prefix="else_", seed=7)
    then.output(then.node("Add", then.conv(turned, 4, 4), then.transpose(value, *TO_NCHW)))
    other.output(other.node("Relu", turned))
    even = loop.node("Equal", loop.node("Mod", "round", loop.constant(np.array(2))), loop.constant(np.array(0)))
    chosen = loop.node("If", even, then_branch=body("then", then), else_branch=body("else", other))
    loop.output(loop.node("Identity", "going"), BOOL)
    loop.output(loop.transpose(chosen, *TO_NHWC))
    given = helper.make_tensor_value_info("state", FLOAT, [1, 6, 6, 4])
    rounds = body("body", loop, [scalar("round", INT64), scalar("going", BOOL), given])
    net.output(net.node("Loop", net.input("rounds", (), INT64), "", value, body=rounds))
    return net, lambda seed: {"x": drawn(1, 3, 6, 6, seed=seed), "rounds": np.array(seed + 1)}


def of_two_views() -> tuple[Net, Callable[[int], Feeds]]:
    """The branches read one tensor as it is and turned: under an NHWC backend each name is what the other one was."""
    net = Net()
    value = net.conv(net.input("x", (1, 4, 6, 6)), 4, 4)
    turned = net.transpose(value, *TO_NHWC)
    then, other = Net(prefix="then_"), Net(prefix="else_")
    then.output(then.node("Relu", value))
    other.output(other.node("Neg", turned))
    condition = net.input("c", (), BOOL)
    net.output(net.node("If", condition, then_branch=body("then", then), else_branch=body("else", other)))
    net.output(net.node("Tanh", turned))
    return net, lambda seed: {"x": drawn(1, 4, 6, 6, seed=seed), "c": np.array(seed % 2 == 0)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [of_an_if, of_a_loop, of_a_scan, of_bodies_in_bodies, of_two_views])
def test_bodies_are_legalized_with_what_they_read_from_outside(
    make: Callable[[], tuple[Net, Callable[[int], Feeds]]], backend: str
) -> None:
    net, feeds = make()
    model = net.model()
    assert_legal_and_equivalent(model, backend, [feeds(seed) for seed in range(3)])


def test_a_value_read_only_by_an_unused_body_is_removed_with_it() -> None:
    net, _ = of_two_views()
    net.outputs.pop(0)
    legal, report = legalize(net.model(), "nhwc")
    assert [node.op_type for node in legal.graph.node] == ["Transpose", "Conv", "Tanh"]
    assert report.after.transposes == 1


# One problem


LEAST = [
    (of_an_if, "onnx", 0),
    (of_an_if, "nhwc", 2),
    (of_a_loop, "onnx", 0),
    (of_a_loop, "nhwc", 2),
    # The film comes and goes with its channels last.
    (of_a_scan, "onnx", 2),
    (of_a_scan, "nhwc", 0),
    (of_bodies_in_bodies, "onnx", 1),
    (of_bodies_in_bodies, "nhwc", 1),
]


@pytest.mark.parametrize(("make", "backend", "transposes"), LEAST)
def test_no_conversion_is_left_at_the_border_of_a_body(
    make: Callable[[], tuple[Net, Callable[[int], Feeds]]], backend: str, transposes: int
) -> None:
    legal, report = legalize(make()[0].model(), backend)
    assert (report.status, report.after.transposes) == ("optimal", transposes)
    again, second = legalize(legal, backend)
    assert (second.cost, second.after.transposes) == (report.cost, transposes)
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def between(way: Callable[[Net, str], str], *, shape: Sequence[int | str] = (1, 4, 6, 6)) -> Net:
    """A convolution in channels-last order, what `way` makes of it, and another such convolution."""
    net = Net()
    value = net.transpose(net.conv(net.input("x", shape), 4, 4), *TO_NHWC)
    net.output(net.conv(net.transpose(way(net, value), *TO_NCHW), 4, 4))
    return net


def loop_of(
    net: Net, inner: Net, given: str, results: Sequence[str], *, shape: Sequence[int | str] = (1, 6, 6, 4)
) -> str:
    """Two rounds of `inner`, whose state is called `state`."""
    going = inner.node("Identity", "going")
    inner.outputs[:0] = [scalar(going, BOOL)]
    for result in results:
        inner.output(result)
    state = helper.make_tensor_value_info("state", FLOAT, shape)
    graph = body("body", inner, [scalar("round", INT64), scalar("going", BOOL), state])
    return str(net.node("Loop", net.constant(np.array(2)), "", given, results=len(results), body=graph))


def test_a_state_may_begin_as_a_constant() -> None:
    def way(net: Net, value: str) -> str:
        inner = Net(prefix="loop_", seed=1)
        return loop_of(net, inner, net.weight(1, 6, 6, 4), [inner.node("Add", "state", value)])

    net = between(way)
    report = assert_legal_and_equivalent(net.model(), "onnx", [{"x": drawn(1, 4, 6, 6)}])
    assert report.after.transposes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_branch_may_return_a_constant_or_a_captured_value(backend: str) -> None:
    def way(net: Net, value: str) -> str:
        then, other = Net(prefix="then_", seed=1), Net(prefix="else_", seed=2)
        then.output(then.node("Identity", then.weight(1, 6, 6, 4)))
        other.output(other.transpose(other.transpose(value, *TO_NCHW), *TO_NHWC))
        graphs = {"then_branch": body("then", then), "else_branch": body("else", other)}
        return str(net.node("If", net.input("c", (), BOOL), **graphs))

    feeds = [{"x": drawn(1, 4, 6, 6), "c": np.array(flag)} for flag in (True, False)]
    report = assert_legal_and_equivalent(between(way).model(), backend, feeds)
    assert report.after.transposes == (0 if backend == "onnx" else 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_value_may_be_several_outputs_of_a_body(backend: str) -> None:
    """As it came, under another name, and in another order."""

    def way(net: Net, value: str) -> str:
        inner = Net(prefix="loop_", seed=1)
        made = inner.transpose(inner.conv(inner.transpose("state", *TO_NCHW), 4, 4), *TO_NHWC)
        results = loop_of(net, inner, value, [made, inner.node("Identity", made), inner.transpose(made, *TO_NCHW)])
        names = net.nodes[-1].output
        net.output(names[1])
        net.output(names[2])
        assert results
        return str(names[0])

    assert_legal_and_equivalent(between(way).model(), backend, [{"x": drawn(1, 4, 6, 6)}])


def test_the_axis_that_a_loop_stacks_along_stays_first() -> None:
    """Each round gives a slice; the slices' own axes may lie in any order, that of the rounds is the outermost."""

    def way(net: Net, value: str) -> str:
        inner = Net(prefix="loop_", seed=1)
        made = inner.transpose(inner.conv(inner.transpose("state", *TO_NCHW), 4, 4), *TO_NHWC)
        loop_of(net, inner, value, [made, inner.transpose(made, 1, 2, 0, 3)])
        last, seen = net.nodes[-1].output
        turned = net.node("Transpose", seen, perm=[0, 3, 4, 1, 2])
        net.output(net.node("ReduceMax", turned, axes=[0]))
        return str(last)

    net = between(way)
    report = assert_legal_and_equivalent(net.model(), "onnx", [{"x": drawn(1, 4, 6, 6)}])
    legal, _ = legalize(net.model(), "onnx")
    (loop,) = [node for node in legal.graph.node if node.op_type == "Loop"]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in legal.graph.value_info}
    assert shapes[loop.output[0]] == [1, 4, 6, 6]
    assert report.after.transposes < report.before.transposes


@pytest.mark.parametrize(("source", "target"), [(0, 0), (4, 2), (2, 4), (-1, -2)])
def test_a_scan_axis_may_be_at_any_dimension(source: int, target: int) -> None:
    """Frames in channels-last order, along any axis of the film, through a convolution."""
    net = Net()
    shape = [2, 6, 6, 4]
    shape.insert(source % 5, 3)
    film = net.node("Relu", net.transpose(net.input("x", shape[::-1]), 4, 3, 2, 1, 0))
    inner = Net(prefix="scan_", seed=1)
    inner.output(inner.transpose(inner.conv(inner.transpose("frame", *TO_NCHW), 4, 4), *TO_NHWC))
    scanned = body("body", inner, [helper.make_tensor_value_info("frame", FLOAT, [2, 6, 6, 4])])
    axes = {"scan_input_axes": [source], "scan_output_axes": [target]}
    frames = net.node("Scan", film, body=scanned, num_scan_inputs=1, **axes)
    net.output(net.transpose(frames, 0, 3, 1, 4, 2))
    for backend in BACKENDS:
        report = assert_legal_and_equivalent(net.model(), backend, [{"x": drawn(*shape[::-1])}])
        assert report.after.transposes < report.before.transposes


def test_the_axes_of_a_state_that_grows_stay_separate() -> None:
    """The extent of an axis changes from round to round: nobody may take it for what it was at first."""
    net = Net()
    inner = Net(prefix="loop_", seed=1)
    grown = inner.node("Concat", "state", "state", axis=1)
    last = loop_of(net, inner, net.transpose(net.input("x", (1, 4, 1, 6)), *TO_NHWC), [grown], shape=(1, "H", 6, 4))
    net.output(net.conv(net.transpose(last, *TO_NCHW), 4, 4))
    report = assert_legal_and_equivalent(net.model(), "onnx", [{"x": drawn(1, 4, 1, 6)}])
    assert report.after.transposes == 0


def test_a_state_of_unknown_rank_keeps_the_identity_format() -> None:
    def way(net: Net, value: str) -> str:
        inner = Net(prefix="loop_", seed=1)
        last = loop_of(net, inner, value, [inner.node("Add", "state", value)])
        state = net.nodes[-1].attribute[0].g.input[2]
        state.type.tensor_type.ClearField("shape")
        return last

    for backend in BACKENDS:
        assert_legal_and_equivalent(between(way).model(), backend, [{"x": drawn(1, 4, 6, 6)}])


def test_a_value_of_unknown_type_is_written_without_a_shape(caplog: pytest.LogCaptureFixture) -> None:
    """An operator of a foreign domain gives the state: in the body nothing has a type."""

    def way(net: Net, value: str) -> str:
        inner = Net(prefix="loop_", seed=1)
        foreign = net.node("SampleOp", value, domain="com.microsoft")
        turned = inner.node("Relu", inner.transpose(inner.node("Identity", "state"), *TO_NCHW))
        return loop_of(net, inner, foreign, [inner.transpose(turned, *TO_NHWC)])

    model = between(way).model()
    legal, _ = legalize(model, "nhwc")
    assert caplog.messages == []
    feeds = {"x": drawn(1, 4, 6, 6)}
    np.testing.assert_allclose(run(legal, feeds)[0], run(model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_sequences_carried_by_a_loop_are_unchanged() -> None:
    net = Net()
    value = net.transpose(net.conv(net.input("x", (1, 4, 6, 6)), 4, 4), *TO_NHWC)
    inner = Net(prefix="loop_", seed=1)
    inner.outputs.append(scalar(inner.node("Identity", "going"), BOOL))
    grown = inner.node("SequenceInsert", "seen", inner.transpose(value, *TO_NCHW))
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    inner.outputs.append(helper.make_value_info(grown, kind))
    ends = [scalar("round", INT64), scalar("going", BOOL), helper.make_value_info("seen", kind)]
    graph = body("body", inner, ends)
    seen = net.node("Loop", net.constant(np.array(2)), "", net.node("SequenceEmpty"), body=graph)
    net.output(net.node("ConcatFromSequence", seen, axis=0))
    for backend in BACKENDS:
        assert_legal_and_equivalent(net.model(), backend, [{"x": drawn(1, 4, 6, 6)}])


def inner_transposes(graph: onnx.GraphProto) -> dict[str, int]:
    """How many Transposes stand in the graph itself, and in each graph inside it."""
    found = {graph.name: sum(node.op_type == "Transpose" for node in graph.node)}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found.update(inner_transposes(attribute.g))
    return found


def test_a_conversion_for_one_branch_is_inside_it_and_one_for_a_loop_before_it() -> None:
    net = Net()
    value = net.conv(net.input("x", (1, 4, 6, 6)), 4, 4)
    net.output(net.transpose(net.node("Tanh", net.transpose(value, *TO_NHWC)), *TO_NCHW))
    then, other = Net(prefix="then_", seed=1), Net(prefix="else_", seed=2)
    then.output(then.node("Relu", value))
    axes = other.constant([0, -1])
    turned = other.node("Reshape", other.transpose(value, *TO_NHWC), axes)
    other.output(other.node("Reshape", turned, other.constant([1, 4, 6, 6])))
    graphs = {"then_branch": body("then", then), "else_branch": body("else", other)}
    net.output(net.node("If", net.input("c", (), BOOL), **graphs))
    inner = Net(prefix="loop_", seed=1)
    flat = inner.node("Reshape", inner.transpose(value, 0, 3, 2, 1), inner.constant([1, 144]))
    net.output(loop_of(net, inner, net.weight(1, 144), [inner.node("Add", "state", flat)], shape=(1, 144)))
    legal, _ = legalize(net.model(), "onnx")
    assert inner_transposes(legal.graph) == {"net": 1, "then": 0, "else": 1, "body": 0}
    feeds = [{"x": drawn(1, 4, 6, 6), "c": np.array(flag)} for flag in (True, False)]
    assert_legal_and_equivalent(net.model(), "onnx", feeds)


@pytest.mark.parametrize(("layout", "transposes"), [("NCHW", 0), ("NHWC", 3)])
def test_a_backend_may_require_a_layout_of_the_results_of_a_region_op(layout: str, transposes: int) -> None:
    class Asking(Backend):
        name = "asking"

        def implementations(self, node: onnx_ir.Node) -> Sequence[Implementation]:
            if node.op_type != "If":
                return super().implementations(node)
            return [Implementation((Layout.any(0),), (Layout.parse(layout),))]

    net, feeds = of_an_if()
    legal, report = legalize(net.model(), Asking())
    assert verify(legal, backend=Asking()).findings == ()
    assert report.after.transposes == transposes
    np.testing.assert_allclose(run(legal, feeds(0))[0], run(net.model(), feeds(0))[0], rtol=1e-4, atol=1e-5)


def of_two_results() -> tuple[Net, Callable[[int], Feeds]]:
    """One result of the If is wanted as it is, the other in another order."""
    net = Net()
    value = net.conv(net.input("x", (1, 3, 8, 8)), 3, 4)
    then, other = Net(prefix="then_", seed=1), Net(prefix="else_", seed=2)
    for branch in (then, other):
        branch.output(branch.conv(value, 4, 4))
        branch.output(branch.transpose(branch.conv(value, 4, 2), *TO_NHWC))
    condition = net.input("c", (), BOOL)
    one, two = net.node("If", condition, results=2, then_branch=body("then", then), else_branch=body("else", other))
    net.output(net.conv(one, 4, 2))
    net.output(net.conv(net.transpose(two, *TO_NCHW), 2, 2))
    return net, lambda seed: {"x": drawn(1, 3, 8, 8, seed=seed), "c": np.array(seed % 2 == 0)}


def holding(*ways: tuple[str, int]) -> Backend:
    """All of rank 4 that an If or a Loop reads and gives is in one of these layouts, at these costs."""

    class Holding(Backend):
        name = "holding"

        def implementations(self, node: onnx_ir.Node) -> Sequence[Implementation]:
            if node.op_type not in ("If", "Loop"):
                return super().implementations(node)
            ranks = [[len(v.shape or ()) if v is not None else 0 for v in side] for side in (node.inputs, node.outputs)]
            return [
                Implementation(
                    *(tuple(Layout.parse(text) if n == 4 else Layout.any(n) for n in side) for side in ranks), cost=cost
                )
                for text, cost in ways
            ]

    return Holding()


@pytest.mark.parametrize("make", [of_an_if, of_a_loop, of_two_results])
@pytest.mark.parametrize("costs", [(0, 1), (0, 10_000_000), (5_000, 0)])
def test_the_cheapest_implementation_of_a_region_op_is_chosen(
    make: Callable[[], tuple[Net, Callable[[int], Feeds]]], costs: tuple[int, int]
) -> None:
    """Values that cross the border go with the way: the cost is that of the best way alone."""
    net, feeds = make()
    model, ways = net.model(), list(zip(("NHWC", "NCHW"), costs, strict=True))
    alone = [legalize(model, holding(way))[1].cost for way in ways]
    legal, report = legalize(model, holding(*ways))
    assert report.cost == min(alone)
    assert verify(legal, backend=holding(*ways)).findings == ()
    for seed in (0, 1):
        for one, other in zip(run(model, feeds(seed)), run(legal, feeds(seed)), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    again, second = legalize(legal, holding(*ways))
    assert (again, second.cost) == (legal, report.cost)


@pytest.mark.parametrize("is_node", [True, False])
def test_axis_names_outside_a_body_are_known_inside(is_node: bool) -> None:
    """As exporters share them: without their value the rank of what is reduced would be open."""
    net = Net(opset=18)
    value = net.transpose(net.conv(net.input("x", (1, 3, 6, 6)), 3, 4), *TO_NHWC)
    axes = net.node("Constant", value_ints=[1, 2]) if is_node else net.constant([1, 2])
    if is_node:
        net.nodes[-1].ClearField("attribute")
        net.nodes[-1].attribute.append(helper.make_attribute("value", helper.make_tensor("axes", INT64, [2], [1, 2])))
    then, other = Net(18, prefix="then_"), Net(18, prefix="else_")
    mean = then.node("ReduceMean", value, axes, keepdims=0)
    then.output(then.node("Mul", value, then.node("Unsqueeze", mean, axes)))
    other.output(other.node("Relu", value))
    chosen = net.node("If", net.input("c", (), BOOL), then_branch=body("then", then), else_branch=body("else", other))
    net.output(net.conv(net.transpose(chosen, *TO_NCHW), 4, 2))
    feeds = [{"x": drawn(1, 3, 6, 6), "c": np.array(taken)} for taken in (True, False)]
    assert assert_legal_and_equivalent(net.model(), "onnx", feeds).after.transposes == 0


@pytest.mark.parametrize("backend", ["nhwc", "canonical", "tpu"])
def test_unused_nodes_are_removed_even_if_nothing_else_changes(backend: str) -> None:
    """It would stand in a layout that the backend does not want."""
    net = Net()
    value = net.input("x", (1, 3, 6, 6))
    net.node("MaxPool", value, kernel_shape=[2, 2])
    net.output(net.node("Relu", value))
    legal, _ = legalize(net.model(), backend)
    assert [node.op_type for node in legal.graph.node] == ["Relu"]
    assert verify(legal, backend).passed


def test_the_state_of_a_loop_in_a_branch_may_come_from_outside_of_the_branch() -> None:
    """onnx tells nothing of what such a Loop gives; that it has the rank of what it begins with is enough."""
    net = Net(opset=18)
    value = net.transpose(net.conv(net.input("x", (1, 3, 6, 6)), 3, 4), *TO_NHWC)
    then, other, inner = Net(18, prefix="then_"), Net(18, prefix="else_"), Net(18, prefix="loop_")
    inner.output(inner.node("Identity", "going"), BOOL)
    inner.output(inner.node("Sigmoid", inner.node("Add", "state", value)))
    given = helper.make_tensor_value_info("state", FLOAT, [1, 6, 6, 4])
    rounds = body("body", inner, [scalar("round", INT64), scalar("going", BOOL), given])
    then.output(then.node("Relu", then.node("Loop", net.constant(np.array(2)), "", value, body=rounds)))
    other.output(other.node("Neg", value))
    chosen = net.node("If", net.input("c", (), BOOL), then_branch=body("then", then), else_branch=body("else", other))
    net.output(net.conv(net.transpose(chosen, *TO_NCHW), 4, 2))
    feeds = [{"x": drawn(1, 3, 6, 6), "c": np.array(taken)} for taken in (True, False)]
    assert assert_legal_and_equivalent(net.model(), "onnx", feeds).after.transposes == 0


SCAN_WITHOUT_SHAPES = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[1,2,8,8] s, float[2,8,5,8] x, float[2,2,1,1] w) => (float[1,8,8,2] last, z) {
        first = Transpose <perm = [0,2,3,1]> (s)
        last, z = Scan <num_scan_inputs = 1, scan_input_axes = [-2], body = body (float st, float e) => (
                float so, float eo) {
            laid = Transpose <perm = [0,3,1,2]> (st)
            c = Conv (laid, w)
            so = Transpose <perm = [0,2,3,1]> (c)
            turned = Transpose <perm = [1,2,0]> (e)
            r = Relu (turned)
            eo = Transpose <perm = [2,0,1]> (r) }> (first, x) }"""

LOOP_WITHOUT_SHAPES = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[1,2,8,8] s, float[2,2,1,1] w) => (float[1,8,8,2] last) {
        first = Transpose <perm = [0,2,3,1]> (s)
        rounds = Constant <value = int64 {2}> ()
        last = Loop (rounds, "", first) <body = body (int64 i, bool going, float st) => (bool on, float so) {
            on = Identity (going)
            laid = Transpose <perm = [0,3,1,2]> (st)
            c = Conv (laid, w)
            so = Transpose <perm = [0,2,3,1]> (c) }> }"""

IF_IN_A_SCAN_WITHOUT_SHAPES = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[1,2,8,8] s, float[5,2,8,8] x, float[2,2,1,1] w, bool b) => (float[1,2,8,8] last, z) {
        last, z = Scan <num_scan_inputs = 1, body = body (float st, float e) => (float so, float eo) {
            so = Conv (st, w)
            eo = If (b) <
                then_branch = then () => (float p) {
                    turned = Transpose <perm = [1,2,0]> (e)
                    r = Relu (turned)
                    p = Transpose <perm = [2,0,1]> (r) },
                else_branch = other () => (float q) { q = Relu (e) }> }> (s, x) }"""


def without_shapes(text: str) -> onnx.ModelProto:
    """The model, with no shape told of what goes into a body or comes out of it, which ONNX allows."""
    model = onnx.parser.parse_model(text)
    for graph in list(subgraphs_of(model.graph))[1:]:
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("text", "moved"), [(SCAN_WITHOUT_SHAPES, 1024), (LOOP_WITHOUT_SHAPES, 1024), (IF_IN_A_SCAN_WITHOUT_SHAPES, 0)]
)
def test_a_body_whose_inputs_have_no_shape_keeps_no_transposes(text: str, moved: int, backend: str) -> None:
    """`moved`: the bytes of the transpose between the input and the output of the graph, which no backend saves."""
    model = without_shapes(text)
    legal, report = legalize(model, backend)
    assert report.status == "optimal"
    assert verify(legal, backend, against=model, report=report).passed
    if backend == "onnx":
        assert (report.after.transposes, report.after.bytes) == (moved // 1024, moved)
    again, second = legalize(legal, backend)
    assert again == legal
    assert second.cost == report.cost
    assert second.after == second.before == report.after


def test_both_branches_of_an_if_determine_the_rank_of_a_captured_value() -> None:
    """And one alone does not: it may never run."""
    opsets = '"" : 18, "custom" : 1'
    text = f"""<ir_version: 10, opset_import: [{opsets}]>
        net (float[1,2,8,8] s, bool b) => (y, z) {{
            both = custom.Op (s)
            one = custom.Op (s)
            y = If (b) <then_branch = then () => (float p) {{ p = Transpose <perm = [0,2,3,1]> (both) }},
                        else_branch = other () => (float q) {{ q = Transpose <perm = [0,3,2,1]> (both) }}>
            z = If (b) <then_branch = then2 () => (float t) {{ t = Transpose <perm = [0,2,3,1]> (one) }},
                        else_branch = other2 () => (float u) {{ u = Relu (one) }}> }}"""
    model = without_shapes(text)
    for name in ("both", "one"):
        model.graph.value_info.append(helper.make_value_info(name, helper.make_tensor_type_proto(FLOAT, None)))
    shapes = {value.name: value.shape for node in read_model(model).graph for value in node.outputs}
    assert shapes["both"] is not None
    assert len(shapes["both"]) == 4
    assert shapes["one"] is None


def test_a_body_gives_the_running_mean_of_a_normalization_itself() -> None:
    """onnxruntime computes it in place of the mean that it reads, unless a graph gives it: the next round would read a
    changed mean."""
    net, inner = Net(), Net(prefix="loop_")
    image = net.input("x", (2, 3, 4, 4))
    vectors = [net.input(name, (3,)) for name in ("scale", "bias", "mean", "variance")]
    normalized = inner.node("BatchNormalization", image, *vectors, results=3, training_mode=1)
    inner.output(inner.node("Identity", "going"), BOOL)
    for value in normalized:
        inner.output(value, FLOAT)
    rounds = body("body", inner, [scalar("round", INT64), scalar("going", BOOL)])
    for value in net.node("Loop", net.constant(np.array(2)), "", results=3, body=rounds):
        net.output(value)
    legal, report = legalize(net.model(), "nhwc", check=True)
    assert "BatchNormalization" in [function.name for function in legal.functions]
    assert report.verification is not None
    assert report.verification.findings == ()
    assert report.verification.numeric is not None
    assert report.verification.numeric.status == "compared"


def test_a_branchs_output_keeps_the_extents_that_it_declares() -> None:
    """A Transpose that shows one may be gone. A second run would assume another size."""
    source = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["":18]>
        g (bool c, float[3,3,h,w] x) => (float[?,3,3,?] y) {
          y = If (c) <
            then_branch = one () => (float[?,?,?,4] t) {
              a = Conv <auto_pad = "SAME_UPPER"> (x, k)  t = Transpose <perm = [3,0,1,2]> (a) },
            else_branch = other () => (float[?,?,?,?] e) { r = Relu (x)  e = Transpose <perm = [3,0,1,2]> (r) }> }"""
    )
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "k"))
    legal, report = legalize(source, "nhwc")
    (branch,) = (graph for graph in subgraphs_of(legal.graph) if graph.name == "one")
    assert [dim.dim_value for dim in branch.output[0].type.tensor_type.shape.dim] == [3, 4, 0, 3]
    again, second = legalize(legal, "nhwc", check=True)
    assert second.verification is not None
    assert second.verification.passed
    assert second.cost == report.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)
