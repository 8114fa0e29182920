"""Read the errors of providers: what was too large, and which limit they state."""
