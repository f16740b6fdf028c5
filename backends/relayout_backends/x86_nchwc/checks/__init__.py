"""The verifier's knowledge of `x86-nchwc`: the types of blocked values, and the layouts of onnxruntime's operators.

No module here imports one that makes a model legal, so that a fault in those is found by these.
"""
