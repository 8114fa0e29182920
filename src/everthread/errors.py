"""Every exception Everthread raises.

    EverthreadError
    ├── InputError                  what was given cannot be used; the command line exits with 2
    │   ├── ConfigError             a key of config.yaml: unknown, of the wrong type, out of range
    │   ├── TranscriptError         a file or value that is no conversation
    │   ├── WireError               a payload that is not of the protocol it was read as
    │   ├── NoStoreError            nothing is kept at that place; only what writes makes a store
    │   ├── UnknownIdError          no session, message or output has this id
    │   └── AmbiguousIdError        several ids begin like this
    ├── ModelError                  a model's provider refused, failed or broke off
    │   ├── ModelTimeoutError       it did not answer in time
    │   └── ModelUnreachableError   there is no connection to it
    ├── ContextOverflowError        the prompt does not fit, whatever was tried; the history is untouched
    ├── SummaryError                no summary could be written this way; the next way is tried
    ├── EngineError                 a context engine cannot be found, loaded or used
    └── StoreError                  the store cannot do it; what was confirmed is safe
        ├── StoreBusyError          others hold it; trying again may help
        ├── StoreClosedError        it was closed
        ├── StoreDamagedError       its file is broken; it was not touched
        ├── StoreFullError          no room is left
        ├── StoreReadOnlyError      it may not be written
        ├── StoreUnreachableError   the server does not answer
        ├── SchemaTooNewError       a newer version of Everthread wrote it
        ├── LeaseLostError          somebody else took the thread over; nothing was written
        └── NothingToUndoError      the thread has no compaction

Messages are sentences for the person who meets them: what went wrong, with which value, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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


class NoStoreError(InputError):
    """Nothing is kept at that place, and who only reads makes nothing."""


class UnknownIdError(InputError):
    """No session, message or output has this id."""


class AmbiguousIdError(InputError):
    """Several ids begin like this."""


class ModelError(EverthreadError):
    """A model's provider refused, failed or broke off.

    `status` and `body` are the provider's own; `retry_after` the seconds it asks to wait; `partial` the reply as far as
    it had come (`core.types.Reply`), with the usage reported so far.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: Any = None,
        retry_after: float | None = None,
        partial: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.partial = partial


class ModelTimeoutError(ModelError):
    """It did not answer in time."""


class ModelUnreachableError(ModelError):
    """There is no connection to it."""


class ContextOverflowError(EverthreadError):
    """The prompt does not fit, whatever was tried; the user's message and the history are still there."""


class SummaryError(EverthreadError):
    """No summary could be written this way. `passing`: the same may work later; `missing`: no provider is there.

    `usage` is what the calls made for it reported: it was spent all the same.
    """

    def __init__(self, message: str, *, passing: bool = False, missing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing
        self.missing = missing
        self.usage: tuple[Mapping[str, Any], ...] = ()


class EngineError(EverthreadError):
    """A context engine cannot be found, loaded or used."""


class StoreError(EverthreadError):
    """The store cannot do it; what was confirmed is safe."""


class StoreBusyError(StoreError):
    """Others hold it; trying again may help."""


class StoreClosedError(StoreError):
    """It was closed."""


class StoreDamagedError(StoreError):
    """Its file is broken; it was not touched."""


class StoreFullError(StoreError):
    """No room is left."""


class StoreReadOnlyError(StoreError):
    """It may not be written."""


class StoreUnreachableError(StoreError):
    """The server does not answer."""


class SchemaTooNewError(StoreError):
    """A newer version of Everthread wrote it."""


class LeaseLostError(StoreError):
    """Somebody else took the thread over; nothing was written."""


class NothingToUndoError(StoreError):
    """The thread has no compaction."""
