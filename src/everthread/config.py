"""The configuration: one `config.yaml` in the Everthread home, every key optional.

Unknown keys and values out of range are refused at load, with the key's full path, the value and what is allowed;
nothing is clamped. Secrets come from the environment: the file names the variable (`api_key_env`).
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import platformdirs
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from everthread.agent import limits
from everthread.core import budget, toolchoice
from everthread.core.redaction import redact
from everthread.errors import ConfigError
from everthread.gateway import limits as gateway
from everthread.gateway.base import Auth, Mode
from everthread.gateway.native import options as native
from everthread.session import recall_options as recall


def _environment_name(value: str) -> str:
    if not value.isidentifier() or not value.isascii():
        raise ValueError(
            "the name of an environment variable, such as OPENAI_API_KEY; the key itself stays out of the file"
        )
    return value


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise ValueError("an http:// or https:// URL without a password in it")
    return value


def _store_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("sqlite", "postgres", "postgresql"):
        raise ValueError("null (SQLite in the home), sqlite:///path or postgresql://user@host/database")
    if parts.password:
        raise ValueError("a URL without a password: put that into PGPASSWORD or ~/.pgpass")
    return value


def _within(key: str) -> Any:
    """The range a setting may have; it is written once, where the setting is used."""
    low, high = budget.LIMITS[key]
    return Field(ge=low, le=None if math.isinf(high) else high)


EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Window = Annotated[int, Field(ge=1_000)]
"""Tokens. A smaller number is a slip: 128 for 128,000."""
GatewayMode = Annotated[Mode, BeforeValidator(lambda value: "off" if value is False else value)]
"""YAML reads a bare `off` as false."""
Seconds = Annotated[float, Field(ge=0.01, le=86_400, strict=False)]


class Options(BaseModel):
    """A section of the configuration: strict, complete, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Endpoint(Options):
    """How a model is reached."""

    base_url: HttpUrl | None = Field(
        None, description="Where the API is, for `custom` or to override the provider's own."
    )
    api_key_env: EnvironmentName | None = Field(None, description="The environment variable that holds the API key.")
    context_length: Window | None = Field(
        None, description="The window in tokens, when you know better than the catalogue."
    )

    @model_validator(mode="after")
    def _custom_needs_a_url(self) -> Endpoint:
        if getattr(self, "provider", None) == "custom" and self.base_url is None:
            raise ValueError("provider `custom` needs a base_url")
        return self


class ModelOptions(Endpoint):
    """The model that answers."""

    default: str | None = Field(None, min_length=1, description="The model's name at its provider.")
    provider: Literal["auto", "openai", "anthropic", "openrouter", "local", "custom"] = Field(
        "auto", description="Who serves it. `auto` decides by the model's name and the keys that are present."
    )
    max_tokens: Annotated[int, _within("model.max_tokens")] | None = Field(
        None, description="Cap on one answer, in tokens. Null: the model's own."
    )


class SummaryModelOptions(Endpoint):
    """The model that writes summaries. `context_length` also bounds what one summary call is given."""

    model: str | None = Field(None, min_length=1, description="Its name. Null: chosen by what is configured.")
    provider: Literal["auto", "main", "openai", "anthropic", "openrouter", "local", "custom"] = Field(
        "auto", description="Who serves it. `main` is the main model's route."
    )


class AuxiliaryOptions(Options):
    """Models for work beside the conversation."""

    compression: SummaryModelOptions = SummaryModelOptions()


class ContextOptions(Options):
    """Which engine decides what stays in the context."""

    engine: str = Field("compressor", min_length=1, description="The engine's name; `everthread plugins` lists them.")


