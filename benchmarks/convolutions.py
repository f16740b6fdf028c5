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
        for outputs, extent in ((8, 48), (16, 64), (24, 112), (32, 64), (64, 112))
    ),
    *(("7x7 of an image", 3, outputs, 7, 2, 1, 112) for outputs in (32, 64)),
    *(("1x1 of few channels", inputs, outputs, 1, 1, 1, 28) for inputs in (3, 4, 8, 12) for outputs in (8, 16, 32, 64)),
    *(("3x3 of few channels", inputs, outputs, 3, 1, 1, 28) for inputs in (1, 3, 8, 12) for outputs in (16, 32, 64)),
    *(("1x1 to few channels", inputs, outputs, 1, 1, 1, 28) for inputs in (16, 48, 200) for outputs in (1, 4, 8, 24)),
]  # fmt: skip


def one_convolution(x: np.ndarray, kernel: np.ndarray, domain: str, block: int, **attributes: Any) -> Callable[[], Any]:
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
    """(what it is, a run, its thousands of multiplications), as far as onnxruntime has the operator."""
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
    if groups == 1 and inputs < block:
        yield "reads plain", *made(inputs, padded(outputs, block), 1, DOMAIN)
    if groups == inputs == outputs:
        yield "blocked", *made(padded(inputs, block), padded(outputs, block), padded(groups, block), DOMAIN)
    elif groups == 1:
        yield "blocked", *made(padded(inputs, block), padded(outputs, block), 1, DOMAIN)
    elif inputs // groups % block == 0 and outputs // groups % block == 0:
        yield "blocked", *made(inputs, outputs, groups, DOMAIN)


def measure(rounds: int, block: int) -> None:
    kinds = ("plain", "reads plain", "blocked")
    columns = [f"{kind} us" for kind in kinds] + [f"{kind} ns per 1,000" for kind in kinds]
    print(f"| convolution | channels | groups | extent | {' | '.join(columns)} |\n{'|---' * 10}|")
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
        seconds = {kind: median(times) for times, (kind, _, _) in zip(taken, runs, strict=True)}
        thousands = {kind: each for kind, _, each in runs}
        shown = [f"{seconds[kind] * 1e6:.1f}" if kind in seconds else "" for kind in kinds]
        rates = [f"{seconds[kind] * 1e9 / thousands[kind]:.0f}" if kind in seconds else "" for kind in kinds]
        name, inputs, outputs, _, stride, groups, extent = case
        stride_word = f", stride {stride}" if stride > 1 else ""
        row = [f"{name}{stride_word}", f"{inputs} to {outputs}", str(groups), str(extent)]
        print(f"| {' | '.join([*row, *shown, *rates])} |", flush=True)


def main(arguments: Sequence[str]) -> None:
    from relayout_backends.x86_nchwc.blocks import probe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    block = probe()
    print(f"{machine('onnxruntime')}, blocks of {block} channels\n")
    measure(parser.parse_args(arguments).rounds, block)


if __name__ == "__main__":
    main(sys.argv[1:])
