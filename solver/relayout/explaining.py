"""The door to reasons: what would be saved without each requirement that holds a conversion in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relayout.backend import load_backend
from relayout.backend_options import gathered
from relayout.legalize import legalize_model
from relayout.model_io import Source, read_model
from relayout.options import BackendSpec, Options, Progress
from relayout.reasons import LIMIT
from relayout.report import Report

__all__ = ["explain"]


def explain(
    model: Source,
    backend: BackendSpec = "onnx",
    *,
    objective: str = "bytes",
    input_layouts: Mapping[str, str] | None = None,
    output_layouts: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    time_limit: float | None = None,
    engine: str = "auto",
    desired_layouts: Mapping[str, Sequence[str]] | None = None,
    skip: Sequence[str] = (),
    backend_options: Mapping[str, Any] | None = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Report:
    """The report of `legalize`, with the reasons for each conversion that is left: the requirements behind it, and what
    is saved where one of them is lifted, each found by solving the problem again.

    At most `limit` problems are solved for it; `report.explanation` says how many were left out. The other arguments
    and the errors are those of `legalize`. The argument is never changed.
    """
    options = Options(objective, input_layouts, output_layouts, dims, time_limit, engine, explain=limit)
    chosen = load_backend(backend, options=gathered(desired_layouts, skip, backend_options))
    return legalize_model(read_model(model), chosen, options, progress=progress).report