class CompressionOptions(Options):
    """When the history counts as too large, and what is kept."""

    enabled: bool = Field(default=True, description="False: nothing is rewritten; overflow is reported, not repaired.")
    threshold: Annotated[float, _within("compression.threshold")] = Field(
        budget.THRESHOLD, description="Share of the window at which compaction starts."
    )
    target_ratio: Annotated[float, _within("compression.target_ratio")] = Field(
        budget.TARGET_RATIO, description="Share of the threshold kept as the recent tail."
    )
    protect_last_n: Annotated[int, _within("compression.protect_last_n")] = Field(
        budget.PROTECT_LAST_N, description="At least so many recent messages are kept, where they fit."
    )
    threshold_tokens: Annotated[int, _within("compression.threshold_tokens")] | None = Field(
        None, description="Upper bound of the threshold, in tokens."
    )
    template: Literal["handoff", "classic"] = Field("handoff", description="The layout of a summary.")
    keep_important: Annotated[float, _within("compression.keep_important")] = Field(
        budget.KEEP_IMPORTANT, description="Share of the threshold for verbatim quotes of what matters most."
    )
    tools_share: Annotated[float, _within("compression.tools_share")] = Field(
        toolchoice.SHARE,
        description="Share of the threshold for tool schemas; where they take more, tools that a thread does not use "
        "are left out and found by `find_tools`.",
    )
    background: bool = Field(default=True, description="Prepare summaries while the conversation goes on.")
    economics: bool = Field(
        default=True,
        description="Weigh in dollars, where prices are known, when to compact and who writes the summary.",
    )


class PromptCachingOptions(Options):
    """The provider's prompt cache."""

    cache_ttl: Literal["5m", "1h"] = Field("5m", description="How long Anthropic keeps a cached prefix.")


class ToolOutputOptions(Options):
    """How much tool output may enter the context; the rest is stored and cited."""

    result_chars: Annotated[int, _within("tool_output.result_chars")] = Field(
        budget.RESULT_CHARS, description="Largest single result, in characters."
    )
    turn_chars: Annotated[int, _within("tool_output.turn_chars")] = Field(
        budget.TURN_CHARS, description="Largest sum of the results of one assistant turn."
    )
    preview_chars: Annotated[int, _within("tool_output.preview_chars")] = Field(
        budget.PREVIEW_CHARS, description="How much of a stored result is shown."
    )
    per_tool: dict[str, Annotated[int, _within("tool_output.result_chars")] | None] = Field(
        default_factory=dict, description="`result_chars` for single tools; null means no limit."
    )

    @model_validator(mode="after")
    def _preview_fits(self) -> ToolOutputOptions:
        if self.preview_chars > self.result_chars:
            raise ValueError(f"preview_chars ({self.preview_chars}) must not exceed result_chars ({self.result_chars})")
        return self


class AgentOptions(Options):
    """The agent of `chat` and `run`. What it may do without asking stands in `approvals.txt` in the home."""

    max_rounds: Annotated[int, Field(ge=1, le=10_000)] = Field(
        limits.MAX_ROUNDS, description="Rounds of tool calls in one turn; then it must say where it stands."
    )
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        limits.PARALLEL, description="Tools that run at the same time."
    )
    instructions_chars: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        limits.INSTRUCTIONS_CHARS, description="How much of the project's AGENTS.md enters the system prompt."
    )


class EmbeddingSettings(Options):
    """Vectors beside full text: of an endpoint, or of word vectors on this machine (both need the extra `vectors`)."""

    model: str = Field(min_length=1, description="`local`: word vectors that come with the extra; else its name.")
    base_url: HttpUrl | None = Field(None, description="Where `/embeddings` is, with the `/v1`; none for `local`.")
    api_key_env: EnvironmentName | None = Field(None, description="The environment variable that holds the API key.")
    similarity: Annotated[float, Field(gt=0, le=1)] = Field(
        recall.SIMILARITY, description="From which cosine on a place is close enough to be shown; models differ."
    )

    @model_validator(mode="after")
    def _reachable(self) -> EmbeddingSettings:
        if (self.base_url is None) != (self.model == "local"):
            raise ValueError("`local` has no base_url, and every other model needs one")
        return self


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
    embeddings: EmbeddingSettings | None = Field(
        None, description="`model`, `base_url`, `api_key_env`, `similarity`: vectors beside full text. Null: none."
    )


