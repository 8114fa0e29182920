"""Run a chat from choosing the thread and opening the editor and the agent to the farewell."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import typer
from rich.text import Text

from everthread.agent import commands
from everthread.agent.approval import RULES_FILE, Approvals, Rule, read_rules, write_rule
from everthread.cli.chat.approval_prompt import ApprovalPrompt
from everthread.cli.chat.chat_loop import EXIT_COMMAND, Chat
from everthread.cli.chat.greeting import render_farewell, render_greeting, render_last_exchange
from everthread.cli.chat.input import InputReader, LineReader, is_at_terminal
from everthread.cli.chat.presence import TerminalPresence
from everthread.cli.chat.screen import Screen
from everthread.cli.chat.status_line import ChatStatus
from everthread.cli.formats import shorten_id
from everthread.cli.output import console, escape_controls, print_text
from everthread.cli.start_options import RESUME_WITHOUT_ID, StartOptions
from everthread.cli.store_access import find_latest_thread, list_recent_threads, load_short_title
from everthread.cli.terminal_agent import open_terminal_agent
from everthread.cli.times import format_age
from everthread.config import home_directory
from everthread.core.packages import require_package
from everthread.core.text import count_noun
from everthread.store.store import Store

MAX_LISTED_THREADS = 10


async def run_chat(
    start_options: StartOptions,
    store: Store,
    *,
    let_user_pick: bool,
    allow_everything: bool,
) -> None:
    """Run a chat from the greeting to the farewell, then close the store."""
    resumed_id = start_options.thread_id
    startup_stack = contextlib.ExitStack()
    try:
        screen = Screen(console)
        status = ChatStatus()
        reader = _open_reader(screen, status, start_options.workspace)
        startup_stack.enter_context(reader.hold_typing(as_one_message=True))
        if resumed_id == RESUME_WITHOUT_ID:
            can_pick = let_user_pick and reader.is_interactive
            find_thread = _pick_thread(store, reader) if can_pick else find_latest_thread(store)
            resumed_id = await find_thread
        chat = Chat(screen, status, reader=reader, presence=TerminalPresence(home_directory()))
        approvals = _make_approvals(chat, allow_everything=allow_everything)
        async with await open_terminal_agent(
            start_options, store, resumed_id, approvals, listener=chat.on_event
        ) as agent:
            await chat.load_status(agent)
            screen.print(
                render_greeting(
                    agent.conversation, start_options, is_resumed=resumed_id is not None
                )
            )
            if resumed_id is not None and (
                exchange := render_last_exchange(agent.conversation.messages)
            ):
                screen.print(exchange)
            startup_stack.close()
            await chat.read_and_answer(agent)
            thread_id = agent.conversation.id
            window = agent.conversation.window
        farewell = await render_farewell(
            store, thread_id, window=window, resume_options=start_options.resume_options
        )
        if farewell is not None:
            screen.print(farewell)
        elif resumed_id is None:
            await store.delete_thread(thread_id)  # the thread is empty
    finally:
        startup_stack.close()
        await store.close()


def _make_approvals(chat: Chat, *, allow_everything: bool) -> Approvals:
    """Return the approvals of a chat. Without a terminal no user can be asked, so unapproved calls are refused."""
    ask_user = None
    if chat.reader.is_interactive:
        ask_user = ApprovalPrompt(chat.screen, chat.reader, chat.interrupts.interrupt)

    def save_rule(rule: Rule) -> None:
        write_rule(home_directory(), rule)
        rule_text = escape_controls(str(rule))
        chat.screen.print(Text(f"written to {RULES_FILE}: {rule_text}", "dim"))

    return Approvals(
        read_rules(home_directory()),
        ask_user,
        allow_everything=allow_everything,
        store_rule=save_rule,
    )


def _open_reader(screen: Screen, status: ChatStatus, workspace: Path) -> InputReader:
    """Return the editor if the terminal can show one, else a line reader."""
    if not (screen.is_rich and is_at_terminal()):
        return LineReader(console, is_interactive=is_at_terminal())
    require_package("prompt_toolkit", extra="models")
    from everthread.cli.chat.editor import ChatCompleter, Editor, prepare_history_file

    slash_commands = [(f"/{command.name}", command.help) for command in commands.COMMANDS]
    return Editor(
        screen,
        ChatCompleter([*slash_commands, EXIT_COMMAND], workspace),
        prepare_history_file(home_directory()),
        status.as_line,
    )


async def _pick_thread(store: Store, reader: InputReader) -> str:
    """Let the user pick one of the last threads by its number."""
    rows = await list_recent_threads(store, MAX_LISTED_THREADS)
    if not rows:
        return await find_latest_thread(store)
    now = time.time()
    for number, row in enumerate(rows, 1):
        age = format_age(row.last_active, now)
        count_text = count_noun(row.message_count, "message")
        facts = f"{shorten_id(row.first.id)}  {age}, {count_text}  "
        title = await load_short_title(store, row.first)
        print_text((f"{number:>3}  ", "bold"), facts, (title, "cyan"))
    try:
        reply = (await reader.ask(f"Which one? [1-{len(rows)}, Enter for 1]: ")).strip() or "1"
    except (KeyboardInterrupt, EOFError):
        raise typer.Exit(0) from None
    if reply.isdecimal() and 1 <= int(reply) <= len(rows):
        return rows[int(reply) - 1].first.id
    return reply
