"""Importers of other programs' conversation logs: one form for all, with times and usage if there are any."""
