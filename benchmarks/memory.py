"""The whole command on one model: wall and CPU seconds and peak memory, start-up included.

    python benchmarks/memory.py [--model FILE.onnx] [--backend onnx nhwc] [--repeat 3] [--verify]

Without a model it generates one with 2 GB of external weights in a temporary folder. `--weights` sets the size. The
weights are a sparse file, so they take disk space only in the legal model. All files are deleted at the end.
`--verify` compares each legal model with its source, too; models of more than a quarter of the memory run in pieces.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring import Run, machine, median_run, run

RELAYOUT = str(Path(sys.executable).with_name("relayout"))
CHANNELS = 1024
WEIGHT = CHANNELS * CHANNELS * 3 * 3 * 4


def write_large(path: str, total: int) -> None:
    """Write residual blocks of convolutions between Transposes, with `total` bytes of external weights."""
    import onnx
    from onnx import TensorProto, helper

    count = -(-total // WEIGHT)
    nodes, weights = [], []
    value = "x"
    for layer in range(count):
        weight = TensorProto(name=f"weight_{layer}", data_type=TensorProto.FLOAT, dims=[CHANNELS, CHANNELS, 3, 3])
        weight.data_location = TensorProto.EXTERNAL
        facts = {"location": Path(path).name + ".data", "offset": str(layer * WEIGHT), "length": str(WEIGHT)}
        weight.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in facts.items())
        weights.append(weight)
        nodes += [
            helper.make_node("Transpose", [value], [f"nchw_{layer}"], perm=[0, 3, 1, 2]),
            helper.make_node("Conv", [f"nchw_{layer}", weight.name], [f"conv_{layer}"], pads=[1] * 4),
            helper.make_node("Transpose", [f"conv_{layer}"], [f"nhwc_{layer}"], perm=[0, 2, 3, 1]),
            helper.make_node("Add", [f"nhwc_{layer}", value], [f"sum_{layer}"]),
        ]
        value = f"sum_{layer}"
    shape = [1, 7, 7, CHANNELS]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    Path(path).write_bytes(model.SerializeToString())
    with open(path + ".data", "wb") as file:
        file.truncate(count * WEIGHT)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Seconds and peak memory of `relayout legalize`.")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--weights", type=float, default=2.0, help="GB of external weights of the generated model")
    parser.add_argument("--backend", nargs="+", default=["onnx", "nhwc"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--verify", action="store_true", help="measure `relayout verify --against` too")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.write:
        write_large(options.write, int(options.weights * 1e9))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            # In its own process: a child's peak memory starts at that of its parent.
            model = Path(folder) / "large.onnx"
            written = run([sys.executable, __file__, "--write", str(model), "--weights", str(options.weights)])
            if written.status:
                raise SystemExit(written.errors)
        print(f"Medians of {options.repeat} runs. {machine('onnx', 'onnx-ir', 'ortools')}.\n")
        print("| command | wall s | CPU s | peak MB |\n|---|---|---|---|")
        for backend in options.backend:
            target = Path(folder) / "legal.onnx"
            made, checked = [], []
            for _ in range(options.repeat):
                made.append(_run("legalize", str(model), "--backend", backend, "-o", str(target)))
                if options.verify:
                    checked.append(_run("verify", str(target), "--backend", backend, "--against", str(model)))
                for file in Path(folder).glob("legal.onnx*"):
                    file.unlink()
            _tell(f"relayout legalize {model.name} --backend {backend}", made)
            if checked:
                _tell(f"relayout verify legal.onnx --backend {backend} --against {model.name}", checked)


def _run(*arguments: str) -> Run:
    done = run([RELAYOUT, *arguments])
    if done.status:
        raise SystemExit(done.errors)
    return done


def _tell(command: str, runs: Sequence[Run]) -> None:
    seconds, cpu, peak = median_run(runs)
    print(f"| `{command}` | {seconds:.2f} | {cpu:.2f} | {peak / 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()
