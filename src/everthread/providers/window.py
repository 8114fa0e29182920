"""Which window holds for a model, and why.

The smaller of the setting and a limit that was learnt from the server; else what the endpoint reports; else the
catalogue; else 128,000, which is said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from everthread.providers.catalog import known_model
from everthread.providers.endpoint import EndpointReport

DEFAULT_WINDOW = 128_000
LONG_CONTEXT = 1_000_000
"""What Anthropic's long-context beta gives."""

WindowSource = Literal["setting", "learnt", "endpoint", "catalogue", "default"]


class LearntLimit(Protocol):
    """A limit that a server stated in an error, as the store keeps it."""

    @property
    def limit(self) -> int: ...

    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Window:
    """A window in tokens, where it comes from, and the sentence that is shown."""

    tokens: int
    source: WindowSource
    sentence: str
    note: str = ""
    """Why a better source said nothing."""

    def __str__(self) -> str:
        return self.sentence


async def resolve_window(
    model: str,
    *,
    setting: int | None = None,
    learnt: LearntLimit | None = None,
    ask: Callable[[], Awaitable[EndpointReport]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Window:
    """The window of `model`. `ask` is called only if neither a setting nor a learnt limit decides."""
    decided = _decided(setting, learnt)
    if decided is not None:
        return decided
    report = await ask() if ask else EndpointReport(None)
    if report.window is not None:
        return Window(report.window, "endpoint", f"{report.window:,} tokens, as the server says: {report.where}")
    return catalogue_window(model, headers=headers, note=report.note)


def catalogue_window(model: str, *, headers: Mapping[str, str] | None = None, note: str = "") -> Window:
    """The window without asking anybody."""
    known = known_model(model)
    tokens = known.window if known else None
    if known is None or tokens is None:
        sentence = (
            f"{DEFAULT_WINDOW:,} tokens, assumed: nothing is known about {model}. "
            "Set model.context_length if it is another."
        )
        return Window(DEFAULT_WINDOW, "default", sentence, note)
    if tokens < LONG_CONTEXT and "claude" in known.family and "context-1m" in window_headers(headers):
        return Window(LONG_CONTEXT, "catalogue", f"{LONG_CONTEXT:,} tokens, by the header anthropic-beta", note)
    return Window(tokens, "catalogue", f"{tokens:,} tokens, from the catalogue ({known.family})", note)


def window_headers(headers: Mapping[str, str] | None) -> str:
    """The part of the headers that changes the window, in one form: a learnt limit is kept for it."""
    asked = next((value for name, value in (headers or {}).items() if name.lower() == "anthropic-beta"), "")
    betas = sorted({beta.strip() for beta in asked.split(",") if beta.strip().startswith("context-")})
    return ",".join(betas)


def _decided(setting: int | None, learnt: LearntLimit | None) -> Window | None:
    if learnt is not None and (setting is None or learnt.limit < setting):
        return Window(learnt.limit, "learnt", f"{learnt.limit:,} tokens, learnt from the server: {learnt.source}")
    if setting is not None:
        return Window(setting, "setting", f"{setting:,} tokens, as configured (context_length)")
    return None
