"""If a tensor has too many formats, the source's format is kept and no optimum is claimed."""

from __future__ import annotations

from itertools import islice, permutations

import onnx
import pytest
from graphs import Net, assert_same_numbers

from relayout import explain, legalize, verify
from relayout.candidates import boundary, propagation
from relayout.errors import InfeasibleError

SHAPE = (2, 3, 4, 5, 6, 7)
BYTES = 2 * 4 * 5040
LIMIT = 64


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower limit: the time grows with its cube."""
    for module in (boundary, propagation):
        monkeypatch.setattr(module, "FORMATS_PER_TENSOR", LIMIT)


def read_in(count: int) -> onnx.ModelProto:
    """An input that is given in so many orders, and read by an operator in the last of them."""
    net = Net()
    x = net.input("x", SHAPE)
    for perm in islice(permutations(range(6)), 1, count + 1):
        turned = net.transpose(x, *perm)
        net.output(turned)
    net.output(net.node("Softmax", net.node("Tanh", turned), axis=1))
    return net.model()


@pytest.mark.parametrize("objective", ["bytes", "transposes"])
def test_the_result_is_never_dearer_than_the_source(objective: str) -> None:
    count = LIMIT + 10
    model = read_in(count)
    legal, report = legalize(model, objective=objective)
    assert report.before.transposes == count
    assert report.after.transposes == count
    assert report.cost == (count * BYTES if objective == "bytes" else count)
    assert_same_numbers(model, legal)


def test_dropped_formats_are_reported_and_the_status_is_feasible() -> None:
    model = read_in(LIMIT + 10)
    legal, report = legalize(model)
    assert (report.status, report.bound) == ("feasible", 0)
    assert [w for w in report.warnings if "formats of 'tanh_" in w] != []
    assert verify(legal, "onnx", model, report=report).findings == ()


def test_no_format_is_dropped_below_the_limit() -> None:
    _, report = legalize(read_in(LIMIT - 1))
    assert (report.status, report.bound, report.warnings) == ("optimal", report.cost, ())


def test_a_cost_of_zero_is_optimal_even_with_dropped_formats() -> None:
    net = Net()
    value = net.node("Tanh", net.input("x", SHAPE))
    for perm in islice(permutations(range(6)), 1, LIMIT + 10):
        inverse = [perm.index(axis) for axis in range(6)]
        net.output(net.transpose(net.node("Neg", net.transpose(value, *perm)), *inverse))
    _, report = legalize(net.model())
    assert report.warnings != ()
    assert (report.status, report.cost, report.bound) == ("optimal", 0, 0)


def test_no_saving_is_exact_if_formats_were_dropped() -> None:
    report = explain(read_in(LIMIT + 10), limit=2)
    reasons = [reason for made in report.conversions for reason in made.reasons]
    assert reasons != []
    assert not any(reason.saved.exact for reason in reasons)


def test_an_infeasible_result_reports_dropped_formats() -> None:
    with pytest.raises(InfeasibleError) as refused:
        legalize(read_in(LIMIT + 10), max_transposes=3)
    assert "a cheaper result may exist" in refused.value.hint


@pytest.mark.parametrize(("shape", "left_out"), [((1, 1, 1, 1, 1, 6), False), (SHAPE, True)])
def test_unit_axes_have_several_positions_only_beside_a_longer_tied_value(
    shape: tuple[int, ...], left_out: bool
) -> None:
    net = Net()
    net.output(net.node("Tanh", net.input("x", (1, 1, 1, 1, 1, 6))))
    net.output(net.node("Neg", net.transpose(net.input("y", shape), 5, 4, 3, 2, 1, 0)))
    _, report = legalize(net.model(), input_layouts={"x,y": "any"})
    assert bool(report.warnings) == left_out


def nested_windows() -> onnx.ModelProto:
    """A product in windows of 4 x 4 pixels, then squares of 2 x 2 pixels as channels, at three levels."""
    net = Net(17)
    size, channels = 16, 4
    image = net.input("x", (1, size, size, channels))
    while size >= 4:
        count = size // 4
        cut = net.node("Reshape", image, net.constant([1, count, 4, count, 4, channels]))
        rows = net.node("Reshape", net.transpose(cut, 0, 1, 3, 2, 4, 5), net.constant([count**2, 16, channels]))
        rows = net.node("Softmax", net.node("MatMul", rows, net.weight(channels, channels)), axis=1)
        cut = net.transpose(
            net.node("Reshape", rows, net.constant([1, count, count, 4, 4, channels])), 0, 1, 3, 2, 4, 5
        )
        image = net.node("Add", image, net.node("Reshape", cut, net.constant([1, size, size, channels])))
        size //= 2
        cut = net.node("Reshape", image, net.constant([1, size, 2, size, 2, channels]))
        squares = net.node("Reshape", net.transpose(cut, 0, 1, 3, 2, 4, 5), net.constant([1, size, size, 4 * channels]))
        image = net.node("MatMul", squares, net.weight(4 * channels, 2 * channels))
        channels *= 2
    net.output(image)
    return net.model()


def test_formats_of_many_factors_are_left_out_only_where_there_are_many_formats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(propagation, "FORMATS_PER_TENSOR", 512)
    model = nested_windows()
    legal, report = legalize(model)
    monkeypatch.setattr(propagation, "FURTHER_FACTORS", 99)
    _, unlimited = legalize(model)
    monkeypatch.setattr(propagation, "FURTHER_FACTORS", 2)
    monkeypatch.setattr(propagation, "FEW_FORMATS", 100)
    _, limited = legalize(model)
    assert (report.status, report.cost) == ("optimal", unlimited.cost)
    assert limited.status == "optimal"
    assert report.cost < limited.cost < report.before.bytes
    assert_same_numbers(model, legal)


def test_with_too_many_formats_fewer_factors_are_considered_and_the_model_stays_legal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nested_windows()
    _, report = legalize(model)
    monkeypatch.setattr(propagation, "FEW_FORMATS", 100)
    monkeypatch.setattr(propagation, "MANY_PER_TENSOR", 9)
    legal, limited = legalize(model)
    assert limited.status == "optimal"
    assert report.cost < limited.cost < report.before.bytes
    assert_same_numbers(model, legal)
    again, second = legalize(legal)
    assert second.cost == limited.cost
    assert again.SerializeToString(deterministic=True) == legal.SerializeToString(deterministic=True)


def test_required_formats_alone_are_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagation, "FEW_FORMATS", 0)
    monkeypatch.setattr(propagation, "MANY_PER_TENSOR", 0)
    model = nested_windows()
    legal, report = legalize(model)
    assert report.status == "optimal"
    assert report.cost <= report.before.bytes
    assert_same_numbers(model, legal)
