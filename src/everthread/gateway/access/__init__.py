"""Who may use the gateway, and how much of it."""
