"""The backends that ship with relayout: each module is a plugin like any other, found by its entry point."""
