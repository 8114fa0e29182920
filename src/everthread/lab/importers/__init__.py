"""Importers of other programs' conversation logs: one form for all, with times and usage where there are any."""
