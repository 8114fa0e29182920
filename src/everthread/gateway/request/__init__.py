"""Read a request: its head, and the fields and messages of its body, without reading known bytes again."""
