"""Model and backend to the alternatives of every node.

Order to read: tensors (aliasing), axis_names, boundary, then propagation of memory formats to a fixpoint.
"""
