"""The clients that `everthread wrap` can start, and the settings that route each through a gateway."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNREACHABLE_TOKENS = 1_000_000_000
"""Compaction threshold in tokens that no client reaches, so that it never compacts by itself."""


URL_PLACEHOLDER = "http://127.0.0.1:PORT"
"""Placeholder for the gateway's address until it is known."""


@dataclass(frozen=True, slots=True)
class WrappedClient:
    """A client with the variables, flags and files that route it through a gateway, whose address is `{url}`."""

    name: str
    program: str
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Arguments before the user's own."""
    fill_folder: Callable[[Path, str], Mapping[str, str]] | None = None
    """Fills a temporary folder and returns the variables that point there."""
    mcp_arguments: tuple[str, ...] = ()
    """Arguments that attach our MCP server if `--mcp` is given, before the user's own arguments."""
    note: str = ""

    @property
    def takes_mcp(self) -> bool:
        return bool(self.mcp_arguments) or "{opencode}" in self.variables.values()


def _make_opencode_config(url: str, *, with_mcp: bool) -> str:
    providers = {
        "anthropic": {"options": {"baseURL": f"{url}/v1"}},
        "openai": {"options": {"baseURL": f"{url}/v1"}},
    }
    config: dict[str, Any] = {"provider": providers}
    if with_mcp:
        config["mcp"] = {"everthread": {"type": "remote", "url": f"{url}/mcp", "enabled": True}}
    return json.dumps(config)


def _write_pi_extension(folder: Path, url: str) -> Mapping[str, str]:
    """Write an extension for this run. Sessions and settings of pi stay where they are."""
    addresses = {"anthropic": url, "openai": f"{url}/v1"}
    calls = [
        f"pi.registerProvider({json.dumps(name)}, {{ baseUrl: {json.dumps(address)} }});"
        for name, address in addresses.items()
    ]
    (folder / "everthread.ts").write_text(
        "\n".join(["export default function (pi) {", *calls, "}", ""]), "utf-8"
    )
    return {}


def _copy_cline_settings(folder: Path, url: str) -> Mapping[str, str]:
    """Copy Cline's list of providers, with the gateway's addresses."""
    data = Path(os.environ.get("CLINE_DATA_DIR") or Path.home() / ".cline" / "data")
    settings_file = Path(
        os.environ.get("CLINE_PROVIDER_SETTINGS_PATH") or data / "settings" / "providers.json"
    )
    settings: dict[str, Any] = {"version": 1}
    if settings_file.is_file():
        settings = json.loads(settings_file.read_text("utf-8"))
    for name, provider in settings.get("providers", {}).items():
        if name == "anthropic" or name.startswith("openai"):
            address_setting = {"baseUrl": url if name == "anthropic" else f"{url}/v1"}
            provider["settings"] = {**provider.get("settings", {}), **address_setting}
    copied_file = folder / "providers.json"
    copied_file.write_text(json.dumps(settings), "utf-8")
    copied_file.chmod(0o600)
    return {"CLINE_PROVIDER_SETTINGS_PATH": str(copied_file)}


CLIENTS = {
    client.name: client
    for client in (
        WrappedClient(
            "claude",
            "claude",
            {
                "ANTHROPIC_BASE_URL": "{url}",
                "DISABLE_AUTO_COMPACT": "1",
                "ENABLE_TOOL_SEARCH": "true",
                "CLAUDE_CODE_BLOCKING_LIMIT_OVERRIDE": str(UNREACHABLE_TOKENS),
            },
            mcp_arguments=(
                "--mcp-config",
                '{"mcpServers":{"everthread":{"type":"http","url":"{url}/mcp"}}}',
            ),
            note="its own compaction and its own limit are off (/compact stays), tool search stays on",
        ),
        WrappedClient(
            "codex",
            "codex",
            arguments=(
                "-c",
                'openai_base_url="{url}/v1"',
                "-c",
                f"model_auto_compact_token_limit={UNREACHABLE_TOKENS}",
            ),
            mcp_arguments=("-c", 'mcp_servers.everthread.url="{url}/mcp"'),
            note="the built-in provider; its own compaction never comes due",
        ),
        WrappedClient(
            "opencode",
            "opencode",
            {
                "OPENCODE_CONFIG_CONTENT": "{opencode}",
                "OPENCODE_DISABLE_AUTOCOMPACT": "1",
            },
            note="its providers anthropic and openai; its own compaction is off",
        ),
        WrappedClient(
            "pi",
            "pi",
            arguments=("-e", "{folder}/everthread.ts"),
            fill_folder=_write_pi_extension,
            note="its providers anthropic and openai, by an extension for this run",
        ),
        WrappedClient(
            "aider",
            "aider",
            {
                "OPENAI_API_BASE": "{url}/v1",
                "ANTHROPIC_BASE_URL": "{url}",
                "ANTHROPIC_API_BASE": "{url}",
            },
            ("--max-chat-history-tokens", str(UNREACHABLE_TOKENS)),
            note="models of OpenAI and Anthropic; its own summaries are off",
        ),
        WrappedClient("qwen", "qwen", {"OPENAI_BASE_URL": "{url}/v1"}, note="with an OpenAI key"),
        WrappedClient(
            "gemini",
            "gemini",
            {"GOOGLE_GEMINI_BASE_URL": "{url}"},
            note="with an API key (/auth in it), not a login; its own compaction rarely comes due",
        ),
        WrappedClient(
            "cline",
            "cline",
            {"CLINE_SESSION_BACKEND_MODE": "local"},
            ("--compaction", "off"),
            fill_folder=_copy_cline_settings,
            note="its providers anthropic and openai, in a copy of their settings; its own compaction is off",
        ),
        WrappedClient(
            "copilot",
            "copilot",
            {
                "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
                "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(UNREACHABLE_TOKENS),
            },
            note="with a provider's key of your own, not GitHub's models; its own compaction never comes due",
        ),
        WrappedClient(
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


def make_settings(
    client: WrappedClient, url: str, folder: Path, *, with_mcp: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the variables and arguments that route a client through the gateway."""
    values = {
        "{url}": url,
        "{opencode}": _make_opencode_config(url, with_mcp=with_mcp),
        "{folder}": str(folder),
    }

    def fill(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    variables = {"EVERTHREAD_URL": url}
    variables |= {name: fill(value) for name, value in client.variables.items()}
    if client.fill_folder is not None:
        variables |= client.fill_folder(folder, url)
    arguments = client.arguments
    if with_mcp:
        arguments += client.mcp_arguments
    return variables, list(map(fill, arguments))


def format_settings(
    client: WrappedClient,
    folder: Path,
    url: str = URL_PLACEHOLDER,
    *,
    with_mcp: bool = False,
) -> str:
    """Format the settings as shell commands in which the temporary folder is called FOLDER."""
    variables, arguments = make_settings(client, url, folder, with_mcp=with_mcp)
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    lines += [shlex.join([client.program, *arguments]), f"# {client.note}"]
    return "\n".join(lines).replace(str(folder), "FOLDER")
