"""onnxruntime, with its telemetry disabled: no other module of the library imports it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx


def import_onnxruntime() -> Any:
    """Import onnxruntime and return the module. Raises ImportError if it is not installed, or does not load.

    The wheels for Linux send telemetry unless `ORT_DISABLE_TELEMETRY` is set when the library is loaded: they write the
    names of a model's nodes into a database in the home folder, for upload. A value set by the user is kept.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        # Its native module makes an ImportError of a Ctrl-C that comes while it loads.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    return onnxruntime


def plain_session(
    model: onnx.ModelProto, *, threads: int = 0, weights: Mapping[str, np.ndarray[Any, Any]] | None = None
) -> Any:
    """A session of onnxruntime that runs each node as it is written, on the CPU with so many threads (0: its choice).

    `weights` are the data of the initializers that the model declares as external; the session reads these arrays and
    makes no copy. Raises ImportError, and errors of onnxruntime's own for a model that it does not run.
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 4
    # Memory that a result no longer needs is given back, as models may have gigabytes of weights that a node relays.
    options.enable_cpu_mem_arena = False
    # Waiting threads would take the time of whatever else runs: models are small here, or run few times.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers([*weights], values)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    # onnxruntime does not hold the arrays.
    session.weights = weights
    return session
