"""A model as it was given: the file's bytes, in a runtime, without relayout's reader between.

The verifier reads both models with the reader that legalization uses, so a fault in it would be on both sides. The
results of the unread model do not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from relayout.model.external_data import loaded_whole
from relayout.model.io import is_read
from relayout.model.onnx_file import Parsed
from relayout.model.proto_graphs import copied
from relayout.report.schema import Finding, OutputDifference
from relayout.verification.numeric.baseline import Feeds, first_line, run
from relayout.verification.numeric.tolerance import Arrays, difference


@dataclass(frozen=True)
class Unread:
    """A model that was given, the model that relayout reads, and the outputs of this by name, for each of `feeds`.

    `read` may come from a run with inner values among the results. `again` runs the read model without them: a runtime
    without operators of 16-bit floats rounds the values that are results, and computes wider in between.
    """

    title: str
    source: object
    feeds: Feeds
    read: Sequence[Mapping[str, Arrays]]
    again: Callable[[], Sequence[Mapping[str, Arrays]]]


def check_as_given(
    original: Unread, model: Unread, runtime: str, left_out: Set[str], quantized: Set[str]
) -> tuple[list[Finding], list[str]]:
    """A finding for each output that a model gives otherwise than relayout reads it; and what does not run unread.

    `left_out` are outputs that differ from run to run. A model that does not run, where its original does, is an error.
    """
    findings: list[Finding] = []
    untried: list[str] = []
    for unread in (original, model):
        proto = _proto(unread.source)
        if proto is None:
            if unread is original and original.source is not None:
                untried.append("to run the original as it was given: no runtime reads graph JSON or a model in memory")
            continue
        try:
            # The model that was read has inputs in place of what draws numbers.
            given = {value.name for value in proto.graph.input}
            found = run(
                proto, runtime, (), [{name: feed[name] for name in feed if name in given} for feed in unread.feeds]
            )
        except Exception as error:  # a runtime may raise anything
            fault = first_line(error)
            if unread is original or untried:
                untried.append(f"{unread.title} runs as relayout reads it, and not as it was given: {fault}")
            else:
                message = "the model does not run as it was given"
                findings.append(Finding(rule="as-given", expected="a model that runs", found=fault, message=message))
            continue
        names = [name for name in found[0] if name not in left_out]
        findings += _differences(unread, names, found, quantized)
    return findings, untried


def _differences(
    unread: Unread, names: Sequence[str], found: Sequence[Mapping[str, Arrays]], quantized: Set[str]
) -> Iterator[Finding]:
    def failed(read: Sequence[Mapping[str, Arrays]], names: Iterable[str]) -> dict[str, OutputDifference]:
        each = {
            name: difference(
                name,
                [sample[name] for sample in found],
                [sample.get(name, []) for sample in read],
                quantized=name in quantized,
            )
            for name in names
        }
        return {name: apart for name, apart in each.items() if apart.max_rel > apart.tolerance}

    doubtful = failed(unread.read, names)
    for name, apart in failed(unread.again(), doubtful).items() if doubtful else ():
        yield Finding(
            rule="as-given",
            node=name,
            expected=f"a relative difference of at most {apart.tolerance:.3g}",
            found=f"{apart.max_rel:.3g}",
            message=f"output {name} of {unread.title} is another one when relayout reads the model",
        )


def _proto(source: object) -> onnx.ModelProto | None:
    """The protobuf of a source that is one; None for graph JSON, and for a model that relayout has read already."""
    if isinstance(source, str | os.PathLike):
        return None if Path(source).suffix == ".json" else loaded_whole(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return onnx.load_from_string(bytes(source))
    if isinstance(source, Parsed):
        return source.whole()
    if isinstance(source, onnx.ModelProto):
        return copied(source)
    return ir.to_proto(source) if isinstance(source, ir.Model) and not is_read(source) else None
