"""Constant folding by ONNX's reference implementation, for the operators that it computes correctly.

The reference implements only the newest Softmax, has other defaults for RoiAlign, and an LpNormalization without
absolute values. So only operators with the same results in onnxruntime, in every version and type, are folded. The
others stay in the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from relayout.layout.relaid_constant import AbsentTensor
from relayout.model.dims.lone_nodes import evaluated_alone
from relayout.ops.node_reader import constant_tensor

FOLD_LIMIT = 1 << 28
"""Constants of more bytes are not folded."""


_HALVES = frozenset([ir.DataType.FLOAT16, ir.DataType.BFLOAT16])

FOLDABLE: dict[str, int] = {
    **dict.fromkeys(
        "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
        "BitwiseXor Cast CastLike Ceil Celu Clip Compress Concat ConstantOfShape Cos Cosh CumSum DepthToSpace "
        "DequantizeLinear Div Einsum Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements Gelu Gemm Greater "
        "GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log MatMul "
        "MatMulInteger Max Mean Min Mish Mod Mul Neg Not OneHot Or PRelu Pad Pow QuantizeLinear Range Reciprocal "
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round "
        "ScatterElements Selu Shape Sigmoid Sign Sin Sinh Size Slice Softplus Softsign SpaceToDepth Split Sqrt "
        "Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile Transpose Trilu Where Xor".split(),
        1,
    ),
    # Before opset 13 these flatten their input to a matrix.
    **dict.fromkeys(["Hardmax", "LogSoftmax", "Softmax"], 13),
    # The reference inserts the axes of the attribute one by one.
    "Unsqueeze": 13,
}
"""The first opset in which an operator's results equal the reference's."""


def folded_value(value: ir.Value, known: Mapping[ir.Node, np.ndarray]) -> ir.TensorProtocol | None:
    """The data of a value that depends on constants only. None where data is absent or large, or an operator is not
    folded. `known` has the results of nodes that ask for known extents."""
    nodes: dict[ir.Node, None] = {}
    leaves: dict[str, np.ndarray] = {}
    if not _collect(value, known, nodes, leaves):
        return None
    return _evaluate(value, list(nodes), leaves)


def _collect(
    value: ir.Value,
    known: Mapping[ir.Node, np.ndarray],
    nodes: dict[ir.Node, None],
    leaves: dict[str, np.ndarray],
) -> bool:
    """Add the nodes that `value` depends on, in topological order; they may be in several graphs."""
    pending: list[tuple[ir.Value, bool]] = [(value, False)]
    while pending:
        current, is_read = pending.pop()
        producer = current.producer()
        if is_read and producer is not None:
            nodes[producer] = None
            continue
        if (current.name or "") in leaves or producer in nodes:
            continue
        tensor = constant_tensor(current)
        if tensor is not None:
            if isinstance(tensor, AbsentTensor) or tensor.nbytes > FOLD_LIMIT:
                return False
            leaves[current.name or ""] = tensor.numpy()
        elif producer is not None and producer in known:
            leaves[current.name or ""] = known[producer]
        elif producer is None or not _is_foldable(producer):
            return False
        else:
            pending.append((current, True))
            pending += [(read, False) for read in producer.inputs if read is not None]
    return True


def _is_foldable(node: ir.Node) -> bool:
    opset = node.graph.opset_imports.get("", 1) if node.graph is not None else 1
    if node.op_type == "QuantizeLinear" and any(v is not None and v.dtype in _HALVES for v in node.inputs):
        return False  # rounding halfway cases depends on the precision of the division
    return node.domain == "" and opset >= FOLDABLE.get(node.op_type, opset + 1)


def _evaluate(value: ir.Value, nodes: list[ir.Node], leaves: dict[str, np.ndarray]) -> ir.TensorProtocol | None:
    """`nodes` in topological order."""
    if not nodes:
        return ir.Tensor(leaves[value.name or ""])
    graph = nodes[-1].graph
    assert graph is not None
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in graph.opset_imports.items()]
    try:
        with np.errstate(all="ignore"):
            (array,) = evaluated_alone(map(ir.serde.serialize_node, nodes), leaves, [value.name or ""], opsets)
    except Exception:  # the reference implementation lacks operators and types; the node then stays in the model
        return None
    return ir.Tensor(array) if _is_sure(array, value.dtype) else None


def _is_sure(array: np.ndarray, dtype: ir.DataType | None) -> bool:
    """Whether the type is `dtype` and all numbers are finite: runtimes differ in Clip and Sign of others."""
    if array.dtype.kind in "OSU" or (dtype is not None and ir.DataType.from_numpy(array.dtype) != dtype):
        return False
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
