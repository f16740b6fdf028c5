"""The question about a conversion, where an extent is not known."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from relayout.candidates.backend_conversions import base_format, transposition
from relayout.candidates.tensors import Operand, Tensor
from relayout.layout.memory_format import Atom, BlackBoxFormat, order_of
from relayout.layout.view import View

WHOLE, INNER = Atom(0, 2, 0), Atom(0, 1, 2)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("source", "target", "perm"),
    [((WHOLE, INNER), (INNER, WHOLE), "10"), ((WHOLE, Atom(1), INNER), (WHOLE, INNER, Atom(1)), "021")],
)
def test_the_size_assumed_for_an_extent_need_not_be_a_multiple_of_its_tile(
    size: int, source: tuple[Atom, ...], target: tuple[Atom, ...], perm: str
) -> None:
    extents = ("n", 3)[: len({atom.axis for atom in source})]
    turn = transposition(extents, (size, *extents[1:]), source, target)
    assert turn is not None
    query = turn.query(4)
    assert "".join(query.target.names) == perm
    assert 2 in query.tensor.shape
    assert all(isinstance(extent, int) and extent > 0 for extent in query.tensor.shape)


def test_a_format_of_a_split_tensor_is_one_of_its_value_where_the_parts_are_adjacent() -> None:
    value = ir.Value(name="x")
    tensor = Tensor(0, value, ("n", 8, "a", "b"), constant=False)
    view = View.of(((Atom(0),), (Atom(1),), (Atom(2), Atom(3))), ("n", 8, "p"), tensor.extents)
    base = Operand(tensor, view, value)
    assert base_format(base, order_of((0, 2, 3, 1))) == order_of((0, 2, 1))
    assert base_format(base, (Atom(0), Atom(1, 4), Atom(2), Atom(3), Atom(1, 1, 4))) == (
        *(Atom(0), Atom(1, 4), Atom(2)),
        Atom(1, 1, 4),
    )
    assert base_format(base, order_of((0, 2, 1, 3))) is None
    assert base_format(base, BlackBoxFormat(order_of((0, 2, 3, 1)), [(1, 1, "acme", "box")])) is None
