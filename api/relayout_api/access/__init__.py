"""Who may use the service: API keys, OpenID Connect tokens, scopes, and limits per caller."""
