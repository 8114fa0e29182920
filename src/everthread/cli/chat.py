"""`everthread chat`: an agent in the terminal."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import typer
from rich.text import Text

from everthread.agent import commands
from everthread.agent.approval import Approvals, read_rules
from everthread.cli.chatting.asking import Asker
from everthread.cli.chatting.completing import ChatCompleter
from everthread.cli.chatting.leaving import farewell
from everthread.cli.chatting.reading import LineReader, Reader, at_terminal
from everthread.cli.chatting.screen import Screen
from everthread.cli.chatting.starting import greeting, model_for
from everthread.cli.chatting.status import Status
from everthread.cli.chatting.talking import Chat
from everthread.cli.family import title_of
from everthread.cli.output import console, counted, short
from everthread.cli.resuming import NO_ID, PLATFORM, Continue, Model, Resume, Resuming, Workspace, Yes, latest, recent
from everthread.cli.running import StoreUrl, store_address
from everthread.cli.times import ago
from everthread.config import Config, home_directory, load_config
from everthread.errors import InputError
from everthread.factory import open_agent, open_store
from everthread.store.models import NewSession
from everthread.store.store import Store

COMMAND = {"cls": Resuming}
LISTED = 10
LEAVE = ("/exit", "end the chat")


def chat(
    model: Model = None,
    resume: Resume = None,
    continue_: Continue = False,
    workspace: Workspace = ".",
    yes: Yes = False,
    store: StoreUrl = None,
) -> None:
    """Talk with a model that has tools, in this directory. Threads are kept, and outlive the model's window."""
    place = Path(workspace).expanduser().resolve()
    if not place.is_dir():
        raise InputError(f"--workspace {workspace}: there is no such directory")
    config = load_config()
    chosen = model_for(config, model, ask=at_terminal())
    opened = open_store(store_address(store))
    asked = NO_ID if continue_ and resume is None else resume
    asyncio.run(_chat(config, opened, chosen, asked, place, pick=not continue_, yes=yes))


async def _chat(
    config: Config, store: Store, model: str | None, resume: str | None, workspace: Path, *, pick: bool, yes: bool
) -> None:
    """The whole of it; the store is closed at the end, whatever happens."""
    try:
        screen, status = Screen(console), Status()
        reader = _reader(screen, status, workspace)
        if resume == NO_ID:
            resume = await _picked(store, reader) if pick and reader.interactive else await latest(store)
        talk = Chat(screen, status, reader)
        # Without a terminal nobody can be asked, and what needs leave is refused.
        ask = Asker(screen, reader, talk.interrupts.happen) if reader.interactive else None
        approve = Approvals(read_rules(home_directory()), ask, everything=yes)
        agent = await open_agent(
            config, model=model, resume=resume, workspace=workspace, approve=approve, store=store,
            listener=talk.heard, session=None if resume else NewSession(platform=PLATFORM),
        )  # fmt: skip
        async with agent:
            await talk.account(agent)
            screen.print(greeting(agent.conversation, config, workspace, resumed=resume is not None))
            await talk.talk(agent)
            thread = agent.conversation.id
        if last := await farewell(store, thread):
            screen.print(last)
        elif resume is None:
            await store.delete_thread(thread)  # nothing was said: there is nothing to come back to
    finally:
        await store.close()


def _reader(screen: Screen, status: Status, workspace: Path) -> Reader:
    """The editor where the terminal can show one, else lines."""
    if not (screen.rich and at_terminal()):
        return LineReader(console, interactive=at_terminal())
    from everthread.cli.chatting.editing import Editor, history_file

    named = [(f"/{command.name}", command.help) for command in commands.COMMANDS]
    return Editor(screen, ChatCompleter([*named, LEAVE], workspace), history_file(home_directory()), status.line)


async def _picked(store: Store, reader: Reader) -> str:
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
