"""`everthread chat`: choose a model and a thread, talk until the user leaves."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import typer
from rich.text import Text

from everthread.agent import commands
from everthread.agent.approval import (
    RULES_FILE,
    Approvals,
    Rule,
    read_rules,
    write_rule,
)
from everthread.agent.loop import Agent
from everthread.cli.chat.answer_text import render_context, style_markup
from everthread.cli.chat.event_lines import DIM_STYLE, WARNING_STYLE
from everthread.cli.chat.greeting import (
    render_farewell,
    render_greeting,
    render_last_exchange,
)
from everthread.cli.chat.input import (
    ApprovalPrompt,
    InputReader,
    Interrupts,
    LineReader,
    StoppedError,
    is_at_terminal,
)
from everthread.cli.chat.presence import TerminalPresence
from everthread.cli.chat.screen import Screen
from everthread.cli.chat.status_line import Status
from everthread.cli.output import (
    console,
    escape_controls,
    log_unexpected_error,
    print_text,
    shorten_id,
)
from everthread.cli.session_views import load_short_title
from everthread.cli.shared_options import RESUME_WITHOUT_ID
from everthread.cli.store_access import find_latest_thread, list_recent_threads
from everthread.cli.terminal_agent import StartOptions, open_terminal_agent
from everthread.cli.times import format_age
from everthread.config import home_directory
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.core.messages import count_noun
from everthread.core.packages import require_package
from everthread.core.types import StreamDelta
from everthread.errors import EverthreadError
from everthread.store.store import Store
from everthread.thread.events import (
    CompactionDone,
    CompactionProgress,
    CompactionVoid,
    Event,
    Notice,
)
from everthread.thread.lookup.thread_usage import load_thread_usage

EXIT_COMMAND = ("/exit", "end the chat")


EXIT_WORDS = ("/exit", "/quit", "exit", "quit")


STOPPED_TEXT = "■ Stopped. The transcript records this."


EVENTS_COVERED_BY_ANSWER: dict[str, tuple[type[Event], ...]] = {
    "compress": (CompactionDone, CompactionProgress, CompactionVoid),
    "undo": (Notice, CompactionVoid),
}
"""Events that a command's own answer covers, so that they print no line."""


class Chat:
    """A chat of one user with one agent. It continues after an error."""

    def __init__(
        self,
        screen: Screen,
        status: Status,
        *,
        reader: InputReader,
        presence: TerminalPresence,
    ) -> None:
        self.screen = screen
        self.status = status
        self.reader = reader
        self._presence = presence
        self.interrupts = Interrupts(
            reader.interrupt, lambda text: screen.print(Text(text, DIM_STYLE))
        )
        self._turn_shows_events = False
        self._hidden_events: tuple[type[Event], ...] = ()

    def on_event(self, event: Event) -> None:
        """Receive an event of the agent. Show it now, unless the running turn shows its own events."""
        self.status.update(event)
        if not self._turn_shows_events and not isinstance(event, self._hidden_events):
            self.screen.show_event(event)

    async def read_and_answer(self, agent: Agent) -> None:
        """Read and answer until the end of the input, two Ctrl-C at the prompt, or /exit."""
        is_exit_announced = False
        with self.interrupts.handle_signals(), self._presence:
            while True:
                self._update_status(agent)
                self._warn_of_others(agent)
                try:
                    text = (await self.reader.read()).strip()
                except KeyboardInterrupt:
                    if is_exit_announced:
                        return
                    is_exit_announced = True
                    self.screen.print(
                        Text("Ctrl-C again, or Ctrl-D, ends the chat.", DIM_STYLE)
                    )
                    continue
                except EOFError:
                    return
                is_exit_announced = False
                if text.lower() in EXIT_WORDS:
                    return
                if text:
                    self._warn_of_others(agent)
                    await self._answer_input(agent, text)

    def _warn_of_others(self, agent: Agent) -> None:
        if warning := self._presence.enter(agent.conversation.id):
            self.screen.print(Text(f"! {warning}", WARNING_STYLE))

    async def _answer_input(self, agent: Agent, text: str) -> None:
        is_command = commands.parse(text) is not None
        work = (
            self._run_command(agent, text) if is_command else self.run_turn(agent, text)
        )
        try:
            with self.reader.hold_typing():
                await self.interrupts.run(work, self._on_stop)
        except StoppedError:
            self.screen.flush()
            self.screen.print(
                Text("■ Stopped." if is_command else STOPPED_TEXT, WARNING_STYLE)
            )
        except EverthreadError as error:
            self.screen.flush()
            self.screen.print(Text(f"✗ {escape_controls(str(error))}", "red"))
        except Exception as error:  # noqa: BLE001 - shown, logged with its traceback, and the chat goes on
            self.screen.flush()
            self.screen.print(
                Text(f"✗ {escape_controls(log_unexpected_error(error))}", "red")
            )
        finally:
            self._turn_shows_events = False
            self._hidden_events = ()
            self.screen.tools.clear()

    async def run_turn(self, agent: Agent, text: str) -> ModelAnswer | None:
        """Run one turn and show it as it streams."""
        answer = None
        self._turn_shows_events = True
        self.screen.show_waiting("…")
        try:
            async with contextlib.aclosing(agent.turn(text)) as items:
                async for item in items:
                    match item:
                        case StreamDelta(kind="text" | "refusal"):
                            self.screen.show_text(item.text)
                        case StreamDelta(kind="reasoning"):
                            self.screen.show_waiting("thinking …")
                        case StreamDelta(kind="call") if item.name:
                            self.screen.flush()
                            self.screen.show_waiting(
                                f"⚙ {escape_controls(item.name)} …"
                            )
                        case Event():
                            self.screen.show_event(item, waiting_text="…")
                        case ModelAnswer():
                            answer = item
        finally:
            self._turn_shows_events = False
            self.screen.flush()
        return answer

    def _on_stop(self) -> None:
        """Let the listener show the remaining events of the stopped turn."""
        self._turn_shows_events = False
        self.screen.flush()

    async def _run_command(self, agent: Agent, text: str) -> None:
        name, argument = commands.parse(text) or ("", "")
        self._hidden_events = EVENTS_COVERED_BY_ANSWER.get(name, ())
        result = await commands.run(agent, agent.conversation.store, text)
        if result.next_session:
            await agent.switch(result.next_session)
        if result.next_session or name == "undo":
            await self.load_status(agent)
        self.screen.flush()
        is_command_list = name == "help" and not argument
        if name == "context" and self.screen.is_rich and not result.failed:
            self.screen.print(render_context(result.data, self.screen.console.width))
            return
        answer = style_markup(
            f"{result.text}\n- `{EXIT_COMMAND[0]}`: {EXIT_COMMAND[1]}"
            if is_command_list
            else result.text
        )
        self.screen.print(
            Text.assemble(("✗ ", WARNING_STYLE), answer) if result.failed else answer
        )

    async def load_status(self, agent: Agent) -> None:
        """Load the thread's usage and compactions from the store, at the start and after a switch of threads."""
        store = agent.conversation.store
        thread = agent.conversation.id
        self.status.load(
            (await load_thread_usage(store, thread))["all"],
            await store.compactions(thread),
        )

    def _update_status(self, agent: Agent) -> None:
        conversation = agent.conversation
        self.status.model = conversation.route.name
        self.status.is_free = conversation.route.provider == "local"
        self.status.tokens = conversation.tokens
        self.status.window = conversation.window


