"""Explanations: the cause of each conversion, the savings without a requirement, and the cause of infeasibility."""
