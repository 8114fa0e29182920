"""Read a request: its head, the fields and messages in its bytes, the bytes that are known already."""
