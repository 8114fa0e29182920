"""What calls used, what they cost, and when a rewrite pays."""
