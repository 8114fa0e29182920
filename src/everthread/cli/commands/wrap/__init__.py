"""`everthread wrap`: start another agent behind a gateway."""

from everthread.cli.commands.wrap.wrap_command import TYPER_OPTIONS, wrap

__all__ = ["TYPER_OPTIONS", "wrap"]
