"""What was said, for any client that speaks the Model Context Protocol: search, expand, pin, status."""
