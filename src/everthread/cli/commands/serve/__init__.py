"""`everthread serve`: run the gateway."""

from everthread.cli.commands.serve.serve_command import serve

__all__ = ["serve"]
