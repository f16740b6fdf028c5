"""Alternatives to a cost problem, and a solution of it back to conversions and transfers."""
