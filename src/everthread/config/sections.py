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
    """The address, API key and context window of a model."""

    base_url: HttpUrl | None = Field(
        None,
        description="The address of the API. Required for `custom`; overrides the provider's own address otherwise.",
    )
    api_key_env: EnvironmentName | None = Field(
        None, description="The environment variable that holds the API key."
    )
    context_length: Window | None = Field(
        None,
        description="The size of the context window in tokens. Set it to override the built-in catalogue.",
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
            description="The provider of the model. `auto` chooses one by the model's name and the available API keys.",
        )
    )
    max_tokens: Annotated[int, allowed_range("model.max_tokens")] | None = Field(
        None, description="Maximum tokens of one answer. Null: the model's own limit."
    )


class SummaryModelOptions(ModelEndpoint):
    """The model that writes summaries. `context_length` also bounds the input of one summary call."""

    model: str | None = Field(
        None,
        min_length=1,
        description="The name of the model. Null: the main model's name if `provider` or `base_url` is set, else "
        "the main model itself.",
    )
    provider: Literal[
        "auto", "main", "openai", "anthropic", "openrouter", "gemini", "local", "custom"
    ] = Field(
        "auto", description="The provider of the model. `main`: use the main model's provider."
    )


class AuxiliaryOptions(ConfigSection):
    """Models for work outside the conversation."""

    compression: SummaryModelOptions = SummaryModelOptions()


class EngineOptions(ConfigSection):
    """The engine that decides what the context keeps."""

    engine: str = Field(
        "compressor",
        min_length=1,
        description="The engine's name; `everthread plugins` lists them.",
    )


class ModelCompression(ConfigSection):
    """When to compact the history of one model. Null: as for all models."""

    threshold: Annotated[float, allowed_range("compression.threshold")] | None = None
    threshold_tokens: Annotated[int, allowed_range("compression.threshold_tokens")] | None = None
    target_ratio: Annotated[float, allowed_range("compression.target_ratio")] | None = None


class CompressionOptions(ConfigSection):
    """When to compact the history, and how much of it to keep."""

    enabled: bool = Field(
        default=True,
        description="Compact the history. False: rewrite nothing, and report an overflow instead of repairing it.",
    )
    threshold: Annotated[float, allowed_range("compression.threshold")] = Field(
        DEFAULT_THRESHOLD,
        description="Share of the context window at which compaction starts.",
    )
    target_ratio: Annotated[float, allowed_range("compression.target_ratio")] = Field(
        DEFAULT_TARGET_RATIO,
        description="Share of the threshold that the most recent messages may keep after a compaction.",
    )
    protect_last_n: Annotated[int, allowed_range("compression.protect_last_n")] = Field(
        DEFAULT_PROTECT_LAST_N,
        description="Number of recent messages to keep unchanged if they fit.",
    )
    threshold_tokens: Annotated[int, allowed_range("compression.threshold_tokens")] | None = Field(
        DEFAULT_THRESHOLD_TOKENS,
        description="Maximum threshold in tokens. Null: no maximum.",
    )
    template: Literal["handoff", "classic"] = Field(
        "handoff", description="The layout of a summary."
    )
    user_words: Annotated[float, allowed_range("compression.user_words")] = Field(
        DEFAULT_USER_WORDS_SHARE,
        description="Maximum share of the threshold for compacted user messages that stay word for word.",
    )
    tools_share: Annotated[float, allowed_range("compression.tools_share")] = Field(
        TOOLS_SHARE,
        description="Maximum share of the threshold for tool schemas. If they take more, leave out tools that a thread "
        "does not use; `find_tools` finds them.",
    )
    background: bool = Field(
        default=True,
        description="Prepare summaries in the background while the conversation continues.",
    )
    idle: bool = Field(
        default=False,
        description="Compact shortly before the provider's cache expires, if the context "
        "is over half of the threshold.",
    )
    economics: bool = Field(
        default=True,
        description="If prices are known, compare costs to decide when to compact and which model writes the summary.",
    )
    models: dict[str, ModelCompression] = Field(
        default_factory=dict,
        description="`threshold`, `threshold_tokens` and `target_ratio` of individual models, by name or glob "
        "(`claude-*`).",
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
        "5m", description="Lifetime of the cache marks that are set for Claude models."
    )


