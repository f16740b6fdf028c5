"""A model run in float64, one node after the other, each in a runtime with a kernel for it.

That is onnxruntime where it has the operator in float64, else the reference evaluator, a kernel of our own, or the body
that a backend states for an operator of its own. Results of the latter three are compared with onnxruntime's kernel in
float32 on the same operands: an evaluator that ignored an attribute could make two different models agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from relayout.model.proto_graphs import STANDARD_DOMAINS, copied, opset_of
from relayout.model.runtime import plain_session
from relayout.verification.constants import RANDOM
from relayout.verification.numeric.deadline import Deadline, UndecidedError
from relayout.verification.numeric.float64.convolution import average, convolve, convolve_transposed, is_plain
from relayout.verification.numeric.float64.steps import Body, Step, Steps, narrow, wide
from relayout.verification.numeric.inputs import Array
from relayout.verification.numeric.tolerance import quantizes

# Constants up to so many elements are initializers: some kernels read them on creation, such as a scale or an axis.
_SMALL = 256
# A thread takes longer to start than one operator runs on so many elements.
_ALONE = 1 << 16
# Sessions of nodes are kept up to this number, as each takes some memory.
_MOST_SESSIONS = 512
# Operators of which a second run may give other results on the same operands, and those that may write into an operand.
_STATEFUL = RANDOM | {"BatchNormalization", "Dropout"}
# How far one operator in float32 may be from the same in float64, relative to the largest element.
_ONE_OPERATOR = 1e-3
_KERNELS: dict[str, Callable[..., Array]] = {
    "AveragePool": average,
    "Conv": convolve,
    "ConvTranspose": convolve_transposed,
}
# The modes of GridSample before opset 20, in the words since.
_GRID_MODES = {b"bilinear": b"linear", b"bicubic": b"cubic"}

Operands = dict[str, Array]


def run_wide(
    model: Steps, feeds: Sequence[Mapping[str, Array]], wanted: Sequence[str], deadline: Deadline
) -> list[Operands]:
    """The `wanted` values of each feed, computed in float64.

    Raises UndecidedError for a node that cannot be run so, where its results cannot be trusted, and after the deadline.
    """
    constants = {name: wide(array) for name, array in model.constants.items()}
    known = [{**constants, **{name: wide(array) for name, array in feed.items()}} for feed in feeds]
    return _run(model, model.steps, known, constants, wanted, deadline)


def _run(
    model: Steps,
    steps: Sequence[Step],
    known: Sequence[Operands],
    constants: Operands,
    wanted: Sequence[str],
    deadline: Deadline,
) -> list[Operands]:
    """The `wanted` values after these steps. The values in `known` are removed after their last use."""
    left = Counter(name for step in steps for name in step.reads)
    left.update(wanted)
    for step in steps:
        deadline.check()
        for place, results in zip(known, _results(model, step, known, constants, deadline), strict=True):
            place.update(results)
        left.subtract(step.reads)
        for name in (*step.reads, *step.wide.output):
            if not left[name]:
                for place in known:
                    place.pop(name, None)
    return [{name: place[name] for name in wanted} for place in known]


def _results(
    model: Steps, step: Step, known: Sequence[Operands], constants: Operands, deadline: Deadline
) -> list[Operands]:
    """The results of one node for each feed, without absent ones."""
    operands = [{name: place[name] for name in step.reads} for place in known]
    newer, node = _as_of_opset_20(model, step.wide)
    try:
        if step.is_fixed:
            results = _rounded(model, step, operands, constants)
        else:
            results = _by_onnxruntime(newer, node, operands, constants)
    except Exception:  # it has no such kernel, and may raise anything
        if step.branches:
            return [_by_branch(model, step, each, constants, deadline) for each in operands]
        if _selects_in_float32(model, step.wide):
            results = _in_float32(model, step, operands, constants)
        else:
            if step.body is not None:
                results = [_by_body(model, step.wide, step.body, each, deadline) for each in operands]
            else:
                results = _by_reference(newer, node, operands, constants, deadline)
            _hold_against_float32(model, step, operands, constants, results)
    for each in results:
        for name, array in each.items():
            if not isinstance(array, np.ndarray):
                raise UndecidedError(f"{name} is not a tensor")
            if name in model.overflowing and array.dtype == np.float64:
                # Infinity from here on, as in the narrower float: masks overflow so.
                is_overflown = np.abs(array) >= model.overflowing[name]
                each[name] = np.where(is_overflown, np.copysign(np.inf, array), array)
            elif _is_beyond(model.largest, array):
                raise UndecidedError(f"{name} has values beyond the range of the model's floats, {model.largest:.5g}")
    return results


def _by_branch(model: Steps, step: Step, operands: Operands, constants: Operands, deadline: Deadline) -> Operands:
    """The results of an If: of the nodes of the branch that runs, one after the other."""
    branch = step.branches[bool(operands[step.wide.input[0]].item())]
    own = {name: wide(array) for name, array in branch.constants.items()}
    [found] = _run(model, branch.steps, [{**operands, **own}], {**constants, **own}, branch.results, deadline)
    return {name: found[result] for name, result in zip(step.wide.output, branch.results, strict=True) if name}


def _by_body(model: Steps, node: onnx.NodeProto, body: Body, operands: Operands, deadline: Deadline) -> Operands:
    """The results of an operator of a backend's own: of the nodes of its body, one after the other."""
    given = {own: operands[name] for own, name in zip(body.operands, node.input, strict=False) if name}
    if absent := {*body.operands}.difference(given).intersection(name for step in body.steps for name in step.reads):
        raise UndecidedError(f"the body of {node.op_type} reads an operand that the node leaves out: {min(absent)}")
    [found] = _run(model, body.steps, [given], {}, body.results, deadline)
    return {name: found[result] for name, result in zip(node.output, body.results, strict=False) if name}


