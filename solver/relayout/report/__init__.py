"""The report of a run: its schema, the totals of a graph, and the renderers."""
