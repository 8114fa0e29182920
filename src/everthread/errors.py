"""Every exception Everthread raises.

    EverthreadError
    ├── InputError                  the input cannot be used; the command line exits with 2
    │   ├── ConfigError             a key of config.yaml: unknown, of the wrong type, out of range
    │   ├── TranscriptError         a file or value that is not a conversation
    │   ├── WireError               a payload that does not follow its protocol
    │   ├── NoStoreError            there is no store at that place, and reading makes none
    │   ├── UnknownIdError          no session, message or output has this id
    │   └── AmbiguousIdError        several ids begin like this
    ├── ModelError                  a model's provider refused, failed or broke off
    │   ├── ModelTimeoutError       the provider did not answer in time
    │   └── ModelUnreachableError   there is no connection to the provider
    ├── ContextOverflowError        the prompt does not fit, whatever was tried; the history is untouched
    ├── SummaryError                this summariser failed; the next one is tried
    ├── MissingPackageError         a package of an extra is not installed
    ├── EngineError                 a context engine cannot be found, loaded or used
    │   └── UnknownEngineError      no engine has this name; an InputError too
    └── StoreError                  the store failed; confirmed writes are safe
        ├── StoreBusyError          another process locks it; a retry may help
        ├── StoreClosedError        it was closed
        ├── StoreDamagedError       its file is damaged; it was not changed
        ├── StoreFullError          the disk is full
        ├── StoreReadOnlyError      it cannot be written
        ├── StoreUnreachableError   the server does not answer
        ├── SchemaTooNewError       a newer version of Everthread wrote it
        ├── LeaseLostError          another process took the thread over; nothing was written
        └── NothingToUndoError      the thread has no compaction

Messages are sentences for the user: what went wrong, with which value, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class EverthreadError(Exception):
    """Base of everything Everthread raises on purpose."""


class InputError(EverthreadError):
    """The input cannot be used; nothing was changed."""


class ConfigError(InputError):
    """A setting is unknown, of the wrong type or out of range."""


class TranscriptError(InputError):
    """A file or value that is not a conversation."""


class WireError(InputError):
    """A payload that does not follow its protocol."""


class NoStoreError(InputError):
    """There is no store at this address, and reading does not create one."""


class UnknownIdError(InputError):
    """No session, message or output has this id."""


class AmbiguousIdError(InputError):
    """Several ids begin like this."""


class ModelError(EverthreadError):
    """A model's provider refused, failed or broke off.

    `status` and `body` are the provider's own; `retry_after`: seconds to wait; `partial`: the reply so far
    (`core.types.ModelReply`), with the usage reported so far.
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
    """The provider did not answer in time."""


class ModelUnreachableError(ModelError):
    """The provider cannot be reached."""


class ContextOverflowError(EverthreadError):
    """The prompt does not fit, whatever was tried; the user's message and the history are stored."""


class SummaryError(EverthreadError):
    """A summariser failed.

    `is_transient`: the summariser may work later. `has_no_provider`: no provider or no access is configured.
    `is_unusable_answer`: the model answered, but not with a summary. `usage`: the tokens that the failed calls used.
    """

    def __init__(
        self,
        message: str,
        *,
        is_transient: bool = False,
        has_no_provider: bool = False,
        is_unusable_answer: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_transient = is_transient
        self.has_no_provider = has_no_provider
        self.is_unusable_answer = is_unusable_answer
        self.usage: tuple[Mapping[str, Any], ...] = ()


class MissingPackageError(EverthreadError):
    """A package of an extra is not installed; the message names the command that installs it."""

    def __init__(self, package: str, *, extra: str) -> None:
        self.package = package
        self.command = f"pip install 'everthread[{extra}]'"
        super().__init__(f"{package} is not installed. Install it with: {self.command}")


class EngineError(EverthreadError):
    """A context engine cannot be found, loaded or used."""


class UnknownEngineError(EngineError, InputError):
    """No context engine has this name."""


class StoreError(EverthreadError):
    """The store failed; confirmed writes are safe."""


class StoreBusyError(StoreError):
    """Another process locks the store; a retry may help."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreDamagedError(StoreError):
    """The store's file is damaged; it was not changed."""


class StoreFullError(StoreError):
    """The disk is full."""


class StoreReadOnlyError(StoreError):
    """The store cannot be written."""


class StoreUnreachableError(StoreError):
    """The server does not answer."""


class SchemaTooNewError(StoreError):
    """A newer version of Everthread wrote the store."""


class LeaseLostError(StoreError):
    """Another process took the thread over; nothing was written."""


class NothingToUndoError(StoreError):
    """The thread has no compaction."""
