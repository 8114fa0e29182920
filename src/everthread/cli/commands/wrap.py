"""`everthread wrap`: another agent, started with a gateway of its own and nothing of the user's changed."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.commands.serve import named_upstream
from everthread.cli.output import encode_json, escape_controls, indent_further_lines
from everthread.cli.passive_watch import (
    CHANGES_NOTICE,
    PASSIVE_NOTICE,
    describe_managed_run,
    uses_subscription,
)
from everthread.config import load_config
from everthread.core.messages import count_noun
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.config import Config
    from everthread.gateway.dashboard.savings import CostComparison
    from everthread.store.records import Insights

COMMAND = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}
}
NEVER_TOKENS = 1_000_000_000
"""Tokens at which a client would compact by itself: never."""
URL_PLACEHOLDER = "http://127.0.0.1:PORT"
"""The gateway's address before there is one."""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """Variables, flags and files that route a client through a gateway; `{url}` is its address."""

    name: str
    program: str
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Before the person's own."""
    folder: Callable[[Path, str], Mapping[str, str]] | None = None
    """Fills a temporary folder and names the variables that point there."""
    mcp: tuple[str, ...] = ()
    """What attaches our MCP server, with `--mcp`; before the person's own arguments."""
    note: str = ""

    @property
    def takes_mcp(self) -> bool:
        return bool(self.mcp) or "{opencode}" in self.variables.values()


def _opencode_config(url: str, *, mcp: bool) -> str:
    providers = {
        "anthropic": {"options": {"baseURL": f"{url}/v1"}},
        "openai": {"options": {"baseURL": f"{url}/v1"}},
    }
    attached = (
        {
            "mcp": {
                "everthread": {"type": "remote", "url": f"{url}/mcp", "enabled": True}
            }
        }
        if mcp
        else {}
    )
    return json.dumps({"provider": providers, **attached})


def _write_pi_extension(folder: Path, url: str) -> Mapping[str, str]:
    """An extension for this run; its sessions and settings stay where they are."""
    addresses = {"anthropic": url, "openai": f"{url}/v1"}
    calls = [
        f"pi.registerProvider({json.dumps(name)}, {{ baseUrl: {json.dumps(at)} }});"
        for name, at in addresses.items()
    ]
    (folder / "everthread.ts").write_text(
        "\n".join(["export default function (pi) {", *calls, "}", ""]), "utf-8"
    )
    return {}


def _copy_cline_settings(folder: Path, url: str) -> Mapping[str, str]:
    """A copy of its list of providers, with other addresses."""
    data = Path(os.environ.get("CLINE_DATA_DIR") or Path.home() / ".cline" / "data")
    settings_file = Path(
        os.environ.get("CLINE_PROVIDER_SETTINGS_PATH")
        or data / "settings" / "providers.json"
    )
    settings: Any = (
        json.loads(settings_file.read_text("utf-8"))
        if settings_file.is_file()
        else {"version": 1}
    )
    for name, provider in settings.get("providers", {}).items():
        if name == "anthropic" or name.startswith("openai"):
            own = {"baseUrl": url if name == "anthropic" else f"{url}/v1"}
            provider["settings"] = {**provider.get("settings", {}), **own}
    copy = folder / "providers.json"
    copy.write_text(json.dumps(settings), "utf-8")
    copy.chmod(0o600)
    return {"CLINE_PROVIDER_SETTINGS_PATH": str(copy)}


