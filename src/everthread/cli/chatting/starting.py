"""What a chat begins with: a model that can be reached, a thread, and what is said of both."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.text import Text

from everthread.cli.output import console, counted, short, visible
from everthread.config import Config, config_path, home_directory
from everthread.conversation.conversation import Conversation
from everthread.core.caching import caching_line
from everthread.errors import ConfigError, InputError
from everthread.providers.choose import Choice, choose
from everthread.providers.local_file import SMOLLM2, pull

LOCAL = f"local/{SMOLLM2.name}"
HOW = """To talk with a provider's model, set its key and name the model:

    export ANTHROPIC_API_KEY=…        (or OPENAI_API_KEY, OPENROUTER_API_KEY, …)
    everthread chat --model claude-sonnet-4-5

or write it down in {path}:

    model:
      default: claude-sonnet-4-5

A server of your own: model.base_url, such as http://localhost:8000/v1.
Without any: the small model on this machine, `everthread models pull`, then `everthread chat --model {local}`.
`everthread doctor` tells what works here."""
OFFER = "Use the small model on this machine now (no key; good for trying things out, not for work)?"


def chosen(config: Config, model: str | None) -> Choice:
    """Which model the settings mean, by whom it is served."""
    options = config.model
    return choose(
        model or options.default, environment=os.environ, provider=options.provider,
        base_url=options.base_url, api_key_env=options.api_key_env,
    )  # fmt: skip


def reachable(config: Config, model: str | None) -> str | None:
    """Why the model cannot be talked to: none is named, or its key is missing. None where it can."""
    try:
        choice = chosen(config, model)
    except ConfigError as error:
        return str(error)
    if choice.key_env and not os.environ.get(choice.key_env, "").strip():
        return f"{choice.model} needs a key, and the environment variable {choice.key_env} is not set."
    return None


def model_for(config: Config, model: str | None, *, ask: bool) -> str | None:
    """The model to talk to. Where none can be reached, what to do is said and the local one is offered."""
    problem = reachable(config, model)
    if problem is None:
        return model
    if not ask:
        raise InputError(f"{problem}\n\n{HOW.format(path=config_path(), local=LOCAL)}")
    console.print(Text(f"{visible(problem)}\n\n{HOW.format(path=config_path(), local=LOCAL)}\n"), soft_wrap=True)
    if find_spec("xllamacpp") is None:
        raise InputError("nothing to talk to yet (for the local model: pip install 'everthread[local]')")
    there = SMOLLM2.path(home_directory()).is_file()
    size = "" if there else f" About {SMOLLM2.size // 1_000_000} MB are fetched first."
    if not typer.confirm(f"{OFFER}{size}", default=False):
        raise typer.Exit(2)
    pull(home_directory(), say=lambda words: console.print(Text(visible(words), "dim"), soft_wrap=True))
    return LOCAL


def greeting(conversation: Conversation, config: Config, workspace: Path, *, resumed: bool) -> Text:
    """Which model, which window, where; whether the prompt is cached; which thread."""
    route, size = conversation.route, f"{conversation.window:,}"
    window = route.source if route.source.startswith(size) else f"{size} tokens ({route.source})"
    lines = [f"Everthread · {visible(route.name)} · {visible(window)}"]
    caching = caching_line(route.name, route.provider, route.base_url, ttl=config.prompt_caching.cache_ttl)
    lines += [caching] if caching else []
    thread = f"thread {short(conversation.id)}"
    said = counted(len(conversation.messages), "message")
    lines.append(f"{thread} goes on: {said} in context" if resumed else f"{thread} · {visible(str(workspace))}")
    lines.append("/help for commands · Alt-Enter for another line · Ctrl-C stops a turn, Ctrl-D ends")
    return Text("\n".join(lines), "dim")
