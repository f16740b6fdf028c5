"""Views that are gone, or turn other axes, are found without a run of the models."""

from __future__ import annotations

import random

import onnx
import onnx_ir as ir
from outside_mutation import differs
from random_graphs import Rejected
from random_patterns import draw_graph

from relayout import RelayoutError, legalize
from relayout.verification import verify

VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
FIRST_SEED, WRONG = 510_000, 60


def without_views(model: onnx.ModelProto, draw: random.Random) -> onnx.ModelProto | None:
    """The model where some readers read a value before a Transpose that keeps its shape, or before more views, or where
    a Transpose exchanges two axes of one extent; None where no reader or Transpose is of this kind."""
    found = ir.from_proto(model)
    nodes = [node for node in found.graph if node.op_type in VIEWS and node.domain == ""]
    draw.shuffle(nodes)
    for node in nodes:
        result, source = node.outputs[0], node.outputs[0]
        has_moved = False
        while (maker := source.producer()) is not None and maker.op_type in VIEWS and maker.inputs[0] is not None:
            has_moved = has_moved or maker.op_type == "Transpose"
            source = maker.inputs[0]
            is_alike = source.shape is not None and source.shape == result.shape and source.type == result.type
            if has_moved and is_alike and not result.is_graph_output():
                for use in tuple(result.uses()):
                    use.node.replace_input_with(use.idx, source)
                return ir.to_proto(found)
        perm = [*node.attributes["perm"].as_ints()] if "perm" in node.attributes else []
        if len(perm) > 1 and result.shape is not None:
            i, j = draw.sample(range(len(perm)), 2)
            if result.shape[i] == result.shape[j] != 1:
                perm[i], perm[j] = perm[j], perm[i]
                node.attributes["perm"] = ir.AttrInt64s("perm", perm)
                return ir.to_proto(found)
    return None


def test_wrong_views_are_found_without_a_run() -> None:
    """The rest are between values of unknown extents, and before operators whose effect on axes is not known."""
    wrong, passed, seed = 0, [], FIRST_SEED
    while wrong < WRONG:
        seed += 1
        draw = random.Random(seed)
        try:
            original = draw_graph(seed).model
            backend = draw.choice(["onnx", "nhwc", "x86-nchwc", "tpu"])
            model = without_views(legalize(original, backend, verify=False)[0], draw)
        except (Rejected, RelayoutError):
            continue
        if model is not None and differs(model, original):
            wrong += 1
            passed += [seed] * verify(model, backend, against=original, run=False).passed
    assert len(passed) <= WRONG // 10, passed
