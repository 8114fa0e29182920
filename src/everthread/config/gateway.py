"""The gateway's section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from everthread.config.values import EnvironmentName, GatewayMode, HostName, HttpUrl, Options, Origin, Seconds
from everthread.gateway import limits as gateway
from everthread.gateway.api import options as native
from everthread.gateway.base import Auth


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
        None,
        description="The environment variable with the key that goes there under `auth: keys`, in place of the "
        "client's. Null: the provider's usual one.",
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


class DashboardOptions(Options):
    """The pages for people at `/`."""

    enabled: bool = Field(default=True, description="Serve them.")
    key_env: EnvironmentName | None = Field(
        None,
        description="The environment variable with a key of at least 16 characters that sees every tenant's threads. "
        "With `auth: passthrough` the pages are off without one.",
    )


class GatewayOptions(Options):
    """The HTTP service of `everthread serve`."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Where it listens: an address of this machine only, as long as clients need no key.",
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(8484, description="0 finds a free one.")
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Processes that answer behind the one port; about one for each core that is free for it."
    )
    auth: Auth = Field(
        "none",
        description="Who is let in: `keys`, who shows a key of `everthread keys`; `passthrough`, who shows a "
        "credential for the upstream, which goes there; `none`, anybody on this machine.",
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
        "managed", description="`managed` rewrites where needed, `observe` only records, `off` neither."
    )
    include_usage: bool = Field(
        default=True, description="Ask for the usage on OpenAI chat streams where the client said nothing."
    )
    notice: bool = Field(
        default=False,
        description="Show the person one line at the end of the answer with which a compaction takes effect.",
    )
    recall: bool = Field(
        default=True,
        description="Offer the tool `recall` to a model once its thread was compacted, and answer its calls here.",
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
    dashboard: DashboardOptions = DashboardOptions()

    @model_validator(mode="after")
    def _names_differ(self) -> GatewayOptions:
        names = [upstream.name for upstream in self.upstreams]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"every upstream needs a name of its own; {', '.join(twice)} stands there twice")
        return self