class ToolOutputOptions(ConfigSection):
    """How much tool output may enter the context. The rest is stored and cited."""

    result_chars: Annotated[int, allowed_range("tool_output.result_chars")] = Field(
        DEFAULT_RESULT_CHARS, description="Maximum characters of one tool result."
    )
    turn_chars: Annotated[int, allowed_range("tool_output.turn_chars")] = Field(
        DEFAULT_TURN_CHARS,
        description="Maximum characters of all tool results of one assistant turn.",
    )
    preview_chars: Annotated[int, allowed_range("tool_output.preview_chars")] = Field(
        DEFAULT_PREVIEW_CHARS,
        description="Characters of a stored result to show as a preview.",
    )
    per_tool: dict[str, Annotated[int, allowed_range("tool_output.result_chars")] | None] = Field(
        default_factory=dict,
        description="`result_chars` of individual tools. Null: no limit.",
    )

    @model_validator(mode="after")
    def _check_preview(self) -> ToolOutputOptions:
        if self.preview_chars > self.result_chars:
            raise ValueError(
                f"preview_chars ({self.preview_chars}) must not exceed result_chars ({self.result_chars})"
            )
        return self


class AgentOptions(ConfigSection):
    """The agent of `chat` and `run`. `approvals.txt` in the home lists what it may run and write without asking."""

    max_rounds: Annotated[int, Field(ge=1, le=10_000)] = Field(
        MAX_ROUNDS,
        description="Maximum rounds of tool calls in one turn; after that the model must answer.",
    )
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        MAX_PARALLEL_TOOLS, description="Maximum tools that run at the same time."
    )
    instructions_chars: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        MAX_INSTRUCTIONS_CHARS,
        description="Maximum characters of the project's AGENTS.md in the system prompt.",
    )


class RecallSettings(ConfigSection):
    """Excerpts of earlier messages that are no longer in the context, added to one call at a time."""

    enabled: bool = Field(
        default=True,
        description="Add excerpts of earlier messages. False: the model finds them only with its tools.",
    )
    scope: RecallScope = Field(
        "thread",
        description="Which messages to search. `thread`: those of this conversation; `tenant`: those of all "
        "conversations of the same tenant.",
    )
    max_tokens: Annotated[int, Field(ge=100, le=20_000)] = Field(
        MAX_RECALL_TOKENS,
        description="Maximum tokens of the excerpts. They never take more than a twentieth of the context window.",
    )
    closeness: Annotated[float, Field(ge=0, le=1)] = Field(
        MIN_CLOSENESS,
        description="Minimum share of the question's words that a passage must contain.",
    )


class StoreOptions(ConfigSection):
    """The store of conversations."""

    url: Annotated[str, AfterValidator(check_store_url)] | None = Field(
        None,
        description="The store's address. Null: SQLite in the home. Use `postgresql://user@host/database` for several "
        "gateways.",
    )


class UpstreamOptions(ConfigSection):
    """A provider to which the gateway forwards requests."""

    name: str = Field(min_length=1, description="The name of the upstream in logs and metrics.")
    url: Literal["local"] | HttpUrl = Field(
        description="The address of the upstream, with or without `/v1`. `local`: the small model on this machine."
    )
    models: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Patterns of the names of the models that this upstream serves, such as `claude-*`.",
    )
    protocol: Literal["openai", "anthropic", "gemini"] | None = Field(
        None,
        description="Send requests of this protocol here if no pattern matches their model. Null: those of any "
        "protocol.",
    )
    api_key_env: EnvironmentName | None = Field(
        None,
        description="The environment variable that holds the API key for this upstream. With `auth: keys`, the key "
        "replaces the client's credential. Null: the provider's usual variable.",
    )
    mode: GatewayMode | None = Field(
        None, description="The mode of this upstream. Null: the value of `gateway.mode`."
    )


class GatewayLimitOptions(ConfigSection):
    """Limits of the gateway. Times are in seconds."""

    body_bytes: Annotated[int, Field(ge=1_000)] = Field(
        GatewayLimits.body_bytes,
        description="Maximum bytes of a request's body, both as received and after decoding.",
    )
    header_bytes: Annotated[int, Field(ge=1_000)] = Field(
        GatewayLimits.header_bytes, description="Maximum bytes of all headers of a request."
    )
    concurrent: Annotated[int, Field(ge=1, le=100_000)] = Field(
        GatewayLimits.concurrent,
        description="Maximum concurrent requests of one process; one tenant gets at most half of them. Further "
        "requests are refused with 429 and a `retry-after` header.",
    )
    header_seconds: Seconds = Field(
        GatewayLimits.header_seconds, description="Maximum time to receive a request's headers."
    )
    body_seconds: Seconds = Field(
        GatewayLimits.body_seconds, description="Maximum time to receive a request's body."
    )
    connect_seconds: Seconds = Field(
        GatewayLimits.connect_seconds, description="Maximum time to connect to an upstream."
    )
    answer_seconds: Seconds = Field(
        GatewayLimits.max_answer_gap_seconds,
        description="Maximum time between two pieces of an upstream's answer.",
    )
    write_seconds: Seconds = Field(
        GatewayLimits.write_seconds,
        description="Maximum time for a client to read one piece of its answer.",
    )
    manage_seconds: Seconds = Field(
        GatewayLimits.manage_seconds,
        description="Maximum time to rewrite a request, including a summary. After that, forward the original request.",
    )
    hold_seconds: Seconds = Field(
        GatewayLimits.hold_seconds,
        description="Maximum time to hold back the first events of a stream if the request nearly fills the context "
        "window.",
    )
    keepalive_seconds: Seconds = Field(
        GatewayLimits.keepalive_seconds,
        description="Time between two comments to a client that waits for a stream.",
    )
    silence_seconds: Seconds = Field(
        GatewayLimits.silence_seconds,
        description="Time until the first comment to a client that waits for a compaction before its stream.",
    )


