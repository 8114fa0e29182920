"""Codecs between providers' JSON and core messages, both directions. Pure."""
