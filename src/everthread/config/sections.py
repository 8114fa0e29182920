"""The sections of `config.yaml`: first a conversation's (model, context, tools, store), then the gateway's.

`factory/` reads the keys and passes them on.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from everthread.agent import MAX_INSTRUCTIONS_CHARS, MAX_PARALLEL_TOOLS, MAX_ROUNDS
from everthread.core.tokens.budget import (
    DEFAULT_PREVIEW_CHARS,
    DEFAULT_PROTECT_LAST_N,
    DEFAULT_RESULT_CHARS,
    DEFAULT_TARGET_RATIO,
    DEFAULT_THRESHOLD,
    DEFAULT_THRESHOLD_TOKENS,
    DEFAULT_TURN_CHARS,
    DEFAULT_USER_WORDS_SHARE,
    SETTING_RANGES,
)
from everthread.gateway.api import HEARTBEAT_INTERVAL_SECONDS, QueueOptions
from everthread.gateway.contracts import Auth, GatewayLimits, Mode
from everthread.thread.options import MAX_RECALL_TOKENS, MIN_CLOSENESS, TOOLS_SHARE, RecallScope


def _check_environment_name(value: str) -> str:
    if not value.isidentifier() or not value.isascii():
        raise ValueError(
            "the name of an environment variable, such as OPENAI_API_KEY; the key itself stays out of the file"
        )
    return value


def _check_http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise ValueError("an http:// or https:// URL without a password in it")
    return value


def _check_origin(value: str) -> str:
    scheme, separator, host = value.partition("://")
    is_any_host = host == "*" and scheme not in ("http", "https")
    if value != "null" and not (
        scheme and separator and host and (is_any_host or not set(host) & set("/*?#@ "))
    ):
        raise ValueError(
            "an origin without a path, such as https://app.example or http://localhost:3000; null; or a scheme of apps "
            "or extensions, such as chrome-extension://*"
        )
    return value


def _check_host_name(value: str) -> str:
    if not value or set(value) & set("/:*@ "):
        raise ValueError("a name without scheme and port, such as gateway.example")
    return value


def check_store_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("sqlite", "postgres", "postgresql"):
        raise ValueError(
            "null (SQLite in the home), sqlite:///path or postgresql://user@host/database"
        )
    if parts.password:
        raise ValueError("a URL without a password: put that into PGPASSWORD or ~/.pgpass")
    return value


def allowed_range(key: str) -> Any:
    """Return the allowed range of a setting, which is defined in the module that uses it."""
    minimum, maximum = SETTING_RANGES[key]
    return Field(ge=minimum, le=None if math.isinf(maximum) else maximum)


EnvironmentName = Annotated[str, AfterValidator(_check_environment_name)]
HostName = Annotated[str, AfterValidator(_check_host_name)]
Origin = Annotated[str, AfterValidator(_check_origin)]
HttpUrl = Annotated[str, AfterValidator(_check_http_url)]
Window = Annotated[int, Field(ge=1_000)]
"""Tokens; at least 1,000, because a smaller number is a mistake (128 for 128,000)."""
GatewayMode = Annotated[Mode, BeforeValidator(lambda value: "off" if value is False else value)]
"""Accepts false for `off`, because YAML reads an unquoted `off` as false."""
Seconds = Annotated[float, Field(ge=0.01, le=86_400, strict=False)]


class ConfigSection(BaseModel):
    """A section of the configuration: strict, complete, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_sections(cls, values: Any) -> Any:
        """Remove sections without keys: a section with comments only sets nothing."""
        if not isinstance(values, dict):
            return values
        sections = {
            name for name, field in cls.model_fields.items() if _is_section(field.annotation)
        }
        return {
            name: value
            for name, value in values.items()
            if value is not None or name not in sections
        }


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, ConfigSection)


class ModelEndpoint(ConfigSection):
    """Access to a model: provider, address, key."""

    base_url: HttpUrl | None = Field(
        None,
        description="Where the API is, for `custom` or to override the provider's own.",
    )
    api_key_env: EnvironmentName | None = Field(
        None, description="The environment variable that holds the API key."
    )
    context_length: Window | None = Field(
        None,
        description="The window in tokens, when you know better than the catalogue.",
    )

    @model_validator(mode="after")
    def _check_custom_url(self) -> ModelEndpoint:
        if getattr(self, "provider", None) == "custom" and self.base_url is None:
            raise ValueError("provider `custom` needs a base_url")
        return self


