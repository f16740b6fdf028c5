"""The worker processes: forked from one warm template, limited, and killed on time."""
