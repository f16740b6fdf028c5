"""The casts between float types of two models, of which float64 has none: whether both models round alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import onnx
from onnx import TensorProto

from relayout.model.proto_graphs import STANDARD_DOMAINS

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""The types that are widened to float64."""
TYPES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that are an element type."""

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_INDICES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
# Operators that sum: runtimes compute these of narrow floats in float32, and round the result alone.
_SUMMING = frozenset({"InstanceNormalization", "LayerNormalization", "LogSoftmax", "RMSNormalization", "Softmax"})


class Casts(NamedTuple):
    """How often a model rounds to each type, by the type.

    `closed` are results that are rounded once: casts back to a narrow type of what was computed from values of that
    type alone, and operators that sum, which do so inside. `widening` casts to float32 lose nothing. `others` are all
    other casts, and operators that have a type as an attribute. Casts of integers to float32 do not count: one of the
    models may have a constant extent there. Nor do casts to the type that a value has, which do nothing.
    """

    closed: Counter[int]
    widening: int
    others: Counter[int]


def casts_of(nodes: Iterable[onnx.NodeProto], types: Mapping[str, int], constants: Collection[str]) -> Casts:
    """The casts of nodes in topological order; `types` are element types by name, as far as they are known."""
    found = Casts(Counter(), 0, Counter())
    widening = 0
    fixed = {*constants}
    # The narrow type from whose values alone a value in float32 is computed.
    narrow_of: dict[str, int] = {}
    for node in nodes:
        read = [name for name in node.input if name and name not in fixed]
        if not read and node.op_type in ("Cast", "Constant", "Identity", "Reshape", "Transpose"):
            fixed.update(node.output)
        stated = [each.i for each in node.attribute if each.name in TYPES and each.i in FLOATS]
        is_cast = node.op_type == "Cast" and node.domain in STANDARD_DOMAINS
        if is_cast and stated == [types.get(node.input[0])]:
            stated = []  # the type that the value has
        if is_cast and stated:
            given, wanted = types.get(node.input[0], 0), stated[0]
            if given in _INDICES and wanted == TensorProto.FLOAT:
                continue
            if given in _NARROW and wanted == TensorProto.FLOAT:
                widening += 1
                narrow_of[node.output[0]] = given
            elif narrow_of.get(node.input[0]) == wanted:
                found.closed[wanted] += 1
            else:
                found.others[wanted] += 1
            continue
        found.others.update(stated)
        if node.op_type in _SUMMING and types.get(node.output[0]) in _NARROW:
            found.closed[types[node.output[0]]] += 1
        sources = {narrow_of.get(name, 0) for name in read if types.get(name, 0) not in _INDICES}
        if len(sources) == 1 and (source := sources.pop()):
            narrow_of.update(dict.fromkeys(node.output, source))
    return found._replace(widening=widening)


def round_alike(mine: Casts, theirs: Casts) -> bool:
    """Whether `mine` rounds where `theirs` does. It may compute in float32 what they compute in a narrower type."""
    return mine.closed == theirs.closed and mine.others == theirs.others and mine.widening >= theirs.widening