class ModelOptions(ModelEndpoint):
    """The model that answers."""

    default: str | None = Field(None, min_length=1, description="The model's name at its provider.")
    provider: Literal["auto", "openai", "anthropic", "openrouter", "gemini", "local", "custom"] = (
        Field(
            "auto",
            description="Who serves it. `auto` decides by the model's name and the keys that are present.",
        )
    )
    max_tokens: Annotated[int, allowed_range("model.max_tokens")] | None = Field(
        None, description="Cap on one answer, in tokens. Null: the model's own."
    )


class SummaryModelOptions(ModelEndpoint):
    """The model that writes summaries. `context_length` also bounds the input of one summary call."""

    model: str | None = Field(
        None, min_length=1, description="Its name. Null: chosen by the configuration."
    )
    provider: Literal[
        "auto", "main", "openai", "anthropic", "openrouter", "gemini", "local", "custom"
    ] = Field("auto", description="Who serves it. `main` is the main model's route.")


class AuxiliaryOptions(ConfigSection):
    """Models for work beside the conversation."""

    compression: SummaryModelOptions = SummaryModelOptions()


class EngineOptions(ConfigSection):
    """The engine that decides what the context keeps."""

    engine: str = Field(
        "compressor",
        min_length=1,
        description="The engine's name; `everthread plugins` lists them.",
    )


class ModelCompression(ConfigSection):
    """When the history of one model is compacted; null: as for every model."""

    threshold: Annotated[float, allowed_range("compression.threshold")] | None = None
    threshold_tokens: Annotated[int, allowed_range("compression.threshold_tokens")] | None = None
    target_ratio: Annotated[float, allowed_range("compression.target_ratio")] | None = None


class CompressionOptions(ConfigSection):
    """When the history is compacted, and how much of it is kept."""

    enabled: bool = Field(
        default=True,
        description="False: nothing is rewritten; overflow is reported, not repaired.",
    )
    threshold: Annotated[float, allowed_range("compression.threshold")] = Field(
        DEFAULT_THRESHOLD,
        description="Share of the window at which compaction starts.",
    )
    target_ratio: Annotated[float, allowed_range("compression.target_ratio")] = Field(
        DEFAULT_TARGET_RATIO,
        description="Share of the threshold kept as the recent tail.",
    )
    protect_last_n: Annotated[int, allowed_range("compression.protect_last_n")] = Field(
        DEFAULT_PROTECT_LAST_N,
        description="The number of recent messages that are kept, where they fit.",
    )
    threshold_tokens: Annotated[int, allowed_range("compression.threshold_tokens")] | None = Field(
        DEFAULT_THRESHOLD_TOKENS,
        description="Upper bound of the threshold, in tokens; null turns it off.",
    )
    template: Literal["handoff", "classic"] = Field(
        "handoff", description="The layout of a summary."
    )
    user_words: Annotated[float, allowed_range("compression.user_words")] = Field(
        DEFAULT_USER_WORDS_SHARE,
        description="Share of the threshold for the user's words.",
    )
    tools_share: Annotated[float, allowed_range("compression.tools_share")] = Field(
        TOOLS_SHARE,
        description="Share of the threshold for tool schemas; where they take more, tools that a thread does not use "
        "are left out and found by `find_tools`.",
    )
    background: bool = Field(
        default=True, description="Prepare summaries while the conversation goes on."
    )
    idle: bool = Field(
        default=False,
        description="Compact shortly before the provider's cache expires, if the context "
        "is over half of the threshold.",
    )
    economics: bool = Field(
        default=True,
        description="Weigh in dollars, where prices are known, when to compact and who writes the summary.",
    )
    models: dict[str, ModelCompression] = Field(
        default_factory=dict,
        description="`threshold`, `threshold_tokens`, `target_ratio` for single models, by name or glob (`claude-*`).",
    )


class ModelPrices(ConfigSection):
    """Prices of a model in dollars per million tokens."""

    input: Annotated[float, Field(ge=0, strict=False)]
    output: Annotated[float, Field(ge=0, strict=False)]
    cache_read: Annotated[float, Field(ge=0, strict=False)] | None = None
    cache_write: Annotated[float, Field(ge=0, strict=False)] | None = None


class PromptCachingOptions(ConfigSection):
    """The provider's prompt cache."""

    cache_ttl: Literal["5m", "1h"] = Field(
        "5m", description="Lifetime of the cache marks that are set for Claude."
    )