class StoreOptions(Options):
    """Where conversations live."""

    url: Annotated[str, AfterValidator(_store_url)] | None = Field(
        None, description="Null: SQLite in the home. `postgresql://user@host/database` for several gateways."
    )


class UpstreamOptions(Options):
    """A provider behind the gateway."""

    name: str = Field(min_length=1, description="What it is called in logs and figures.")
    url: Literal["local"] | HttpUrl = Field(
        description="Where it is, with or without `/v1`. `local`: the small model on this machine."
    )
    models: tuple[str, ...] = Field(
        (), strict=False, description="Patterns of the model names that go there, such as `claude-*`."
    )
    protocol: Literal["openai", "anthropic"] | None = Field(
        None, description="It also gets what no pattern decides, in this protocol. Null: in any."
    )
    api_key_env: EnvironmentName | None = Field(
        None, description="The environment variable with the key that replaces the client's. Null: the client's goes."
    )
    mode: GatewayMode | None = Field(None, description="Instead of `gateway.mode`.")


class GatewayLimits(Options):
    """What one client can ask of the gateway."""

    body_bytes: Annotated[int, Field(ge=1_000)] = Field(
        gateway.BODY_BYTES, description="Largest request body, as it comes and once decoded."
    )
    header_bytes: Annotated[int, Field(ge=1_000)] = Field(
        gateway.HEADER_BYTES, description="Largest headers of a request, in all."
    )
    concurrent: Annotated[int, Field(ge=1, le=100_000)] = Field(
        gateway.CONCURRENT, description="Requests answered at the same time; more are told to come again."
    )
    header_seconds: Seconds = Field(gateway.HEADER_SECONDS, description="Until a request's headers are complete.")
    body_seconds: Seconds = Field(gateway.BODY_SECONDS, description="Until a request's body is.")
    connect_seconds: Seconds = Field(gateway.CONNECT_SECONDS, description="Until an upstream takes the connection.")
    answer_seconds: Seconds = Field(gateway.ANSWER_SECONDS, description="Between two pieces of an upstream's answer.")
    write_seconds: Seconds = Field(gateway.WRITE_SECONDS, description="Until a client has read a piece of its answer.")
    manage_seconds: Seconds = Field(
        gateway.MANAGE_SECONDS, description="For a rewrite, its summary included; then the original is forwarded."
    )
    hold_seconds: Seconds = Field(
        gateway.HOLD_SECONDS, description="How long the first events of a nearly full request's stream are held."
    )
    keepalive_seconds: Seconds = Field(
        gateway.KEEPALIVE_SECONDS, description="Between two comments to a client that waits for a stream."
    )
    silence_seconds: Seconds = Field(
        gateway.SILENCE_SECONDS, description="How long a compaction keeps such a client waiting without one."
    )


class NativeApiOptions(Options):
    """Conversations under `/api`."""

    enabled: bool = Field(default=True, description="Serve them.")
    tools: bool = Field(
        default=False, description="Terminal and files also for clients without a key, on this machine."
    )
    workspace: str | None = Field(
        None, description="Where tools work. Null: a folder in the home, of its own for each tenant."
    )
    models: tuple[str, ...] = Field(
        ("*",), strict=False, description="Patterns of the models that clients may choose. Empty: none but the default."
    )
    queue: Annotated[int, Field(ge=1, le=10_000)] = Field(
        native.QUEUE, description="Messages of one thread that wait for their turn; more are told to come again."
    )
    running: Annotated[int, Field(ge=1, le=10_000)] = Field(native.RUNNING, description="Turns at the same time.")
    agents: Annotated[int, Field(ge=1, le=100_000)] = Field(
        native.AGENTS, description="Threads kept in memory between turns."
    )
    idle_seconds: Seconds = Field(native.IDLE_SECONDS, description="After which a thread is not kept any more.")
    lease_seconds: Seconds = Field(
        native.LEASE_SECONDS, description="Without a sign of life for so long, another process takes a thread over."
    )
    poll_seconds: Seconds = Field(
        native.POLL_SECONDS, description="How often the store is asked for what another process does."
    )
    heartbeat_seconds: Seconds = Field(
        native.HEARTBEAT_SECONDS, description="How often a stream that has nothing to tell shows that it lives."
    )


