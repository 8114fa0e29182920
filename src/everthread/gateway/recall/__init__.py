"""The tool `recall` for clients: offered, found in a stream, its rounds merged into one response."""
