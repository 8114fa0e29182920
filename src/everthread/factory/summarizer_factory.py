"""Make the summarisers that the configuration asks for."""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.config import Config, home_directory
from everthread.core.types import StreamingModel
from everthread.errors import EverthreadError
from everthread.factory.model_setup import choose_from_section

if TYPE_CHECKING:
    from everthread.compaction.summarizers.summary_prices import CallPrice
    from everthread.core.tokens import TokenCounter
    from everthread.providers.resilience import MeteredModel
    from everthread.thread.thread_setup import SummarizerContext

_MAX_AUXILIARY_MODELS = 100
"""Maximum auxiliary models, whose names clients may choose; beyond this number the journal writes summaries."""


class SummarizerFactory:
    """Makes summarisers, which use the auxiliary model, else the main one, else the journal.

    All of them share the auxiliary models. If a route fails, all of them skip it for the same time.
    """

    def __init__(
        self,
        config: Config,
        resources: AsyncExitStack,
        *,
        seconds: float | None = None,
    ) -> None:
        """`resources`: closes the auxiliary models. `seconds`: limits a call to one of them."""
        self._config = config
        self._resources = resources
        self._seconds = seconds
        self._auxiliary_models: dict[str, StreamingModel | None] = {}
        self._paused_until: dict[str, float] = {}
        """By name of a route that failed, the time when it is tried again."""
        self._window_by_model: dict[str, int] = {}
        """By name of the model, the window that it has stated."""

    def __call__(self, context: SummarizerContext) -> Summarizer:
        """Return a summariser that tries the models in order, and the journal last.

        A local model writes summaries only if it is configured for them, because a small model writes worse ones than
        the journal.
        """
        from everthread.compaction.journal.journal_writer import JournalWriter

        auxiliary = self._get_auxiliary(context)
        main_model = context.route.model if context.route.provider != "local" else None
        if auxiliary is None and main_model is None:
            return JournalWriter(context.counter)
        from everthread.compaction.summarizers.chain import SummarizerChain

        return SummarizerChain(
            self._list_model_summarizers(context, auxiliary, main_model),
            clock=time.time,
            events=context.report,
            paused_until=self._paused_until,
        )

    def _get_auxiliary(self, context: SummarizerContext) -> StreamingModel | None:
        """Return the configured model for summaries, which is opened once, or None if there is none to use."""
        options = self._config.auxiliary.compression
        name = options.model or context.route.name
        models = self._auxiliary_models
        if name not in models and len(models) < _MAX_AUXILIARY_MODELS:
            models[name] = self._open_auxiliary(name, context)
        return models.get(name)

    def _open_auxiliary(self, name: str, context: SummarizerContext) -> StreamingModel | None:
        """Open the configured model for summaries. If it cannot be used, send a notice and return None."""
        from everthread.providers.model_choice import create_model
        from everthread.providers.resilience import TimeLimitedModel, TimeLimits, close_model

        options = self._config.auxiliary.compression
        if (
            options.model is None
            and options.provider in ("auto", "main")
            and options.base_url is None
        ):
            return None
        section = self._config.model if options.provider == "main" else options
        try:
            model: StreamingModel = create_model(
                choose_from_section(section, name),
                environment=os.environ,
                home=home_directory(),
                context_length=options.context_length,
            )
        except EverthreadError as error:
            context.report(
                "notice",
                text=f"auxiliary.compression: {name} cannot be used, others write the summaries: {error}",
            )
            return None
        self._resources.push_async_callback(close_model, model)
        if self._seconds is None:
            return model
        seconds = self._seconds
        return TimeLimitedModel(model, TimeLimits(seconds, seconds, seconds))

    def _list_model_summarizers(
        self,
        context: SummarizerContext,
        auxiliary: StreamingModel | None,
        main_model: StreamingModel | None,
    ) -> list[Summarizer]:
        """List the summarisers that ask a model, in the order in which they are tried.

        If the prefix is cached by marks, the main model is first asked with that prefix.
        """
        from everthread.compaction.summarizers.warm_prefix import WarmPrefixSummarizer
        from everthread.core.tokens import TokenCounter
        from everthread.providers.resilience import FittingModel, MeteredModel

        def meter(model: StreamingModel) -> MeteredModel:
            return MeteredModel(model, context.report_abandoned, context.check_permission)

        summarizers: list[Summarizer] = []
        if auxiliary is not None:
            metered_model = meter(FittingModel(auxiliary))
            counter = TokenCounter(auxiliary.name)
            summarizers.append(self._make_model_summarizer(metered_model, counter))
        if main_model is None:
            return summarizers
        metered_model = meter(main_model)
        if context.route.caches_by_marks:
            warm_summarizer = WarmPrefixSummarizer(
                metered_model,
                context.counter,
                context.get_last_request,
                template=self._config.compression.template,
                price=self._make_price(metered_model),
                is_warm=context.is_warm,
            )
            summarizers.append(warm_summarizer)
        summarizers.append(self._make_model_summarizer(metered_model, context.counter))
        return summarizers

    def _make_model_summarizer(self, model: MeteredModel, counter: TokenCounter) -> Summarizer:
        from everthread.compaction.summarizers.llm_summarizer import LlmSummarizer

        return LlmSummarizer(
            model,
            counter,
            context_length=self._config.auxiliary.compression.context_length,
            template=self._config.compression.template,
            price=self._make_price(model),
            windows=self._window_by_model,
        )

    def _make_price(self, model: MeteredModel) -> CallPrice | None:
        from everthread.compaction.summarizers.summary_prices import CallPrice

        if not self._config.compression.economics:
            return None
        return CallPrice(model.name, ttl=self._config.prompt_caching.cache_ttl)
