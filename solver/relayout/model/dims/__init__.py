"""The extents of values: shape arithmetic by numbers and by symbols, and names for dims that are equal."""
