"""The annotation of a value, in the axes of the source or of an earlier run's source."""

from __future__ import annotations

from graphs import Net

from relayout import legalize
from relayout.layout.memory_format import Atom
from relayout.layout.metadata_keys import ATOMS_KEY, ORDER_KEY
from relayout.layout.view import View
from relayout.rewrite.annotations import annotation_of
from relayout.verification.memory_format import parse_atoms

EXTENTS = ("n", 1, 1, 8)
POOLED = View.of(((Atom(0),), (Atom(2),), (Atom(3),), (Atom(1),)), EXTENTS, ("n", 8, 1, 1))
"""An image of one pixel, channels last since an earlier run."""


def test_an_annotation_is_composed_with_that_of_an_earlier_run() -> None:
    channels_first = ((Atom(0),), (Atom(3),), (Atom(1),), (Atom(2),))
    assert annotation_of(channels_first, EXTENTS, None, None) == {ORDER_KEY: "0,3,1,2"}
    assert annotation_of(channels_first, EXTENTS, POOLED, None) == {}


def test_the_tiles_of_an_axis_of_one_element_are_that_axis_once() -> None:
    """The mean over windows of 7 x 7 leaves one element of each row and column, in two dimensions each."""
    rows, columns = (Atom(1, 7), Atom(1, 1, 7)), (Atom(2, 7), Atom(2, 1, 7))
    dims = ((Atom(0),), rows[:1], columns[:1], rows[1:], columns[1:], (Atom(3),))
    found = annotation_of(dims, EXTENTS, POOLED, None)
    assert found == {ATOMS_KEY: "0,2,3,,,1"}
    read = parse_atoms(found[ATOMS_KEY])
    assert read is not None
    assert read.fault() is None
    assert read.may_have((2, 1, 1, 1, 1, 8))


def test_a_node_in_the_place_of_another_has_what_other_tools_noted_there() -> None:
    """The product of the transposes is another node. An exporter notes the line of source code."""
    net = Net()
    rows = net.node("Gemm", net.transpose(net.input("x", (5, 7)), 1, 0), net.weight(5, 9))
    net.output(net.transpose(rows, 1, 0))
    model = net.model()
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    gemm.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="model.py:7")
    legal, _ = legalize(model)
    assert [node.op_type for node in legal.graph.node] == ["Gemm"]
    noted = {each.key: each.value for each in legal.graph.node[0].metadata_props}
    assert noted["pkg.torch.onnx.stack_trace"] == "model.py:7"
