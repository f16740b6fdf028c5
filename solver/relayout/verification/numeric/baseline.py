"""The baseline: the original's outputs on random inputs, with a runtime and sizes that it accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import onnx_ir as ir

from relayout.verification.axis_names import fed
from relayout.verification.constants import RANDOM
from relayout.verification.numeric.inputs import Array, draw_inputs
from relayout.verification.numeric.runtimes import RUNTIMES, Session
from relayout.verification.numeric.symbolic_sizes import contradiction, plans
from relayout.verification.numeric.tolerance import Arrays, arrays
from relayout.verification.subgraph_values import graphs_of

__all__ = ["Baseline", "baseline_of", "drawn_anew", "first_line", "run"]

Feeds = list[dict[str, Array]]
Results = list[dict[str, Arrays]]
"""The outputs of a model by name, for each sample."""


@dataclass(frozen=True)
class Baseline:
    """The original's outputs for each sample."""

    runtime: str
    feeds: Feeds
    results: Results


def baseline_of(
    original: ir.Model, inner: Sequence[str], samples: int, seed: int, dims: Mapping[str, int] | None
) -> Baseline | str:
    """Run the original in the first runtime, and with the first sizes, that it accepts; else return the first fault."""
    fault = ""
    for runtime in (name for name in RUNTIMES if find_spec(name.split(".")[0]) is not None):
        found = _in_runtime(runtime, original, inner, samples, seed, dims)
        if not isinstance(found, str):
            return found
        fault = fault or f"{runtime}: {found}"
    return fault or "no runtime is installed"


def _in_runtime(
    runtime: str, original: ir.Model, inner: Sequence[str], samples: int, seed: int, dims: Mapping[str, int] | None
) -> Baseline | str:
    """The same in one runtime; the fault is that of the first sizes."""
    fault = ""
    try:
        session = Session(original, runtime, inner)
    except Exception as error:  # a runtime may raise anything
        return first_line(error)
    for plan in plans(original, fed(original), dims):
        try:
            feeds = [draw_inputs(fed(original), plan, seed + 7919 * sample) for sample in range(samples)]
            results = _results(session, feeds)
        except Exception as error:  # a runtime may raise anything
            fault = fault or first_line(error)
            continue
        strange = _contradiction(original, results)
        if strange is None:
            return Baseline(runtime, feeds, results)
        fault = fault or strange
    return fault


def _contradiction(original: ir.Model, results: Results) -> str | None:
    """The text of a contradiction between the original's results and the shapes that it declares; None without one."""
    values = [value for node in original.graph for value in node.outputs]
    declared = {str(value.name): value for value in (*values, *original.graph.outputs)}
    for name, parts in (each for sample in results for each in sample.items()):
        strange = contradiction(declared[name], parts[0].shape) if len(parts) == 1 else None
        if strange is not None:
            return strange
    return None


def drawn_anew(original: ir.Model) -> set[str]:
    """The values that two runs on the same inputs may give differently: they depend on numbers drawn without a seed."""
    drawn: set[ir.Value] = set()
    for node in original.graph:
        bodies = list(graphs_of(node))
        nodes = [node, *(inner for body in bodies for inner in body.all_nodes())]
        reads = {value for each in nodes for value in each.inputs}.union(*(body.outputs for body in bodies))
        if any(map(_draws, nodes)) or reads & drawn:
            drawn.update(node.outputs)
    return {str(value.name) for value in drawn}


def _draws(node: ir.Node) -> bool:
    if "seed" in node.attributes:
        return False
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        training = node.inputs[2]
        known = ir.convenience.get_const_tensor(training) if training is not None else None
        return training is not None and (known is None or bool(known.numpy()))
    return node.op_type in RANDOM


def run(model: ir.Model, runtime: str, inner: Sequence[str], feeds: Feeds) -> Results:
    """Run one model on every sample. Its session is freed before the next is made, as models can be large."""
    return _results(Session(model, runtime, inner), feeds)


def _results(session: Session, feeds: Feeds) -> Results:
    return [{name: arrays(result) for name, result in session.run(feed).items()} for feed in feeds]


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:400] if lines else 'no message'}"
