"""The order of elements, behind all views, held against the original's."""
