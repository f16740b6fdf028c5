# /// script
# requires-python = ">=3.11"
# dependencies = ["tensorflow-cpu>=2.16", "tf2onnx>=1.16"]
# ///
"""Compare relayout with TensorFlow's Grappler: transposes and megabytes left, as a Markdown table.

    uv run --script benchmarks/grappler.py [NETWORK ...]      with `relayout` on the PATH

TensorFlow does not share an environment with relayout's locked packages, so this is a script with its own. Each network
of Keras is built with channels first, and both bring its convolutions to channels last: Grappler by its passes for
constants, arithmetic, fusion and layouts, relayout by the backend `nhwc` on the model that tf2onnx makes of the same
function. Batch 1. `cpu_layout_conversion` has Grappler do on a processor what it does for a GPU in the other direction.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NETWORKS = ("MobileNet", "MobileNetV2", "EfficientNetB0", "EfficientNetV2B0", "InceptionV3", "ResNet50", "ResNet50V2")
PASSES = ("constfold", "arithmetic", "remap", "layout", "constfold", "arithmetic")
DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def main() -> None:
    """Print one row for each network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    arguments = parser.parse_args()
    import tensorflow as tf

    tf.keras.backend.set_image_data_format("channels_first")
    print(f"TensorFlow {tf.__version__}\n")
    print(
        "| network | convolutions | source of Grappler | Grappler | source of relayout | relayout |\n"
        + "|---" * 6
        + "|"
    )
    for name in arguments.networks:
        network = getattr(tf.keras.applications, name)(weights=None)
        signature = tf.TensorSpec([1, *network.input_shape[1:]], tf.float32)
        function = tf.function(lambda image, network=network: network(image, training=False))
        source, left = _grappler(function.get_concrete_function(signature))
        with tempfile.TemporaryDirectory() as scratch:
            report = _relayout(function, signature, Path(scratch))
        ours = [
            f"{totals['transposes']} ({totals['bytes'] / 1e6:.2f})" for totals in (report["before"], report["after"])
        ]
        assert report["status"] == "optimal"
        print(f"| {name} | {left[2]} | {_shown(*source)} | {_shown(*left)} | {ours[0]} | {ours[1]} |", flush=True)


def _relayout(function: Any, signature: Any, scratch: Path) -> dict[str, Any]:
    """relayout's report for the network that tf2onnx makes of the function."""
    import tf2onnx

    source, report = scratch / "source.onnx", scratch / "report.json"
    tf2onnx.convert.from_function(function, input_signature=[signature], opset=18, output_path=str(source))
    command = ["relayout", "legalize", str(source), "-b", "nhwc", "-o", str(scratch / "legal.onnx")]
    subprocess.run([*command, "--report", str(report), "-q"], check=True)
    facts: dict[str, Any] = json.loads(report.read_text())
    return facts


def _grappler(function: Any) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Transposes, bytes and convolutions with channels last, before and after Grappler."""
    import tensorflow as tf
    from tensorflow.core.protobuf import (
        config_pb2,
        rewriter_config_pb2,
    )
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )
    from tensorflow.python.grappler import tf_optimizer
    from tensorflow.python.training import saver

    frozen = convert_variables_to_constants_v2(function)
    source = frozen.graph.as_graph_def()
    for node in source.node:
        # The layout pass leaves nodes without a device alone.
        node.device = DEVICE
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(source, name="")
        exported = saver.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    exported.collection_def["train_op"].node_list.value.append(frozen.outputs[0].op.name)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.extend(PASSES)
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.TWO
    options.min_graph_nodes = -1
    options.cpu_layout_conversion = rewriter_config_pb2.RewriterConfig.NCHW_TO_NHWC
    return _counted(source), _counted(tf_optimizer.OptimizeGraph(config, exported))


def _counted(definition: Any) -> tuple[int, int, int]:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
    operations = graph.get_operations()
    moved = [each.outputs[0] for each in operations if each.type == "Transpose" and each.inputs[0].op.type != "Const"]
    convolutions = [each for each in operations if each.type in ("Conv2D", "DepthwiseConv2dNative", "_FusedConv2D")]
    last = sum(each.get_attr("data_format") == b"NHWC" for each in convolutions)
    return len(moved), sum(2 * value.dtype.size * value.shape.num_elements() for value in moved), last


def _shown(transposes: int, moved: int, _: int = 0) -> str:
    return f"{transposes} ({moved / 1e6:.2f})"


if __name__ == "__main__":
    main()