CLIENTS = {
    row.name: row
    for row in (
        ClientRow(
            "claude",
            "claude",
            {
                "ANTHROPIC_BASE_URL": "{url}",
                "DISABLE_AUTO_COMPACT": "1",
                "ENABLE_TOOL_SEARCH": "true",
                "CLAUDE_CODE_BLOCKING_LIMIT_OVERRIDE": str(NEVER_TOKENS),
            },
            mcp=(
                "--mcp-config",
                '{"mcpServers":{"everthread":{"type":"http","url":"{url}/mcp"}}}',
            ),
            note="its own compaction and its own limit are off (/compact stays), tool search stays on",
        ),
        ClientRow(
            "codex",
            "codex",
            arguments=(
                "-c",
                'openai_base_url="{url}/v1"',
                "-c",
                f"model_auto_compact_token_limit={NEVER_TOKENS}",
            ),
            mcp=("-c", 'mcp_servers.everthread.url="{url}/mcp"'),
            note="the built-in provider; its own compaction never comes due",
        ),
        ClientRow(
            "opencode",
            "opencode",
            {
                "OPENCODE_CONFIG_CONTENT": "{opencode}",
                "OPENCODE_DISABLE_AUTOCOMPACT": "1",
            },
            note="its providers anthropic and openai; its own compaction is off",
        ),
        ClientRow(
            "pi",
            "pi",
            arguments=("-e", "{folder}/everthread.ts"),
            folder=_write_pi_extension,
            note="its providers anthropic and openai, by an extension for this run",
        ),
        ClientRow(
            "aider",
            "aider",
            {
                "OPENAI_API_BASE": "{url}/v1",
                "ANTHROPIC_BASE_URL": "{url}",
                "ANTHROPIC_API_BASE": "{url}",
            },
            ("--max-chat-history-tokens", str(NEVER_TOKENS)),
            note="models of OpenAI and Anthropic; its own summaries are off",
        ),
        ClientRow(
            "qwen", "qwen", {"OPENAI_BASE_URL": "{url}/v1"}, note="with an OpenAI key"
        ),
        ClientRow(
            "gemini",
            "gemini",
            {"GOOGLE_GEMINI_BASE_URL": "{url}"},
            note="with an API key (/auth in it), not a login; its own compaction rarely comes due",
        ),
        ClientRow(
            "cline",
            "cline",
            {"CLINE_SESSION_BACKEND_MODE": "local"},
            ("--compaction", "off"),
            folder=_copy_cline_settings,
            note="its providers anthropic and openai, in a copy of their settings; its own compaction is off",
        ),
        ClientRow(
            "copilot",
            "copilot",
            {
                "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
                "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(NEVER_TOKENS),
            },
            note="with a provider's key of your own, not GitHub's models; its own compaction never comes due",
        ),
        ClientRow(
            "goose",
            "goose",
            {
                "OPENAI_HOST": "{url}",
                "ANTHROPIC_HOST": "{url}",
                "GOOSE_AUTO_COMPACT_THRESHOLD": "0",
                "GOOSE_TOOL_PAIR_SUMMARIZATION": "false",
            },
            note="its providers anthropic and openai; its own compaction is off",
        ),
    )
}


ClientArgument = Annotated[str, typer.Argument(help=f"One of {', '.join(CLIENTS)}.")]
GatewayOption = Annotated[
    str | None,
    typer.Option(help="Use this gateway, which is running, instead of a new one."),
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=URL", help="A provider, instead of the configured ones."
    ),
]
ListedOption = Annotated[
    bool, typer.Option("--list", help="The clients, and which are installed.")
]
PrintedOption = Annotated[
    bool, typer.Option("--print", help="Say what would be set, and start nothing.")
]
McpOption = Annotated[
    bool,
    typer.Option(
        "--mcp",
        help="Attach our MCP server, where the client takes one, instead of the tool recall.",
    ),
]
IdleOption = Annotated[
    bool,
    typer.Option(
        "--idle",
        help="Compact during pauses, shortly before the provider's cache expires.",
    ),
]
PassiveOption = Annotated[
    bool,
    typer.Option(
        "--passive",
        help="Only watch: record threads and figures, and change no request.",
    ),
]
LogOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a JSON line there for each request and compaction.",
    ),
]
AsJsonOption = Annotated[
    bool, typer.Option("--json", help="The list or what would be set as JSON.")
]