class ToolOutputOptions(ConfigSection):
    """How much tool output may enter the context; the rest is stored and cited."""

    result_chars: Annotated[int, allowed_range("tool_output.result_chars")] = Field(
        DEFAULT_RESULT_CHARS, description="Largest single result, in characters."
    )
    turn_chars: Annotated[int, allowed_range("tool_output.turn_chars")] = Field(
        DEFAULT_TURN_CHARS,
        description="Largest sum of the results of one assistant turn.",
    )
    preview_chars: Annotated[int, allowed_range("tool_output.preview_chars")] = Field(
        DEFAULT_PREVIEW_CHARS,
        description="How much of a stored result is shown.",
    )
    per_tool: dict[str, Annotated[int, allowed_range("tool_output.result_chars")] | None] = Field(
        default_factory=dict,
        description="`result_chars` for single tools; null means no limit.",
    )

    @model_validator(mode="after")
    def _check_preview(self) -> ToolOutputOptions:
        if self.preview_chars > self.result_chars:
            raise ValueError(
                f"preview_chars ({self.preview_chars}) must not exceed result_chars ({self.result_chars})"
            )
        return self


class AgentOptions(ConfigSection):
    """The agent of `chat` and `run`. `approvals.txt` in the home lists the commands and writes it may do unasked."""

    max_rounds: Annotated[int, Field(ge=1, le=10_000)] = Field(
        MAX_ROUNDS,
        description="Rounds of tool calls in one turn; then the model must answer.",
    )
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        MAX_PARALLEL_TOOLS, description="Tools that run at the same time."
    )
    instructions_chars: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        MAX_INSTRUCTIONS_CHARS,
        description="How much of the project's AGENTS.md enters the system prompt.",
    )


class RecallSettings(ConfigSection):
    """Recall of earlier messages that are no longer in the context, injected for one call."""

    enabled: bool = Field(
        default=True,
        description="False: the model finds earlier things with its tools only.",
    )
    scope: RecallScope = Field(
        "thread",
        description="`thread`: this conversation; `tenant`: every conversation of the same tenant.",
    )
    max_tokens: Annotated[int, Field(ge=100, le=20_000)] = Field(
        MAX_RECALL_TOKENS,
        description="Most tokens of the injected text, and never more than a twentieth of the window.",
    )
    closeness: Annotated[float, Field(ge=0, le=1)] = Field(
        MIN_CLOSENESS,
        description="Share of the question's words that a passage must hold to be shown.",
    )


class StoreOptions(ConfigSection):
    """The store of conversations."""

    url: Annotated[str, AfterValidator(check_store_url)] | None = Field(
        None,
        description="Null: SQLite in the home. `postgresql://user@host/database` for several gateways.",
    )


class UpstreamOptions(ConfigSection):
    """A provider to which the gateway forwards requests."""

    name: str = Field(min_length=1, description="What it is called in logs and figures.")
    url: Literal["local"] | HttpUrl = Field(
        description="Where it is, with or without `/v1`. `local`: the small model on this machine."
    )
    models: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Patterns of the model names that go there, such as `claude-*`.",
    )
    protocol: Literal["openai", "anthropic", "gemini"] | None = Field(
        None,
        description="It also gets what no pattern decides, in this protocol. Null: in any.",
    )
    api_key_env: EnvironmentName | None = Field(
        None,
        description="The environment variable with the key that goes there under `auth: keys`, in place of the "
        "client's. Null: the provider's usual one.",
    )
    mode: GatewayMode | None = Field(None, description="Instead of `gateway.mode`.")


class GatewayLimitOptions(ConfigSection):
    """Limits for one client of the gateway."""

    body_bytes: Annotated[int, Field(ge=1_000)] = Field(
        GatewayLimits.body_bytes,
        description="Largest request body, as it comes and once decoded.",
    )
    header_bytes: Annotated[int, Field(ge=1_000)] = Field(
        GatewayLimits.header_bytes, description="Largest headers of a request, in all."
    )
    concurrent: Annotated[int, Field(ge=1, le=100_000)] = Field(
        GatewayLimits.concurrent,
        description="Requests answered at the same time; further ones get a 503 and a time to retry.",
    )
    header_seconds: Seconds = Field(
        GatewayLimits.header_seconds, description="Until a request's headers are complete."
    )
    body_seconds: Seconds = Field(
        GatewayLimits.body_seconds, description="Until a request's body is complete."
    )
    connect_seconds: Seconds = Field(
        GatewayLimits.connect_seconds, description="Until an upstream takes the connection."
    )
    answer_seconds: Seconds = Field(
        GatewayLimits.max_answer_gap_seconds,
        description="Between two pieces of an upstream's answer.",
    )
    write_seconds: Seconds = Field(
        GatewayLimits.write_seconds,
        description="Until a client has read a piece of its answer.",
    )
    manage_seconds: Seconds = Field(
        GatewayLimits.manage_seconds,
        description="For a rewrite with its summary; after that the original is forwarded.",
    )
    hold_seconds: Seconds = Field(
        GatewayLimits.hold_seconds,
        description="How long the first events of a nearly full request's stream are held.",
    )
    keepalive_seconds: Seconds = Field(
        GatewayLimits.keepalive_seconds,
        description="Between two comments to a client that waits for a stream.",
    )
    silence_seconds: Seconds = Field(
        GatewayLimits.silence_seconds,
        description="How long a compaction may keep a client of a stream waiting without a comment.",
    )


