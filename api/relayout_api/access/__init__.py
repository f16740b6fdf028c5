"""Access to the service: API keys, OpenID Connect tokens, scopes, and limits per caller."""
