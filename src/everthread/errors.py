"""Every exception Everthread raises.

    EverthreadError
    └── InputError            what was given cannot be used; the command line exits with 2
        ├── ConfigError       a key of config.yaml: unknown, of the wrong type, out of range
        ├── TranscriptError   a file or value that is no conversation
        └── WireError         a payload that is not of the protocol it was read as

Messages are sentences for the person who meets them: what went wrong, with which value, what to do.
"""

from __future__ import annotations


class EverthreadError(Exception):
    """Base of everything Everthread raises on purpose."""


class InputError(EverthreadError):
    """What was given cannot be used; nothing was changed."""


class ConfigError(InputError):
    """A setting is unknown, of the wrong type or out of range."""


class TranscriptError(InputError):
    """A file or value that is no conversation."""


class WireError(InputError):
    """A payload that is not of the protocol it was read as."""
