"""The verifier's knowledge of `x86-nchwc`: the types of blocked values, and the layouts of onnxruntime's operators.

Nothing here is imported from the modules that make a model legal: a fault in those does not hide in these.
"""
