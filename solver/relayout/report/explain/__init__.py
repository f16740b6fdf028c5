"""Explanations: why each conversion is there, what dropping a requirement saves, why there is no solution."""