def wrap(
    context: typer.Context,
    client: ClientArgument = "",
    gateway: GatewayOption = None,
    upstream: UpstreamOption = None,
    listed: ListedOption = False,
    printed: PrintedOption = False,
    mcp: McpOption = False,
    idle: IdleOption = False,
    passive: PassiveOption = False,
    log: LogOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Start another agent behind a gateway, and print a summary when it exits.

    Arguments after `--` are passed to the agent; `{url}` in them is replaced by the
    gateway's address, which is also in EVERTHREAD_URL. Only this process is changed:
    variables, flags, a configuration in a temporary folder.
    """
    if listed:
        _print_clients(as_json=as_json)
        return
    row = _find_client(client, mcp=mcp)
    if gateway and (idle or passive):
        raise InputError("--idle and --passive are settings of the gateway that runs")
    watch = WatchOptions(idle=idle, is_passive=passive, log=log)
    with tempfile.TemporaryDirectory(prefix="everthread-") as name:
        folder = Path(name)
        url = gateway and gateway.rstrip("/")
        if printed:
            _print_settings(
                row, folder, url or URL_PLACEHOLDER, mcp=mcp, as_json=as_json
            )
            return
        if shutil.which(row.program) is None:
            raise InputError(f"{row.program} is not installed, or not in PATH")
        if url:
            code = asyncio.run(
                _run_with_running_gateway(row, url, context.args, folder, mcp=mcp)
            )
        else:
            code = asyncio.run(
                _run(row, upstream or [], context.args, folder, watch, mcp=mcp)
            )
    raise typer.Exit(code)


def _print_clients(*, as_json: bool) -> None:
    """Print every client and whether it is installed."""
    rows = [
        {
            "client": row.name,
            "installed": shutil.which(row.program) is not None,
            "note": row.note,
        }
        for row in CLIENTS.values()
    ]
    if as_json:
        typer.echo(encode_json(rows))
        return
    for row in rows:
        state = "installed" if row["installed"] else "–"
        note = indent_further_lines(str(row["note"]), indent=21)
        typer.echo(f"{row['client']:9} {state:9}  {note}")


def _find_client(name: str, *, mcp: bool) -> ClientRow:
    """Return the client of this name; raise `InputError` if there is none, or if it cannot take an MCP server."""
    row = CLIENTS.get(name)
    if row is None:
        problem = (
            f"{name} is not a client that can be wrapped" if name else "name a client"
        )
        raise InputError(f"{problem}: {', '.join(CLIENTS)}")
    if mcp and not row.takes_mcp:
        takers = ", ".join(other.name for other in CLIENTS.values() if other.takes_mcp)
        raise InputError(
            f"{row.name} takes no MCP server for one run; these do: {takers}"
        )
    return row


def _print_settings(
    row: ClientRow, folder: Path, url: str, *, mcp: bool, as_json: bool
) -> None:
    if not as_json:
        typer.echo(settings_text(row, folder, url, mcp=mcp))
        return
    variables, arguments = _settings(row, url, folder, mcp=mcp)
    typer.echo(
        encode_json(
            {"program": row.program, "variables": variables, "arguments": arguments}
        )
    )


def _settings(
    row: ClientRow, url: str, folder: Path, *, mcp: bool
) -> tuple[dict[str, str], list[str]]:
    """Variables and arguments."""
    values = {
        "{url}": url,
        "{opencode}": _opencode_config(url, mcp=mcp),
        "{folder}": str(folder),
    }

    def fill(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    variables = {
        "EVERTHREAD_URL": url,
        **{name: fill(value) for name, value in row.variables.items()},
    }
    if row.folder is not None:
        variables |= row.folder(folder, url)
    return variables, [
        fill(argument) for argument in (*row.arguments, *(row.mcp if mcp else ()))
    ]


def settings_text(
    row: ClientRow, folder: Path, url: str = URL_PLACEHOLDER, *, mcp: bool = False
) -> str:
    """What would be set, as a shell takes it; the temporary folder is called FOLDER."""
    variables, arguments = _settings(row, url, folder, mcp=mcp)
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(
        [*lines, shlex.join([row.program, *arguments]), f"# {row.note}"]
    ).replace(str(folder), "FOLDER")


async def _run(
    row: ClientRow,
    upstreams: list[str],
    words: list[str],
    folder: Path,
    watch: WatchOptions,
    *,
    mcp: bool,
) -> int:
    """Run it with a gateway of its own, and print the receipt."""
    from everthread.factory.gateways import open_gateway, page_reader
    from everthread.factory.stores import open_store, store_url
    from everthread.gateway.log_lines import set_up_logs

    config = watch.apply(load_config())
    set_up_logs("text", verbose=False, quiet=True, file=watch.log)
    routes = [named_upstream(text, config.gateway.mode) for text in upstreams] or None
    store = await asyncio.to_thread(open_store, store_url(config))
    started_at = time.time()
    try:
        opened = open_gateway(
            config, host="127.0.0.1", port=0, auth="none", store=store, upstreams=routes
        )
        if watch.is_passive:
            typer.echo(PASSIVE_NOTICE, err=True)
        elif uses_subscription(row.name, os.environ, Path.home()):
            typer.echo(CHANGES_NOTICE, err=True)
        async with opened as gateway:
            code = await _run_client(row, gateway.url, words, folder, mcp=mcp)
        insights = await store.insights(
            since=started_at, until=time.time() + 1, platform="gateway"
        )
        comparison = await page_reader(config, store).savings(started_at)
        unchanged = ""
        if watch.is_passive:
            unchanged = await describe_managed_run(config, store, started_at)
    finally:
        await store.close()
    lines = receipt(row.name, ReceiptFigures.of(insights), comparison)
    typer.echo(escape_controls(f"{lines}\n{unchanged}".rstrip()), err=True)
    return code


async def _run_with_running_gateway(
    row: ClientRow, url: str, words: list[str], folder: Path, *, mcp: bool
) -> int:
    """Run the client with a gateway that is already running, and print that gateway's figures."""
    since = time.time()
    before = await read_figures(url, since)
    code = await _run_client(row, url, words, folder, mcp=mcp)
    typer.echo(
        escape_controls(
            remote_receipt(row.name, url, before, await read_figures(url, since))
        ),
        err=True,
    )
    return code


async def _run_client(
    row: ClientRow, url: str, words: list[str], folder: Path, *, mcp: bool
) -> int:
    """Run it on this terminal. Ctrl-C is for it alone."""
    variables, arguments = _settings(row, url, folder, mcp=mcp)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    process = await asyncio.create_subprocess_exec(
        shutil.which(row.program) or row.program,
        *arguments,
        *(word.replace("{url}", url) for word in words),
        env={**os.environ, **variables},
    )
    loop.add_signal_handler(signal.SIGTERM, process.terminate)
    return await process.wait()


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How the gateway of one run differs from the configured one."""

    idle: bool
    """Compact shortly before the cache expires."""
    is_passive: bool
    """Change no request."""
    log: Path | None

    def apply(self, config: Config) -> Config:
        """Return the configuration of the run."""
        if self.idle:
            compression = config.compression.model_copy(update={"idle": True})
            config = config.model_copy(update={"compression": compression})
        if not self.is_passive:
            return config
        upstreams = [
            one.model_copy(update={"mode": "observe"})
            for one in config.gateway.upstreams
        ]
        changed = {"mode": "observe", "upstreams": upstreams}
        gateway = config.gateway.model_copy(update=changed)
        return config.model_copy(update={"gateway": gateway})


@dataclass(frozen=True, slots=True)
class ReceiptFigures:
    """The traffic of a gateway within a period."""

    calls: int
    prompt: int
    output: int
    cost: float | None
    """None if a price is unknown."""
    compactions: int
    tokens_saved: int

    @classmethod
    def of(cls, insights: Insights) -> ReceiptFigures:
        total = insights.total
        cost = None if total.unpriced else float(total.cost)
        return cls(
            total.calls,
            total.prompt,
            output=total.output,
            cost=cost,
            compactions=insights.compactions,
            tokens_saved=insights.tokens_saved,
        )

    @classmethod
    def read(cls, answer: Any) -> ReceiptFigures:
        """From what the API answers."""
        total = answer["total"]
        calls, prompt, output = (
            int(total[name]) for name in ("calls", "prompt", "output")
        )
        cost = None if total["unpriced_calls"] else float(total["known_cost"])
        return cls(
            calls,
            prompt,
            output=output,
            cost=cost,
            compactions=int(answer["compactions"]),
            tokens_saved=int(answer["tokens_saved"]),
        )

    def since(self, before: ReceiptFigures) -> ReceiptFigures:
        cost = (
            None
            if self.cost is None or before.cost is None
            else self.cost - before.cost
        )
        return ReceiptFigures(
            self.calls - before.calls,
            self.prompt - before.prompt,
            output=self.output - before.output,
            cost=cost,
            compactions=self.compactions - before.compactions,
            tokens_saved=self.tokens_saved - before.tokens_saved,
        )


_DAY_SECONDS = 86_400
_KEYS = ("EVERTHREAD_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY")
"""Where a client's key for the gateway may be, which sees its tenant's figures."""
_SECONDS = 10


async def read_figures(url: str, since: float) -> ReceiptFigures | str:
    """All that went through a running gateway from the day of `since` on; or why that is not known."""
    import httpx2

    key = next((os.environ[name] for name in _KEYS if os.environ.get(name)), "")
    days = int(time.time() // _DAY_SECONDS - since // _DAY_SECONDS) + 1
    try:
        async with httpx2.AsyncClient(timeout=_SECONDS) as http:
            answer = await http.get(
                f"{url}/api/insights",
                params={"days": days},
                headers={"authorization": f"Bearer {key}"} if key else {},
            )
        return (
            ReceiptFigures.read(answer.json())
            if answer.status_code == 200
            else f"it answers {answer.status_code}"
        )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError):
        return "it answers something else"


def remote_receipt(
    name: str, url: str, before: ReceiptFigures | str, after: ReceiptFigures | str
) -> str:
    """The receipt of a gateway that serves others too, or why there is none."""
    if isinstance(before, str) or isinstance(after, str):
        why = before if isinstance(before, str) else after
        return f"Everthread: no receipt, the figures of {url} cannot be read here ({why}). Look there: {url}/"
    lines = receipt(name, after.since(before)).split("\n")[:-1]
    lines.append(f"These figures count everything that went through {url} meanwhile.")
    return "\n".join([*lines, f"Look: {url}/"])


def receipt(
    name: str, total: ReceiptFigures, comparison: CostComparison | None = None
) -> str:
    """Return the summary of a run: its calls, its compactions and its cost."""
    from everthread.gateway.dashboard.headlines import describe_difference
    from everthread.gateway.dashboard.text import money

    if not total.calls:
        return f"Everthread: {name} made no call through it.\nLook: everthread doctor."
    calls = count_noun(total.calls, "call")
    if comparison is not None and comparison.beyond:
        lines = [
            f"Everthread: {name} made {calls}, {comparison.beyond:,} of them beyond the window."
        ]
    else:
        lines = [f"Everthread: {name} made {calls}."]
    if total.compactions:
        compactions = count_noun(total.compactions, "compaction")
        lines.append(
            f"Kept: every message, searchable; {compactions} took {total.tokens_saved:,} tokens out of the prompts."
        )
    else:
        lines.append("Kept: every message, searchable; nothing had to be compacted.")
    cost = money(total.cost)
    difference = describe_difference(comparison) if comparison is not None else None
    compared = (
        f"; {difference.value} {difference.label} {difference.detail}"
        if difference
        else ""
    )
    lines.append(
        f"Cost: {cost} for {total.prompt:,} tokens in, {total.output:,} out{compared}."
    )
    return "\n".join(
        [*lines, "Look: everthread dashboard, or everthread sessions list."]
    )
