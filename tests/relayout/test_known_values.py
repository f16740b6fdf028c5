"""Values and shapes that are known before the model runs."""

from __future__ import annotations

import numpy as np
from graphs import Net
from onnx import TensorProto, helper

from relayout.model_io import read_model


def test_what_a_computed_value_tells_of_shapes_replaces_a_dim_that_was_made_up() -> None:
    net = Net()
    token = net.constant(np.zeros((1, 1, 4), np.float32))
    wanted = net.constant([-1, 1, 4])
    is_open = net.node("Equal", wanted, net.constant([-1, -1, -1]))
    size = net.node("Where", is_open, net.constant([1, 1, 1]), wanted)
    expanded = net.node("Expand", token, size)
    joined = net.node("Concat", expanded, net.input("x", (1, 9, 4)), axis=1)
    net.output(net.node("Relu", joined))
    model = net.model()
    # As inference leaves them on a larger graph, before it knows what the arithmetic gives.
    for name, shape in ((expanded, ["unk__0", "unk__1", 4]), (joined, [1, "unk__2", 4])):
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    shapes = {v.name: list(v.shape or ()) for node in read_model(model).graph for v in node.outputs}
    assert shapes[joined] == [1, 10, 4]