class WebhookSettings(Options):
    """A service that posts signed messages to `/hooks/NAME`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = Field(description="Part of its path.")
    secret_env: EnvironmentName = Field(description="The environment variable with the secret both sides sign with.")
    senders: tuple[str, ...] = Field((), strict=False, description="Who may write. Empty: nobody; `*`: everybody.")
    callbacks: tuple[HttpUrl, ...] = Field(
        (), strict=False, description="Where answers may go: a URL, or all below one that ends with `/`."
    )
    tenant: str | None = Field(None, min_length=1, description="Whose threads they are. Null: each chat its own.")


class TelegramSettings(Options):
    """A Telegram bot."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = Field("telegram", description="Part of its path.")
    token_env: EnvironmentName = Field(description="The environment variable with the bot's token.")
    users: tuple[int, ...] = Field((), strict=False, description="Ids of those who may write. Empty: nobody.")
    chats: tuple[int, ...] = Field((), strict=False, description="Ids of groups in which everybody may.")
    mode: Literal["polling", "webhook"] = Field("polling", description="Ask Telegram, or be told at `/hooks/NAME`.")
    secret_env: EnvironmentName | None = Field(
        None, description="For `webhook`: the environment variable with the secret token set with `setWebhook`."
    )
    api_url: HttpUrl = Field("https://api.telegram.org", description="Where the bot API is.")
    tenant: str | None = Field(None, min_length=1, description="Whose threads they are. Null: each chat its own.")

    @model_validator(mode="after")
    def _webhook_needs_a_secret(self) -> TelegramSettings:
        if self.mode == "webhook" and self.secret_env is None:
            raise ValueError("mode `webhook` needs a secret_env")
        return self