def _is_beyond(largest: float, array: Array) -> bool:
    """Whether the difference is an overflow in a narrower float alone."""
    return array.dtype == np.float64 and bool(np.any(np.isfinite(array) & (np.abs(array) > largest)))


def _by_onnxruntime(
    model: Steps, node: onnx.NodeProto, operands: Sequence[Operands], constants: Operands
) -> list[Operands]:
    is_small = max(sum(array.size for array in each.values()) for each in operands) <= _ALONE
    sessions = model.sessions if is_small and node.op_type not in _STATEFUL else {}
    names = {name: name for name in (*operands[0], *node.output) if name}
    if not any(attribute.HasField("g") for attribute in node.attribute):
        # Under the same names, many nodes are the same. A body would read its outer values under their old names.
        names = {name: f"_{n}" for n, name in enumerate(names)}
        node = _renamed(node, names)
    found = []
    for each in operands:
        held = _held(each, constants)
        given = {names[name]: array for name, array in each.items()}
        proto = _alone(model, node, given, {names[name] for name in held})
        content = proto.SerializeToString(deterministic=True)
        session = sessions.get(content) or plain_session(proto, threads=1 if is_small else 0)
        if len(sessions) < _MOST_SESSIONS:
            sessions[content] = session
        fed = {entry.name: given[entry.name] for entry in proto.graph.input}
        results = session.run([entry.name for entry in proto.graph.output], fed)
        found.append(dict(zip((name for name in names if name not in each), results, strict=True)))
    return found


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copy = copied(node)
    copy.name = ""
    copy.input[:] = [names.get(name, "") for name in node.input]
    copy.output[:] = [names.get(name, "") for name in node.output]
    return copy


def _by_reference(
    model: Steps, node: onnx.NodeProto, operands: Sequence[Operands], constants: Operands, deadline: Deadline
) -> list[Operands]:
    from onnx.reference import ReferenceEvaluator

    kernel = _KERNELS.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
    if kernel is not None and (node.op_type == "Conv" or is_plain(node)):
        return [{node.output[0]: kernel(node, *(each[name] for name in node.input if name))} for each in operands]
    proto = _alone(model, node, operands[0], _held(operands[0], constants))
    names = [entry.name for entry in proto.graph.output]
    try:
        with np.errstate(all="ignore"), deadline:
            evaluator: Any = ReferenceEvaluator(proto)
            return [dict(zip(names, evaluator.run(names, dict(each)), strict=True)) for each in operands]
    except UndecidedError:
        raise
    except Exception as error:  # it may raise anything
        raise UndecidedError(f"no runtime has {node.op_type} in float64") from error


