"""The plugin interface, calls into plugins, and how a backend is found: by name, file, table or object."""
