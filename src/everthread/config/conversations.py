"""The sections of one conversation: its model, its context, its tools, its store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from everthread import agent
from everthread.config.values import EnvironmentName, HttpUrl, Options, Window, store_url, within
from everthread.conversation import options as recall
from everthread.conversation.toolbox import TOOLS_SHARE
from everthread.core.tokens import budget


class ModelEndpoint(Options):
    """How a model is reached."""

    base_url: HttpUrl | None = Field(
        None, description="Where the API is, for `custom` or to override the provider's own."
    )
    api_key_env: EnvironmentName | None = Field(None, description="The environment variable that holds the API key.")
    context_length: Window | None = Field(
        None, description="The window in tokens, when you know better than the catalogue."
    )

    @model_validator(mode="after")
    def _custom_needs_a_url(self) -> ModelEndpoint:
        if getattr(self, "provider", None) == "custom" and self.base_url is None:
            raise ValueError("provider `custom` needs a base_url")
        return self


class ModelOptions(ModelEndpoint):
    """The model that answers."""

    default: str | None = Field(None, min_length=1, description="The model's name at its provider.")
    provider: Literal["auto", "openai", "anthropic", "openrouter", "local", "custom"] = Field(
        "auto", description="Who serves it. `auto` decides by the model's name and the keys that are present."
    )
    max_tokens: Annotated[int, within("model.max_tokens")] | None = Field(
        None, description="Cap on one answer, in tokens. Null: the model's own."
    )


class SummaryModelOptions(ModelEndpoint):
    """The model that writes summaries. `context_length` also bounds what one summary call is given."""

    model: str | None = Field(None, min_length=1, description="Its name. Null: chosen by what is configured.")
    provider: Literal["auto", "main", "openai", "anthropic", "openrouter", "local", "custom"] = Field(
        "auto", description="Who serves it. `main` is the main model's route."
    )


class AuxiliaryOptions(Options):
    """Models for work beside the conversation."""

    compression: SummaryModelOptions = SummaryModelOptions()


class EngineOptions(Options):
    """Which engine decides what stays in the context."""

    engine: str = Field("compressor", min_length=1, description="The engine's name; `everthread plugins` lists them.")


class ModelCompression(Options):
    """When one model's history counts as too large; what is null is as for every model."""

    threshold: Annotated[float, within("compression.threshold")] | None = None
    threshold_tokens: Annotated[int, within("compression.threshold_tokens")] | None = None
    target_ratio: Annotated[float, within("compression.target_ratio")] | None = None


class CompressionOptions(Options):
    """When the history counts as too large, and what is kept."""

    enabled: bool = Field(default=True, description="False: nothing is rewritten; overflow is reported, not repaired.")
    threshold: Annotated[float, within("compression.threshold")] = Field(
        budget.THRESHOLD, description="Share of the window at which compaction starts."
    )
    target_ratio: Annotated[float, within("compression.target_ratio")] = Field(
        budget.TARGET_RATIO, description="Share of the threshold kept as the recent tail."
    )
    protect_last_n: Annotated[int, within("compression.protect_last_n")] = Field(
        budget.PROTECT_LAST_N, description="At least so many recent messages are kept, where they fit."
    )
    threshold_tokens: Annotated[int, within("compression.threshold_tokens")] | None = Field(
        None, description="Upper bound of the threshold, in tokens."
    )
    template: Literal["handoff", "classic"] = Field("handoff", description="The layout of a summary.")
    user_words: Annotated[float, within("compression.user_words")] = Field(
        budget.USER_WORDS, description="Share of the threshold for what the user said, word for word."
    )
    tools_share: Annotated[float, within("compression.tools_share")] = Field(
        TOOLS_SHARE,
        description="Share of the threshold for tool schemas; where they take more, tools that a thread does not use "
        "are left out and found by `find_tools`.",
    )
    background: bool = Field(default=True, description="Prepare summaries while the conversation goes on.")
    economics: bool = Field(
        default=True,
        description="Weigh in dollars, where prices are known, when to compact and who writes the summary.",
    )
    models: dict[str, ModelCompression] = Field(
        default_factory=dict,
        description="`threshold`, `threshold_tokens`, `target_ratio` for single models, by name or glob (`claude-*`).",
    )


class PromptCachingOptions(Options):
    """The provider's prompt cache."""

    cache_ttl: Literal["5m", "1h"] = Field("5m", description="How long Anthropic keeps a cached prefix.")


class ToolOutputOptions(Options):
    """How much tool output may enter the context; the rest is stored and cited."""

    result_chars: Annotated[int, within("tool_output.result_chars")] = Field(
        budget.RESULT_CHARS, description="Largest single result, in characters."
    )
    turn_chars: Annotated[int, within("tool_output.turn_chars")] = Field(
        budget.TURN_CHARS, description="Largest sum of the results of one assistant turn."
    )
    preview_chars: Annotated[int, within("tool_output.preview_chars")] = Field(
        budget.PREVIEW_CHARS, description="How much of a stored result is shown."
    )
    per_tool: dict[str, Annotated[int, within("tool_output.result_chars")] | None] = Field(
        default_factory=dict, description="`result_chars` for single tools; null means no limit."
    )
    tables: bool = Field(
        default=False,
        description="Give the model a JSON list of objects with the same keys as a table, where that saves a third.",
    )

    @model_validator(mode="after")
    def _preview_fits(self) -> ToolOutputOptions:
        if self.preview_chars > self.result_chars:
            raise ValueError(f"preview_chars ({self.preview_chars}) must not exceed result_chars ({self.result_chars})")
        return self


class AgentOptions(Options):
    """The agent of `chat` and `run`. What it may do without asking stands in `approvals.txt` in the home."""

    max_rounds: Annotated[int, Field(ge=1, le=10_000)] = Field(
        agent.MAX_ROUNDS, description="Rounds of tool calls in one turn; then it must say where it stands."
    )
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(agent.PARALLEL, description="Tools that run at the same time.")
    instructions_chars: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        agent.INSTRUCTIONS_CHARS, description="How much of the project's AGENTS.md enters the system prompt."
    )


class RecallSettings(Options):
    """What is looked up before a call and shown for that call only, of what is no longer in view."""

    enabled: bool = Field(default=True, description="False: the model finds earlier things with its tools only.")
    scope: recall.RecallScope = Field(
        "thread", description="`thread`: this conversation; `tenant`: every conversation of the same tenant."
    )
    max_tokens: Annotated[int, Field(ge=100, le=20_000)] = Field(
        recall.MAX_TOKENS, description="The most it may take, and never more than a twentieth of the window."
    )
    closeness: Annotated[float, Field(ge=0, le=1)] = Field(
        recall.CLOSENESS, description="How much of what was asked one place must hold, or nothing is shown."
    )


class StoreOptions(Options):
    """Where conversations live."""

    url: Annotated[str, AfterValidator(store_url)] | None = Field(
        None, description="Null: SQLite in the home. `postgresql://user@host/database` for several gateways."
    )
