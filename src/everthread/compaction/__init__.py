"""Context engines: choose which messages to keep, summarise the others."""
