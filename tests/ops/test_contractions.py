"""Einsum: which operands are in an order of their own, and the equation that is written for them."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from graphs import Net

from relayout.layout.memory_format import Atom, MemoryFormat, order_of
from relayout.ops import Free, rule_of


def einsum(equation: str, *shapes: tuple[int, ...]) -> Free | None:
    net = Net()
    net.output(net.node("Einsum", *[net.input(f"x{n}", shape) for n, shape in enumerate(shapes)], equation=equation))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(net.model()))
    [node] = model.graph
    rule = rule_of(node, model.opset_imports)
    assert rule is None or isinstance(rule, Free)
    return rule


def written(rule: Free | None, *orders: MemoryFormat) -> object:
    assert rule is not None
    assert rule.edit_operands is not None
    return rule.edit_operands(orders[:-1], orders[-1:]).attributes["equation"]


def test_each_operand_of_a_product_has_its_own_order() -> None:
    rule = einsum("bqhd,bkhd->bhqk", (2, 5, 3, 4), (2, 6, 3, 4))
    orders = [order_of(axes) for axes in ((0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0))]
    assert written(rule, *orders) == "bhdq,kbhd->kqhb"


def test_a_tile_has_the_same_subscript_in_all_operands() -> None:
    rule = einsum("nc,ck->nk", (2, 8), (8, 6))
    tiled = (Atom(1, 4), Atom(0), Atom(1, 1, 4))
    kernel = (Atom(0, 1, 4), Atom(1), Atom(0, 4))
    assert written(rule, tiled, kernel, order_of((0, 1))) == "cna,akc->nk"


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("...ij,...jk->...ik", ((5, 2, 3, 4), (5, 2, 4, 6)), "abij,abjk->abik"),
        ("ij,jk", ((3, 4), (4, 5)), "ij,jk->ik"),
        ("b...,b->...", ((4, 2, 3), (4,)), "bac,b->ac"),
    ],
)
def test_subscripts_that_the_equation_leaves_out_are_written(
    equation: str, shapes: tuple[tuple[int, ...], ...], expected: str
) -> None:
    orders = [order_of(range(len(term))) for term in expected.replace("->", ",").split(",")]
    assert written(einsum(equation, *shapes), *orders) == expected


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("nchw->nwh", ((2, 3, 4, 5),)),
        ("ij->ji", ((3, 4),)),
        ("ii->i", ((3, 3),)),
        ("ij,kj->jki", ((3, 4), (5, 4))),
    ],
)
def test_an_einsum_that_only_moves_elements_is_no_free_transpose(
    equation: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    assert einsum(equation, *shapes) is None


@pytest.mark.parametrize(
    ("equation", "shapes"), [("nchw->nhw", ((2, 3, 4, 5),)), ("nchw,nc->nchw", ((2, 3, 4, 5), (2, 3)))]
)
def test_one_order_of_all_subscripts_orders_a_reduction_and_a_scaling(
    equation: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    rule = einsum(equation, *shapes)
    assert rule is not None
    assert rule.edit_operands is None
