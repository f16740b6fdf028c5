"""The CPU time that onnx and onnx_ir alone need for one model: the floor of any optimizer on these libraries.

    python benchmarks/floor.py MODEL.onnx ... [--repeat 5]

Each model is read, checked, converted and written by a process of its own, without a line of relayout; with `--warm`,
again and again by one process that has done so before, as a worker of a service does. The search for cyclic garbage is
off, as in relayout. The least milliseconds of each step are shown.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from time import process_time

from measuring import Run, machine, run

STEPS = ("import", "parse", "check", "infer shapes", "to onnx_ir", "to protobuf", "write")
LIMIT = 600


def main() -> None:
    """Measure and print one row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="measure in one process, after a first time")
    parser.add_argument("--once", action="store_true", help="measure the one model in this process, and print JSON")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(_steps(arguments.models[0])))
        return
    print(machine("onnx", "onnx-ir") + "\n")
    print(f"| model | {' | '.join(STEPS)} | all |")
    print("|---|" + "---|" * (len(STEPS) + 1), flush=True)
    for model in arguments.models:
        if arguments.warm:
            found = [_steps(model) for _ in range(arguments.repeat + 1)][1:]
        else:
            runs = [_alone(model) for _ in range(arguments.repeat + 1)]
            if fault := next((each.fault for each in runs if each.fault), ""):
                sys.exit(f"{model}: {fault}")
            found = [json.loads(each.output) for each in runs]
        cells = [f"{1000 * min(each[step] for each in found):.0f}" for step in (*STEPS, "all")]
        print(f"| {model.stem} | {' | '.join(cells)} |", flush=True)


def _alone(model: Path) -> Run:
    # With compiled modules, as an installed package has, also where Python is told to write none: the first run makes
    # them.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "floor")}
    return run([sys.executable, __file__, str(model), "--once"], limit=LIMIT, environment=compiled)


def _steps(path: Path) -> dict[str, float]:
    """The CPU seconds of each step, and of all of them."""
    gc.disable()
    ends = [process_time()]
    import onnx
    import onnx_ir as ir

    ends.append(process_time())
    proto = onnx.ModelProto.FromString(path.read_bytes())
    ends.append(process_time())
    onnx.checker.check_model(proto)
    ends.append(process_time())
    proto = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    ends.append(process_time())
    model = ir.from_proto(proto)
    ends.append(process_time())
    proto = ir.to_proto(model)
    ends.append(process_time())
    with tempfile.TemporaryFile() as file:
        file.write(proto.SerializeToString())
    ends.append(process_time())
    spent = [after - before for before, after in pairwise(ends)]
    return {**dict(zip(STEPS, spent, strict=True)), "all": ends[-1] - ends[0]}


if __name__ == "__main__":
    main()