def _as_of_opset_20(model: Steps, node: onnx.NodeProto) -> tuple[Steps, onnx.NodeProto]:
    """The node as the runtimes know it in float64, and its model with these opsets: onnxruntime has no GridSample of
    doubles before opset 20, which has other words for its modes and is the same otherwise."""
    if node.op_type != "GridSample" or node.domain not in STANDARD_DOMAINS:
        return model, node
    copy = copied(node)
    for attribute in copy.attribute:
        if attribute.name == "mode":
            attribute.s = _GRID_MODES.get(attribute.s, attribute.s)
    others = [each for each in model.opsets if each.domain not in STANDARD_DOMAINS]
    own = opset_of(model.opsets)
    return replace(model, opsets=(helper.make_opsetid("", max(own, 20)), *others)), copy


def _selects_in_float32(model: Steps, node: onnx.NodeProto) -> bool:
    """Whether ONNX defines the operator for float32 and not for float64, with indices alone as its results."""
    if node.domain not in STANDARD_DOMAINS:
        return False
    version = opset_of(model.opsets)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    inputs = {name for operand in schema.inputs for name in operand.types}
    results = {name for operand in schema.outputs for name in operand.types}
    return "tensor(double)" not in inputs and "tensor(float)" in inputs and results == {"tensor(int64)"}


def _in_float32(model: Steps, step: Step, operands: Sequence[Operands], constants: Operands) -> list[Operands]:
    inputs = [{name: narrow(array) for name, array in each.items()} for each in operands]
    held = {name: inputs[0].get(name, array) for name, array in constants.items()}
    try:
        return _by_onnxruntime(model, step.narrow, inputs, held)
    except Exception as error:  # it may raise anything
        raise UndecidedError(f"{step.narrow.op_type} cannot be checked: onnxruntime does not run it alone") from error


def _rounded(model: Steps, step: Step, operands: Sequence[Operands], constants: Operands) -> list[Operands]:
    """The results in float32, widened where they are tensors."""
    found = _in_float32(model, step, operands, constants)
    return [
        {name: wide(array) if isinstance(array, np.ndarray) else array for name, array in each.items()}
        for each in found
    ]


def _hold_against_float32(
    model: Steps, step: Step, operands: Sequence[Operands], constants: Operands, results: Sequence[Operands]
) -> None:
    for expected, other in zip(_in_float32(model, step, operands, constants), results, strict=True):
        for name, array in expected.items():
            if not _is_near(array, other[name], 1 if quantizes(step.narrow.op_type) else 0):
                raise UndecidedError(f"{step.narrow.op_type} in float64 differs from onnxruntime's result ({name})")


def _is_near(expected: Array, found: Array, steps: int) -> bool:
    """Whether the results agree; integers may be so many steps apart."""
    if expected.shape != found.shape or expected.dtype != narrow(found).dtype:
        return False
    if expected.dtype.kind in "iu" and steps:
        return bool(np.all(np.abs(expected.astype(np.int64) - found.astype(np.int64)) <= steps))
    if expected.dtype != np.float32:
        return bool(np.array_equal(expected, found))
    both = np.isfinite(expected) & np.isfinite(found)
    if not np.array_equal(expected[~both], found[~both].astype(np.float32), equal_nan=True):
        return False
    apart = np.abs(expected[both] - found[both]).max(initial=0.0)
    return bool(apart <= _ONE_OPERATOR * np.abs(found[both]).max(initial=0.0))


def _held(operands: Operands, constants: Operands) -> set[str]:
    """The operands that are initializers of a model of one node."""
    return {name for name, array in operands.items() if name in constants and array.size <= _SMALL}


def _alone(model: Steps, node: onnx.NodeProto, operands: Operands, held: Set[str]) -> onnx.ModelProto:
    """A model of one node, with the node's inputs; those that are `held` are initializers."""
    fed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
        if name not in held
    ]
    kept = [numpy_helper.from_array(array, name) for name, array in operands.items() if name in held]
    results: list[Any] = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "step", fed, results, kept)
    return helper.make_model(graph, opset_imports=list(model.opsets), ir_version=model.ir_version)
