"""A model as it was given: the file's bytes, in a runtime, without relayout's reader between.

The verifier reads both models with the reader that legalization uses, so a fault in it would be on both sides. The
results of the unread model do not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from relayout.report.schema import Finding
from relayout.verification.numeric.baseline import Feeds, first_line
from relayout.verification.numeric.runtimes import Session
from relayout.verification.numeric.tolerance import Arrays, arrays, difference

__all__ = ["check_as_given"]


def check_as_given(
    source: Any,
    title: str,
    runtime: str,
    feeds: Feeds,
    read: Sequence[Mapping[str, Arrays]],
    left_out: Set[str],
    quantized: Set[str],
) -> Iterator[Finding]:
    """Yield a finding for each output that `source` gives otherwise than the same model as relayout reads it.

    `read` has the latter's outputs for each of `feeds`; `left_out` are outputs that differ from run to run.
    """
    proto = _proto(source)
    if proto is None:
        return
    try:
        session = Session(proto, runtime)
        found = [{name: arrays(result) for name, result in session.run(feed).items()} for feed in feeds]
    except Exception as error:  # a runtime may raise anything
        message = f"{title} runs as relayout reads it, and not as it was given"
        yield Finding(rule="as-given", severity="note", found=first_line(error), message=message)
        return
    for name in session.names:
        if name in left_out:
            continue
        expected, other = [sample[name] for sample in found], [sample.get(name, []) for sample in read]
        apart = difference(name, expected, other, quantized=name in quantized)
        if not apart.passed:
            yield Finding(
                rule="as-given",
                node=name,
                expected=f"a relative difference of at most {apart.tolerance:.3g}",
                found=f"{apart.max_rel:.3g}",
                message=f"output {name} of {title} is another one when relayout reads the model",
            )


def _proto(source: Any) -> onnx.ModelProto | None:
    """The protobuf of a source that is one; None for graph JSON, and for a model that relayout has read already."""
    if isinstance(source, str | os.PathLike):
        return None if Path(source).suffix == ".json" else onnx.load(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return onnx.load_from_string(bytes(source))
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy
    return ir.to_proto(source) if isinstance(source, ir.Model) and not source.meta else None
