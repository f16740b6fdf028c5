"""The backends that ship with relayout: each module a plugin like any stranger's, found by its entry point."""
