"""The editor of a chat on a terminal, with several lines, history and completion."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.styles import Style

from everthread.cli.chat.input import CONTINUATION_PROMPT, PROMPT
from everthread.cli.chat.pastes import PasteExpandingHistory, Pastes
from everthread.cli.chat.screen import Screen
from everthread.cli.chat.type_ahead import TypeAhead

MAX_COMPLETIONS = 200
"""Maximum paths that are offered at once."""
_LAST_WORD_PATTERN = re.compile(r"[^\s'\"`(<]*$")


class ChatCompleter(Completer):
    """A completer of slash commands at the start of a line, and of paths in a word with a slash."""

    def __init__(self, commands: Sequence[tuple[str, str]], workspace: Path) -> None:
        self._commands = commands
        self._workspace = workspace

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and not re.search(r"\s", text):
            for name, description in self._commands:
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text), display_meta=description)
            if any(name.startswith(text) for name, _ in self._commands):
                return
        match = _LAST_WORD_PATTERN.search(text)
        word = match[0] if match else ""
        if complete_event.completion_requested or "/" in word:
            yield from self._complete_path(word)

    def _complete_path(self, word: str) -> Iterator[Completion]:
        folder, slash, name_start = word.rpartition("/")
        try:
            entries = sorted((self._workspace / Path(f"{folder}{slash}").expanduser()).iterdir())
        except (OSError, ValueError, RuntimeError):
            return  # not a directory
        matches = [
            entry
            for entry in entries
            if entry.name.startswith(name_start) and (name_start or entry.name[0] != ".")
        ]
        for entry in matches[:MAX_COMPLETIONS]:
            name = f"{entry.name}/" if entry.is_dir() else entry.name
            if name.isprintable():
                yield Completion(name, start_position=-len(name_start))


STYLE = Style.from_dict(
    {"bottom-toolbar": "noreverse fg:ansibrightblack", "prompt": "bold ansicyan"}
)


class Editor:
    """An `InputReader` with prompt_toolkit. Other output is printed above the line that is typed."""

    is_interactive = True

    def __init__(
        self,
        screen: Screen,
        completer: Completer,
        history_file: Path | None,
        describe_status: Callable[[], str],
    ) -> None:
        self._screen = screen
        self._pastes = Pastes()
        input_history: History = InMemoryHistory()
        if history_file is not None:
            input_history = PasteExpandingHistory(str(history_file), self._pastes)
        self._session: PromptSession[str] = PromptSession(
            FormattedText([("class:prompt", PROMPT)]),
            multiline=True,
            key_bindings=_make_key_bindings(self._pastes),
            history=input_history,
            completer=completer,
            complete_in_thread=True,
            complete_while_typing=Condition(self._is_command),
            prompt_continuation=FormattedText([("class:prompt", CONTINUATION_PROMPT)]),
            bottom_toolbar=lambda: FormattedText([("", describe_status())]),
            style=STYLE,
            enable_open_in_editor=True,
        )
        self._question_session: PromptSession[str] = PromptSession(
            history=InMemoryHistory(), style=STYLE
        )

        self._type_ahead = TypeAhead(self._session.app.input)

    async def read(self) -> str:
        return self._pastes.expand_placeholders(await self._prompt(self._session))

    async def ask(self, question: str) -> str:
        with self._type_ahead.pause():
            return (await self._prompt(self._question_session, question)).strip()

    def hold_typing(
        self, *, as_one_message: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        return self._type_ahead.hold(as_one_message=as_one_message)

    def interrupt(self) -> None:
        for session in (self._session, self._question_session):
            if session.app.is_running:
                session.app.exit(exception=KeyboardInterrupt)

    async def _prompt(self, session: PromptSession[str], *message: Any) -> str:
        self._screen.print_above = _print_above
        try:
            return await session.prompt_async(*message, handle_sigint=False)
        finally:
            self._screen.print_above = None

    def _is_command(self) -> bool:
        return self._session.default_buffer.text.startswith("/")


_pending_prints: set[asyncio.Future[Any]] = set()


def _print_above(print_output: Callable[[], None]) -> None:
    future = asyncio.ensure_future(run_in_terminal(print_output))
    _pending_prints.add(future)
    future.add_done_callback(_pending_prints.discard)


def _make_key_bindings(pastes: Pastes) -> KeyBindings:
    """Bind Enter to send, Alt-Enter or a backslash and Enter to begin a line, and Ctrl-C to clear or interrupt."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(pastes.fold(text))

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def prepare_history_file(home: Path) -> Path | None:
    """Return the file of the input history, readable by the user alone; None if it cannot be written."""
    path = home / "chat_history"
    try:
        home.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError:
        return None  # the history then lasts until the chat ends
    return path
