"""A node that cannot run as its backend requires: the conflicting requirements, and those to drop."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
from graphs import Net

import relayout.candidates.node_conflict
from relayout import Backend, InfeasibleError, legalize
from relayout.candidates.messages import contradiction

BOXED = "NCHW[acme:x]"


def refused(net: Net, backend: Any) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        legalize(net.model(), backend)
    return caught.value


def table(**rule: Any) -> dict[str, Any]:
    return {"name": "table", "rule": [rule]}


def pooled() -> Net:
    net = Net()
    net.output(net.node("MaxPool", net.input("x", (1, 3, 8, 6)), kernel_shape=[2, 2]))
    return net


def summed() -> Net:
    net = Net()
    net.output(net.node("Add", net.input("x", (2, 3, 8, 6)), net.input("y", (2, 3, 8, 6))))
    return net


def test_one_unsatisfiable_requirement_is_named_alone_with_an_alternative() -> None:
    error = refused(pooled(), table(op="MaxPool", inputs=[BOXED], results=["NHWC"]))
    assert error.problem == "no way to run MaxPool 'n0' meets the backend's requirements"
    assert error.conflict == (f"MaxPool 'n0' input 0 requires {BOXED}",)
    assert error.relaxation == ("MaxPool 'n0' took input 0 in NHWC",)
    assert error.hint == "it would be feasible if MaxPool 'n0' took input 0 in NHWC"


def test_what_would_do_does() -> None:
    rule = {"op": "MaxPool", "inputs": [BOXED], "results": ["NHWC"]}
    assert refused(pooled(), table(**rule)).relaxation == ("MaxPool 'n0' took input 0 in NHWC",)
    assert legalize(pooled().model(), table(**{**rule, "inputs": ["NHWC"]}))[1].status == "optimal"


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "MaxPool", "AveragePool"])
def test_a_tile_of_two_rows_does_not_fit_a_result_of_one_row(operator: str) -> None:
    net = Net()
    window = {} if operator.startswith("Global") else {"kernel_shape": [4, 1]}
    net.output(net.node(operator, net.input("x", (2, 8, 4, 6)), **window))
    rule = {"op": operator, "inputs": ["NCHW2h"], "results": ["NCHW2h"]}
    assert refused(net, table(**rule)).conflict == (f"{operator} 'n0' result 0 requires NCHWh[tile:2]",)
    assert legalize(net.model(), table(**{**rule, "results": ["NHWC"]}))[1].status == "optimal"


def test_two_operands_with_coupled_layouts_are_both_named() -> None:
    """Each alone can be met; of three the one that has nothing to do with it is not named."""

    class Apart(Backend):
        name = "apart"

        def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
            return ("{3,2,1,0}", "{1,3,2,0}")[n]

    error = refused(summed(), Apart)
    assert error.conflict == ("Add 'n0' input 0 requires {3,2,1,0}", "Add 'n0' input 1 requires {1,3,2,0}")
    assert error.relaxation == ("Add 'n0' took input 0 in {1,3,2,0}",)


def test_each_of_several_unsatisfiable_requirements_must_be_dropped() -> None:
    error = refused(summed(), table(op="Add", inputs=["N[acme:x]***", "***[acme:y]*"], results=["****"]))
    assert error.conflict == ("Add 'n0' input 0 requires N[acme:x]***",)
    assert error.relaxation == ("Add 'n0' took input 0 in 0,1,2,3", "Add 'n0' took input 1 in 0,1,2,3")


def test_a_constant_that_cannot_meet_its_requirement_is_named() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 8, 8, 6)), 8, 8))
    error = refused(net, table(op="Conv", inputs=["NHWC", "OIHW[acme:x]", "*"], results=["NHWC"]))
    assert error.conflict == ("Conv 'n0' input 1 requires OIHW[acme:x]",)
    assert error.relaxation == ("Conv 'n0' took input 1 in OIHW",)


def test_each_of_several_implementations_states_its_requirement() -> None:
    ways = [{"inputs": [BOXED], "results": ["NHWC"]}, {"inputs": ["N[acme:y]HWC"], "results": ["NCHW"], "cost": 5}]
    error = refused(pooled(), table(op="MaxPool", implementation=ways))
    assert error.conflict == (f"MaxPool 'n0' input 0 requires {BOXED} or N[acme:y]HWC",)
    assert error.relaxation == ("MaxPool 'n0' took input 0 in NHWC",)


def test_an_operator_without_requirements_has_the_same_messages() -> None:
    error = refused(summed(), table(op="Add", inputs=["****", "N[acme:x]***"], results=["****"]))
    assert error.conflict == ("Add 'n0' input 1 requires N[acme:x]***",)
    assert error.relaxation == ("Add 'n0' took input 1 in 0,1,2,3",)


def test_a_conflict_is_minimal_even_if_the_search_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayout.candidates.node_conflict, "MOST_TRIED", 0)
    net = Net()
    net.output(net.node("Sum", *[net.input(name, (2, 3)) for name in "abcd"]))

    class Apart(Backend):
        name = "apart"

        def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
            return "{1,0}" if n else "{0,1}"

    error = refused(net, Apart)
    assert error.conflict == ("Sum 'n0' input 0 requires {0,1}", "Sum 'n0' input 3 requires {1,0}")
    assert error.relaxation == tuple(f"Sum 'n0' took input {n} in {{0,1}}" for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"data": "NCHW2c"}, "3 channels are no multiple of 2; `pads = true` would allow it"),
        ({"inputs": ["XYHW"]}, "the axes are N, C, H, W: none is X or Y"),
        ({"results": ["NCHW7w"]}, "5 columns are no multiple of 7; `pads = true` would allow it"),
    ],
)
def test_a_layout_that_does_not_fit_its_tensor_is_reported_with_the_reason(rule: dict[str, Any], reason: str) -> None:
    assert refused(pooled(), table(op="MaxPool", **rule)).hint.startswith(reason)


NO_BOX = "no node and no input of the graph has the black box, and "


def test_a_black_box_that_nothing_gives_is_reported_with_the_conversion_that_lacks() -> None:
    """The result above is NHWC alone, so a conversion of NCHW does not help."""

    class Boxes(Backend):
        name = "boxes"

        def nth_input_layout_requirements(self, node: ir.Node, n: int) -> str:
            return BOXED if node.op_type == "MaxPool" else "NHWC" if node.op_type == "LRN" else "****"

        def nth_result_layout_requirements(self, node: ir.Node, n: int) -> str:
            return "NCHW" if node.op_type == "MaxPool" else "NHWC"

    net = Net()
    net.output(net.node("MaxPool", net.node("LRN", net.input("x", (1, 4, 8, 6)), size=3), kernel_shape=[2, 2]))
    hint = refused(net, Boxes).hint
    assert hint.startswith(f"{NO_BOX}no `conversion` of the backend makes {BOXED} of NHWC; ")


def test_a_black_box_of_axes_without_names_is_reported_as_that() -> None:
    hint = refused(summed(), table(op="Add", inputs=["****", "N[acme:x]***"], results=["****"])).hint
    assert hint.startswith(f"{NO_BOX}'y' has axes without names, so `conversion` is not asked; ")


def test_an_operator_that_relayout_does_not_know_keeps_its_order() -> None:
    net = Net()
    net.output(net.conv(net.node("Blend", net.input("x", (1, 8, 8, 6)), domain="com.acme"), 8, 8))
    rule = {"op": "Blend", "domain": "com.acme", "inputs": ["NHWC"], "results": ["NHWC"]}
    hint = refused(net, table(**rule)).hint
    assert hint.startswith("relayout does not know Blend, which stays in the source's order without a `rewrite`; ")


def test_a_value_of_unknown_rank_is_reported_with_the_remedy() -> None:
    net = Net()
    mixed = net.node("Mix", net.input("x", (1, 8, 8, 6)), domain="com.acme")
    net.output(net.node("Relu", net.node("Blend", mixed, domain="com.acme")))
    rule = {"op": "Blend", "domain": "com.acme", "inputs": [BOXED], "results": ["NCHW"]}
    assert refused(net, table(**rule)).hint.startswith(f"the rank of {mixed} is not known; a shape in the file")


@pytest.mark.parametrize(
    ("kernel", "channels", "reason", "offered"),
    [
        ("OIHW16i16o", 1, "1 input channel is no multiple of 16, and an axis of extent 1 is not padded", "OIHW"),
        ("OHWI16i", 1, "1 input channel is no multiple of 16, and an axis of extent 1 is not padded", "OHWI"),
        # The 20 channels would be padded: they are no reason.
        ("I3iOHW4h", 20, "1 row is no multiple of 4, and an axis of extent 1 is not padded", "IOHW"),
    ],
)
def test_an_axis_of_extent_1_is_not_padded_and_whole_axes_are_offered(
    kernel: str, channels: int, reason: str, offered: str
) -> None:
    net = Net()
    net.output(net.node("Conv", net.input("x", (1, channels, 5, 5)), net.weight(32, channels, 1, 1)))
    error = refused(net, table(op="Conv", data="NCHW", kernel=kernel, pads=True))
    assert error.hint.startswith(f"{reason}; it would be feasible if ")
    assert error.relaxation == (f"Conv 'n0' took input 1 in {offered}",)


def test_pads_allow_what_the_hint_says_they_allow() -> None:
    rule = table(op="MaxPool", data="NCHW2c", pads=True)
    assert legalize(pooled().model(), rule)[1].status == "optimal"


def test_no_message_is_long_and_the_lists_are_complete() -> None:
    net = Net()
    read = [net.input(f"{'x' * 2000}{n}", (1, 3, 4, 4)) for n in range(40)]
    net.output(net.node("Sum", *read))
    error = refused(net, table(op="Sum", inputs=["NCHW", *["NCHW[acme:x]"] * 39], results=["NCHW"]))
    assert len(str(error)) < 2048
    every = [f"node {'y' * 300} {n}" for n in range(40)]
    error = contradiction("p" * 5000, every, every, every)
    assert len(str(error)) < 2048
    assert "and 35 more" in error.found
    assert error.conflict == error.relaxation == tuple(every)


def test_a_node_without_a_possible_order_is_reported_with_each_reason() -> None:
    class Refusing(Backend):
        name = "refusing"

        def order_cost(self, *_: Any, **__: Any) -> None:
            return None

    assert refused(summed(), Refusing).hint == "no layout is required; `order_cost` refuses every order in reach"


def test_a_black_box_behind_a_channel_shuffle_is_refused_with_the_reason() -> None:
    net = Net()
    pieces = net.node("Reshape", net.node("Relu", net.input("x", (1, 6, 8, 8))), net.constant([1, 2, 3, 8, 8]))
    shuffled = net.node("Reshape", net.transpose(pieces, 0, 2, 1, 3, 4), net.constant([1, 6, 8, 8]))
    net.output(net.node("MaxPool", shuffled, kernel_shape=[2, 2]))
    hint = refused(net, table(op="MaxPool", inputs=[BOXED], results=["*"])).hint
    reason = f"{shuffled} is a Reshape of relu_0, and the contents of [acme:x] after a Reshape are not known"
    assert hint.startswith(reason)
