"""Metrics, logs and traces, for the operator of the service."""
