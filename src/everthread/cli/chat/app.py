"""`everthread chat`: a model that can be reached, a thread, the talk until somebody leaves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.text import Text

from everthread.agent import commands
from everthread.agent.approval import RULES_FILE, Approvals, Rule, read_rules, write_rule
from everthread.agent.loop import Agent
from everthread.cli.chat.editor import ChatCompleter
from everthread.cli.chat.input import Asker, InputReader, Interrupts, LineReader, StoppedError, at_terminal, unechoed
from everthread.cli.chat.render import BAD, QUIET, Screen, Status, ToolLines, line_of, styled
from everthread.cli.options import (
    NO_ID,
    PLATFORM,
    ago,
    latest,
    recent,
)
from everthread.cli.output import console, cost_text, share, short, unforeseen, visible
from everthread.cli.session_views import title_of
from everthread.config import Config, config_path, home_directory
from everthread.config.file import set_keys
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import CompactionDone, CompactionVoid, Event, Notice
from everthread.conversation.requests import Answer
from everthread.conversation.thread_state import load_thread_usage
from everthread.core.cache_control import caching_line
from everthread.core.messages import Message, counted, excerpt, text_of
from everthread.core.redaction import redact
from everthread.core.transcript import user_text
from everthread.core.types import StreamDelta
from everthread.errors import ConfigError, EverthreadError, InputError
from everthread.factory import open_agent
from everthread.factory.models import choice_of, lacks_key
from everthread.providers.local import SMOLLM2, pull
from everthread.store.models import NewSession
from everthread.store.sql.usage import sum_usage, usage_row
from everthread.store.store import Store

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


def unnamed_choice(config: Config, model: str) -> str:
    """Why this model was taken though nobody named one; empty where somebody did."""
    try:
        choice = choice_of(config.model)
    except ConfigError:
        return ""
    return choice.why if choice.model == model else ""


def reachable(config: Config, model: str | None) -> str | None:
    """Why the model cannot be talked to: none is named, or its key is missing. None where it can."""
    try:
        choice = choice_of(config.model, model)
    except ConfigError as error:
        return str(error)
    if lacks_key(choice):
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
    if config.model.default is None and set_keys(config_path(), {"model.default": LOCAL}):
        console.print(Text(f"From now on {LOCAL} is used (model.default); `everthread init` changes that.", "dim"))
    return LOCAL


async def resumed_model(store: Store, resume: str, config: Config, model: str | None, *, ask: bool) -> str | None:
    """The model to go on with: the one asked for, else the thread's own where it can be reached, else the usual one."""
    own = await own_model(store, resume, config) if model is None else None
    return own or model_for(config, model, ask=ask)


async def own_model(store: Store, resume: str, config: Config) -> str | None:
    """The model that a thread was held with, where it can be reached."""
    session = await store.resolve(resume)
    tip = await store.session(await store.get_compression_tip(session.id))
    name = tip.model or session.model
    return name if name and reachable(config, name) is None else None


def last_exchange(messages: Sequence[Message]) -> Text | None:
    """What was said last, in a few lines: the person, then the model."""
    asked = next((text for message in reversed(messages) if (text := user_text(message).strip())), "")
    spoken = (text_of(message).strip() for message in reversed(messages) if message["role"] == "assistant")
    answer = next((text for text in spoken if text), "")
    parts = [(f"› {excerpt(redact(asked), 300)}\n", "bold") if asked else None]
    parts.append((excerpt(redact(answer), 600), "") if answer else None)
    shown = [part for part in parts if part is not None]
    return Text.assemble(*shown) if shown else None


def greeting(conversation: Conversation, config: Config, workspace: Path, *, resumed: bool) -> Text:
    """Which model, which window, where; whether the prompt is cached; which thread."""
    route, size = conversation.route, f"{conversation.window:,}"
    window = route.source if route.source.startswith(size) else f"{size} tokens ({route.source})"
    lines = [f"Everthread · {visible(route.name)} · {visible(window)}"]
    caching = caching_line(route.name, route.provider, route.base_url, ttl=config.prompt_caching.cache_ttl)
    lines += [caching] if caching else []
    if not resumed and config.model.default is None and (why := unnamed_choice(config, route.name)):
        lines.append(f"{visible(route.name)}: {why}; `everthread init` writes down another")
    thread = f"thread {short(conversation.id)}"
    said = counted(len(conversation.messages), "message")
    lines.append(f"{thread} goes on: {said} in context" if resumed else f"{thread} · {visible(str(workspace))}")
    lines.append("/help for commands · Alt-Enter for another line · Ctrl-C stops a turn, Ctrl-D ends")
    return Text("\n".join(lines), "dim")


