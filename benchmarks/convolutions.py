"""Single convolutions in onnxruntime, blocked beside plain: grouped, depthwise, and of few channels.

    python benchmarks/convolutions.py [--rounds N]    CPU time on one thread, medians of rounds taken in turn

`relayout_backends.x86_nchwc.costs` prices convolutions by these figures: nanoseconds of a call that no multiplication
explains, and nanoseconds for a thousand multiplications beyond that. Channels that do not fill their blocks are padded,
as the backend pads them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from measuring import machine
from nchwc import DOMAIN, session
from onnx import TensorProto, helper, numpy_helper

NODES = 16

# name, input channels, output channels, kernel, stride, groups, height and width of the data
CASES = [
    *(("1x1", c, c, 1, 1, 1, extent) for c, extent in ((8, 56), (16, 56), (32, 28), (64, 28), (128, 14), (256, 7))),
    *(("3x3", c, c, 3, 1, 1, extent) for c, extent in ((8, 56), (16, 28), (32, 28), (64, 14), (128, 7))),
    *(
        ("1x1 grouped", channels, channels, 1, 1, groups, extent)
        for channels, groups, extent in (
            (32, 2, 28), (48, 3, 28), (96, 3, 28), (64, 4, 28), (240, 3, 28), (240, 3, 14), (480, 3, 14), (480, 3, 7),
            (960, 3, 7), (272, 4, 28), (128, 8, 28), (384, 8, 28), (384, 8, 14), (768, 8, 7), (200, 2, 28),
            (192, 2, 14),
        )
    ),
    *(
        ("3x3 grouped", channels, channels, 3, 1, groups, extent)
        for channels, groups, extent in ((32, 2, 28), (64, 4, 28), (128, 8, 14), (128, 4, 28), (256, 16, 14))
    ),
    *(
        ("3x3 depthwise", channels, channels, 3, stride, channels, extent)
        for channels, stride, extent in (
            (8, 1, 56), (16, 1, 56), (32, 1, 56), (64, 1, 28), (128, 1, 14), (240, 1, 28), (240, 2, 28), (384, 1, 7),
            (960, 1, 7),
        )
    ),
    *(
        ("3x3 of an image", 3, outputs, 3, 2, 1, extent)
        for outputs, extent in ((8, 48), (16, 64), (24, 112), (32, 64))
    ),
]  # fmt: skip


def one_convolution(
    x: np.ndarray, kernel: np.ndarray, domain: str, block: int, **attributes: Any
) -> Callable[[], Any]:
    """A run of like convolutions on `x`, so that the session's own overhead is a small part."""
    nodes = [helper.make_node("Conv", ["x", "w"], [f"y{i}"], domain=domain, **attributes) for i in range(NODES)]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(NODES)],
        [numpy_helper.from_array(kernel, "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    run = session(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())
    return lambda: run.run(None, {"x": x})


def padded(channels: int, block: int) -> int:
    return -(-channels // block) * block


def variants(
    case: tuple[str, int, int, int, int, int, int], block: int
) -> Iterator[tuple[str, Callable[[], Any], float]]:
    """(plain or blocked, a run, its thousands of multiplications), as far as onnxruntime has the operator."""
    _, inputs, outputs, size, stride, groups, extent = case
    draw = np.random.default_rng(0)
    chosen = {"strides": [stride] * 2, "pads": [size // 2] * 4}
    places = ((extent - 1) // stride + 1) ** 2 * size * size / 1000

    def made(inputs: int, outputs: int, groups: int, domain: str) -> tuple[Callable[[], Any], float]:
        x = draw.standard_normal((1, inputs, extent, extent)).astype(np.float32)
        kernel = draw.standard_normal((outputs, inputs // groups, size, size)).astype(np.float32)
        run = one_convolution(x, kernel, domain, block, group=groups, **chosen)
        return run, places * outputs * (inputs // groups)

    yield "plain", *made(inputs, outputs, groups, "")
    if groups == inputs == outputs:
        yield "blocked", *made(padded(inputs, block), padded(outputs, block), padded(groups, block), DOMAIN)
    elif groups == 1:
        read = inputs if inputs < block else padded(inputs, block)
        yield "blocked", *made(read, padded(outputs, block), 1, DOMAIN)
    elif inputs // groups % block == 0 and outputs // groups % block == 0:
        yield "blocked", *made(inputs, outputs, groups, DOMAIN)


def measure(rounds: int, block: int) -> None:
    print("| convolution | channels | groups | extent | plain us | blocked us | | plain ns per 1,000 | blocked |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        runs = list(variants(case, block))
        taken: list[list[float]] = [[] for _ in runs]
        for _, run, _ in runs:
            run()
        for _ in range(rounds):
            for times, (_, run, _) in zip(taken, runs, strict=True):
                start = process_time()
                run()
                times.append((process_time() - start) / NODES)
        seconds = [median(times) for times in taken]
        shown = [f"{each * 1e6:.1f}" for each in seconds]
        rates = [f"{each * 1e9 / thousands:.0f}" for each, (_, _, thousands) in zip(seconds, runs, strict=True)]
        ratio = f"{seconds[0] / seconds[1]:.2f}" if len(seconds) > 1 else ""
        none = [""] * (2 - len(seconds))
        name, inputs, outputs, _, stride, groups, extent = case
        stride_word = f", stride {stride}" if stride > 1 else ""
        row = [f"{name}{stride_word}", f"{inputs} to {outputs}", str(groups), str(extent)]
        print(f"| {' | '.join([*row, *shown, *none, ratio, *rates, *none])} |", flush=True)


def main(arguments: Sequence[str]) -> None:
    from relayout_backends.x86_nchwc.blocks import probe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    block = probe()
    print(f"{machine('onnxruntime')}, blocks of {block} channels\n")
    measure(parser.parse_args(arguments).rounds, block)


if __name__ == "__main__":
    main(sys.argv[1:])
