"""The SQL of the store, one file a topic. Each function works in a transaction that its caller opened."""
