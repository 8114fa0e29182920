"""Keep keys that are typed while a chat starts or a turn runs for the next message."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import select
import sys
import termios
from collections.abc import Iterator, Sequence

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

START_BRACKETED_PASTE = "\x1b[?2004h"
END_BRACKETED_PASTE = "\x1b[?2004l"
MAX_READ_BYTES = 65_536
QUIET_SECONDS = 0.05
"""A paste has ended when no key came for this long."""
ENTER_KEYS = (Keys.ControlJ, Keys.ControlM)


class TypeAhead:
    """The keys that are typed while a chat starts or a turn runs, kept for the next prompt.

    Otherwise the keys would stay in the terminal's own queue: each line of a paste would be sent as a message or taken
    as the answer to a question, and a full queue would hold back Ctrl-C.
    """

    def __init__(self, keyboard: Input) -> None:
        self._keyboard = keyboard
        self._keys: list[KeyPress] = []
        self._parser = Vt100Parser(self._keys.append)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_holding = False

    @contextlib.contextmanager
    def hold(self, *, as_one_message: bool = False) -> Iterator[None]:
        """Inside the block, read keys without showing or using them; Ctrl-C remains a signal.

        `as_one_message`: treat several lines as one paste. The terminal does not mark a paste that began before this
        program asked for such marks, so its lines look like typed lines.
        """
        terminal = self._keyboard.fileno()
        try:
            original_settings = termios.tcgetattr(terminal)
        except termios.error:
            yield  # not a terminal
            return
        quiet_settings = [*original_settings]
        quiet_settings[0] &= ~termios.ICRNL
        quiet_settings[3] &= ~(termios.ECHO | termios.ICANON)
        quiet_settings[3] |= termios.NOFLSH  # Ctrl-C leaves a paste whole
        termios.tcsetattr(terminal, termios.TCSADRAIN, quiet_settings)
        self._parser.reset()
        self._is_holding = True
        self._listen()
        try:
            yield
        finally:
            self._is_holding = False
            quiet_seconds = QUIET_SECONDS if as_one_message and self._keys else 0
            while select.select([terminal], [], [], quiet_seconds)[0] and self._read_keys():
                pass
            self._stop_listening()
            termios.tcsetattr(terminal, termios.TCSADRAIN, original_settings)
            self._parser.flush()
            keys = join_lines(self._keys) if as_one_message else [*self._keys]
            store_typeahead(self._keyboard, keys)
            self._keys.clear()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Inside the block, let a prompt read the keyboard."""
        if not self._is_holding:
            yield
            return
        self._stop_listening()
        try:
            yield
        finally:
            self._listen()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._keyboard.fileno(), self._read_keys)
        _write_to_terminal(START_BRACKETED_PASTE)

    def _stop_listening(self) -> None:
        asyncio.get_running_loop().remove_reader(self._keyboard.fileno())
        _write_to_terminal(END_BRACKETED_PASTE)

    def _read_keys(self) -> bool:
        """Read the keys typed so far; return False if the terminal is closed."""
        try:
            data = os.read(self._keyboard.fileno(), MAX_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._keyboard.fileno())
            return False
        self._parser.feed(self._decoder.decode(data))
        return True


def join_lines(keys: Sequence[KeyPress]) -> list[KeyPress]:
    """Join several lines into one paste that is not sent yet; return a single line unchanged, with its Enter."""
    text = "".join(
        "\n" if press.key in ENTER_KEYS else press.data
        for press in keys
        if press.key in (*ENTER_KEYS, Keys.ControlI, Keys.BracketedPaste)
        or press.data.isprintable()
    ).rstrip("\n")
    if "\n" not in text:
        return [*keys]
    return [KeyPress(Keys.BracketedPaste, text)]


def _write_to_terminal(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()
