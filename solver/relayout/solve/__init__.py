"""A cost problem as pure data in, an assignment with its cost and a proven lower bound out.

Order to read: problem, network, encode, eliminate, reparametrize, residual, dual_ascent, primal_heuristics,
kernel_search, engines, solver. This package does not depend on graphs.
"""
