"""What the slash commands do, by subject."""
