"""Two small models, and a run of the command in this process or in a subprocess.

A process of its own costs half a second of imports. Tests whose subject is not the process use `Run`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from relayout.cli import main

BIN = Path(sys.executable).parent / "relayout"

# Channels-last data, channels-first operators: six transposes, of which two are needed.
CHANNELS_LAST = """
<ir_version: 10, opset_import: ["" : 20]>
channels_last (float[1,8,8,4] image) => (float[1,4,4,4] features) <float[4,4,1,1] weight = {
    1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1
}> {
    [in] a = Transpose <perm = [0, 3, 1, 2]> (image)
    [conv1] b = Conv (a, weight)
    c = Transpose <perm = [0, 2, 3, 1]> (b)
    d = Relu (c)
    e = Transpose <perm = [0, 3, 1, 2]> (d)
    [conv2] f = Conv (e, weight)
    g = Transpose <perm = [0, 2, 3, 1]> (f)
    h = Add (g, image)
    i = Transpose <perm = [0, 3, 1, 2]> (h)
    [pool] j = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (i)
    features = Transpose <perm = [0, 2, 3, 1]> (j)
}
"""
# Legal already for the backend onnx.
CHANNELS_FIRST = """
<ir_version: 10, opset_import: ["" : 20]>
channels_first (float[N,4,8,8] x) => (y) <float[4,4,1,1] w = {
    1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1
}> {
    [conv] y = Conv (x, w)
}
"""


def saved(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


class CommandResult:
    """Exit status and output of one run of the command in this process."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err
        assert "Traceback" not in err


Run = Callable[..., CommandResult]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """A run of the command in this process."""

    def run(*arguments: str | Path) -> CommandResult:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return CommandResult(status, *capsys.readouterr())

    return run


def process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([BIN, *arguments], capture_output=True, text=True, env={**os.environ, **environment})
    assert "Traceback" not in done.stderr or "RELAYOUT_DEBUG" in environment
    return done


def transposes(path: Path) -> int:
    return sum(node.op_type == "Transpose" for node in onnx.load(path).graph.node)


def input_shape(path: Path) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