QUEUE_DEFAULTS = QueueOptions()


class NativeApiOptions(ConfigSection):
    """The API for conversations, at `/api`."""

    enabled: bool = Field(default=True, description="Serve the API.")
    tools: bool = Field(
        default=False,
        description="Let clients without a key use the terminal and files of this machine.",
    )
    workspace: str | None = Field(
        None,
        description="The folder in which tools work. Null: a separate folder for each tenant in the home.",
    )
    models: tuple[str, ...] = Field(
        ("*",),
        strict=False,
        description="Patterns of the models that clients may choose. Empty: only the default model.",
    )
    queue: Annotated[int, Field(ge=1, le=10_000)] = Field(
        QUEUE_DEFAULTS.max_queued,
        description="Maximum waiting messages of one thread; further ones are refused.",
    )
    running: Annotated[int, Field(ge=1, le=10_000)] = Field(
        QUEUE_DEFAULTS.max_running, description="Maximum turns that run at the same time."
    )
    agents: Annotated[int, Field(ge=1, le=100_000)] = Field(
        QUEUE_DEFAULTS.max_agents, description="Maximum threads to keep in memory between turns."
    )
    idle_seconds: Seconds = Field(
        QUEUE_DEFAULTS.idle_seconds,
        description="Time after which to drop an unused thread from memory.",
    )
    lease_seconds: Seconds = Field(
        QUEUE_DEFAULTS.lease_seconds,
        description="Time after which another process takes over a thread if the process that runs it does not "
        "respond.",
    )
    poll_seconds: Seconds = Field(
        QUEUE_DEFAULTS.poll_seconds,
        description="Time between two polls of the store for work of other processes.",
    )
    heartbeat_seconds: Seconds = Field(
        HEARTBEAT_INTERVAL_SECONDS,
        description="Time between two heartbeats of an idle stream.",
    )


class DashboardOptions(ConfigSection):
    """The dashboard at `/`."""

    enabled: bool = Field(default=True, description="Serve the dashboard.")
    key_env: EnvironmentName | None = Field(
        None,
        description="The environment variable that holds a key of at least 16 characters. The key shows the threads "
        "of all tenants. With `auth: passthrough`, the pages are disabled unless this is set.",
    )


class GatewayOptions(ConfigSection):
    """The HTTP service of `everthread serve`."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="The address to listen on. With `auth: none`, it must be a loopback address.",
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        8484, description="The port to listen on. 0: any free port."
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Number of processes that share the port. Use about one for each available core.",
    )
    auth: Auth = Field(
        "none",
        description="How clients authenticate. `keys`: with a key made by `everthread keys create`; `passthrough`: "
        "with a credential for the upstream, which is forwarded; `none`: not at all, and only from this "
        "machine.",
    )
    allowed_origins: tuple[Origin, ...] = Field(
        (),
        strict=False,
        description="Origins of web pages that may call the gateway, such as `https://app.example`, `null`, "
        "`chrome-extension://ID`, or `chrome-extension://*` for all extensions. All other origins are refused.",
    )
    allowed_hosts: tuple[HostName, ...] = Field(
        (),
        strict=False,
        description="Host names that requests may use besides `localhost`, IP addresses and `host`. Not needed for the "
        "proxy's paths with `auth: keys`.",
    )
    mode: GatewayMode = Field(
        "managed",
        description="`managed`: record requests and rewrite them if needed; `observe`: only record them; `off`: only "
        "forward them.",
    )
    cache_marks: bool = Field(
        default=True,
        description="Set cache marks for Claude, and a breakpoint for OpenAI models from GPT-5.6 on, if the client "
        "sets none, the prompt is long enough to be cached and another call is likely.",
    )
    include_usage: bool = Field(
        default=True,
        description="Ask for the usage in OpenAI chat streams if the client does not decide.",
    )
    recall: bool = Field(
        default=True,
        description="Offer the tool `recall`: from the start to clients with tools, after a compaction to others.",
    )
    upstreams: tuple[UpstreamOptions, ...] = Field(
        (),
        strict=False,
        description="The providers, the default one first. Each has a `name`, a `url` and optionally `models`, "
        "`protocol`, `api_key_env` and `mode`. Empty: OpenAI, Anthropic and Google.",
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
