"""Texts the simulator answers with, kept as data."""
