"""Conversations over HTTP, under `/api`."""
