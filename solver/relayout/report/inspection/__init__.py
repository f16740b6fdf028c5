"""A model as it is: operators, layouts of values, transposes, pictures; the difference of two models."""
