"""Who may do what: tokens, keys, scopes, and access without a key."""
