"""From alternatives to a cost problem, and from its solution back to conversions and transfers."""
