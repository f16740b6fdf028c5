"""The comparison in float64: it decides whether a difference in narrower floats is rounding or a fault."""
