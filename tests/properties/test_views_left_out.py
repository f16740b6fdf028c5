"""Views that are gone, or turn other axes, are found without a run of the models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

import onnx
import onnx_ir as ir
import pytest
from outside_mutation import differs
from random_graphs import Rejected
from random_open_extents import draw_open
from random_patterns import draw_graph

from relayout import RelayoutError, legalize
from relayout.verification import verify

VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
FIRST_SEED = 510_000
MOST = 3
"""At most so many wrong models are made of a legal one. Four legal models in five have no view to leave out, and of
graphs without a Transpose nearly all."""


def without_views(model: onnx.ModelProto, draw: random.Random) -> Iterator[onnx.ModelProto]:
    """The model, once for each view of this kind, where some readers read a value before a Transpose that keeps its
    shape, or before more views, or where a Transpose exchanges two axes of one extent."""
    places = [n for n, node in enumerate(model.graph.node) if node.op_type in VIEWS and node.domain == ""]
    draw.shuffle(places)
    found = ir.from_proto(model)
    for place in places:
        if is_changed(found.graph[place], draw):
            yield ir.to_proto(found)
            found = ir.from_proto(model)


def is_changed(node: ir.Node, draw: random.Random) -> bool:
    """Whether the view could be left out or turned, which is done."""
    result, source = node.outputs[0], node.outputs[0]
    has_moved = False
    while (maker := source.producer()) is not None and maker.op_type in VIEWS and maker.inputs[0] is not None:
        has_moved = has_moved or maker.op_type == "Transpose"
        source = maker.inputs[0]
        is_alike = source.shape is not None and source.shape == result.shape and source.type == result.type
        if has_moved and is_alike and not result.is_graph_output():
            for use in tuple(result.uses()):
                use.node.replace_input_with(use.idx, source)
            return True
    perm = [*node.attributes["perm"].as_ints()] if "perm" in node.attributes else []
    if len(perm) > 1 and result.shape is not None:
        i, j = draw.sample(range(len(perm)), 2)
        if result.shape[i] == result.shape[j] != 1:
            perm[i], perm[j] = perm[j], perm[i]
            node.attributes["perm"] = ir.AttrInt64s("perm", perm)
            return True
    return False


@pytest.mark.parametrize(
    ("draw_model", "count", "most"),
    [(lambda seed: draw_graph(seed).model, 60, 4), (draw_open, 30, 1)],
    ids=["patterns", "extents that are computed"],
)
def test_wrong_views_are_found_without_a_run(
    draw_model: Callable[[int], onnx.ModelProto], count: int, most: int
) -> None:
    """The rest are between values of which one model knows an extent that the other computes, behind operators whose
    results have parts of their operands, and copies of constants that are computed in another order."""
    wrong, passed, seed = 0, [], FIRST_SEED
    while wrong < count:
        seed += 1
        draw = random.Random(seed)
        try:
            original = draw_model(seed)
            if all(node.op_type != "Transpose" for node in original.graph.node):
                continue
            backend = draw.choice(["onnx", "nhwc", "x86-nchwc", "tpu"])
            legal, _ = legalize(original, backend, verify=False)
        except (Rejected, RelayoutError):
            continue
        for model in islice((each for each in without_views(legal, draw) if differs(each, original)), MOST):
            wrong += 1
            passed += [seed] * verify(model, backend, against=original, run=False).passed
    assert len(passed) <= most, passed
