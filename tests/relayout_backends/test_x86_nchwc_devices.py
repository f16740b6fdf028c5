"""`x86-nchwc` as one device among others: blocked formats, conversions and post-pass stay on it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import Net, assert_same_numbers
from legalization_checks import findings_about
from random_convolutions import draw_network

from relayout.legalization import legalize
from relayout.verification.verifier import verify

pytest.importorskip("onnxruntime")


def convolutions(*, at_host: str = "") -> onnx.ModelProto:
    """Two normalized convolutions, a Softmax that the vector unit does not have, a convolution and a pool.

    44 channels are no whole blocks, be they of 8 or of 16.
    """
    net = Net()
    value, channels = net.input("x", (1, 3, 24, 24)), 3
    for outputs in (32, 44):
        value = net.conv(value, channels, outputs)
        parameters = [net.weight(outputs) for _ in range(3)]
        parameters.append(net.constant(net.rng.uniform(0.5, 2, outputs).astype(np.float32)))
        value = net.node("Relu", net.node("BatchNormalization", value, *parameters))
        channels = outputs
    value = net.conv(net.node("Softmax", value, axis=1), channels, 44)
    value = net.node("Relu", value)
    net.nodes[-1].name = at_host or net.nodes[-1].name
    net.output(net.node("GlobalAveragePool", net.node("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])))
    return net.model()


def vector_unit(host: str) -> dict[str, Any]:
    """Convolutions in blocks beside a host that has a backend of its own."""
    blocked = ["Conv", "BatchNormalization", "Relu", "GlobalAveragePool"]
    devices = [
        {"name": "vector", "backend": "x86-nchwc", "op": blocked, "transfer": 0.1},
        {"name": "cpu", "backend": host, "op": ["Softmax", "MaxPool", "Relu"], "transfer": 0.1},
    ]
    assigned = [{"op": "Relu", "nodes": "host/*", "devices": "cpu"}]
    return {"name": "board", "host": "cpu", "device": devices, "assign": assigned}


def devices_of(model: onnx.ModelProto) -> dict[str, str]:
    """Where each node runs, by its name."""
    found = ((node.name, entry) for node in model.graph.node for entry in node.metadata_props)
    return {name: entry.value for name, entry in found if entry.key == "relayout.device"}


def operators_at(model: onnx.ModelProto, device: str) -> list[str]:
    """The operators at a device, with their domains."""
    at = devices_of(model)
    return [f"{n.domain}::{n.op_type}".removeprefix("::") for n in model.graph.node if at.get(n.name) == device]


@pytest.mark.parametrize("host", ["nhwc", "onnx"])
def test_one_of_two_devices_is_blocked_with_its_own_conversions_and_post_pass(host: str) -> None:
    source, spec = convolutions(at_host="host/relu"), vector_unit(host)
    legal, report = legalize(source, spec, check=True)
    assert report.verification is not None
    assert report.verification.findings == ()
    assert_same_numbers(source, legal)
    blocks = "com.microsoft.nchwc"
    at_vector = operators_at(legal, "vector")
    assert at_vector.count(f"{blocks}::Conv") >= 2
    assert f"{blocks}::ReorderOutput" in at_vector
    assert "BatchNormalization" not in at_vector
    assert {c.kind for c in report.conversions if "tile" in f"{c.from_}{c.to}"} == {"reorder"}
    done = {a.name for n in legal.graph.node if n.domain == blocks for a in n.attribute}
    assert "activation" in done
    # A node that runs elsewhere is not done by a convolution here.
    assert "Relu" in operators_at(legal, "cpu")


def test_a_node_written_for_a_device_is_legal_only_on_it() -> None:
    spec = vector_unit("onnx")
    legal, _ = legalize(convolutions(), spec)
    again, _ = legalize(legal, spec, check=True)
    assert operators_at(again, "vector") == operators_at(legal, "vector")
    reorder = next(node for node in legal.graph.node if node.op_type == "ReorderOutput")
    next(entry for entry in reorder.metadata_props if entry.key == "relayout.device").value = "cpu"
    found = [f for f in verify(legal, spec, run=False).findings if f.node == reorder.name]
    assert [f.rule for f in found] == ["placement"]


@pytest.mark.parametrize("seed", range(12))
def test_random_convolutions_partly_in_blocks_compute_the_same_and_stay(seed: int) -> None:
    """A second run changes nothing at equal cost, also where a conversion is on a device that does not take Reshape."""
    random, source = Random(seed), draw_network(seed)
    operators = sorted({node.op_type for node in source.graph.node})
    taken = ["Conv", *(op for op in operators if random.random() < 0.7)]
    devices = [
        {"name": "vector", "backend": "x86-nchwc", "op": taken, "transfer": random.choice((0, 0.1, 1))},
        {"name": "cpu", "backend": random.choice(("onnx", "nhwc")), "transfer": random.choice((0, 0.5))},
    ]
    spec = {"name": "board", "device": devices, "assign": [{"op": "Conv", "devices": "vector"}]}
    legal, report = legalize(source, spec)
    verification = verify(legal, spec, against=source, report=report)
    assert findings_about(verification) == []
    assert verification.numeric is not None
    assert verification.numeric.status == "compared"
    again, second = legalize(legal, spec)
    assert again.graph == legal.graph
    assert second.cost == report.cost


def test_a_table_that_extends_a_backend_finishes_and_prices_as_that_does() -> None:
    source = convolutions()
    own, report = legalize(source, "x86-nchwc")
    table_legal, table_report = legalize(source, {"name": "mine", "extends": "x86-nchwc"})
    assert [n.op_type for n in table_legal.graph.node] == [n.op_type for n in own.graph.node]
    assert table_report.cost == report.cost
