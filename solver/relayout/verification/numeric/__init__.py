"""The numeric comparison: both models run on random inputs, and their outputs compared."""
