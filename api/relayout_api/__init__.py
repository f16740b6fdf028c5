"""relayout."""
