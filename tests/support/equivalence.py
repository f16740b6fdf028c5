"""The check that a legal model passes the verifier and computes the same as its source."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from graphs import assert_close, run

from relayout import legalize, verify
from relayout.model.proto_graphs import subgraphs_of

Feeds = Mapping[str, np.ndarray]


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_legal_and_equivalent(model: onnx.ModelProto, backend: str, feeds: Sequence[Feeds]) -> Any:
    """Legalize; the model passes onnx and the verifier, and gives the source's numbers for all feeds."""
    legal, report = legalize(model, backend)
    if all(value.type.tensor_type.HasField("shape") for value in (*model.graph.input, *model.graph.output)):
        onnx.checker.check_model(legal, full_check=True)
    assert report.status == "optimal"
    assert verify(legal, backend=backend).findings == ()
    for feed in feeds:
        assert_close(run(model, feed), run(legal, feed))
    return report


def node_texts(model: onnx.ModelProto) -> list[bytes]:
    """The nodes, without what is only known of the shapes inside their subgraphs."""
    bare = onnx.GraphProto(node=model.graph.node)
    for graph in [*subgraphs_of(bare)][1:]:
        graph.ClearField("value_info")
        for value in graph.output:
            value.ClearField("type")
    return [node.SerializeToString(deterministic=True) for node in bare.node]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed check. Failures with the same `kind`, one or two words, probably have the same cause."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def raised_at(error: Exception) -> str:
    """The file and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def refused_by_checker(model: onnx.ModelProto, kind: str) -> list[Failure]:
    """A failure of this kind if onnx's checker rejects the model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # the checker raises several kinds
        return [Failure(kind, one_line(error))]
    return []


def first_difference(one: onnx.ModelProto, other: onnx.ModelProto) -> str:
    for a, b in zip(one.graph.node, other.graph.node, strict=False):
        if a != b:
            return f"{a.op_type} {list(a.input)} -> {b.op_type} {list(b.input)}"
    return f"{len(one.graph.node)} nodes became {len(other.graph.node)}"
