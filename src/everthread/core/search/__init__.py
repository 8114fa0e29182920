"""Search terms, parsed queries, and search results."""
