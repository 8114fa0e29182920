"""Everthread keeps a conversation with a language model going past the model's context window."""

from everthread._version import __version__

__all__ = ["__version__"]
