"""Operators that onnxruntime has on GPUs alone, in NumPy, as its documentation defines them."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


def _normalized(x: Array, gamma: Array, beta: Array, attributes: dict[str, Any]) -> Array:
    """Each group of channels, over all of its positions."""
    axis = 1 if attributes.get("channels_last", 1) == 0 else 3
    channels = np.moveaxis(x.astype(np.float64), axis, 1)
    size = channels.shape[1] // attributes["groups"]
    parts = []
    for first in range(0, channels.shape[1], size):
        group = channels[:, first : first + size]
        mean = group.mean((1, 2, 3), keepdims=True)
        variance = ((group - mean) ** 2).mean((1, 2, 3), keepdims=True)
        parts.append((group - mean) / np.sqrt(variance + attributes.get("epsilon", 1e-5)))
    made = np.concatenate(parts, 1) * gamma[:, None, None] + beta[:, None, None]
    if attributes["activation"] == 1:
        made = made / (1 + np.exp(-made))
    return np.moveaxis(made, 1, axis).astype(x.dtype)


class GroupNorm(OpRun):  # type: ignore[misc]
    op_domain = "com.microsoft"

    def _run(self, x: Array, gamma: Array, beta: Array, **attributes: Any) -> tuple[Array]:
        return (_normalized(x, gamma, beta, attributes),)


class SkipGroupNorm(OpRun):  # type: ignore[misc]
    op_domain = "com.microsoft"

    def _run(
        self, x: Array, gamma: Array, beta: Array, skip: Array, bias: Array | None = None, **attributes: Any
    ) -> tuple[Array, ...]:
        is_last = attributes.get("channels_last", 1) != 0
        if skip.ndim == 2:
            skip = skip[:, None, None] if is_last else skip[:, :, None, None]
        bias = np.zeros_like(gamma) if bias is None else bias
        total = (x + skip + (bias if is_last else bias[:, None, None])).astype(x.dtype)
        return (_normalized(total, gamma, beta, attributes), total)[: len(self.onnx_node.output)]


class BiasAdd(OpRun):  # type: ignore[misc]
    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array, skip: Array) -> tuple[Array]:
        return (x + bias + skip,)


class BiasSplitGelu(OpRun):  # type: ignore[misc]
    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        left, right = np.split(x + bias, 2, axis=-1)
        return ((left * 0.5 * right * (1 + np.vectorize(erf)(right * 0.5**0.5))).astype(x.dtype),)


GPU_OPERATORS = (GroupNorm, SkipGroupNorm, BiasAdd, BiasSplitGelu)


def evaluator(model: Any) -> ReferenceEvaluator | None:
    """A runtime for a model with such operators; None for any other model."""
    names = {each.__name__ for each in GPU_OPERATORS}
    has_any = any(node.domain == "com.microsoft" and node.op_type in names for node in model.graph.node)
    return ReferenceEvaluator(model, new_ops=[*GPU_OPERATORS]) if has_any else None