LEAVING = ("/exit", "/quit", "exit", "quit")
STOPPED = "■ stopped; the history says so. Go on, or ask something else."
EXIT = "- `/exit`: end the chat"
ANSWERED: dict[str, tuple[type[Event], ...]] = {"compress": (CompactionDone, CompactionVoid), "undo": (Notice,)}
"""What a command's own answer tells, so that no line does."""


class Chat:
    """One person, one agent. Errors are shown, and the talk goes on."""

    def __init__(self, screen: Screen, status: Status, reader: InputReader) -> None:
        self.screen, self.status, self.reader = screen, status, reader
        self.interrupts = Interrupts(reader.interrupt, lambda words: screen.print(Text(words, QUIET)))
        self.tools = ToolLines()
        self._reading_turn = False
        self._unshown: tuple[type[Event], ...] = ()

    def heard(self, event: Event) -> None:
        """The agent's listener. What belongs to a turn is shown in its order; the rest at once."""
        self.status.heard(event)
        if not self._reading_turn and not isinstance(event, self._unshown):
            self._show(event)

    async def talk(self, agent: Agent) -> None:
        """Until the end of the input, two Ctrl-C at the prompt, or /exit."""
        warned = False
        with self.interrupts.caught():
            while True:
                self._figures(agent)
                try:
                    text = (await self.reader.read()).strip()
                except KeyboardInterrupt:
                    if warned:
                        return
                    warned = True
                    self.screen.print(Text("Ctrl-C again, or Ctrl-D, ends the chat.", QUIET))
                    continue
                except EOFError:
                    return
                warned = False
                if text in LEAVING:
                    return
                if text:
                    await self._answered(agent, text)

    async def _answered(self, agent: Agent, text: str) -> None:
        command = commands.parse(text) is not None
        work = self._command(agent, text) if command else self.turn(agent, text)
        try:
            with unechoed() if self.screen.rich else contextlib.nullcontext():
                await self.interrupts.run(work, self._stopping)
        except StoppedError:
            self.screen.settle()
            self.screen.print(Text("■ stopped." if command else STOPPED, BAD))
        except EverthreadError as error:
            self.screen.settle()
            self.screen.print(Text(f"✗ {visible(str(error))}", "red"))
        except Exception as error:  # noqa: BLE001 - told, logged with its traceback, and the talk goes on
            self.screen.settle()
            self.screen.print(Text(f"✗ {visible(unforeseen(error))}", "red"))
        finally:
            self._reading_turn, self._unshown = False, ()
            self.tools.forget()

    async def turn(self, agent: Agent, text: str) -> Answer | None:
        """One turn, shown as it comes."""
        self._reading_turn, answer = True, None
        self.screen.waiting("…")
        try:
            async with contextlib.aclosing(agent.turn(text)) as items:
                async for item in items:
                    match item:
                        case StreamDelta(kind="text" | "refusal"):
                            self.screen.text(item.text)
                        case StreamDelta(kind="reasoning"):
                            self.screen.thought(item.text)
                        case StreamDelta(kind="call") if item.name:
                            self.screen.settle()
                            self.screen.waiting(f"⚙ {visible(item.name)} …")
                        case Event():
                            self._show(item)
                        case Answer():
                            answer = item
        finally:
            self._reading_turn = False
            self.screen.settle()
        return answer

    def _stopping(self) -> None:
        """What happens while a stopped turn is put in order comes by the listener alone."""
        self._reading_turn = False
        self.screen.settle()

    async def _command(self, agent: Agent, text: str) -> None:
        name, _ = commands.parse(text) or ("", "")
        self._unshown = ANSWERED.get(name, ())
        result = await commands.run(agent, agent.conversation.store, text)
        if result.switch:
            await agent.switch(result.switch)
        if result.switch or name == "undo":
            await self.account(agent)
        self.screen.settle()
        said = styled(f"{result.text}\n{EXIT}" if text == "/help" else result.text)
        self.screen.print(Text.assemble(("✗ ", BAD), said) if result.failed else said)

    def _show(self, event: Event) -> None:
        if isinstance(event, Notice) and event.passing and self.screen.rich:
            self.screen.settle()
            self.screen.waiting(f"! {visible(event.text)}")  # one line, which the next one takes the place of
            return
        line = self.tools.line_of(event) or line_of(event)
        if line is not None:
            self.screen.settle()
            self.screen.print(line)
        if running := self.tools.running:
            self.screen.settle()
            self.screen.waiting(running)

    async def account(self, agent: Agent) -> None:
        """The figures of the thread as the store has them: at the start, and in another thread."""
        store, thread = agent.conversation.store, agent.conversation.id
        self.status.restart((await load_thread_usage(store, thread))["all"], await store.compactions(thread))

    def _figures(self, agent: Agent) -> None:
        conversation = agent.conversation
        self.status.model = conversation.route.name
        self.status.tokens, self.status.window = conversation.tokens, conversation.window


