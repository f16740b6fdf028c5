"""The HTTP service: relayout for callers that are no Python programs. `relayout_api.app:create_app` makes it."""
