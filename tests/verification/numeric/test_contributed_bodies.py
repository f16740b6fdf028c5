"""The bodies of onnxruntime's operators compute what its kernels compute, or what its documentation says."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from examples import EXAMPLES, Constant, Example, Input
from gpu_operators import GPU_OPERATORS
from graphs import Net, assert_close, random_feeds, run

from relayout.legalization import legalize
from relayout.verification.numeric.contributed_bodies import contributed_body
from relayout.verification.verifier import verify

DOMAIN = "com.microsoft"


def net_of(example: Example, results: int) -> onnx.ModelProto:
    net = Net(example.opset)
    names = [
        net.constant(np.asarray(each.array, each.dtype))
        if isinstance(each, Constant)
        else net.input(f"x{place}", each.shape)
        if isinstance(each, Input)
        else ""
        for place, each in enumerate(example.inputs)
    ]
    made: Any = net.node(example.operator, *names, results=results, domain=DOMAIN, **example.attributes)
    for name in (made,) if isinstance(made, str) else made:
        net.output(name)
    return net.model()


def with_body(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with a function in place of its node; None where the node has no body."""
    (node,) = [each for each in ir.from_proto(model).graph if each.domain == DOMAIN]
    for value in node.inputs:
        if value is not None and value.const_value is not None:
            value.dtype = value.const_value.dtype
            value.shape = ir.Shape(value.const_value.shape)
    body = contributed_body(node, next(each.version for each in model.opset_import if not each.domain))
    if body is None:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    function = copy.functions.add()
    function.CopyFrom(body.function)
    function.domain = "body"
    copy.opset_import.add(domain="body", version=1)
    for each in copy.graph.node:
        if each.domain == DOMAIN:
            each.domain = "body"
            del each.attribute[:]
    del function.output[len(node.outputs) :]
    return copy


SKIPS = ("SkipGroupNorm",)
FLOATS = [each for each in EXAMPLES if each.domain == DOMAIN and with_body(net_of(each, 1)) is not None]


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("example", FLOATS, ids=lambda each: f"{each.operator}-{EXAMPLES.index(each)}")
def test_a_body_computes_what_the_operator_computes(example: Example, opset: int) -> None:
    model = net_of(
        Example(example.operator, example.inputs, example.attributes, opset, domain=DOMAIN),
        2 if example.operator in SKIPS else 1,
    )
    bodied = with_body(model)
    assert bodied is not None
    feeds = random_feeds(model)
    assert_close(run(model, feeds), run(bodied, feeds))


def test_all_operators_that_only_gpus_have_are_among_them() -> None:
    names = {each.operator for each in FLOATS}
    assert {each.__name__ for each in GPU_OPERATORS} <= names
    assert len(names) >= 10


def attention(*packed: int, bias: bool = False, **attributes: float) -> onnx.ModelProto:
    """An attention of 2 heads of 4, whose queries, keys and values are packed in so many operands, as numbers of them;
    none: each in its own, of which CPUs have a kernel."""
    net = Net(17)
    query, key, value = (net.input(name, (2, rows, 8)) for name, rows in (("q", 5), ("k", 5), ("v", 5)))
    apart = [net.node("Reshape", each, net.constant([2, 5, 2, 1, 4])) for each in (query, key, value)]
    operands = [query, key, value] if not packed else [query] if packed == (2,) else []
    if packed:
        operands.append(net.node("Concat", *apart[-packed[0] :], axis=3))
    while bias and len(operands) < 5:
        operands.append("")
    operands += [net.input("bias", (1, 2, 5, 5))] if bias else []
    net.output(net.node("MultiHeadAttention", *operands, domain=DOMAIN, num_heads=2, **attributes))
    return onnx.shape_inference.infer_shapes(net.model())


@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("packed", [(), (2,), (3,)])
def test_the_body_of_an_attention_takes_packed_operands_as_others(
    packed: tuple[int, ...], bias: bool, attributes: dict[str, float]
) -> None:
    kernel = attention(bias=bias, **attributes)
    bodied = with_body(attention(*packed, bias=bias, **attributes))
    assert bodied is not None
    feeds = random_feeds(kernel)
    assert_close(run(kernel, feeds), run(bodied, feeds))


@pytest.mark.parametrize("attribute", ["unidirectional", "mask"])
def test_an_attention_with_a_mask_has_no_body(attribute: str) -> None:
    model = attention(**({"unidirectional": 1} if attribute == "unidirectional" else {}))
    if attribute == "mask":
        (node,) = [each for each in model.graph.node if each.domain == DOMAIN]
        node.input.extend(["", "q"])
    assert with_body(model) is None


def diffusion(batch: int | str) -> onnx.ModelProto:
    """A block as onnxruntime's optimizer writes it for a UNet: convolutions channels last, normalizations between."""
    net = Net(17)
    image = net.transpose(net.input("x", (batch, 4, 6, 6)), 0, 2, 3, 1)

    def own(operator: str, *operands: str, results: int = 1, **attributes: Any) -> Any:
        return net.node(operator, *operands, results=results, domain=DOMAIN, **attributes)

    def convolved(value: str) -> Any:
        return own("NhwcConv", value, net.weight(4, 3, 3, 4), kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    affine = net.weight(4), net.weight(4)
    first = convolved(own("GroupNorm", image, *affine, groups=2, activation=1))
    time = net.node("Unsqueeze", net.input("t", (batch, 4)), net.constant([1, 2]))
    second = convolved(own("SkipGroupNorm", first, *affine, time, groups=2, activation=1))
    normal, total = own("SkipGroupNorm", second, *affine, image, groups=2, activation=0, results=2)
    tokens = net.node("Reshape", normal, net.constant([0, 36, 4]))
    qkv = net.node("Reshape", net.node("MatMul", tokens, net.weight(4, 12)), net.constant([0, 36, 2, 3, 2]))
    tokens = own("BiasAdd", own("MultiHeadAttention", qkv, num_heads=2), net.weight(4), tokens)
    gated = own("BiasSplitGelu", net.node("MatMul", tokens, net.weight(4, 8)), net.weight(8))
    tokens = net.transpose(net.node("Reshape", gated, net.constant([0, 6, 6, 4])), 0, 3, 1, 2)
    total = net.node("Add", tokens, net.transpose(total, 0, 3, 1, 2))
    net.output(net.transpose(convolved(net.transpose(total, 0, 2, 3, 1)), 0, 3, 1, 2))
    return net.model()


@pytest.mark.parametrize("batch", [2, "batch"])
@pytest.mark.parametrize(("backend", "most"), [("nhwc", 2), ("onnx", 9)])
def test_a_diffusion_model_stays_in_channels_last_and_is_compared(batch: int | str, backend: str, most: int) -> None:
    model = diffusion(batch)
    legal, report = legalize(model, backend, check=True)
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.numeric is not None
    assert [each.name for each in report.verification.numeric.outputs] == [model.graph.output[0].name]
    assert report.after.transposes <= most
    assert report.sizes.keys() <= {"batch"}
    again, second = legalize(legal, backend)
    assert (again.SerializeToString(), second.cost) == (legal.SerializeToString(), report.cost)


@pytest.mark.parametrize("change", [("groups", 4), ("activation", 0), ("epsilon", 0.5)])
def test_a_normalization_with_another_attribute_is_found(change: tuple[str, float]) -> None:
    model = diffusion(2)
    legal, _ = legalize(model, "nhwc")
    node = next(each for each in legal.graph.node if each.op_type == "SkipGroupNorm")
    kept = [each for each in node.attribute if each.name != change[0]]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(*change)])
    assert not verify(legal, "nhwc", against=model).passed
