"""The loop of a chat, which reads and answers messages and slash commands until the user leaves."""

from __future__ import annotations

import contextlib

from rich.text import Text

from everthread.agent import commands
from everthread.agent.loop import Agent
from everthread.cli.chat.answer_text import render_context, style_markup
from everthread.cli.chat.event_lines import DIM_STYLE, WARNING_STYLE
from everthread.cli.chat.input import InputReader
from everthread.cli.chat.interrupts import Interrupts, StoppedError
from everthread.cli.chat.presence import TerminalPresence
from everthread.cli.chat.screen import Screen
from everthread.cli.chat.status_line import ChatStatus
from everthread.cli.error_log import log_unexpected_error
from everthread.cli.output import escape_controls
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.core.types import StreamDelta
from everthread.errors import EverthreadError
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
        status: ChatStatus,
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
        """Update the status by an event of the agent, and show the event unless the running turn shows its own."""
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
                    self.screen.print(Text("Ctrl-C again, or Ctrl-D, ends the chat.", DIM_STYLE))
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
        work = self._run_command(agent, text) if is_command else self.run_turn(agent, text)
        try:
            with self.reader.hold_typing():
                await self.interrupts.run(work, self._on_stop)
        except StoppedError:
            self.screen.flush()
            self.screen.print(Text("■ Stopped." if is_command else STOPPED_TEXT, WARNING_STYLE))
        except EverthreadError as error:
            self.screen.flush()
            self.screen.print(Text(f"✗ {escape_controls(str(error))}", "red"))
        except Exception as error:  # noqa: BLE001 - shown, logged with its traceback, and the chat goes on
            self.screen.flush()
            self.screen.print(Text(f"✗ {escape_controls(log_unexpected_error(error))}", "red"))
        finally:
            self._turn_shows_events = False
            self._hidden_events = ()
            self.screen.tools.clear()

    async def run_turn(self, agent: Agent, text: str) -> ModelAnswer | None:
        """Run one turn and show it as it streams."""
        answer = None
        self._turn_shows_events = True
        self.screen.show_wait("…")
        try:
            async with contextlib.aclosing(agent.turn(text)) as items:
                async for item in items:
                    match item:
                        case StreamDelta(kind="text" | "refusal"):
                            self.screen.show_text(item.text)
                        case StreamDelta(kind="reasoning"):
                            self.screen.show_wait("thinking …")
                        case StreamDelta(kind="call") if item.name:
                            self.screen.flush()
                            self.screen.show_wait(f"⚙ {escape_controls(item.name)} …")
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
        """Run a slash command and print its answer."""
        name, argument = commands.parse(text) or ("", "")
        self._hidden_events = EVENTS_COVERED_BY_ANSWER.get(name, ())
        result = await commands.run(agent, agent.conversation.store, text)
        if result.next_session:
            await agent.switch(result.next_session)
        if result.next_session or name == "undo":
            await self.load_status(agent)
        self.screen.flush()
        if name == "context" and self.screen.is_rich and not result.failed:
            self.screen.print(render_context(result.data, self.screen.console.width))
            return
        text = result.text
        if name == "help" and not argument:
            text += f"\n- `{EXIT_COMMAND[0]}`: {EXIT_COMMAND[1]}"
        answer = style_markup(text)
        if result.failed:
            answer = Text.assemble(("✗ ", WARNING_STYLE), answer)
        self.screen.print(answer)

    async def load_status(self, agent: Agent) -> None:
        """Load the thread's usage and compactions from the store, at the start and after a switch of threads."""
        store = agent.conversation.store
        thread_id = agent.conversation.id
        usage_by_part = await load_thread_usage(store, thread_id)
        self.status.load(usage_by_part["all"], await store.list_compactions(thread_id))

    def _update_status(self, agent: Agent) -> None:
        conversation = agent.conversation
        self.status.model = conversation.route.name
        self.status.is_free = conversation.route.provider == "local"
        self.status.tokens = conversation.tokens
        self.status.window = conversation.window