async def farewell(store: Store, thread: str, options: str = "") -> Text | None:
    """The exit summary; None for a thread in which nothing was said. `options`: what must be given again."""
    if not await store.history(thread, limit=1):
        return None
    row = sum_usage("all", [*map(usage_row, (await load_thread_usage(store, thread))["all"])])
    taken = [record for record in await store.compactions(thread) if record.reverted is None]
    told = [counted(row.calls, "call"), f"{row.prompt:,} tokens read", f"{row.output:,} written"]
    if row.prompt:
        told.append(f"{share(row.cache_read, row.prompt)} from the cache")
    told.append(f"cost {cost_text(row)}" if row.calls else "no cost")
    if taken:
        told.append(counted(len(taken), "compaction"))
    return Text.assemble(
        (", ".join(told), "dim"),
        ("\nGo on with: ", "dim"),
        (f"everthread chat --resume {short(thread)}{options}", "bold"),
    )


LISTED = 10
LEAVE = ("/exit", "end the chat")


async def run_chat(
    config: Config, store: Store, model: str | None, resume: str | None, workspace: Path, *, pick: bool, yes: bool,
    again: str = "",
) -> None:  # fmt: skip
    """The whole of it; the store is closed at the end, whatever happens. `again`: options to go on with."""
    try:
        screen, status = Screen(console), Status()
        reader = _reader(screen, status, workspace)
        if resume == NO_ID:
            resume = await _picked(store, reader) if pick and reader.interactive else await latest(store)
        talk = Chat(screen, status, reader)
        # Without a terminal nobody can be asked, and what needs leave is refused.
        ask = Asker(screen, reader, talk.interrupts.happen) if reader.interactive else None

        def keep(rule: Rule) -> None:
            write_rule(home_directory(), rule)
            screen.print(Text(f"kept in {RULES_FILE}: {visible(str(rule))}", "dim"))

        approve = Approvals(read_rules(home_directory()), ask, everything=yes, keep=keep)
        if resume is not None:
            model = await resumed_model(store, resume, config, model, ask=at_terminal())
        agent = await open_agent(
            config, model=model, resume=resume, workspace=workspace, approve=approve, store=store,
            listener=talk.heard, session=None if resume else NewSession(platform=PLATFORM),
        )  # fmt: skip
        async with agent:
            await talk.account(agent)
            screen.print(greeting(agent.conversation, config, workspace, resumed=resume is not None))
            if resume is not None and (last := last_exchange(agent.conversation.messages)):
                screen.print(last)
            await talk.talk(agent)
            thread = agent.conversation.id
        if last := await farewell(store, thread, again):
            screen.print(last)
        elif resume is None:
            await store.delete_thread(thread)  # nothing was said: there is nothing to come back to
    finally:
        await store.close()


def _reader(screen: Screen, status: Status, workspace: Path) -> InputReader:
    """The editor where the terminal can show one, else lines."""
    if not (screen.rich and at_terminal()):
        return LineReader(console, interactive=at_terminal())
    from everthread.cli.chat.editor import Editor, history_file

    named = [(f"/{command.name}", command.help) for command in commands.COMMANDS]
    return Editor(screen, ChatCompleter([*named, LEAVE], workspace), history_file(home_directory()), status.line)


async def _picked(store: Store, reader: InputReader) -> str:
    """One of the last threads, by its number."""
    rows = await recent(store, LISTED)
    if not rows:
        return await latest(store)
    now = time.time()
    for number, row in enumerate(rows, 1):
        told = f"{ago(row.active, now)}, {counted(row.messages, 'message')}"
        title = await title_of(store, row.first)
        console.print(Text.assemble((f"{number:>3}  ", "bold"), f"{short(row.first.id)}  {told}  ", (title, "cyan")))
    try:
        typed = (await reader.ask(f"Which one? [1-{len(rows)}, Enter for 1]: ")).strip() or "1"
    except (KeyboardInterrupt, EOFError):
        raise typer.Exit(0) from None
    if typed.isdecimal() and 1 <= int(typed) <= len(rows):
        return rows[int(typed) - 1].first.id
    return typed
