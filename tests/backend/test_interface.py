"""`Backend`, `Implementation` and `TensorType` validate their arguments and have documented defaults."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.backend import Backend, Implementation, TensorType, axis_count, load_backend
from relayout.backend.calls import MAX_COST, ask
from relayout.errors import BackendError, InputError, UsageError
from relayout.layout.layout import Layout


def conv(*, bias: bool = False, domain: str = "", attributes: str = "") -> ir.Node:
    """One convolution, called c, on 1x3x8x8 floats."""
    text = f"""<ir_version: 10, opset_import: ["" : 20, "relayout" : 1]>
        g (float[1,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[1,4,6,6] y) {{
            [c] y = {domain}Conv {attributes} (x, w{", b" if bias else ""}) }}"""
    return ir.from_proto(onnx.parser.parse_model(text)).graph[0]


class Answering(Backend):
    """Answers what it is told to."""

    name = "answering"

    def __init__(self, answer: object, operand: object = "****") -> None:
        super().__init__()
        self.answer = answer
        self.operand = operand

    def nth_input_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
        if isinstance(self.operand, Exception):
            raise self.operand
        return self.operand  # type: ignore[return-value]  # that is what is tested

    def implementations(self, node: ir.Node) -> Sequence[Implementation]:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            return super().implementations(node)
        return self.answer  # type: ignore[return-value]  # that is what is tested


def way(inputs: object, results: object = ("NCHW",), cost: object = 0) -> Implementation:
    return Implementation(inputs, results, cost)  # type: ignore[arg-type]  # that is what is tested


def as_text(implementation: Implementation) -> tuple[list[str], list[str], int]:
    return (
        [str(each) for each in implementation.inputs],
        [str(each) for each in implementation.results],
        implementation.cost,
    )


# The answers of the base class


def test_a_backend_without_overrides_has_no_requirements() -> None:
    assert as_text(*ask(Backend(), conv(bias=True))) == (["****", "****", "N"], ["****"], 0)


def test_the_default_layouts_by_rank_are_glows() -> None:
    assert [str(Backend().default_nd_layout(rank)) for rank in range(8)] == [
        "", "N", "**", "***", "****", "*****", "******", "*******",
    ]  # fmt: skip


def test_the_context_is_the_outermost_backend() -> None:
    outer = Backend()
    assert outer.context is outer
    assert Backend(context=Backend(context=outer)).context is outer


def test_a_backend_runs_every_node_at_default_prices_until_it_says_otherwise() -> None:
    assert Backend().supports(conv())
    assert Backend().conversion_cost(TensorType(4, (1, 2)), Layout.any(2), Layout.any(2)) is None


# Asking


def test_strings_are_accepted_for_layouts() -> None:
    assert as_text(*ask(Answering([way(["NHWC", "HWIO"], ["NHWC"], 7)]), conv())) == (["NHWC", "HWIO"], ["NHWC"], 7)


def test_a_single_star_is_any_layout_of_any_rank() -> None:
    assert as_text(*ask(Answering([way(["*", "*"], ["*"])]), conv())) == (["****", "****"], ["****"], 0)


def test_several_implementations_come_back_in_their_order() -> None:
    found = ask(Answering([way(["NHWC", "*"]), way(["NCHW", "*"], cost=5)]), conv())
    assert [as_text(each)[0][0] for each in found] == ["NHWC", "NCHW"]
    assert [each.cost for each in found] == [0, 5]


def test_a_generator_of_implementations_is_accepted() -> None:
    assert len(ask(Answering(way(["*", "*"]) for _ in range(3)), conv())) == 3


def test_a_missing_operand_is_in_any_layout_whatever_is_answered() -> None:
    node = conv(bias=True)
    node.replace_input_with(2, None)
    assert str(ask(Answering([way(["*", "*", "not a layout"])]), node)[0].inputs[2]) == ""


def test_an_operand_of_unknown_rank_keeps_the_layout_that_was_answered() -> None:
    node = conv()
    node.outputs[0].shape = None
    assert str(ask(Answering([way(["*", "*"], ["NHWC"])]), node)[0].results[0]) == "NHWC"


def test_a_blocked_layout_speaks_of_as_many_axes_as_the_tensor_has() -> None:
    assert axis_count(Layout.parse("NCHWc[tile:16]")) == 4
    assert ask(Answering([way(["NCHWc[tile:4]", "*"])]), conv())[0].inputs[0].rank == 5


# Faults of a plugin


@pytest.mark.parametrize(
    ("answer", "expected", "found"),
    [
        (way(["*", "*"]), "a sequence of Implementation", "Implementation: "),
        (7, "a sequence of Implementation", "int: 7"),
        ("NHWC", "a sequence of Implementation", "str: 'NHWC'"),
        ([], "at least one implementation", "none"),
        ([("NHWC",)], "an Implementation", "tuple: "),
        ([way(["*"])], "2 input layouts, one an operand", "1"),
        ([way(["*", "*"], [])], "1 result layouts, one an operand", "0"),
        ([way("****")], "a tuple of input layouts", "str: '****'"),
        ([way(3)], "a tuple of input layouts", "int: 3"),
        ([way(["*", "*"], cost=-1)], "a cost in bytes: an integer", "int: -1"),
        ([way(["*", "*"], cost=1.5)], "a cost in bytes: an integer", "float: 1.5"),
        ([way(["*", "*"], cost=True)], "a cost in bytes: an integer", "bool: True"),
        ([way(["*", "*"], cost=MAX_COST + 1)], "a cost in bytes: an integer", "int: "),
        ([way(["*", "*"], cost=None)], "a cost in bytes: an integer", "NoneType: None"),
        (ZeroDivisionError("by zero"), "the node's implementations", "ZeroDivisionError"),
        (KeyError(), "the node's implementations", "KeyError"),
    ],
)
def test_an_answer_that_is_none_is_the_backends_fault_and_names_the_node(
    answer: object, expected: str, found: str
) -> None:
    with pytest.raises(BackendError) as caught:
        ask(Answering(answer), conv())
    assert caught.value.where == "backend answering, node c (Conv)"
    assert expected in caught.value.expected
    assert caught.value.found.startswith(found)


@pytest.mark.parametrize(
    ("operand", "expected", "found"),
    [
        ("NH-W", "a letter", "'-' in 'NH-W', column 3"),
        ("NHC", "a layout of rank 4, as the tensor", "'NHC', of rank 3"),
        (None, "a Layout or its string", "NoneType: None"),
        (4, "a Layout or its string", "int: 4"),
        (RuntimeError("no\nway"), "a layout", "RuntimeError"),
    ],
)
def test_an_answer_about_one_operand_names_the_operand(operand: object, expected: str, found: str) -> None:
    with pytest.raises(BackendError) as caught:
        ask(Answering(None, operand), conv())
    assert caught.value.where == "backend answering, node c (Conv), input 0"
    assert expected in caught.value.expected
    assert found in caught.value.found


def test_a_backend_that_parses_a_bad_layout_itself_is_told_the_same() -> None:
    class Parses(Backend):
        def nth_result_layout_requirements(self, node: ir.Node, n: int) -> Layout | str:
            return Layout.parse("N1")

    with pytest.raises(BackendError) as caught:
        ask(Parses(), conv())
    assert caught.value.where == "backend Parses, node c (Conv), result 0"
    assert caught.value.found == "'1' in 'N1', column 2"


def test_a_generator_that_breaks_off_is_the_backends_fault() -> None:
    def breaks() -> object:
        yield way(["*", "*"])
        raise OSError("gone")

    with pytest.raises(BackendError, match="OSError: gone"):
        ask(Answering(breaks()), conv())


def test_a_model_that_is_at_fault_is_said_to_be() -> None:
    node = conv(domain="relayout.", attributes='<data_layout = "N[HWC">')
    with pytest.raises(InputError, match="the attribute data_layout is not a layout"):
        ask(load_backend("opencl"), node)


def answers_well_or_is_blamed(backend: Backend) -> bool:
    try:
        return all(isinstance(each, Implementation) for each in ask(backend, conv()))
    except BackendError as error:
        return "c (Conv)" in error.where


@given(answer=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_whatever_is_answered_is_an_implementation_or_a_backend_error(answer: object) -> None:
    assert answers_well_or_is_blamed(Answering(answer if answer else 0))
    assert answers_well_or_is_blamed(Answering([way(answer)]))
    assert answers_well_or_is_blamed(Answering([way(["*", answer])]))


# Satisfied?


def satisfied(required: str, current: str | None, shape: Sequence[int | str | None], *, size: int = 4) -> bool:
    now = None if current is None else Layout.parse(current)
    return Backend().is_satisfied_by(TensorType(size, tuple(shape)), Layout.parse(required), now)


@pytest.mark.parametrize(
    ("required", "current", "expected"),
    [
        ("NHWC", "NHWC", True),
        ("NHWC", "NCHW", False),
        ("NHWC", "nhwc", False),
        ("NHWC", "****", True),
        ("****", "NCHW", True),
        ("N*WC", "NH*C", True),
        ("N*WC", "NHC*", False),
        ("NHWC", None, True),
        ("NHW", "NHW", False),
        ("NHWC", "NHC", False),
    ],
)
def test_names_agree_where_a_star_agrees_with_all(required: str, current: str | None, expected: bool) -> None:
    assert satisfied(required, current, (1, 2, 3, 4)) is expected


def test_the_name_of_an_only_dimension_says_nothing() -> None:
    assert satisfied("N", "C", (8,))


@pytest.mark.parametrize(
    ("required", "shape", "expected"),
    [
        ("NHWC[a=8]", (1, 8, 8, 4), False),
        ("NHWC[a=4]", (1, 8, 8, 4), True),
        ("N[a=1024]HWC", (1, 8, 8, 4), True),
        ("N[a=4096]HWC", (1, 8, 8, 4), False),
        ("N[a=36]HWC", (1, 3, 3, 1), True),
        ("*[a=4096]***", (1, 8, 8, 4), False),
        ("N[a=64]HWC", ("N", 8, 8, 4), True),
        ("N[a=64]HWC", (1, "H", 8, 4), True),
        ("N[a=256]HWC", (1, "H", 8, 4), False),
        ("N[a=16]HWC", (1, None, None, 4), True),
        ("N[a=32]HWC", (1, 8, 8, None), True),
        ("NHW[a=8]C", (1, 8, 8, None), False),
        ("N[a=7]HWC", (1, 0, 8, 4), True),
        ("N[a=2]", (3,), True),
        ("N[a=8]", (3,), False),
    ],
)
def test_an_alignment_in_bytes_must_divide_the_stride_provably(
    required: str, shape: tuple[int | str | None, ...], expected: bool
) -> None:
    assert satisfied(required, "*" * len(shape), shape) is expected
    assert satisfied(required, None, shape) is expected


@given(
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    size=st.sampled_from([1, 2, 4, 8]),
    data=st.data(),
)
def test_strides_are_those_of_a_dense_tensor(shape: list[int], size: int, data: st.DataObject) -> None:
    hidden = [data.draw(st.booleans()) for _ in shape]
    factors = TensorType(size, tuple(shape)).stride_factors()
    weaker = TensorType(size, tuple(None if h else e for h, e in zip(hidden, shape, strict=True))).stride_factors()
    stride = size
    for i in reversed(range(len(shape))):
        assert factors[i] == stride
        assert stride % weaker[i] == 0
        stride *= shape[i]


def test_padded_strides_are_rounded_up() -> None:
    # Glow's example: float {1,3,3,1} aligned to {512,1,1,1} satisfies N[a=512]HWC.
    tensor = TensorType(4, (1, 3, 3, 1), (512, 1, 1, 1))
    assert tensor.stride_factors() == (512, 12, 4, 4)
    assert Backend().is_satisfied_by(tensor, Layout.parse("N[a=512]HWC"), None)
    assert TensorType(4, (1, "H", 3, 1), (512, 1, 1, 1)).stride_factors() == (512, 12, 4, 4)


@pytest.mark.parametrize(
    ("required", "current", "expected"),
    [
        ("NHWC[acme:x]", "NHWC[acme:x]", True),
        ("NHWC[acme:x]", "NHWC[acme:y]", False),
        ("NHWC[acme:x]", "NHWC", False),
        ("NHWC[acme:x]", "****", False),
        ("NHWC[acme:x]", None, False),
        ("N[acme:x]HWC", "NHWC[acme:x]", False),
        ("NHWC[acme:x][b:]", "NHWC[b:][acme:x]", True),
        ("NHWC", "NHWC[acme:x]", False),
        ("****", "NHWC[acme:x]", True),
        ("***[a=4]*", "NHW[acme:x]C", True),
        ("NHWC[a=4]", "NHWC[a=2]", True),
    ],
)
def test_a_black_box_is_carried_identically(required: str, current: str | None, expected: bool) -> None:
    assert satisfied(required, current, (1, 2, 3, 4)) is expected


@pytest.mark.parametrize(
    ("required", "current", "inner", "expected"),
    [
        ("NCHWc[tile:16]", "NCHWc[tile:16]", 16, True),
        ("NCHWc[tile:16]", "NCHWc[tile:8]", 16, False),
        ("NCHWc[tile:16]", "*****", 16, True),
        ("NCHWc[tile:16]", "*****", 8, False),
        ("NCHWc[tile:16]", None, None, False),
    ],
)
def test_a_block_has_its_size(required: str, current: str | None, inner: int | None, expected: bool) -> None:
    assert satisfied(required, current, (1, 2, 3, 3, inner)) is expected


# Loading


def test_an_instance_is_its_own_backend() -> None:
    backend = Backend()
    assert load_backend(backend) is backend


def test_a_class_is_made_an_instance_and_gets_a_name() -> None:
    class Mine(Backend):
        pass

    assert load_backend(Mine).name == "Mine"


def test_options_reach_the_constructor_and_empty_ones_are_left_out() -> None:
    class Sized(Backend):
        def __init__(self, context: Backend | None = None, *, size: int = 1) -> None:
            super().__init__(context)
            self.size = size

    backend = load_backend(Sized, options={"size": 4, "skip": [], "desired_layouts": None})
    assert isinstance(backend, Sized)
    assert backend.size == 4
    with pytest.raises(BackendError, match=r"(?s)does not take.*of size.*found: +colour"):
        load_backend(Sized, options={"colour": "red"})
    with pytest.raises(BackendError, match="no options"):
        load_backend("nhwc", options={"desired_layouts": {"Conv": ["NHWC"]}})


def test_a_constructor_that_takes_anything_gets_anything() -> None:
    class Anything(Backend):
        def __init__(self, **options: object) -> None:
            super().__init__()
            self.options = options

    backend = load_backend(Anything, options={"colour": "red"})
    assert isinstance(backend, Anything)
    assert backend.options == {"colour": "red"}


def test_a_constructor_that_fails_is_the_backends_fault() -> None:
    class Fails(Backend):
        def __init__(self) -> None:
            raise OSError("no device")

    with pytest.raises(BackendError, match=r"(?s)'Fails' cannot be made.*OSError: no device"):
        load_backend(Fails)


@pytest.mark.parametrize("spec", [3, None, int, object()])
def test_what_is_no_backend_is_said_to_be_none(spec: object) -> None:
    with pytest.raises(BackendError, match="that is no backend"):
        load_backend(spec)  # type: ignore[arg-type]  # that is what is tested


def test_an_error_about_a_backend_is_an_error_of_usage() -> None:
    assert issubclass(BackendError, UsageError)