MAX_LISTED_THREADS = 10


async def run_chat(
    start_options: StartOptions,
    store: Store,
    *,
    let_user_pick: bool,
    allow_everything: bool,
) -> None:
    """Run a chat from the greeting to the farewell, then close the store."""
    resume = start_options.thread
    startup_stack = contextlib.ExitStack()
    try:
        screen = Screen(console)
        status = Status()
        reader = _open_reader(screen, status, start_options.workspace)
        startup_stack.enter_context(reader.hold_typing(as_one_message=True))
        if resume == RESUME_WITHOUT_ID:
            can_pick = let_user_pick and reader.is_interactive
            resume = (
                await _pick_thread(store, reader)
                if can_pick
                else await find_latest_thread(store)
            )
        chat = Chat(
            screen, status, reader=reader, presence=TerminalPresence(home_directory())
        )
        approvals = _make_approvals(chat, allow_everything=allow_everything)
        async with await open_terminal_agent(
            start_options, store, resume, approvals, listener=chat.on_event
        ) as agent:
            await chat.load_status(agent)
            screen.print(
                render_greeting(
                    agent.conversation, start_options, is_resumed=resume is not None
                )
            )
            if resume is not None and (
                exchange := render_last_exchange(agent.conversation.messages)
            ):
                screen.print(exchange)
            startup_stack.close()
            await chat.read_and_answer(agent)
            thread = agent.conversation.id
            window = agent.conversation.window
        farewell = await render_farewell(
            store, thread, window=window, options=start_options.resume_options
        )
        if farewell is not None:
            screen.print(farewell)
        elif resume is None:
            await store.delete_thread(thread)  # the thread is empty
    finally:
        startup_stack.close()
        await store.close()


def _make_approvals(chat: Chat, *, allow_everything: bool) -> Approvals:
    """Return the approvals of a chat. Without a terminal no user can be asked: unapproved calls are refused."""
    ask_user = (
        ApprovalPrompt(chat.screen, chat.reader, chat.interrupts.interrupt)
        if chat.reader.is_interactive
        else None
    )

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


def _open_reader(screen: Screen, status: Status, workspace: Path) -> InputReader:
    """Return the editor if the terminal can show one, else a line reader."""
    if not (screen.is_rich and is_at_terminal()):
        return LineReader(console, is_interactive=is_at_terminal())
    require_package("prompt_toolkit", extra="models")
    from everthread.cli.chat.editor import ChatCompleter, Editor, prepare_history_file

    slash_commands = [
        (f"/{command.name}", command.help) for command in commands.COMMANDS
    ]
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
        count_text = count_noun(row.messages, "message")
        facts = f"{shorten_id(row.first.id)}  {age}, {count_text}  "
        title = await load_short_title(store, row.first)
        print_text((f"{number:>3}  ", "bold"), facts, (title, "cyan"))
    try:
        reply = (
            await reader.ask(f"Which one? [1-{len(rows)}, Enter for 1]: ")
        ).strip() or "1"
    except (KeyboardInterrupt, EOFError):
        raise typer.Exit(0) from None
    if reply.isdecimal() and 1 <= int(reply) <= len(rows):
        return rows[int(reply) - 1].first.id
    return reply
