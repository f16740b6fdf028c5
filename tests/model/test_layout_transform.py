"""Transposes given by source and target layouts in place of a permutation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import run
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from relayout import legalize
from relayout.errors import InputError
from relayout.model.io import read_model, to_json, to_proto

Shape = list[Any]


def model(
    *nodes: tuple[str, str, dict[str, Any]], shape: Shape, domain: str = "relayout", dtype: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """A chain of operators: each (operator, layouts "A>B" or nothing, attributes)."""
    made = []
    for number, (operator, layouts, attributes) in enumerate(nodes):
        source, _, target = layouts.partition(">")
        given = {"source_layout": source, "target_layout": target} if layouts else {}
        ends = [f"v{number}"], [f"v{number + 1}"]
        where = domain if layouts else ""
        made.append(helper.make_node(operator, *ends, name=f"n{number}", domain=where, **given, **attributes))
    value = helper.make_tensor_value_info
    last = f"v{len(nodes)}"
    graph = helper.make_graph(made, "g", [value("v0", dtype, shape)], [value(last, dtype, None)])
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.ClearField("shape")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("relayout", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def perms(source: Any) -> list[list[int]]:
    return [list(n.attributes.get_ints("perm") or ()) for n in read_model(source).graph if n.op_type == "Transpose"]


def operators(source: Any) -> list[str]:
    return [node.op_type for node in read_model(source).graph if node.op_type != "Constant"]


@pytest.mark.parametrize("domain", ["", "relayout"])
@pytest.mark.parametrize("operator", ["Transpose", "layout_transform"])
@pytest.mark.parametrize(
    ("layouts", "perm"),
    [
        ("NHWC>NCHW", [0, 3, 1, 2]),
        ("NCHW>NHWC", [0, 2, 3, 1]),
        ("NHWC>HWNC", [1, 2, 0, 3]),
        ("CNHW>NHWC", [1, 2, 3, 0]),
        ("{3,2,1,0}>{1,3,2,0}", [0, 2, 3, 1]),
        ("nhwc>nchw", [0, 3, 1, 2]),
        ("NHWC>NHWC", [0, 1, 2, 3]),
    ],
)
def test_the_permutation_is_deduced(layouts: str, perm: list[int], operator: str, domain: str) -> None:
    assert perms(model((operator, layouts, {}), shape=[2, 3, 4, 5], domain=domain)) == [perm]


def test_glows_shuffles_are_deduced() -> None:
    known = {
        "HWCN>NHWC": [3, 0, 1, 2],
        "NHWC>CHWN": [3, 1, 2, 0],
        "NCTHW>NTHWC": [0, 2, 3, 4, 1],
        "NTHWC>NCTHW": [0, 4, 1, 2, 3],
        "NCH>NHC": [0, 2, 1],
    }
    for layouts, perm in known.items():
        assert perms(model(("Transpose", layouts, {}), shape=[2] * len(perm))) == [perm]


def test_graph_json_and_tvms_notation_are_read() -> None:
    graph = {
        "opset": 20,
        "inputs": [{"name": "x", "dtype": "float", "shape": [1, 4, 5, 3]}],
        "outputs": [{"name": "y"}],
        "nodes": [
            {
                "op": "layout_transform",
                "domain": "relayout",
                "inputs": ["x"],
                "outputs": ["y"],
                "attributes": {"src_layout": "NHWC", "dst_layout": "NCHW"},
            }
        ],
    }
    (node,) = to_json(read_model(graph))["nodes"]
    assert (node["op"], node["attributes"]) == ("Transpose", {"perm": [0, 3, 1, 2]})
    assert read_model(graph).graph.outputs[0].shape == (1, 3, 4, 5)


def test_it_is_a_transpose_like_any_other_to_the_solver() -> None:
    net = model(("Transpose", "NHWC>NCHW", {}), ("Relu", "", {}), ("Transpose", "NCHW>NHWC", {}), shape=[1, 4, 5, 3])
    legal, report = legalize(net)
    assert (report.before.transposes, report.after.transposes) == (2, 0)
    assert [node.op_type for node in legal.graph.node] == ["Relu"]


def test_a_subgraph_may_state_layouts_too() -> None:
    inner = model(("Transpose", "NHWC>NCHW", {}), shape=[1, 4, 5, 3]).graph
    del inner.input[:]
    value = helper.make_tensor_value_info
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    ends = [value("c", TensorProto.BOOL, []), value("v0", TensorProto.FLOAT, [1, 4, 5, 3])]
    graph = helper.make_graph([branch], "g", ends, [value("y", TensorProto.FLOAT, None)])
    opsets = [helper.make_opsetid("", 20)]
    read = read_model(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    inside = [list(n.attributes.get_ints("perm") or ()) for g in read.graph.subgraphs() for n in g]
    assert inside == [[0, 3, 1, 2]] * 2


# Blocks


def packed(image: np.ndarray, block: int) -> np.ndarray:
    n, c, h, w = image.shape
    return image.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)


@pytest.mark.parametrize("shape", [[2, 8, 3, 5], ["N", 8, 3, 5], ["N", 8, "H", 5]])
def test_channels_are_packed_into_blocks_and_out_of_them(shape: Shape) -> None:
    image = np.random.default_rng(0).standard_normal((2, 8, 3, 5), np.float32)
    to = to_proto(read_model(model(("layout_transform", "NCHW>NCHW4c", {}), shape=shape)))
    (made,) = run(to, {"v0": image})
    assert np.array_equal(made, packed(image, 4))
    fro = model(("layout_transform", "NCHW>NCHW4c", {}), ("layout_transform", "NCHW4c>NHWC", {}), shape=[2, 8, 3, 5])
    (back,) = run(to_proto(read_model(fro)), {"v0": image})
    assert np.array_equal(back, image.transpose(0, 2, 3, 1))


def test_one_block_size_becomes_another() -> None:
    image = np.random.default_rng(0).standard_normal((2, 24, 3, 5), np.float32)
    net = model(("layout_transform", "NCHW4c>NHW6cC", {}), shape=[2, 6, 3, 5, 4])
    (made,) = run(to_proto(read_model(net)), {"v0": np.ascontiguousarray(packed(image, 4))})
    assert np.array_equal(made, packed(image, 6).transpose(0, 2, 3, 4, 1))


def test_a_kernel_is_packed_along_both_channels() -> None:
    kernel = np.random.default_rng(0).standard_normal((8, 6, 3, 3), np.float32)
    net = model(("layout_transform", "OIHW>OIHW2i4o", {}), shape=[8, 6, 3, 3])
    (made,) = run(to_proto(read_model(net)), {"v0": kernel})
    assert np.array_equal(made, kernel.reshape(2, 4, 3, 2, 3, 3).transpose(0, 2, 4, 5, 3, 1))


@pytest.mark.parametrize(
    ("layouts", "shape", "open_", "perm", "expected"),
    [
        ("CN2c>CN", (3, 5, 2), "CN", (0, 2, 1), (6, 5)),
        ("NCHW4c>NCHW", (2, 3, 5, 7, 4), "NCH", (0, 1, 4, 2, 3), (2, 12, 5, 7)),
        ("NCHW4c>NHW2cC", (2, 3, 5, 7, 4), "NHW", (0, 2, 3, 1, 4), (2, 5, 7, 6, 2)),
    ],
)
def test_blocks_of_images_of_any_size_are_unpacked(
    layouts: str, shape: tuple[int, ...], open_: str, perm: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    source = layouts.partition(">")[0].replace("2", "").replace("4", "")
    declared = [name if name in open_ else extent for name, extent in zip(source, shape, strict=True)]
    image = np.random.default_rng(0).standard_normal(shape, np.float32)
    (made,) = run(to_proto(read_model(model(("layout_transform", layouts, {}), shape=declared))), {"v0": image})
    wanted = image.transpose(perm).reshape(expected)
    assert np.array_equal(made, wanted.swapaxes(-1, -2) if layouts.endswith("2cC") else wanted)


def test_blocks_of_a_multiple_are_cut_by_one_transpose() -> None:
    net = model(("layout_transform", "NCHW4c>NCHW2c", {}), shape=[2, 3, 5, 7, 4])
    assert operators(net).count("Transpose") == 1


@given(st.permutations("NCHWDI"), st.permutations("NCHWDI"), st.data())
def test_any_two_layouts_of_the_same_axes_are_converted_and_back(one: list[str], other: list[str], draw: Any) -> None:
    axes = draw.draw(st.integers(1, 4))
    letters = one[:axes]
    tiles = {name: draw.draw(st.sampled_from([2, 3])) for name in letters}
    spell = st.lists(st.sampled_from(letters), unique=True, max_size=2)
    source = letters + [f"{tiles[name]}{name.lower()}" for name in draw.draw(spell)]
    target = [name for name in other if name in letters] + [f"{tiles[name]}{name.lower()}" for name in draw.draw(spell)]
    inner = [word for word in source if len(word) > 1]
    shape = [
        tiles[word[-1].upper()] if word in inner else 6 if f"{tiles[word]}{word.lower()}" not in inner else 2
        for word in source
    ]
    there, back = f"{''.join(source)}>{''.join(target)}", f"{''.join(target)}>{''.join(source)}"
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    net = model(("layout_transform", there, {}), ("layout_transform", back, {}), shape=shape)
    (made,) = run(to_proto(read_model(net)), {"v0": data})
    assert np.array_equal(made, data)


# Wrong attributes and operands


@pytest.mark.parametrize(
    ("node", "where", "expected", "found"),
    [
        (("Transpose", "NHWC>NCHX", {}), "'target_layout'", "the dimensions of source_layout 'NHWC'", "'NCHX'"),
        (("Transpose", "NHWC>NCH", {}), "'target_layout'", "the dimensions of source_layout 'NHWC'", "'NCH'"),
        (("Transpose", "N*WC>NCW*", {}), "'source_layout'", "a name for each dimension", "'N*WC'"),
        (("Transpose", "NHWC>N[a=32]CHW", {}), "'target_layout'", "no alignment", "'N[a=32]CHW'"),
        (("Transpose", "NHWC>N!", {}), "'target_layout'", "a letter", "'!'"),
        (("Transpose", "NHWC>NCHW", {"perm": [0, 1, 2, 3]}), "'perm'", "[0, 3, 1, 2]", "[0, 1, 2, 3]"),
        (("layout_transform", "NHWC>NCHW3c", {}), "n0", "a known multiple of 3 in dimension 3, 'C'", "5"),
        (("layout_transform", "NHWC5c>NHWC4c", {}), "n0", "a tensor of 5 dimensions", "4"),
        (("layout_transform", "NHW2c>NHWC", {}), "'source_layout'", "'C' too", "none"),
    ],
)
def test_layouts_without_a_transposition_are_an_error_with_a_location(
    node: tuple[str, str, dict[str, Any]], where: str, expected: str, found: str
) -> None:
    with pytest.raises(InputError, match="the layouts do not describe a transposition") as caught:
        read_model(model(node, shape=[2, 3, 4, 5]))
    assert "node 'n0'" in caught.value.where
    assert where in caught.value.where
    assert expected in caught.value.expected
    assert found in caught.value.found


def test_one_layout_alone_and_a_tensor_of_unknown_rank_are_errors() -> None:
    alone = model(("Transpose", "", {"source_layout": "NHWC"}), shape=[2, 3, 4, 5])
    with pytest.raises(InputError, match="no such attribute"):
        read_model(alone)
    unknown = model(("layout_transform", "NCHW>NCHW4c", {}), shape=[2])
    unknown.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match="a tensor of known rank"):
        read_model(unknown)
    symbolic = model(("layout_transform", "NCHW>NCHW4c", {}), shape=[2, "C", 4, 5])
    with pytest.raises(InputError, match="an unknown extent"):
        read_model(symbolic)


def test_a_permutation_of_another_rank_is_found_by_the_shapes() -> None:
    with pytest.raises(InputError):
        read_model(model(("Transpose", "NHWC>NCHW", {}), shape=[2, 3, 4]))