QUEUE_DEFAULTS = QueueOptions()


class NativeApiOptions(ConfigSection):
    """Conversations under `/api`."""

    enabled: bool = Field(default=True, description="Serve them.")
    tools: bool = Field(
        default=False,
        description="Terminal and files also for clients without a key, on this machine.",
    )
    workspace: str | None = Field(
        None,
        description="Where tools work. Null: a folder in the home, of its own for each tenant.",
    )
    models: tuple[str, ...] = Field(
        ("*",),
        strict=False,
        description="Patterns of the models that clients may choose. Empty: none but the default.",
    )
    queue: Annotated[int, Field(ge=1, le=10_000)] = Field(
        QUEUE_DEFAULTS.max_queued,
        description="Messages of one thread that wait for their turn; further ones are refused.",
    )
    running: Annotated[int, Field(ge=1, le=10_000)] = Field(
        QUEUE_DEFAULTS.max_running, description="Turns at the same time."
    )
    agents: Annotated[int, Field(ge=1, le=100_000)] = Field(
        QUEUE_DEFAULTS.max_agents, description="Threads kept in memory between turns."
    )
    idle_seconds: Seconds = Field(
        QUEUE_DEFAULTS.idle_seconds,
        description="Seconds after which an unused thread leaves memory.",
    )
    lease_seconds: Seconds = Field(
        QUEUE_DEFAULTS.lease_seconds,
        description="Seconds after which another process takes over the thread of a silent one.",
    )
    poll_seconds: Seconds = Field(
        QUEUE_DEFAULTS.poll_seconds,
        description="How often the store is polled for the work of other processes.",
    )
    heartbeat_seconds: Seconds = Field(
        HEARTBEAT_INTERVAL_SECONDS,
        description="Seconds between two heartbeats of an idle stream.",
    )


class DashboardOptions(ConfigSection):
    """The pages for people at `/`."""

    enabled: bool = Field(default=True, description="Serve them.")
    key_env: EnvironmentName | None = Field(
        None,
        description="The environment variable with a key of at least 16 characters that sees every tenant's threads. "
        "With `auth: passthrough` the pages are off without one.",
    )


class GatewayOptions(ConfigSection):
    """The HTTP service of `everthread serve`."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Where it listens: an address of this machine only, as long as clients need no key.",
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(8484, description="0 finds a free one.")
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Processes that answer behind the one port; about one for each core that is free for it.",
    )
    auth: Auth = Field(
        "none",
        description="What clients need: `keys`, a key of `everthread keys`; `passthrough`, a credential for the "
        "upstream, which is forwarded; `none`, nothing, on this machine only.",
    )
    allowed_origins: tuple[Origin, ...] = Field(
        (),
        strict=False,
        description="Web pages that may call, such as `https://app.example`; also `null`, and schemes of apps and "
        "extensions (`chrome-extension://ID`, or `chrome-extension://*` for all). Every other page is refused.",
    )
    allowed_hosts: tuple[HostName, ...] = Field(
        (),
        strict=False,
        description="Names under which it answers, besides `localhost`, IP addresses and `host`. Not needed for the "
        "proxy's paths with `auth: keys`.",
    )
    mode: GatewayMode = Field(
        "managed",
        description="`managed` rewrites where needed, `observe` only records, `off` neither.",
    )
    cache_marks: bool = Field(
        default=True,
        description="Set cache marks for Claude, and a breakpoint for OpenAI models from GPT-5.6 on, if a client sets "
        "none, the prompt is long enough to be cached and a next call is likely.",
    )
    include_usage: bool = Field(
        default=True,
        description="Ask for the usage on OpenAI chat streams where the client does not say.",
    )
    recall: bool = Field(
        default=True,
        description="Offer the tool `recall`: to clients with tools at once, to others after a compaction.",
    )
    upstreams: tuple[UpstreamOptions, ...] = Field(
        (),
        strict=False,
        description="The providers, the default first, each with `name`, `url` and, if wanted, `models`, `protocol`, "
        "`api_key_env`, `mode`. Empty: OpenAI, Anthropic and Google.",
    )
    limits: GatewayLimitOptions = GatewayLimitOptions()
    native: NativeApiOptions = NativeApiOptions()
    dashboard: DashboardOptions = DashboardOptions()

    @model_validator(mode="after")
    def _check_names(self) -> GatewayOptions:
        names = [upstream.name for upstream in self.upstreams]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"every upstream needs a name of its own; {', '.join(duplicates)} occurs twice"
            )
        return self
