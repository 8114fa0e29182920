"""Conversations as other programs wrote them down: one form for all, with times and usage where there are any."""
