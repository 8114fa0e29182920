"""Choose a model as configured, find its window, and open it with time limits, retries and fallbacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from everthread.config import Config, home_directory
from everthread.config.sections import ModelOptions, SummaryModelOptions
from everthread.core.tokens.budget import Budget
from everthread.core.types import Api, ModelRequest, StreamingModel
from everthread.errors import ConfigError
from everthread.factory.compression import acompress
from everthread.thread.route import Route

if TYPE_CHECKING:
    from everthread.providers.catalog import EndpointReport, Window
    from everthread.providers.model_choice import ModelChoice
    from everthread.providers.resilience import ModelEvent
    from everthread.store.store import Store


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The model that a caller asks for."""

    model: str | StreamingModel | None = None
    """A name, or a model of the caller's own, or None for the configured one."""
    window: int | None = None
    """Its window in tokens, instead of the known one."""
    api: Api | None = None
    fallback: Sequence[StreamingModel] = ()
    """Models to use if the first one is out of service."""
    has_own_client: bool = False
    """Whether the caller sends the requests, so that no model is opened."""


_PROVIDERS_OF_ANY_MODEL = ("auto", "custom", "openrouter")
"""Providers that serve models of any name."""


def choose_from_section(
    section: ModelOptions | SummaryModelOptions,
    model: str | None = None,
    *,
    api: Api | None = None,
) -> ModelChoice:
    """Choose the named model, or else that of a section of the configuration, and its provider.

    The section's provider and key belong to its own model. If a name implies another provider, that one is used.
    """
    from everthread.providers.model_choice import choose_model, find_provider_by_name

    configured_model = section.default if isinstance(section, ModelOptions) else section.model
    if model and model != configured_model:
        implied_provider = find_provider_by_name(model)
        has_own_models = (
            section.base_url is None and section.provider not in _PROVIDERS_OF_ANY_MODEL
        )
        is_of_other_provider = implied_provider is not None and implied_provider != section.provider
        if is_of_other_provider and (has_own_models or implied_provider == "local"):
            return choose_model(model, environment=os.environ, api=api)
    return choose_model(
        model or configured_model,
        environment=os.environ,
        api=api,
        provider=section.provider,
        base_url=section.base_url,
        api_key_env=section.api_key_env,
    )


def check_choice(
    section: ModelOptions | SummaryModelOptions, model: str | None = None
) -> tuple[ModelChoice | None, str]:
    """Return the model chosen by `choose_from_section`, and why it cannot be used, or an empty tuple if it can."""
    try:
        choice = choose_from_section(section, model)
    except ConfigError as error:
        return None, str(error)
    has_key = choice.key_env is None or os.environ.get(choice.key_env, "").strip()
    return choice, "" if has_key else f"{choice.key_env} is not set"


def make_endpoint_request(
    choice: ModelChoice,
) -> Callable[[], Coroutine[Any, Any, EndpointReport]]:
    """Return a function that asks the model's server for its window."""
    from everthread.providers.catalog import ask_endpoint

    key = os.environ.get(choice.key_env or "", "").strip() or None
    return lambda: ask_endpoint(choice.base_url, choice.model, api=choice.api, api_key=key)


async def load_window(
    choice: ModelChoice,
    setting: int | None,
    store: Store | None,
    *,
    offline: bool = False,
) -> Window:
    """Return the window to use for a model: configured, learnt, reported by its server, or from the catalogue."""
    from everthread.providers.catalog import Window, make_learnt_window, resolve_window
    from everthread.providers.local import DEFAULT_WINDOW
    from everthread.store.records import LimitKey

    if choice.provider == "local":
        size = setting or DEFAULT_WINDOW
        return Window(size, "setting", f"{size:,} tokens, as the model is started here")
    learnt_window = None
    if store is not None:
        limits = await store.limits.load_limits(LimitKey(choice.base_url, choice.model))
        if limits.window is not None:
            learnt_window = make_learnt_window(limits.window.limit, limits.window.source)
    return await resolve_window(
        choice.model,
        setting=setting,
        learnt_window=learnt_window,
        ask_server=None if offline else make_endpoint_request(choice),
    )


async def open_route(
    spec: ModelSpec,
    config: Config,
    *,
    on_event: Callable[[ModelEvent], None],
    resources: AsyncExitStack,
) -> Route:
    """Open a model with its wrappers; return the route to it, with its window.

    `resources`: closes the model. A model object of the caller's stays open.
    """
    from everthread.providers.catalog import resolve_window
    from everthread.providers.model_choice import create_model
    from everthread.providers.resilience import close_model

    model = spec.model
    if model is not None and not isinstance(model, str):
        return _make_route_to(model, spec.window)
    settings = config.model
    choice = choose_from_section(settings, model, api=spec.api)
    is_local = choice.provider == "local"
    is_configured = model is None or settings.default in (None, model)
    resolved_window = await resolve_window(
        choice.model,
        setting=spec.window or (settings.context_length if is_configured else None),
        ask_server=None if is_local or spec.has_own_client else make_endpoint_request(choice),
    )
    route = Route(
        choice.model,
        choice.api,
        window=resolved_window.tokens,
        source=str(resolved_window),
        base_url=choice.base_url,
        provider=choice.provider,
    )
    if spec.has_own_client:
        return route
    local_window = spec.window or settings.context_length
    chosen_model = create_model(
        choice,
        environment=os.environ,
        home=home_directory(),
        max_tokens=settings.max_tokens,
        context_length=local_window if is_local else resolved_window.tokens,
    )
    if is_local:
        route = replace(
            route,
            window=chosen_model.window,
            source="the local server's own",
            base_url=chosen_model.base_url,
        )
    wrapped_model = _wrap_model(chosen_model, spec.fallback, on_event)
    resources.push_async_callback(close_model, wrapped_model)
    return replace(route, model=wrapped_model)


def _make_route_to(model: StreamingModel, window: int | None) -> Route:
    """Return the route to a model object of the caller. `window`: the window to use instead of the model's own."""

    return Route(
        model.name,
        model.api,
        window=model.window if window is None else window,
        source="the model's own" if window is None else "given",
        base_url=model.base_url,
        model=model,
    )


def _wrap_model(
    model: StreamingModel,
    fallback: Sequence[StreamingModel],
    on_event: Callable[[ModelEvent], None],
) -> StreamingModel:
    """Wrap a model with time limits, a fitting output cap, retries and the fallback models."""
    from everthread.providers.resilience import (
        FallbackModel,
        FittingModel,
        RetryingModel,
        TimeLimitedModel,
    )

    retrying_model = RetryingModel(FittingModel(TimeLimitedModel(model)), events=on_event)
    if not fallback:
        return retrying_model
    return FallbackModel([retrying_model, *fallback], fit_request=fit_request, events=on_event)


async def fit_request(request: ModelRequest, model: StreamingModel) -> ModelRequest:
    """Make a request small enough for another model, for this call only, without storing anything."""
    from everthread.core.tokens import TokenCounter

    size = TokenCounter(model.name).request(
        request.messages, system=request.system, tools=request.tools
    )
    if size < Budget.for_window(model.window).threshold:
        return request
    compaction = await acompress(
        request.messages,
        window=model.window,
        system=request.system,
        tools=request.tools,
        model=model.name,
        force=True,
    )
    return replace(request, messages=compaction.messages)
