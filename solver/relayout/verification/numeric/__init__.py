"""Both models run on random inputs, and their outputs compared."""
