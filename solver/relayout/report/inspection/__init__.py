"""A model as it is: operators, layouts of values, transposes; the difference of two models; pictures. Nothing changes."""
