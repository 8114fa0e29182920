"""`everthread replay`: play recorded conversations again."""

from everthread.cli.commands.replay.replay_command import replay

__all__ = ["replay"]
