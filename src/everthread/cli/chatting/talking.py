"""The talk: read, send, show, until somebody leaves."""

from __future__ import annotations

import contextlib

from rich.text import Text

from everthread.agent import commands
from everthread.agent.loop import Agent
from everthread.cli.chatting.interrupting import Interrupts, StoppedError
from everthread.cli.chatting.lines import BAD, QUIET, ToolLines, line_of, styled
from everthread.cli.chatting.reading import Reader, unechoed
from everthread.cli.chatting.screen import Screen
from everthread.cli.chatting.status import Status
from everthread.cli.faults import unforeseen
from everthread.cli.output import visible
from everthread.conversation.events import CompactionDone, CompactionVoid, Event, Notice
from everthread.conversation.responses import Answer
from everthread.core.exchange import StreamDelta
from everthread.errors import EverthreadError

LEAVING = ("/exit", "/quit")
STOPPED = "■ stopped; the history says so. Go on, or ask something else."
EXIT = "- `/exit`: end the chat"
ANSWERED: dict[str, tuple[type[Event], ...]] = {"compress": (CompactionDone, CompactionVoid), "undo": (Notice,)}
"""What a command's own answer tells, so that no line does."""


class Chat:
    """One person, one agent. Errors are shown, and the talk goes on."""

    def __init__(self, screen: Screen, status: Status, reader: Reader) -> None:
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
        theirs = [record for other in await store.subagents(thread) for record in await store.usage(other)]
        self.status.restart([*await store.usage(thread), *theirs], await store.compactions(thread))

    def _figures(self, agent: Agent) -> None:
        conversation = agent.conversation
        self.status.model = conversation.route.name
        self.status.tokens, self.status.window = conversation.tokens, conversation.window