class AdapterOptions(Options):
    """Chats of other services as threads."""

    webhooks: tuple[WebhookSettings, ...] = Field(
        (),
        strict=False,
        description="Services that post signed messages, each with `name`, `secret_env`, `senders`, `callbacks` and, "
        "if wanted, `tenant`.",
    )
    telegram: tuple[TelegramSettings, ...] = Field(
        (),
        strict=False,
        description="Telegram bots, each with `token_env`, `users`, `chats` and, if wanted, `name`, `mode`, "
        "`secret_env`, `api_url`, `tenant`.",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> AdapterOptions:
        names = [*(one.name for one in self.webhooks), *(one.name for one in self.telegram)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"every adapter needs a name of its own; {', '.join(twice)} stands there twice")
        return self


class GatewayOptions(Options):
    """The HTTP service of `everthread serve`."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Where it listens: an address of this machine only, as long as clients need no key.",
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(8484, description="0 finds a free one.")
    auth: Auth = Field(
        "none",
        description="Who is let in: `keys`, who shows a key of `everthread keys`; `passthrough`, who shows a "
        "credential for the upstream, which goes there; `none`, anybody on this machine.",
    )
    mode: GatewayMode = Field(
        "managed", description="`managed` rewrites where needed, `observe` only records, `off` neither."
    )
    include_usage: bool = Field(
        default=True, description="Ask for the usage on OpenAI chat streams where the client said nothing."
    )
    upstreams: tuple[UpstreamOptions, ...] = Field(
        (),
        strict=False,
        description="The providers, the default first, each with `name`, `url` and, if wanted, `models`, `protocol`, "
        "`api_key_env`, `mode`. Empty: OpenAI and Anthropic.",
    )
    responses_state: Literal["pass", "emulate"] = Field(
        "pass",
        description="`emulate`: resolve `previous_response_id` here and send the whole input, for upstreams that keep "
        "no state. `pass`: such requests go as they come.",
    )
    limits: GatewayLimits = GatewayLimits()
    native: NativeApiOptions = NativeApiOptions()
    adapters: AdapterOptions = AdapterOptions()

    @model_validator(mode="after")
    def _names_differ(self) -> GatewayOptions:
        names = [upstream.name for upstream in self.upstreams]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"every upstream needs a name of its own; {', '.join(twice)} stands there twice")
        return self


class Config(Options):
    """Everything that can be configured."""

    model: ModelOptions = ModelOptions()
    context: ContextOptions = ContextOptions()
    compression: CompressionOptions = CompressionOptions()
    auxiliary: AuxiliaryOptions = AuxiliaryOptions()
    prompt_caching: PromptCachingOptions = PromptCachingOptions()
    tool_output: ToolOutputOptions = ToolOutputOptions()
    agent: AgentOptions = AgentOptions()
    recall: RecallSettings = RecallSettings()
    store: StoreOptions = StoreOptions()
    gateway: GatewayOptions = GatewayOptions()
    engines: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Options of single engines, by the engine's name; the engine checks them."
    )


def home_directory() -> Path:
    """The Everthread home: `EVERTHREAD_HOME`, else where the platform keeps a user's data."""
    chosen = os.environ.get("EVERTHREAD_HOME")
    return Path(chosen).expanduser() if chosen else platformdirs.user_data_path("everthread", appauthor=False)


def config_path() -> Path:
    return home_directory() / "config.yaml"


def load_config(path: str | Path | None = None) -> Config:
    """The configuration from `path`, or from the home. No file means every default."""
    source = Path(path) if path is not None else config_path()
    try:
        text = source.read_text("utf-8")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"{source}: there is no such file") from None
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from error
    return parse_config(text, source=str(source))


def parse_config(text: str, *, source: str = "config.yaml") -> Config:
    """The configuration in a YAML text; `ConfigError` names every key that is wrong."""
    try:
        # A subclass of SafeLoader: it builds plain values only.
        data = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{source}: is not valid YAML: {_one_line(error)}") from error
    if data is None:
        return Config()
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must hold keys and values, not a {type(data).__name__}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _problems(error))
        raise ConfigError(f"{source}: {error.error_count()} setting(s) cannot be used:\n{problems}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice; plain YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: the key {key.value!r} stands there twice")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


def _problems(error: ValidationError) -> Iterator[str]:
    for detail in error.errors():
        path = [str(step) for step in detail["loc"]]
        key = ".".join(path)
        if detail["type"] == "extra_forbidden":
            yield f"{key}: unknown key{_hint(path)}"
        else:
            allowed = detail["msg"].removeprefix("Value error, ")
            value = "" if isinstance(detail["input"], dict) else f" = {_shown(detail['input'])}"
            yield f"{key}{value}: {allowed[:1].lower()}{allowed[1:]}"


def _hint(path: list[str]) -> str:
    """What the writer may have meant, from the keys that are known there."""
    if path[-1] in ("api_key", "key", "token", "password"):
        return "; secrets stay out of the file: name an environment variable with api_key_env"
    section: Any = Config
    for step in path[:-1]:
        if step.isdecimal():  # an item of a list
            section = next(iter(get_args(section)), None)
            continue
        field = section.model_fields.get(step) if hasattr(section, "model_fields") else None
        section = field.annotation if field else None
    known = sorted(section.model_fields) if hasattr(section, "model_fields") else []
    close = difflib.get_close_matches(path[-1], known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"


def _shown(value: Any) -> str:
    text = redact(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
