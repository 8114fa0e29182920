"""`everthread doctor`: check the setup."""

from everthread.cli.commands.doctor.doctor_command import doctor

__all__ = ["doctor"]
